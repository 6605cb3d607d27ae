"""Rates of `utracefs top` from the daemon's counts, by event and process or by either.

event_counts ──▶ counts of each (event, process) ──▶ difference to the last ones / time ──▶ Row
"""

from collections.abc import Callable, Iterable

import attrs

from utracefs.cli.common import exists
from utracefs_protocol.text import text_of

BOTH, EVENTS, PROCESSES = "both", "event", "process"
"""Grouping of rows."""

OTHERS = -1
"""Pid for processes that have ended, or for which the daemon had no room."""

FADE_S = 5.0
"""Time for which an ended process is still shown."""


@attrs.frozen
class Count:
    """One line of event_counts."""

    event: str
    pid: int
    """0: not emitted yet; OTHERS."""
    records: int
    bytes: int
    lost: int
    """In data rings."""
    comm: str


@attrs.frozen
class Row:
    """Figures of one event and process, or sums of either. Rates are per second, sums since the beginning."""

    event: str = ""
    pid: int = 0
    comm: str = ""
    rate: float = 0.0
    byte_rate: float = 0.0
    lost_rate: float = 0.0
    records: int = 0
    bytes: int = 0
    lost: int = 0
    others: int = 0
    """Processes of an event, or events of a process."""
    ended: bool = False


def parse_counts(text: bytes) -> list[Count]:
    """Parse the file event_counts; invalid lines are skipped."""
    found = []
    for line in text.splitlines():
        event, *numbers = line.split(b" ", 5)
        if len(numbers) == 5:
            pid, records, size, lost = map(int, numbers[:4])
            found.append(Count(text_of(event), pid, records, size, lost, text_of(numbers[4])))
    return found


class Rates:
    """Computes rates of successive counts. lives: whether a process of that number exists."""

    def __init__(self, lives: Callable[[int], bool] = exists) -> None:
        self._lives = lives
        self._before: dict[tuple[str, int], Count] = {}
        self._time: float | None = None
        self._active: dict[int, float] = {}
        """When a process was last seen alive."""
        self._rows: list[Row] = []
        self._totals: dict[str, tuple[int, int]] = {}
        """Records and losses of each event."""
        self.losses: tuple[float, float, int] | None = None
        """Losses of all consumers per second, of so many records per second, and the sum since the beginning;
        None: only those in data rings are known."""
        self._gone = (0, 0)
        """The same for removed events, and for counts from before a restart of the daemon."""

    @property
    def so_far(self) -> tuple[int, int]:
        """Records of all events and processes since the beginning, and those lost in data rings."""
        records, lost = zip(self._gone, *self._totals.values(), strict=True)
        return sum(records), sum(lost)

    def take(self, now_s: float, counts: Iterable[Count]) -> None:
        """Take the present counts. The first ones give no rates."""
        first, elapsed = self._time is None, now_s - (self._time or 0.0)
        before, self._before = self._before, {}
        self._time, self._rows = now_s, []
        counts = list(counts)
        self._add_up(counts)
        for count in counts:
            key = count.event, count.pid
            self._before[key] = count
            last = before.get(key)
            if last is None or last.records > count.records or last.lost > count.lost:
                last = Count(count.event, count.pid, 0, 0, 0, "")  # new, or the daemon was restarted
            rate, byte_rate, lost_rate = (
                0.0 if first or elapsed <= 0 else (now - then) / elapsed
                for now, then in (
                    (count.records, last.records),
                    (count.bytes, last.bytes),
                    (count.lost, last.lost),
                )
            )
            lives = count.pid <= 0 or rate > 0 or lost_rate > 0 or self._lives(count.pid)
            if lives or count.pid not in self._active:
                self._active[count.pid] = now_s
            comm = "(others)" if count.pid == OTHERS else count.comm
            self._rows.append(
                Row(
                    count.event,
                    count.pid,
                    comm,
                    rate,
                    byte_rate,
                    lost_rate,
                    count.records,
                    count.bytes,
                    count.lost,
                    ended=not lives,
                )
            )
        pids = {count.pid for count in self._before.values()}
        self._active = {pid: when for pid, when in self._active.items() if pid in pids}

    def _add_up(self, counts: Iterable[Count]) -> None:
        """Add up all processes of an event: the daemon joins the ended ones."""
        totals: dict[str, tuple[int, int]] = {}
        for count in counts:
            records, lost = totals.get(count.event, (0, 0))
            totals[count.event] = (records + count.records, lost + count.lost)
        for event, (records, lost) in self._totals.items():
            now = totals.get(event, (0, 0))
            if now[0] < records or now[1] < lost:
                self._gone = (self._gone[0] + records, self._gone[1] + lost)
        self._totals = totals

    def rows(self, by: str) -> list[Row]:
        """Rows by event and process, or sums of either. Processes that ended a while ago are left out, but
        included in sums of events."""
        shown = [row for row in self._rows if not self._is_over(row)]
        if by == BOTH:
            with_processes = {row.event for row in shown if row.pid}
            return [row for row in shown if row.pid or row.event not in with_processes]
        if by == EVENTS:
            return self._sums(self._rows, lambda row: row.event, lambda row: (row.event, 0, ""))
        processes = [row for row in shown if row.pid]
        return self._sums(processes, lambda row: row.pid, lambda row: ("", row.pid, row.comm))

    def total(self) -> Row:
        found = self._sums(self._rows, lambda _: 0, lambda _: ("", 0, ""))
        return found[0] if found else Row()

    def _is_over(self, row: Row) -> bool:
        if row.pid == OTHERS:
            return row.rate == 0 and row.lost_rate == 0
        return row.ended and (self._time or 0.0) - self._active.get(row.pid, 0.0) > FADE_S

    @staticmethod
    def _sums(
        rows: Iterable[Row], key: Callable[[Row], object], name: Callable[[Row], tuple[str, int, str]]
    ) -> list[Row]:
        groups: dict[object, list[Row]] = {}
        for row in rows:
            groups.setdefault(key(row), []).append(row)
        return [
            Row(
                *name(group[0]),
                sum(row.rate for row in group),
                sum(row.byte_rate for row in group),
                sum(row.lost_rate for row in group),
                sum(row.records for row in group),
                sum(row.bytes for row in group),
                sum(row.lost for row in group),
                sum(row.pid > 0 for row in group),
                all(row.ended for row in group),
            )
            for group in groups.values()
        ]
