"""Recordings as a library: what `utracefs record` and `perf record` write, record by record.

with utracefs.open("trace.dat", events=["http_*"]) as recording:
    for record in recording:
        print(record.time_ns, record.comm, record.name, record.fields)

file ─▶ TraceDatReader, PerfDataReader ─▶ RecordSource ─▶ Records ─▶ Record
"""

import builtins
import errno
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Self

from utracefs._records import EventDecoder, MergedPages, Record, Records, RecordSource
from utracefs.event_names import EventName, matches
from utracefs.perf_data import PerfDataReader
from utracefs.perf_data.format import MAGIC as PERF_MAGIC
from utracefs.trace_dat import CLOCKS_IN_NS, TraceDatReader
from utracefs.trace_dat.format import MAGIC as TRACE_DAT_MAGIC
from utracefs_protocol.errors import TraceError
from utracefs_protocol.event_format import EventFormat
from utracefs_protocol.text import text_of

__all__ = ["Record", "Recording", "open"]

_READ_BYTES: Final = 16 << 20
"""Larger files are mapped: memory does not grow with the file."""


class Recording:
    """What `open` gives: an iterable of Record in the order of time, and a context manager that closes the
    file. Each iteration begins anew; several may be under way.

    Iterating raises TraceError(EINVAL) at a place that is broken, after all records before it.
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
    ) -> None:
        self.path: Final = path
        self._reader = reader
        self._patterns = tuple([events] if isinstance(events, str) else events)
        self._pids = None if pids is None else frozenset(pids)
        self._cpus = None if cpus is None else frozenset(cpus)
        self._since_ns = since_ns
        self._until_ns = until_ns
        self._decoders: dict[int, EventDecoder | None] = {}
        self.tgids: Mapping[int, int] = {}
        """Thread id to process id, for a trace.dat, which does not know processes."""
        is_perf = isinstance(reader, PerfDataReader)
        self.format: Final = "perf.data" if is_perf else "trace.dat"
        self.clock: Final = _clock(reader)
        """The name of the clock of all times, `mono` for CLOCK_MONOTONIC."""
        self.clock_in_ns: Final = is_perf or self.clock in CLOCKS_IN_NS | {"boot"}
        """False: the clock counts something else, and what is called nanoseconds here is that."""
        missing = [pattern for pattern in self._patterns if not any(matches(pattern, e) for e in self.events)]
        if missing:
            raise TraceError(errno.ENOENT, f"{path}: no such event: {missing[0]}")

    @property
    def events(self) -> list[EventName]:
        """All that the file describes, whether it has records of them or not."""
        return [self._name(event) for event in self._reader.formats.values()]

    @property
    def formats(self) -> list[tuple[str, EventFormat]]:
        """System and format of all that the file describes."""
        return [(self._reader.systems.get(e.id, ""), e) for e in self._reader.formats.values()]

    def selects(self, event_id: int) -> bool:
        """Whether records of the event with this id are wanted."""
        return self._decoder(event_id) is not None

    @property
    def fields(self) -> dict[str, frozenset[str]]:
        """Name of each event, without its system, to the names of its fields."""
        return {
            text_of(event.name): frozenset(text_of(field.name) for field in event.fields)
            for event in self._reader.formats.values()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Iterations that are under way keep it mapped until they are gone."""
        self._reader.close()

    def __iter__(self) -> "Reading":
        return self.reading()

    def reading(self) -> "Reading":
        """An iterator over the records, which says how far it is."""
        source, progress = self._source()
        instances = [] if isinstance(self._reader, PerfDataReader) else [b.name for b in self._reader.buffers]
        records = Records(
            source,
            self._decoder,
            instances=instances,
            pids=self._pids,
            cpus=self._cpus,
            since_ns=self._since_ns,
            until_ns=self._until_ns,
        )
        return Reading(self.path, records, progress)

    def events_with_records(self) -> list[EventDecoder]:
        """The selected events of which there are records, in the order of the first ones. Reads all of the
        file; of a broken one up to the broken place."""
        return self.reading().events()

    def _source(self) -> tuple[RecordSource, Callable[[], float]]:
        if isinstance(self._reader, PerfDataReader):
            samples = self._reader.samples()
            whole = self._reader.data_bytes
            return samples, lambda: samples.read_bytes / whole if whole else 1.0
        offset = self._reader.offset_ns
        merge = self._reader.merge(
            self._cpus,
            None if self._since_ns is None else self._since_ns - offset,
            None if self._until_ns is None else self._until_ns - offset,
        )
        source = MergedPages(merge, offset_ns=offset, tgids=self.tgids)
        source.comms = self._reader.cmdlines
        size = merge.size_bytes
        return source, lambda: merge.read_bytes / size if size else 1.0

    def _name(self, event: EventFormat) -> EventName:
        return EventName(self._reader.systems.get(event.id, ""), text_of(event.name))

    def _decoder(self, event_id: int) -> EventDecoder | None:
        """None for an event that was not asked for. One without a format has a name that says so."""
        if event_id not in self._decoders:
            event = self._reader.formats.get(event_id) or EventFormat(b"[UNKNOWN EVENT]", event_id, (), b"")
            name = self._name(event)
            wanted = not self._patterns or any(matches(pattern, name) for pattern in self._patterns)
            self._decoders[event_id] = EventDecoder(*name, event.fields) if wanted else None
        return self._decoders[event_id]


def _clock(reader: TraceDatReader | PerfDataReader) -> str:
    if isinstance(reader, PerfDataReader):
        return reader.clock
    return reader.buffers[0].clock if reader.buffers else "mono"


class Reading:
    """One iteration over a Recording."""

    def __init__(self, path: str, records: Records, progress: Callable[[], float]) -> None:
        self._path = path
        self._progress = progress
        self.records: Final = records
        """For compiled readers."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        try:
            return next(self.records)
        except ValueError as error:
            raise self.broken(error) from None

    @property
    def done(self) -> float:
        """The part of the file that was read, 0 to 1."""
        return min(self._progress(), 1.0)

    def events(self) -> list[EventDecoder]:
        """Those of which there are records, up to the end or what is broken."""
        return self.records.events()

    def broken(self, error: ValueError) -> TraceError:
        """What to raise for what the compiled readers raise."""
        return TraceError(
            errno.EINVAL, f"{self._path}: broken: {error}; --recover (recover=True) reads what is behind it"
        )


def open(
    path: str | os.PathLike[str],
    *,
    events: Iterable[str] = (),
    pids: Collection[int] | None = None,
    cpus: Collection[int] | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    recover: bool = False,
) -> Recording:
    """Open a trace.dat (version 6 or 7, not compressed) or a perf.data of tracepoint samples.

    events: `SYSTEM:NAME`, `NAME`, or globs of either; empty: all.
    pids: process or thread ids. cpus: their numbers.
    since_ns, until_ns: from the first time on, before the second; in nanoseconds of the recording's clock.
    recover: give what can be saved of a file that is cut off or broken; `lost` is -1 where a page is missing.
    Nobody may make the file shorter while it is open: it is mapped (SIGBUS), unless it is small.

    OSError: the file cannot be opened. TraceError(EINVAL): it is no such file, or its head is broken; ENOENT:
    it has no event that one of `events` means.
    """
    name = os.fspath(path)
    with builtins.open(name, "rb") as file:
        magic = file.read(len(TRACE_DAT_MAGIC))
    reader: TraceDatReader | PerfDataReader
    if magic == TRACE_DAT_MAGIC:
        reader = TraceDatReader(name, read_bytes=_READ_BYTES, recover=recover)
    elif magic[:8] in (PERF_MAGIC, PERF_MAGIC[::-1]):
        reader = PerfDataReader(name, read_bytes=_READ_BYTES, recover=recover)
    else:
        raise TraceError(errno.EINVAL, f"{os.fsdecode(name)}: is neither a trace.dat nor a perf.data")
    try:
        return Recording(
            reader,
            os.fsdecode(name),
            events=events,
            pids=pids,
            cpus=cpus,
            since_ns=since_ns,
            until_ns=until_ns,
        )
    except BaseException:
        reader.close()
        raise
