"""Output of `utracefs hist`: a table, a table updated in place, JSON.

{ status:        503, path: /cart   } hitcount:   2  usec:   70     the daemon's text

user_events:http_request by status,path                             the table
STATUS  PATH   HITCOUNT  USEC
   503  /cart         2    70
2 records, 1 entry
"""

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

import attrs

from utracefs.cli.common import available_events, echo, echo_json
from utracefs.cli.instance_option import Place
from utracefs.cli.tables import counted, table_lines
from utracefs.cli.terminal import live, own
from utracefs.tree.closing import Closing
from utracefs.tree.event_names import EventName, select
from utracefs.tree.histogram import Entry, Histogram, parse_histograms
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import FieldKind
from utracefs_protocol.events.event_format import parse_format
from utracefs_protocol.terminal import harmless
from utracefs_protocol.text import bytes_of, escaped, text_of, visible

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table


BAR_COLUMNS = 24
"""Width of the longest bar on a terminal; less where that has no room for it, none below the least."""

LEAST_BAR_COLUMNS = 8

MORE_LINES = 6
"""Lines of a terminal that are not entries."""


@attrs.frozen
class EventHistogram:
    event: EventName
    histogram: Histogram
    signed: frozenset[str] = frozenset()
    """Names of the event's signed fields."""

    @property
    def title(self) -> str:
        """`user_events:http_request by status,path if usec > 5`."""
        definition, _, filter_text = self.histogram.trigger.partition(" if ")
        keys = next((part[5:] for part in definition.split(":") if part.startswith("keys=")), "")
        return f"{self.event} by {keys}" + (f" if {filter_text}" if filter_text else "")

    @property
    def summary(self) -> str:
        """`12 records, 3 entries`, and the dropped ones."""
        found = self.histogram
        text = f"{counted(found.hits, 'record')}, {counted(len(found.entries), 'entry', 'entries')}"
        if found.dropped:
            text += f", {found.dropped} dropped: the table is full (--size)"
        return text + (", paused" if found.paused else "")

    def rows(self) -> list[list[str]]:
        """Names, then a row for each entry."""
        entries = self.histogram.entries
        if not entries:
            return []
        head = [name.upper() for name in (*entries[0].keys, *entries[0].values)]
        return [head, *(_cells(entry) for entry in entries)]


def _cells(entry: Entry) -> list[str]:
    """Without control characters."""
    values = (*entry.keys.values(), *entry.values.values())
    return [visible(escaped(bytes_of(str(value)))) for value in values]


class Shown:
    """Reads the histograms of the events that match a pattern."""

    def __init__(self, tree: Tracefs, place: Place, pattern: str) -> None:
        self._tree = tree
        self._place = place
        self._pattern = pattern
        self._signed: dict[EventName, frozenset[str]] = {}
        self.there: set[EventName] = set()
        """All events that existed at some time: the pattern may be misspelt."""
        self.anything = False
        """Whether a histogram was ever read."""

    def events(self) -> list[EventName]:
        """The present ones, oldest first."""
        self.there.update(events := available_events(self._tree))
        return select([self._pattern], events)

    def read(self) -> list[EventHistogram]:
        """The present counts."""
        events = self.events()
        texts = self._tree.read_files(self._place.path(f"{event.directory}/hist") for event in events)
        found = [
            EventHistogram(event, histogram, signed)
            for event, text in zip(events, texts, strict=True)
            if isinstance(text, bytes)
            for signed in [self._signed_of(event)]
            for histogram in parse_histograms(text, signed)
        ]
        self.anything |= bool(found)
        return found

    def _signed_of(self, event: EventName) -> frozenset[str]:
        found = self._signed.get(event)
        if found is None:
            try:
                fields = parse_format(self._tree.read_file(f"{event.directory}/format")).fields
            except (FileNotFoundError, TraceError):
                return frozenset()
            found = frozenset(
                text_of(field.name) for field in fields if field.kind is FieldKind.INTEGER and field.signed
            )
            self._signed[event] = found
        return found


class PlainView(Closing):
    """Tables one below the other. Call `show` for each update."""

    def close(self) -> None:
        """No cleanup."""

    def show(self, found: Sequence[EventHistogram]) -> None:
        for one in found:
            echo(one.title)
            rows = one.rows()
            for line in table_lines(rows, left=_left(one)) if rows else ():
                echo(line)
            echo(one.summary)
        sys.stdout.flush()


def _left(one: EventHistogram) -> set[int]:
    """Columns of text, which are aligned to the left."""
    entries = one.histogram.entries
    keys = len(entries[0].keys) if entries else 0
    return {
        at
        for at in range(keys)
        if any(not isinstance(list(entry.keys.values())[at], int) for entry in entries)
    }


class JsonView(PlainView):
    """One JSON list for each call."""

    def show(self, found: Sequence[EventHistogram]) -> None:
        echo_json(
            [
                {
                    "system": one.event.system,
                    "name": one.event.name,
                    "trigger": one.histogram.trigger,
                    "paused": one.histogram.paused,
                    "hits": one.histogram.hits,
                    "dropped": one.histogram.dropped,
                    "entries": [attrs.asdict(entry) for entry in one.histogram.entries],
                }
                for one in found
            ]
        )


class LiveView(PlainView):
    """Tables with bars, updated in place, with as many entries as the terminal has lines. The last state
    stays."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._size = shutil.get_terminal_size()

    def __enter__(self) -> Self:
        self._live = live()
        return self

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, found: Sequence[EventHistogram]) -> None:
        from rich.console import Group

        size = shutil.get_terminal_size()
        if self._size != size:  # rich would leave parts of lines that wrap now
            self._size = size
            own(sys.stdout).write("\033[H\033[2J")  # home, clear: ECMA-48 CUP and ED
        lines = size.lines
        most = max(3, lines // max(1, len(found)) - MORE_LINES)
        if self._live is not None and found:
            self._live.update(Group(*(_rich_table(one, most, size.columns) for one in found)), refresh=True)


def _rich_table(one: EventHistogram, most: int, columns: int) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    entries = one.histogram.entries
    left_out = len(entries) - most
    summary = one.summary + (f", {left_out} of them not shown" if left_out > 0 else "")
    table = Table(
        title=Text(_shown(one.title)),
        caption=Text(_shown(summary)),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    rows = one.rows()
    if not rows:
        return table
    left = _left(one)
    for at, name in enumerate(rows[0]):
        justify: Literal["left", "right"] = "left" if at in left else "right"
        table.add_column(Text(_shown(name)), justify=justify, overflow="ellipsis", no_wrap=True)
    # The box has three characters beside each column, the bars' too, and one at its end.
    widths = [max(map(len, column)) for column in zip(*rows[: most + 1], strict=True)]
    longest = min(BAR_COLUMNS, columns - sum(widths) - 3 * len(widths) - 4)
    has_bars = longest >= LEAST_BAR_COLUMNS
    if has_bars:
        table.add_column("", no_wrap=True, min_width=longest)
    for row, share in zip(rows[1 : most + 1], _shares(entries), strict=False):
        bar = [Text("█" * round(share * longest), style="green")] if has_bars else []
        table.add_row(*(Text(_shown(cell)) for cell in row), *bar)
    return table


def _shown(text: str) -> str:
    """U+FFFD for bytes that are not UTF-8: rich writes str, bypassing the guard of the terminal."""
    return harmless(bytes_of(text).decode("utf-8", "replace"))


def _shares(entries: Sequence[Entry]) -> list[float]:
    """Lengths of each entry's bar, 0 to 1, for its first value that is a number."""
    numbers = [
        next((float(value) for value in entry.values.values() if not isinstance(value, str)), 0.0)
        for entry in entries
    ]
    longest = max(numbers, default=0.0)
    return [number / longest if longest > 0 and number > 0 else 0.0 for number in numbers]
