"""Recordings as a library: reads the files of `utracefs record` and `perf record`, record by record.

    with utracefs.open("trace.dat", events=["http_*"]) as recording:
        for record in recording:
            print(record.time_ns, record.comm, record.name, record.fields)

    file ─▶ TraceDatReader, PerfDataReader ─▶ RecordSource ─▶ Records ─▶ Record
                                                  │    ▲              ─▶ Batch ─▶ Arrow, pandas, polars
               of several files (several/)        └────┘

`utracefs.open` is `open` here.
"""

import builtins
import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, overload

from utracefs.recordings._columns import Batch
from utracefs.recordings._records import EventDecoder, MergedPages, Record, Records, RecordSource
from utracefs.recordings.any_recording import OneFile, Reading
from utracefs.recordings.event_filters import EventFilters
from utracefs.recordings.event_header import HeaderEvents
from utracefs.recordings.origin import Origin
from utracefs.recordings.perf_data.format import MAGIC as PERF_MAGIC
from utracefs.recordings.perf_data.reader import PerfDataReader
from utracefs.recordings.several.merged import MergedRecording
from utracefs.recordings.several.timeline import Clocked
from utracefs.recordings.trace_dat.format import CLOCKS_IN_NS
from utracefs.recordings.trace_dat.format import MAGIC as TRACE_DAT_MAGIC
from utracefs.recordings.trace_dat.reader import TraceDatReader
from utracefs.tree.event_names import EventName, matches
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_format import EventFormat
from utracefs_protocol.filter import FilterError
from utracefs_protocol.text import bytes_of, text_of

__all__ = ["Batch", "MergedRecording", "Reading", "Record", "Recording", "open"]

_READ_BYTES: Final = 16 << 20
"""Larger files are mapped: memory does not grow with the file. Of several files each has its part of it,
but at least _READ_LEAST: a mapped file needs a descriptor."""

_READ_LEAST: Final = 64 << 10


class Recording(OneFile):
    """A recording, opened by `open`: an iterable of Record in the order of time, and a context manager that
    closes the file. Each iteration starts from the beginning; several may run at a time.

    Iterating raises TraceError(EINVAL) at invalid data, after all records before it.

    is_part: its events are looked for among those of other files, too: `missing` and `filter_error` are not
    raised.
    """

    def __init__(
        self,
        reader: TraceDatReader | PerfDataReader,
        path: str,
        *,
        events: Iterable[str] = (),
        pids: Collection[int] | None = None,
        cpus: Collection[int] | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        filter: str | bytes | None = None,
        raw_eventheader: bool = False,
        is_part: bool = False,
    ) -> None:
        self.path = path
        self.paths = (path,)
        self.reader = reader
        self._patterns = tuple([events] if isinstance(events, str) else events)
        self._pids = None if pids is None else frozenset(pids)
        self._cpus = None if cpus is None else frozenset(cpus)
        self._since_ns = since_ns
        self._until_ns = until_ns
        self._decoders: dict[int, EventDecoder | None] = {}
        self.tgids = {}
        is_perf = isinstance(reader, PerfDataReader)
        self.format = "perf.data" if is_perf else "trace.dat"
        self.clock = _clock(reader)
        self.origin = _origin(reader)
        self.clock_in_ns = is_perf or self.clock in CLOCKS_IN_NS - {"uptime"} | {"boot"}
        self._header_events: Final = HeaderEvents()
        self._all_found = True
        """Whether these are all of the file."""
        if not raw_eventheader:
            for event in reader.formats.values():
                self._header_events.add(reader.systems.get(event.id, ""), event)
            self._all_found = not self._header_events.tracepoints
        events_there = [*self.events, *map(self._name, reader.formats.values())] if self._patterns else []
        self.missing = [p for p in self._patterns if not any(matches(p, e) for e in events_there)]
        if self.missing and not is_part:
            raise self.no_such_event(self.missing[0])
        self._filters: EventFilters | None = None
        self.filter_error = None
        if filter is not None:
            text = bytes_of(filter) if isinstance(filter, str) else filter
            nr_cpus = 0 if isinstance(reader, PerfDataReader) else reader.nr_cpus
            selected = [event for _, event in self.formats if self._is_wanted(event)]
            try:
                self._filters = EventFilters(text, selected, nr_cpus)
            except FilterError as error:
                if not is_part:
                    raise
                self.filter_error = error

    @property
    def events(self) -> list[EventName]:
        """All events described in the file, with or without records; of EventHeader those with records, which
        are searched for at the first call."""
        return [self._name(event) for _, event in self.formats]

    @property
    def cpu_stats(self) -> list[str]:
        """Counts of the buffers, as printed by `report --stat`; none in a perf.data."""
        return [] if isinstance(self.reader, PerfDataReader) else self.reader.cpu_stats

    @property
    def selection(self) -> list[str]:
        """The selection, as printed; empty: all."""
        found = [f"event {pattern}" for pattern in self._patterns]
        for what, numbers in (("process", self._pids), ("cpu", self._cpus)):
            found += [] if numbers is None else [f"{what} {', '.join(map(str, sorted(numbers)))}"]
        for what, time_ns in (("from", self._since_ns), ("before", self._until_ns)):
            found += [] if time_ns is None else [f"{what} {time_ns / 10**9:.9f} s"]
        return found + ([] if self._filters is None else [f"filter {text_of(self._filters.text)}"])

    @property
    def formats(self) -> list[tuple[str, EventFormat]]:
        """System and format of all `events`."""
        self._find_header_events()
        there = {event.tracepoint for event in self._header_events.events.values()}
        found = [(self._system(e), e) for e in self.reader.formats.values() if e.id not in there]
        return found + [(event.system, event.format) for event in self._header_events.events.values()]

    @property
    def selected_tracepoints(self) -> list[tuple[str, EventFormat]]:
        """System and format of all selected tracepoints, for a file with the original records: of EventHeader
        those with selected events."""
        self._find_header_events()
        there = {
            event.tracepoint
            for id_, event in self._header_events.events.items()
            if self.decoder(id_) is not None
        }
        return [
            (self._system(event), event)
            for event in self.reader.formats.values()
            if event.id in there or self.decoder(event.id) is not None
        ]

    def _find_header_events(self) -> None:
        """Read all records, up to an error, if there may be events of EventHeader."""
        if self._all_found:
            return
        self._all_found = True
        with contextlib.suppress(ValueError):
            Records(self.source(None, None, all_cpus=True)[0], lambda _: None).events()

    def label(self, event_id: int) -> str:
        """Name of an event in a report: with the provider for one of EventHeader."""
        event = self.format_of(event_id)
        header_event = self._header_events.events.get(event_id)
        name = text_of(event.name)
        return name if header_event is None or header_event.opcode < 0 else f"{header_event.system}:{name}"

    def close(self) -> None:
        """Close the file. Running iterations keep it mapped until they end."""
        self.reader.close()

    def reading(self, *events: EventDecoder, apart: bool = False) -> Reading:
        """An iterator over the records, with its progress. events: only their records; see `find_events`.
        apart: there is one host, so it changes nothing."""
        source, progress = self.source(self._since_ns, self._until_ns)
        records = Records(
            source,
            self.decoder if not events else lambda n: one if (one := self.decoder(n)) in events else None,
            instances=self.instances,
            places=[(self.host, self.path)],
            pids=self._pids,
            cpus=self._cpus,
            since_ns=self._since_ns,
            until_ns=self._until_ns,
        )
        return Reading(lambda: self.path, records, progress)

    def last_ns(self) -> int:
        """Time of the last record, of any event; 0 without records. Reads all of a perf.data."""
        if not isinstance(self.reader, PerfDataReader):
            return self.reader.last_ns()
        reading = self.reading()
        reading.events()
        return reading.records.last_ns

    def decoders(self) -> list[EventDecoder]:
        """Formats of all selected events that the file describes."""
        return [d for _, event in self.formats if (d := self.decoder(event.id)) is not None]

    def find_events(self, event: str) -> list[EventDecoder]:
        """The selected event `SYSTEM:NAME` or `NAME`, of EventHeader all its layouts. TraceError(ENOENT):
        there is none; EINVAL: there are several."""
        named = [e.id for _, e in self.formats if event in (text_of(e.name), str(self._name(e)))]
        found = [decoder for number in named if (decoder := self.decoder(number)) is not None]
        if not found:
            raise self.no_such_event(event)
        if len(found) == 1 or (all(d.opcode >= 0 for d in found) and len({d.system for d in found}) == 1):
            return found
        names = ", ".join(f"{decoder.system}:{decoder.name}" for decoder in found)
        raise TraceError(errno.EINVAL, f"{self.path}: several events are called {event}: {names}")

    def whole_pages(self) -> tuple[MergedPages, Callable[[], float]] | None:
        """The unread pages of all records, and their reader; None if the selection needs other records or
        times, or there are no pages."""
        if isinstance(self.reader, PerfDataReader) or self.reader.offset_ns:
            return None
        selections = (self._pids, self._since_ns, self._until_ns, self._filters)
        if self._patterns or any(selection is not None for selection in selections):
            return None
        return self._pages(self.reader, self._cpus)

    @property
    def recordings(self) -> "Sequence[Recording]":
        return (self,)

    @property
    def labels(self) -> list[str]:
        return [""]

    @property
    def instances(self) -> list[str]:
        """The names of the buffers."""
        return [""] if isinstance(self.reader, PerfDataReader) else [b.name for b in self.reader.buffers]

    @property
    def clocked(self) -> Clocked:
        added_ns = 0 if isinstance(self.reader, PerfDataReader) else self.reader.offset_ns
        return Clocked(self.path, self.reader.origin, self.clock, self.clock_in_ns, added_ns)

    def source(
        self, since_ns: int | None, until_ns: int | None, *, all_cpus: bool = False
    ) -> tuple[RecordSource, Callable[[], float]]:
        """A source of all records between these times (and possibly of others), and a function that returns
        the part read."""
        if isinstance(self.reader, PerfDataReader):
            samples = self.reader.samples()
            whole = self.reader.data_bytes
            return self._header_events.source(samples), lambda: samples.read_bytes / whole if whole else 1.0
        pages, done = self._pages(self.reader, None if all_cpus else self._cpus, since_ns, until_ns)
        return self._header_events.source(pages), done

    def _pages(
        self,
        reader: TraceDatReader,
        cpus: Collection[int] | None,
        since_ns: int | None = None,
        until_ns: int | None = None,
    ) -> tuple[MergedPages, Callable[[], float]]:
        offset = reader.offset_ns
        merge = reader.merge(
            cpus,
            None if since_ns is None else since_ns - offset,
            None if until_ns is None else until_ns - offset,
        )
        source = MergedPages(merge, offset_ns=offset, tgids=self.tgids)
        source.comms = reader.cmdlines
        size = merge.size_bytes
        return source, lambda: merge.read_bytes / size if size else 1.0

    def _name(self, event: EventFormat) -> EventName:
        return EventName(self._system(event), text_of(event.name))

    def _system(self, event: EventFormat) -> str:
        found = self._header_events.events.get(event.id)
        return self.reader.systems.get(event.id, "") if found is None else found.system

    def format_of(self, event_id: int) -> EventFormat:
        """The format of an event; if the file has none, one whose name says so."""
        found = self._header_events.events.get(event_id)
        if found is not None:
            return found.format
        return self.reader.formats.get(event_id) or EventFormat(b"[UNKNOWN EVENT]", event_id, (), b"")

    def decoder(self, event_id: int) -> EventDecoder | None:
        """The decoder of an event; None: it is not selected."""
        if event_id not in self._decoders:
            event = self.format_of(event_id)
            header_event = self._header_events.events.get(event_id)
            decoder = None
            if self._is_wanted(event):
                decoder = (
                    header_event.decoder() if header_event else EventDecoder(*self._name(event), event.fields)
                )
            if decoder is not None and self._filters is not None:
                decoder.filter = self._filters.of(event)
                decoder = decoder if decoder.filter is not None else None
            if self.filter_error is not None:
                decoder = None
            self._decoders[event_id] = decoder
        return self._decoders[event_id]

    def _is_wanted(self, event: EventFormat) -> bool:
        names = [self._name(event)]
        header_event = self._header_events.events.get(event.id)
        if header_event is not None:
            names.append(self._name(self.reader.formats[header_event.tracepoint]))
        return not self._patterns or any(matches(pattern, n) for pattern in self._patterns for n in names)


def _clock(reader: TraceDatReader | PerfDataReader) -> str:
    if isinstance(reader, PerfDataReader):
        return reader.clock
    return reader.buffers[0].clock if reader.buffers else "mono"


def _origin(reader: TraceDatReader | PerfDataReader) -> Origin:
    """With pairs of displayed times: `record --wall-clock` makes readers add an offset."""
    added_ns = 0 if isinstance(reader, PerfDataReader) else reader.offset_ns
    return reader.origin.with_added(added_ns)


@overload
def open(
    path: str | os.PathLike[str],
    *,
    events: Iterable[str] = ...,
    pids: Collection[int] | None = ...,
    cpus: Collection[int] | None = ...,
    since_ns: int | None = ...,
    until_ns: int | None = ...,
    filter: str | bytes | None = ...,
    recover: bool = ...,
    raw_eventheader: bool = ...,
) -> Recording: ...
@overload
def open(
    path: Sequence[str | os.PathLike[str]],
    *,
    events: Iterable[str] = ...,
    pids: Collection[int] | None = ...,
    cpus: Collection[int] | None = ...,
    since_ns: int | None = ...,
    until_ns: int | None = ...,
    filter: str | bytes | None = ...,
    recover: bool = ...,
    raw_eventheader: bool = ...,
) -> Recording | MergedRecording: ...
def open(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    events: Iterable[str] = (),
    pids: Collection[int] | None = None,
    cpus: Collection[int] | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    filter: str | bytes | None = None,
    recover: bool = False,
    raw_eventheader: bool = False,
) -> Recording | MergedRecording:
    """Open a trace.dat (version 6 or 7, not compressed) or a perf.data of tracepoint samples; several are
    merged by time.

    Of several files the times are times of day, by their `origin`; or, if all are of one boot and clock,
    those of that clock, so that their order is exact. Records of different hosts that are closer than the
    hosts' uncertainties (`MergedRecording.notes`) may be in the wrong order. A file given twice is read once.

    events: `SYSTEM:NAME`, `NAME`, or globs of either; empty: all.
    pids: process or thread ids. cpus: their numbers.
    since_ns, until_ns: from the first time on, before the second; in nanoseconds of the recording's clock, of
    several files in their common times.
    filter: an expression in the syntax of an event's filter file, `status >= 500 && comm == "nginx"`; events
    for which it is invalid, because a field is missing, say, have no records.
    recover: read as much as possible of a truncated or invalid file; `lost` is -1 where a page is missing.
    raw_eventheader: leave records of EventHeader tracepoints as the kernel describes them, instead of showing
    the events in them (docs/kernel-abi.md), which are called `PROVIDER:EVENT`.
    Do not truncate a file while it is open: it is mapped (SIGBUS), unless it is small.

    OSError: the file cannot be opened. TraceError(EINVAL): not such a file, or an invalid head, or several
    files, and the time of day is unknown for one; ENOENT: one of `events` matches no event; FilterError: the
    filter is invalid for all events.
    """
    paths = [path] if isinstance(path, str | bytes | os.PathLike) else list(path)
    if not paths:
        raise ValueError("no recording was given")
    found: dict[tuple[int, int], str | os.PathLike[str]] = {}
    for one in paths:
        found.setdefault(_identity(one), one)
    paths = list(found.values())
    selection: dict[str, Any] = {
        "events": [events] if isinstance(events, str) else list(events),
        "pids": pids,
        "cpus": cpus,
        "filter": filter,
        "raw_eventheader": raw_eventheader,
    }
    if len(paths) == 1:
        return _open(paths[0], _READ_BYTES, recover, since_ns=since_ns, until_ns=until_ns, **selection)
    read_bytes = max(_READ_BYTES // len(paths), _READ_LEAST)
    with contextlib.ExitStack() as stack:
        parts = [
            stack.enter_context(_open(one, read_bytes, recover, is_part=True, **selection)) for one in paths
        ]
        merged = MergedRecording(parts, pids=pids, cpus=cpus, since_ns=since_ns, until_ns=until_ns)
        stack.pop_all()
        return merged


def _identity(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Equal for names of one file."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _open(path: str | os.PathLike[str], read_bytes: int, recover: bool, **selection: Any) -> Recording:
    name = os.fspath(path)
    with builtins.open(name, "rb") as file:
        magic = file.read(len(TRACE_DAT_MAGIC))
    reader: TraceDatReader | PerfDataReader
    if magic == TRACE_DAT_MAGIC:
        reader = TraceDatReader(name, read_bytes=read_bytes, recover=recover)
    elif magic[:8] in (PERF_MAGIC, PERF_MAGIC[::-1]):
        reader = PerfDataReader(name, read_bytes=read_bytes, recover=recover)
    else:
        raise TraceError(errno.EINVAL, f"{os.fsdecode(name)}: is neither a trace.dat nor a perf.data")
    try:
        return Recording(reader, os.fsdecode(name), **selection)
    except BaseException:
        reader.close()
        raise
