"""Recordings as a library: reads the files of `utracefs record` and `perf record`, record by record.

with utracefs.open("trace.dat", events=["http_*"]) as recording:
    for record in recording:
        print(record.time_ns, record.comm, record.name, record.fields)

file ─▶ TraceDatReader, PerfDataReader ─▶ RecordSource ─▶ Records ─▶ Record
                                                                 ─▶ Batch ─▶ Arrow, pandas, polars
"""

import builtins
import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Self, TypeVar, overload

from utracefs.recordings import columns
from utracefs.recordings._columns import Batch, ColumnBatches
from utracefs.recordings._records import EventDecoder, MergedPages, Record, Records, RecordSource
from utracefs.recordings.event_filters import EventFilters
from utracefs.recordings.event_header import HeaderEvents
from utracefs.recordings.origin import Origin
from utracefs.recordings.perf_data.format import MAGIC as PERF_MAGIC
from utracefs.recordings.perf_data.reader import PerfDataReader
from utracefs.recordings.trace_dat.format import CLOCKS_IN_NS
from utracefs.recordings.trace_dat.format import MAGIC as TRACE_DAT_MAGIC
from utracefs.recordings.trace_dat.reader import TraceDatReader
from utracefs.tree.event_names import EventName, matches, no_such_event
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_format import EventFormat
from utracefs_protocol.text import bytes_of, text_of

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = ["Batch", "Record", "Recording", "open"]

T = TypeVar("T")

_READ_BYTES: Final = 16 << 20
"""Larger files are mapped: memory does not grow with the file."""


class Recording:
    """A recording, opened by `open`: an iterable of Record in the order of time, and a context manager that
    closes the file. Each iteration starts from the beginning; several may run at a time.

    Iterating raises TraceError(EINVAL) at invalid data, after all records before it.
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
    ) -> None:
        self.path: Final = path
        self.reader: Final = reader
        """Of the file; it has what this class does not offer."""
        self._patterns = tuple([events] if isinstance(events, str) else events)
        self._pids = None if pids is None else frozenset(pids)
        self._cpus = None if cpus is None else frozenset(cpus)
        self._since_ns = since_ns
        self._until_ns = until_ns
        self._decoders: dict[int, EventDecoder | None] = {}
        self.tgids: Mapping[int, int] = {}
        """Thread id to process id, for a trace.dat, which has no processes."""
        is_perf = isinstance(reader, PerfDataReader)
        self.format: Final = "perf.data" if is_perf else "trace.dat"
        self.clock: Final = _clock(reader)
        """The name of the clock of all times, `mono` for CLOCK_MONOTONIC."""
        self.origin: Final = _origin(reader)
        """Host, boot, and pairs of this recording's times and times of day."""
        self.clock_in_ns: Final = is_perf or self.clock in CLOCKS_IN_NS - {"uptime"} | {"boot"}
        """False: the clock has another unit, and values called nanoseconds are in that unit."""
        self._header_events: Final = HeaderEvents()
        self._all_found = True
        """Whether these are all of the file."""
        if not raw_eventheader:
            for event in reader.formats.values():
                self._header_events.add(reader.systems.get(event.id, ""), event)
            self._all_found = not self._header_events.tracepoints
        events_there = [*self.events, *map(self._name, reader.formats.values())] if self._patterns else []
        missing = [one for one in self._patterns if not any(matches(one, e) for e in events_there)]
        if missing:
            raise self._no_such_event(missing[0])
        self._filters: EventFilters | None = None
        if filter is not None:
            text = bytes_of(filter) if isinstance(filter, str) else filter
            nr_cpus = 0 if isinstance(reader, PerfDataReader) else reader.nr_cpus
            selected = [event for _, event in self.formats if self._is_wanted(event)]
            self._filters = EventFilters(text, selected, nr_cpus)

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
        """The selection, for people; empty: all."""
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
            if self._decoder(id_) is not None
        }
        return [
            (self._system(event), event)
            for event in self.reader.formats.values()
            if event.id in there or self._decoder(event.id) is not None
        ]

    def _find_header_events(self) -> None:
        """Read all records, up to an error, if there may be events of EventHeader."""
        if self._all_found:
            return
        self._all_found = True
        with contextlib.suppress(ValueError):
            Records(self._source(is_all=True)[0], lambda _: None).events()

    def label(self, event_id: int) -> str:
        """Name of an event in a report: with the provider for one of EventHeader."""
        event = self.format_of(event_id)
        header_event = self._header_events.events.get(event_id)
        name = text_of(event.name)
        return name if header_event is None or header_event.opcode < 0 else f"{header_event.system}:{name}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Running iterations keep it mapped until they end."""
        self.reader.close()

    def __iter__(self) -> "Reading":
        return self.reading()

    def reading(self, *events: EventDecoder) -> "Reading":
        """An iterator over the records, with its progress. events: only their records; see `find_events`."""
        source, progress = self._source()
        instances = [] if isinstance(self.reader, PerfDataReader) else [b.name for b in self.reader.buffers]
        records = Records(
            source,
            self._decoder if not events else lambda n: one if (one := self._decoder(n)) in events else None,
            instances=instances,
            pids=self._pids,
            cpus=self._cpus,
            since_ns=self._since_ns,
            until_ns=self._until_ns,
        )
        return Reading(self.path, records, progress)

    def events_with_records(self) -> list[EventDecoder]:
        """The selected events with records, in the order of the first ones. Reads the whole file, up to an
        error."""
        return self.reading().events()

    # Columns. Each event has a table of its own: utracefs.recordings.columns.COMMON_COLUMNS, then its fields.

    def batches(self, event: str | None = None, *, text_as_bytes: bool = False) -> Iterator[Batch]:
        """The records as columns, batch by batch, without any other library; batches of different events are
        interleaved. event: only this one, `SYSTEM:NAME` or `NAME`.

        text_as_bytes: texts are unchanged bytes; else UTF-8, with U+FFFD for other bytes.
        TraceError(ENOENT): no such event; EINVAL: several events have the name, or the data is invalid.
        """
        found = () if event is None else self.find_events(event)
        yield from self.reading(*found).batches(text_as_bytes=text_as_bytes)

    def arrow_reader(self, event: str, *, text_as_bytes: bool = False) -> "pyarrow.RecordBatchReader":
        """The table of one event, read batch by batch. Errors and parameters as `batches`."""
        found = self.find_event(event)
        schema = columns.arrow_schema(Batch(found, text_as_bytes=text_as_bytes), self.metadata)
        batches = self.reading(found).batches(text_as_bytes=text_as_bytes)
        return columns.library("pyarrow").RecordBatchReader.from_batches(
            schema, (columns.arrow_batch(batch, schema) for batch in batches)
        )

    @overload
    def to_arrow(self, event: str, *, text_as_bytes: bool = ...) -> "pyarrow.Table": ...
    @overload
    def to_arrow(self, event: None = None, *, text_as_bytes: bool = ...) -> dict[str, "pyarrow.Table"]: ...
    def to_arrow(
        self, event: str | None = None, *, text_as_bytes: bool = False
    ) -> "pyarrow.Table | dict[str, pyarrow.Table]":
        """The table of one event; without `event` those of all events with records, by `SYSTEM:NAME`.
        ImportError: pyarrow is missing. Other errors and parameters as `batches`.

        Types: integers as declared, texts `string` (with text_as_bytes `binary`), arrays and structs
        `binary`; `time_ns` is int64. The clock is in the schema's metadata, `utracefs.clock`.
        """
        return self._tables(event, text_as_bytes, lambda table: table)

    @overload
    def to_pandas(self, event: str, *, text_as_bytes: bool = ...) -> "pandas.DataFrame": ...
    @overload
    def to_pandas(
        self, event: None = None, *, text_as_bytes: bool = ...
    ) -> dict[str, "pandas.DataFrame"]: ...
    def to_pandas(
        self, event: str | None = None, *, text_as_bytes: bool = False
    ) -> "pandas.DataFrame | dict[str, pandas.DataFrame]":
        """Like `to_arrow`; integers keep their size and sign also in columns with absent values. The metadata
        are in `attrs`."""
        return self._tables(event, text_as_bytes, columns.pandas_table)

    @overload
    def to_polars(self, event: str, *, text_as_bytes: bool = ...) -> "polars.DataFrame": ...
    @overload
    def to_polars(
        self, event: None = None, *, text_as_bytes: bool = ...
    ) -> dict[str, "polars.DataFrame"]: ...
    def to_polars(
        self, event: str | None = None, *, text_as_bytes: bool = False
    ) -> "polars.DataFrame | dict[str, polars.DataFrame]":
        """Like `to_arrow`; polars has no metadata."""
        return self._tables(event, text_as_bytes, columns.library("polars").from_arrow)

    def _tables(
        self, event: str | None, text_as_bytes: bool, convert: Callable[["pyarrow.Table"], T]
    ) -> T | dict[str, T]:
        pa = columns.library("pyarrow")
        if event is not None and len(self.find_events(event)) == 1:
            return convert(self.arrow_reader(event, text_as_bytes=text_as_bytes).read_all())
        schemas: dict[EventDecoder, pyarrow.Schema] = {}
        found: dict[EventDecoder, list[pyarrow.RecordBatch]] = {}
        for batch in self.batches(event, text_as_bytes=text_as_bytes):
            decoder = batch.event
            if decoder not in found:
                schemas[decoder] = columns.arrow_schema(batch, self.metadata)
                found[decoder] = []
            found[decoder].append(columns.arrow_batch(batch, schemas[decoder]))
        tables: dict[str, pyarrow.Table] = {}
        layouts: set[str] = set()
        for decoder, batches in found.items():
            name = str(EventName(decoder.system, decoder.name))
            table = pa.Table.from_batches(batches, schemas[decoder])
            if name in layouts and decoder.opcode >= 0:
                table = columns.joined(tables.pop(name), table)
            elif decoder.opcode >= 0:
                layouts.add(name)
            # A file may describe one event twice.
            while name in tables:
                name += "'"
            tables[name] = table
        if event is not None:
            return convert(next(iter(tables.values())))
        return {name: convert(table) for name, table in tables.items()}

    @property
    def host(self) -> str:
        """The name of the host; empty if unknown."""
        return self.origin.host

    @property
    def unix_offset_ns(self) -> int | None:
        """Offset from a time to nanoseconds since 1970-01-01 UTC; None if unknown."""
        return self.origin.unix_offset_ns

    def last_ns(self) -> int:
        """Time of the last record, of any event; 0 without records. Reads all of a perf.data."""
        if not isinstance(self.reader, PerfDataReader):
            return self.reader.last_ns()
        reading = self.reading()
        reading.events()
        return reading.records.last_ns

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of tables: the clock, and the known parts of `origin`."""
        known = {"clock": self.clock, "clock_in_ns": str(self.clock_in_ns).lower()}
        if self.unix_offset_ns is not None:
            known["unix_offset_ns"] = str(self.unix_offset_ns)
        known |= {"host": self.origin.host} if self.origin.host else {}
        return known | ({"boot_id": self.origin.boot_id} if self.origin.boot_id else {})

    def decoders(self) -> list[EventDecoder]:
        """Formats of all selected events that the file describes."""
        return [d for _, event in self.formats if (d := self._decoder(event.id)) is not None]

    def find_event(self, event: str) -> EventDecoder:
        """As `find_events`; EINVAL also for one with several layouts."""
        found = self.find_events(event)
        if len(found) > 1:
            raise TraceError(errno.EINVAL, f"{self.path}: {event} has records of {len(found)} layouts")
        return found[0]

    def find_events(self, event: str) -> list[EventDecoder]:
        """The selected event `SYSTEM:NAME` or `NAME`, of EventHeader all its layouts. TraceError(ENOENT):
        there is none; EINVAL: there are several."""
        named = [e.id for _, e in self.formats if event in (text_of(e.name), str(self._name(e)))]
        found = [decoder for number in named if (decoder := self._decoder(number)) is not None]
        if not found:
            raise self._no_such_event(event)
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
        return self._merged(self.reader)

    def _no_such_event(self, word: str) -> TraceError:
        return TraceError(errno.ENOENT, f"{self.path}: {no_such_event(word, self.events)}")

    def __repr__(self) -> str:
        return f"<Recording {self.path}: {self.format}, clock {self.clock}, {len(self.events)} events>"

    def _source(self, *, is_all: bool = False) -> tuple[RecordSource, Callable[[], float]]:
        """The records, and the part read of them. is_all: of all cpus and times."""
        if isinstance(self.reader, PerfDataReader):
            samples = self.reader.samples()
            whole = self.reader.data_bytes
            return self._header_events.source(samples), lambda: samples.read_bytes / whole if whole else 1.0
        merged, done = self._merged(self.reader, is_all=is_all)
        return self._header_events.source(merged), done

    def _merged(
        self, reader: TraceDatReader, *, is_all: bool = False
    ) -> tuple[MergedPages, Callable[[], float]]:
        offset = reader.offset_ns
        merge = reader.merge(
            None if is_all else self._cpus,
            None if is_all or self._since_ns is None else self._since_ns - offset,
            None if is_all or self._until_ns is None else self._until_ns - offset,
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
        """One without a format gets a name that says so."""
        found = self._header_events.events.get(event_id)
        if found is not None:
            return found.format
        return self.reader.formats.get(event_id) or EventFormat(b"[UNKNOWN EVENT]", event_id, (), b"")

    def _decoder(self, event_id: int) -> EventDecoder | None:
        """None for an event that is not selected."""
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


class Reading:
    """One iteration over a Recording."""

    def __init__(self, path: str, records: Records, progress: Callable[[], float]) -> None:
        self._path = path
        self._progress = progress
        self.records: Final = records
        """Source for compiled readers."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        try:
            return next(self.records)
        except ValueError as error:
            raise self.broken(error) from None

    def batches(self, *, text_as_bytes: bool = False) -> Iterator[Batch]:
        """The remaining records as columns; see Recording.batches."""
        try:
            yield from ColumnBatches(self.records, text_as_bytes=text_as_bytes)
        except ValueError as error:
            raise self.broken(error) from None

    @property
    def done(self) -> float:
        """The part of the file read so far, 0 to 1."""
        return min(self._progress(), 1.0)

    def events(self) -> list[EventDecoder]:
        """Events with records, up to the end or an error."""
        return self.records.events()

    def broken(self, error: ValueError) -> TraceError:
        """The error to raise for an error of the compiled readers."""
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
    filter: str | bytes | None = None,
    recover: bool = False,
    raw_eventheader: bool = False,
) -> Recording:
    """Open a trace.dat (version 6 or 7, not compressed) or a perf.data of tracepoint samples.

    events: `SYSTEM:NAME`, `NAME`, or globs of either; empty: all.
    pids: process or thread ids. cpus: their numbers.
    since_ns, until_ns: from the first time on, before the second; in nanoseconds of the recording's clock.
    filter: an expression in the syntax of an event's filter file, `status >= 500 && comm == "nginx"`; events
    for which it is invalid, because a field is missing, say, have no records.
    recover: read as much as possible of a truncated or invalid file; `lost` is -1 where a page is missing.
    raw_eventheader: leave records of EventHeader tracepoints as the kernel describes them, instead of showing
    the events in them (docs/kernel-abi.md), which are called `PROVIDER:EVENT`.
    Do not truncate the file while it is open: it is mapped (SIGBUS), unless it is small.

    OSError: the file cannot be opened. TraceError(EINVAL): not such a file, or an invalid head; ENOENT: one
    of `events` matches no event; FilterError: the filter is invalid for all events.
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
            filter=filter,
            raw_eventheader=raw_eventheader,
        )
    except BaseException:
        reader.close()
        raise
