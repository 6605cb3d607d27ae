"""The screen of `utracefs top` and the effect of keys: plain state and lines of text, without a terminal.

utracefs top - 2 events, 3 processes: 12.3k records/s, 492k B/s, nothing lost
every 2 s; ring buffers: 0/s overwritten, 0/s dropped
EVENT                     PID COMMAND RECORDS/s* BYTES/s LOST/s RECORDS LOST
user_events:http_request 4711 python       12.3k    492k      0  123456    0
"""

from collections.abc import Callable, Sequence

import attrs

from utracefs.cli.live.top_rates import BOTH, EVENTS, PROCESSES, Rates, Row
from utracefs.cli.losses import share
from utracefs.cli.tables import counted, fitted, printable

KEYS = "q quit  Tab event/process  RBLTNP sort  I invert  / filter  Space pause  h help"

HELP = """\
Tab, v       rows of event and process, of events, of processes
R B L        sort by records/s, bytes/s, lost/s
T N P        sort by records in all, by name, by process
< >          sort by the column to the left, to the right
I            invert the order
/            filter by a part of event, command, pid; Enter keeps, Esc drops it
Space, p     pause: the numbers stay, counting continues
+ -          longer, shorter delay
up, down, PgUp, PgDn, Home, End
q            quit

Lost: records that found the data ring of their program full (UTRACEFS_RING_KB);
in the first line the losses of all consumers. Dim: an ended process.""".splitlines()

SORTS = ("name", "pid", "rate", "bytes", "lost", "records")
_SORT_KEYS = {"R": "rate", "B": "bytes", "L": "lost", "T": "records", "N": "name", "P": "pid"}
_VIEWS = (BOTH, EVENTS, PROCESSES)
_DELAYS = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)

_ORDER: dict[str, Callable[[Row], tuple[object, ...]]] = {
    "name": lambda row: (row.event or row.comm, row.comm, row.pid),
    "pid": lambda row: (row.pid, row.event),
    "rate": lambda row: (-row.rate, -row.records, row.event, row.pid),
    "bytes": lambda row: (-row.byte_rate, -row.bytes, row.event, row.pid),
    "lost": lambda row: (-row.lost_rate, -row.lost, -row.rate, row.event, row.pid),
    "records": lambda row: (-row.records, row.event, row.pid),
}


@attrs.frozen
class Line:
    text: str
    style: str = ""
    """A style of rich."""


def short(number: float) -> str:
    """At most five characters: 12, 1234, 12.3k, 1.23M."""
    if number < 9999.5:
        return f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
    for unit in "kMGTPE":
        number /= 1000
        if number < 999.5 or unit == "E":
            break
    return f"{number:.0f}{unit}" if number >= 99.95 else f"{number:.1f}{unit}"


def columns_of(by: str) -> list[tuple[str, str, Callable[[Row], str]]]:
    """(name, sort key, cell) of each column; columns sorted by name or pid are texts, aligned to the left."""
    first: list[tuple[str, str, Callable[[Row], str]]] = []
    if by != PROCESSES:
        first.append(("EVENT", "name", lambda row: printable(row.event)))
    if by != EVENTS:
        first.append(("PID", "pid", lambda row: str(row.pid) if row.pid > 0 else "-"))
        first.append(("COMMAND", "name", lambda row: printable(row.comm)))
    if by != BOTH:
        name = "PROCESSES" if by == EVENTS else "EVENTS"
        first.append((name, "", lambda row: str(row.others)))
    return [
        *first,
        ("RECORDS/s", "rate", lambda row: short(row.rate)),
        ("BYTES/s", "bytes", lambda row: short(row.byte_rate)),
        ("LOST/s", "lost", lambda row: short(row.lost_rate)),
        ("RECORDS", "records", lambda row: str(row.records)),
        ("LOST", "", lambda row: str(row.lost)),
    ]


@attrs.define
class View:
    """The user's choices."""

    by: str = BOTH
    sort: str = "rate"
    inverted: bool = False
    filter: str = ""
    delay_s: float = 2.0
    pids: frozenset[int] = frozenset()
    """Only these processes; none: all."""
    typing: bool = False
    paused: bool = False
    helping: bool = False
    quitting: bool = False
    first: int = 0
    """Row at the top."""
    _page: int = 10

    def press(self, key: str) -> None:
        """A character, or the name of a key: up, down, pgup, pgdn, home, end, esc."""
        if self.helping:
            self.helping = False
        elif self.typing:
            self._type(key)
        elif key in ("q", "Q", "\x03"):
            self.quitting = True
        elif key in _SORT_KEYS:
            self.sort = _SORT_KEYS[key]
        elif key in ("<", ">"):
            self._sort_beside(1 if key == ">" else -1)
        elif key in ("\t", "v"):
            self.by = _VIEWS[(_VIEWS.index(self.by) + 1) % len(_VIEWS)]
            self.first = 0
        elif key in ("I", "i"):
            self.inverted = not self.inverted
        elif key == "/":
            self.typing, self.first = True, 0
        elif key == "esc":
            self.filter = ""
        elif key in (" ", "p"):
            self.paused = not self.paused
        elif key in ("h", "?"):
            self.helping = True
        elif key in ("+", "="):
            self.delay_s = next((s for s in _DELAYS if s > self.delay_s), self.delay_s)
        elif key == "-":
            self.delay_s = next((s for s in reversed(_DELAYS) if s < self.delay_s), self.delay_s)
        else:
            steps = {"up": -1, "down": 1, "pgup": -self._page, "pgdn": self._page, "home": -(1 << 30)}
            self.first = max(0, self.first + (1 << 30 if key == "end" else steps.get(key, 0)))

    def _type(self, key: str) -> None:
        if key in ("\r", "\n"):
            self.typing = False
        elif key == "esc":
            self.typing, self.filter = False, ""
        elif key in ("\x7f", "\x08"):
            self.filter = self.filter[:-1]
        elif key == "\x15":
            self.filter = ""
        elif len(key) == 1 and key.isprintable():
            self.filter += key

    def _sort_beside(self, step: int) -> None:
        there = list(dict.fromkeys(sort for _, sort, _ in columns_of(self.by) if sort))
        at = there.index(self.sort) if self.sort in there else 0
        self.sort = there[max(0, min(len(there) - 1, at + step))]

    def rows(self, rates: Rates) -> list[Row]:
        """Selected, in order."""
        wanted = self.filter.lower()
        rows = [
            row
            for row in rates.rows(self.by)
            if (not self.pids or row.pid in self.pids or self.by == EVENTS)
            and (not wanted or any(wanted in text.lower() for text in (row.event, row.comm, str(row.pid))))
        ]
        return sorted(rows, key=_ORDER[self.sort], reverse=self.inverted)

    def table(self, rows: Sequence[Row]) -> list[list[str]]:
        """Names of columns, then cells."""
        columns = columns_of(self.by)
        return [[name for name, _, _ in columns], *([cell(row) for _, _, cell in columns] for row in rows)]

    def summary(self, rates: Rates) -> str:
        total, events, processes = rates.total(), rates.rows(EVENTS), rates.rows(PROCESSES)
        alive = sum(not row.ended and row.pid > 0 for row in processes)
        rate, of, before = rates.losses or (total.lost_rate, total.rate + total.lost_rate, total.lost)
        lost = f"{before} lost before" if before else "nothing lost"
        if rate:
            lost = f"{short(rate)}/s lost, {share(rate, of)}"
        return (
            f"{counted(len(events), 'event')}, {counted(alive, 'process', 'processes')}:"
            f" {short(total.rate)} records/s, {short(total.byte_rate)} B/s, {lost}"
        )

    def screen(self, rates: Rates, note: str, width: int, height: int) -> list[Line]:
        """All lines, cut at the width of the screen. note: about ring buffers, or why the figures do not
        change."""
        state = "PAUSED" if self.paused else f"every {self.delay_s:g} s"
        lines = [Line(f"utracefs top - {self.summary(rates)}", "bold"), Line(f"{state}; {note}")]
        if self.helping:
            lines += [Line(text) for text in HELP]
        else:
            rows = self.rows(rates)
            self._page = max(1, height - 4)
            self.first = max(0, min(self.first, len(rows) - self._page))
            shown = rows[self.first : self.first + self._page]
            lines += self._laid_out(shown, width)
        lines = lines[: max(0, height - 1)]
        lines += [Line("")] * (height - 1 - len(lines))
        if self.typing:
            lines.append(Line(f"filter: {self.filter}_", "bold"))
        else:
            filtered = f"filter: {self.filter} (Esc drops it)  " if self.filter else ""
            lines.append(Line(filtered + KEYS, "reverse"))
        return [
            attrs.evolve(line, text=line.text[:width].ljust(width if line.style else 0)) for line in lines
        ]

    def _laid_out(self, rows: Sequence[Row], width: int) -> list[Line]:
        columns = columns_of(self.by)
        texts = {at for at, (name, _, _) in enumerate(columns) if name in ("EVENT", "COMMAND")}
        # Room for the mark of the sort order in each.
        heads = [f"{name} " for name, _, _ in columns]
        table = fitted([heads, *self.table(rows)[1:]], texts, width, gap=1)
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        mark = "^" if self.inverted else "*"
        heads = [f"{name}{mark}" if sort == self.sort else name for name, sort, _ in columns]
        styles = ["reverse", *("dim" if row.ended else "red" if row.lost_rate else "" for row in rows)]
        return [
            Line(
                " ".join(
                    cell[:size].ljust(size) if at in texts else cell.rjust(size)
                    for at, (cell, size) in enumerate(zip(cells, widths, strict=True))
                ),
                style,
            )
            for cells, style in zip([heads, *table[1:]], styles, strict=True)
        ]
