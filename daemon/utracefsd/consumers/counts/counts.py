"""The files `event_counts`: each open one counts by itself, from when globs were written to it.

    open ──▶ write globs: attached to matching events, now and later ──▶ read, repeatedly
                                                                     └─▶ close: detached

Its text has a line for each process that emitted an event:

    user_events:http_request 4711 1200 48000 0 python
    user_events:http_request -1 77 3080 0                 processes that have ended, or found the table full

event, process, records, bytes of payload, records that found their data ring full, the process's name. All
count from the beginning, so two reads give rates. An event without records has a line with process 0.
"""

import errno
import itertools
from collections.abc import Callable, Iterator

from utracefs_protocol.errors import TraceError
from utracefsd.consumers.counts._count import CountProbe, CountTable
from utracefsd.consumers.ftrace.event.event_words import check_glob, glob_matches
from utracefsd.events.event import Event
from utracefsd.events.event_table import EventTable
from utracefsd.machine.comms import CommTable

MAX_COUNTS = 16
"""Open files at a time: each of them counts each record, and may have MAX_ROWS rows (6 MiB)."""

MAX_ROWS = 1 << 16

MAX_GLOBS = 1024
"""Per open file: each glob is matched with every event that is registered. E2BIG."""

_LINES_AT_ONCE = 500
"""Lines rendered at once; then other tasks run."""

NO_PROCESS = 0
OTHERS = -1


class EventCounts:
    """One open file; `close` detaches it."""

    def __init__(
        self,
        table: EventTable,
        comms: CommTable,
        name: str,
        closed: Callable[["EventCounts"], None],
        max_rows: int = MAX_ROWS,
    ) -> None:
        self._table = table
        self._comms = comms
        self._name = name
        self._closed = closed
        self._globs: dict[bytes, None] = {}
        self._counts = CountTable(max_rows)
        self._probes: dict[Event, CountProbe] = {}
        table.on_created.append(self._look)
        table.idle.subscribers.append(self)

    def want(self, glob: bytes) -> None:
        """Count the events that match a glob of standing_events. EINVAL: not a glob; E2BIG: too many."""
        check_glob(glob)
        if glob not in self._globs and len(self._globs) >= MAX_GLOBS:
            raise TraceError(errno.E2BIG, f"event_counts takes at most {MAX_GLOBS} globs")
        self._globs[glob] = None
        for event in self._table.events():
            self._look(event)

    def _look(self, event: Event) -> None:
        if event in self._probes or not any(glob_matches(glob, event) for glob in self._globs):
            return
        probe = CountProbe(self._name, self._counts, event.id)
        self._table.attach(event, probe)
        self._probes[event] = probe

    def would_attach(self, event: Event) -> bool:
        """See idle_events.Subscriber."""
        return event in self._probes

    def let_go(self, event: Event) -> None:
        """Detach from it and drop its counts."""
        self._table.detach(event, self._probes.pop(event))
        self._counts.forget(event.id)

    def text(self) -> Iterator[bytes]:
        """The text, many lines at a time."""
        if self._counts.used > self._counts.max_rows // 2:
            probes = {event.id: probe for event, probe in self._probes.items()}
            self._counts.sweep(probes, self._comms.lives)
        names = {event.id: event.full_name for event in self._probes}
        rows = self._counts.read()
        emitted = {event_id for event_id, *_ in rows}
        for event, probe in self._probes.items():
            others = probe.read_others()
            if any(others):
                rows.append((event.id, OTHERS, *others))
            elif event.id not in emitted:
                rows.append((event.id, NO_PROCESS, 0, 0, 0))
        for at in range(0, len(rows), _LINES_AT_ONCE):
            yield b"".join(
                b"%s %d %d %d %d %s\n" % (names[event_id], pid, records, size, lost, self._comm(pid))
                for event_id, pid, records, size, lost in rows[at : at + _LINES_AT_ONCE]
            )

    def _comm(self, pid: int) -> bytes:
        return b"?".join(self._comms.comm(pid).splitlines()) if pid > 0 else b""

    def close(self) -> None:
        """A second call is harmless."""
        if self in self._table.idle.subscribers:
            self._table.idle.subscribers.remove(self)
            self._table.on_created.remove(self._look)
            for event, probe in self._probes.items():
                self._table.detach(event, probe)
            self._probes.clear()
            self._closed(self)


class EventCounters:
    """All open files `event_counts`."""

    def __init__(self, table: EventTable, comms: CommTable) -> None:
        self._table = table
        self._comms = comms
        self._numbers = itertools.count(1)
        self._open: set[EventCounts] = set()

    def open(self) -> EventCounts:
        """Open one more; `stats` of events call it `counts:N`. EMFILE: there are MAX_COUNTS."""
        if len(self._open) >= MAX_COUNTS:
            raise TraceError(errno.EMFILE, f"event_counts is open {MAX_COUNTS} times already")
        made = EventCounts(self._table, self._comms, f"counts:{next(self._numbers)}", self._open.discard)
        self._open.add(made)
        return made
