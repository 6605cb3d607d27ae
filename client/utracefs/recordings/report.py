"""The text of a trace.dat, in the format of `trace-cmd report`.

    cpus=2
               alpha-11    [000]   100.000000: test:                 count=7
    CPU:0 [1234 EVENTS DROPPED]
           beta task-12    [000]   100.000351: rpc:                  method=Get latency_ns=1500 status=-2

The fields of a record are printed by the event's own print fmt (`EventPrinter` of the protocol, compiled,
like the lines: `_report_text`).

The text is that of trace-cmd 3.1.6 (libtraceevent 1.7.1), line by line, except where that is wrong:

| field | trace-cmd | here |
|---|---|---|
| s8, s16, char below zero | as unsigned: 248, except in files of `utracefs record` | -8 |
| struct of a size other than 1, 2, 4, 8 | 0 | its bytes in hex |
| dynamic array other than a string | the location word | its bytes in hex |
| record of an unknown event | [UNKNOWN EVENT] three times | once, with its id |
"""

from collections.abc import Iterator
from typing import Final

import attrs

from utracefs.recordings._report_text import ReportText
from utracefs.recordings.event_filters import EventFilters
from utracefs.recordings.trace_dat.format import CLOCKS_IN_NS
from utracefs.recordings.trace_dat.reader import TraceDatReader
from utracefs.tree.event_names import EventName, matches
from utracefs_protocol._event_printer import EventPrinter
from utracefs_protocol.event_format import EventFormat
from utracefs_protocol.filter import Filter
from utracefs_protocol.text import bytes_of, text_of

__all__ = ["ReportOptions", "report_text"]

_NAME_WIDTH: Final = 20
"""trace-cmd pads `NAME: ` to align the fields."""

_PIECE_BYTES: Final = 64 << 10
"""Bytes of text at a time: it stays in the cache, and `| head` need not wait."""


@attrs.frozen
class ReportOptions:
    """Options of a report."""

    full_ns: bool = False
    """All nine digits of the time."""
    cpus: frozenset[int] | None = None
    """Only these; None: all."""
    events: tuple[str, ...] = ()
    """Only events that match one of these patterns; empty: all."""
    filter: bytes | None = None
    """Only records that pass; see EventFilters."""
    since_ns: int | None = None
    """From this time on, in times of the report."""
    until_ns: int | None = None
    """Before this time."""
    pids: frozenset[int] | None = None
    """Only records of these threads; None: all."""
    one_line: bool = False
    """`?` for a newline in a string."""


def report_text(reader: TraceDatReader, options: ReportOptions) -> Iterator[bytes]:
    """Yields the report, many whole lines at a time. FilterError, first: the filter is invalid. ValueError at
    an invalid page, after the lines before it."""
    names = [buffer.name for buffer in reader.buffers]
    width = max(map(len, names), default=0)
    prefixes = [(f"{name:>{width}}: " if name else " " * (width + 2)) if width else "" for name in names]
    events = _Events(reader, options.events, options.filter)

    def printer(event_id: int) -> tuple[bytes, EventPrinter, Filter | None] | None:
        if (event := events.wanted(event_id)) is None:
            return None
        system = events.system(event_id)
        printer = EventPrinter(event, system=system, symbols=reader.kallsyms, one_line=options.one_line)
        return bytes_of(f"{printer.name}: ".ljust(_NAME_WIDTH + 2)), printer, events.filter(event_id)

    since, until = (
        None if time is None else max(time - reader.offset_ns, 0)
        for time in (options.since_ns, options.until_ns)
    )
    text = ReportText(
        reader.merge(options.cpus, since, until),
        [bytes_of(prefix) for prefix in prefixes],
        [buffer.clock in CLOCKS_IN_NS for buffer in reader.buffers],
        printer,
        lambda pid: bytes_of(f"{reader.comm(pid):>16}-{pid:<5} ["),
        offset_ns=reader.offset_ns,
        full_ns=options.full_ns,
        comms=reader.cmdlines,
        since=since or 0,
        until=(1 << 64) - 1 if until is None else until,
        pids=options.pids,
    )
    yield b"cpus=%d\n" % reader.nr_cpus
    while piece := text.read(_PIECE_BYTES):
        yield piece


class _Events:
    """The selected events of a file; looked up when first needed."""

    def __init__(self, reader: TraceDatReader, patterns: tuple[str, ...], text: bytes | None) -> None:
        self._reader = reader
        self._patterns = patterns
        self._wanted: dict[int, EventFormat | None] = {}
        self._filters: EventFilters | None = None
        self._filter_of: dict[int, Filter | None] = {}
        if text is not None:
            selected = [event for number in reader.formats if (event := self.wanted(number)) is not None]
            self._filters = EventFilters(text, selected, reader.nr_cpus)
            self._wanted.clear()

    def system(self, event_id: int) -> str:
        return self._reader.systems.get(event_id, "")

    def wanted(self, event_id: int) -> EventFormat | None:
        """None for an event that is not selected."""
        try:
            return self._wanted[event_id]
        except KeyError:
            return self._wanted.setdefault(event_id, self._find(event_id))

    def filter(self, event_id: int) -> Filter | None:
        """Filter of a selected event; None: all its records."""
        return self._filter_of.get(event_id)

    def _find(self, event_id: int) -> EventFormat | None:
        event = self._reader.formats.get(event_id)
        if event is None:
            event = EventFormat(b"[UNKNOWN EVENT]", event_id, (), b"")
        name = EventName(self.system(event_id), text_of(event.name))
        if self._patterns and not any(matches(pattern, name) for pattern in self._patterns):
            return None
        if self._filters is not None:
            self._filter_of[event_id] = self._filters.of(event)
            return event if self._filter_of[event_id] is not None else None
        return event
