"""Recordings as a library: reads the files of `utracefs record` and `perf record`, record by record.

    with utracefs.open("trace.dat", events=["http_*"]) as recording:
        for record in recording:
            print(record.time_ns, record.comm, record.name, record.fields)

    file ─▶ TraceDatReader, PerfDataReader ─▶ RecordSource ─┐
    file ─▶ ...                            ─▶ RecordSource ─┴▶ MergedSources ─▶ Records ─▶ Record
                                                                                        ─▶ Batch ─▶ Arrow

The source of a single file needs no merge. Events of one name and one declaration in several files share a
table. If the declarations differ, a table has the columns of all (`columns.joined`).

`utracefs.open` is `open` here.
"""

import builtins
import contextlib
import errno
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeVar, overload

from utracefs.recordings import columns
from utracefs.recordings._columns import Batch, ColumnBatches
from utracefs.recordings._records import EventDecoder, Record, Records, RecordSource
from utracefs.recordings.origin import ClockPair, Origin
from utracefs.recordings.perf_data.format import MAGIC as PERF_MAGIC
from utracefs.recordings.perf_data.reader import PerfDataReader
from utracefs.recordings.recorded_file import RecordedFile, Selected
from utracefs.recordings.several._sources import MergedSources
from utracefs.recordings.several.timeline import Timeline, timelines
from utracefs.recordings.trace_dat._merge import MergedPages
from utracefs.recordings.trace_dat.format import MAGIC as TRACE_DAT_MAGIC
from utracefs.recordings.trace_dat.reader import TraceDatReader
from utracefs.tree.closing import Closing
from utracefs.tree.event_names import EventName, no_such_event
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_format import EventFormat
from utracefs_protocol.text import bytes_of, text_of

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = ["Batch", "Reading", "Record", "Recording", "open"]

T = TypeVar("T")

_READ_BYTES: Final = 16 << 20
"""Larger files are mapped: memory does not grow with the file. Of several files each has its part of it,
but at least _READ_LEAST: a mapped file needs a descriptor."""

_READ_LEAST: Final = 64 << 10
_MOST_HOSTS: Final = 200
_IDS: Final = 10_000_000
"""Process ids of one host, in viewers: Linux has fewer than 2^22, and _MOST_HOSTS times that fit an int32."""
_NAMED: Final = 3
"""Files named in messages."""


class Recording(Closing):
    """A recording of one file or several, opened by `open`: an iterable of Record in the order of time, and
    a context manager that closes the files. Each iteration starts from the beginning; several may run at a
    time.

    The times of several files are times of day, or those of the clock if all are of one boot and clock.
    Invalid data ends its file; iterating raises TraceError(EINVAL) about it after all other records.
    """

    def __init__(
        self, files: Sequence[RecordedFile], selected: Selected, placed: Sequence[Timeline] = ()
    ) -> None:
        self.files: Final = tuple(files)
        """Each with its own reader."""
        self._selected: Final = selected
        self.paths: Final = tuple(one.path for one in files)
        """Paths of all files."""
        further = len(files) - _NAMED
        self.path: Final = ", ".join(self.paths[:_NAMED]) + (f" and {further} more" if further > 0 else "")
        """The path, for messages; with several files the names of the first ones."""
        if not placed:
            placed = timelines([one.clocked for one in files]) if self.is_merged else [Timeline()]
        self.timelines: Final = tuple(placed)
        """One for each file."""
        first, tells_day = files[0], placed[0].tells_day
        self.format: Final = "/".join(dict.fromkeys(one.reader.format for one in files))
        """`trace.dat` or `perf.data`, or both."""
        self.clock: Final = "realtime" if tells_day else first.reader.clock
        """The name of the clock of all times, `mono` for CLOCK_MONOTONIC, `realtime` for times of day."""
        self.clock_in_ns: Final = tells_day or first.reader.clock_in_ns
        """False: the clock has another unit, and values called nanoseconds are in that unit."""
        hosts = {one.origin.host for one in files}
        boots = {one.origin.boot_id for one in files}
        self.origin: Final = Origin(
            hosts.pop() if len(hosts) == 1 else "",
            boots.pop() if len(boots) == 1 else "",
            (ClockPair(0, 0),) if tells_day else first.origin.clocks,
        )
        """Host, boot, and pairs of this recording's times and times of day."""
        self._shared: Final[dict[object, EventDecoder]] = {}

    @property
    def is_merged(self) -> bool:
        """Whether it has records of several files."""
        return len(self.files) > 1

    @property
    def host(self) -> str:
        """The name of the host, or of all; empty if unknown."""
        return ", ".join(dict.fromkeys(one.origin.host for one in self.files if one.origin.host))

    @property
    def labels(self) -> list[str]:
        """For each file its mark in a report: the host, the file if two have one host or one is unknown, or
        empty if there is only one file."""
        if not self.is_merged:
            return [""]
        hosts = [one.origin.host for one in self.files]
        names = [os.path.basename(path) for path in self.paths]
        for labels in (hosts, names):
            if all(labels) and len(set(labels)) == len(labels):
                return labels
        return list(self.paths)

    @property
    def notes(self) -> list[str]:
        """Lines to be printed: with `recover` about what cannot be read; about how the files were merged."""
        notes = [note for one in self.files for note in getattr(one.reader, "notes", ())]
        if self.timelines[0].tells_day:
            return notes + [
                f"{one.path}: {one.origin.host or 'unknown host'}, time of day {_known_to(timeline)}"
                for one, timeline in zip(self.files, self.timelines, strict=True)
            ]
        return notes + [f"{self.path}: of one boot, merged by its clock {self.clock}"] * self.is_merged

    @property
    def parts(self) -> "Sequence[Recording]":
        """Each file's records, with the times of all."""
        return [
            Recording([one], self._selected, [timeline])
            for one, timeline in zip(self.files, self.timelines, strict=True)
        ]

    @property
    def events(self) -> list[EventName]:
        """All events described in the files, with or without records; of EventHeader those with records,
        which are searched for at the first call."""
        return list(dict.fromkeys(event for one in self.files for event in one.events))

    @property
    def formats(self) -> list[tuple[str, EventFormat]]:
        """System and format of all `events`."""
        return [pair for one in self.files for pair in one.formats]

    @property
    def selected_tracepoints(self) -> list[tuple[str, EventFormat]]:
        """System and format of all selected tracepoints, for a file with the original records: of EventHeader
        those with selected events."""
        return [pair for one in self.files for pair in one.selected_tracepoints]

    @property
    def cpu_stats(self) -> list[str]:
        """Counts of the buffers, as printed by `report --stat`; none in a perf.data."""
        return [text for one in self.files for text in one.reader.cpu_stats]

    @property
    def selection(self) -> list[str]:
        """The selection, as printed; empty: all."""
        return self._selected.words()

    @property
    def ts_offsets(self) -> list[int]:
        """For each file the nanoseconds that bring its times to the line of the first file's, as at the
        begin."""
        found = [timeline.shift_ns + timeline.offset_ns for timeline in self.timelines]
        return [offset - found[0] for offset in found]

    def label(self, event_id: int) -> str:
        """Name of an event in a report: with the provider for one of EventHeader."""
        return self.files[event_id >> 16].label(event_id & 0xFFFF)

    def format_of(self, event_id: int) -> EventFormat:
        """The format of an event; if the file has none, one whose name says so."""
        return self.files[event_id >> 16].format_of(event_id & 0xFFFF)

    def close(self) -> None:
        """Close the files. Running iterations keep them mapped until they end."""
        for one in self.files:
            one.reader.close()

    def __iter__(self) -> "Reading":
        return self.reading()

    def reading(self, *events: EventDecoder, apart: bool = False) -> "Reading":
        """An iterator over the records, with its progress. events: only their records; see `find_events`.
        apart: for viewers, which know one host only: process and thread ids of further hosts are above
        10,000,000, and names of threads begin with the host."""
        selected = self._selected
        members: list[tuple[RecordSource, Timeline, int]] = []
        done: list[Callable[[], float]] = []
        instances: list[str] = []
        for one, timeline in zip(self.files, self.timelines, strict=True):
            source, progress = one.source(
                None if selected.since_ns is None else timeline.since(selected.since_ns),
                None if selected.until_ns is None else timeline.until(selected.until_ns),
            )
            members.append((source, timeline, len(instances)))
            done.append(progress)
            instances += one.reader.instances
        merged = MergedSources(members) if self.is_merged or self.timelines[0] != Timeline() else None

        def find(event_id: int) -> EventDecoder | None:
            found = self._decoder(event_id >> 16, event_id & 0xFFFF)
            return found if not events or found in events else None

        records = Records(
            members[0][0] if merged is None else merged,
            find,
            instances=instances,
            places=[(one.origin.host, one.path) for one in self.files],
            apart=self._apart() if apart and self.is_merged else None,
            pids=selected.pids,
            cpus=selected.cpus,
            since_ns=selected.since_ns,
            until_ns=selected.until_ns,
        )
        return Reading(
            lambda: self.paths[0 if merged is None else merged.broken],
            records,
            lambda: sum(one() for one in done) / len(done),
        )

    def _apart(self) -> list[tuple[int, str]]:
        machines: dict[tuple[str, str], int] = {}
        for one in self.files:
            machines.setdefault((one.origin.boot_id or one.path, one.origin.host), len(machines))
        if len(machines) > _MOST_HOSTS:
            text = f"{len(machines)} hosts: a viewer's file can have {_MOST_HOSTS}; select fewer files"
            raise TraceError(errno.E2BIG, text)
        names = Counter(host for _, host in machines)
        found = []
        for one in self.files:
            host, boot = one.origin.host, one.origin.boot_id or one.path
            label = host if host and names[host] == 1 else f"{host} ({os.path.basename(one.path)})".lstrip()
            found.append((machines[boot, host] * _IDS, f"{label}: "))
        return found

    def last_ns(self) -> int:
        """Time of the last record, of any event; 0 without records. Reads all of a perf.data."""
        found = [
            timeline.place(last_ns)
            for one, timeline in zip(self.files, self.timelines, strict=True)
            if (last_ns := one.reader.last_ns())
        ]
        return max(found, default=0)

    def decoders(self) -> list[EventDecoder]:
        """Formats of all selected events that the files describe."""
        return self._decoders_of(lambda _: True)

    def find_events(self, event: str) -> list[EventDecoder]:
        """The selected event `SYSTEM:NAME` or `NAME`, all its layouts. TraceError(ENOENT): there is none;
        EINVAL: there are several."""
        found = self._decoders_of(lambda name: event in (name.name, str(name)))
        if not found:
            raise self.no_such_event(event)
        names = [f"{decoder.system}:{decoder.name}" for decoder in found]
        if self.is_merged or all(decoder.opcode >= 0 for decoder in found):
            names = list(dict.fromkeys(names))  # layouts of one event
        if len(names) > 1:
            text = f"{self.path}: several events are called {event}: {', '.join(names)}"
            raise TraceError(errno.EINVAL, text)
        return found

    def find_event(self, event: str) -> EventDecoder:
        """As `find_events`; EINVAL also for one with several layouts."""
        found = self.find_events(event)
        if len(found) > 1:
            raise TraceError(errno.EINVAL, f"{self.path}: {event} has records of {len(found)} layouts")
        return found[0]

    def no_such_event(self, word: str) -> TraceError:
        """The error about a pattern without events."""
        return TraceError(errno.ENOENT, f"{self.path}: {no_such_event(word, self.events)}")

    def _decoders_of(self, is_wanted: Callable[[EventName], bool]) -> list[EventDecoder]:
        found = (
            self._decoder(number, event.id)
            for number, one in enumerate(self.files)
            for system, event in one.formats
            if is_wanted(EventName(system, text_of(event.name)))
        )
        return list(dict.fromkeys(decoder for decoder in found if decoder is not None))

    def _decoder(self, number: int, event_id: int) -> EventDecoder | None:
        """One for all files that describe the event in the same way."""
        one = self.files[number]
        decoder = one.decoder(event_id)
        if decoder is None or decoder.opcode >= 0 or not self.is_merged:
            return decoder
        key = decoder.system, decoder.name, tuple(one.format_of(event_id).fields)
        return self._shared.setdefault(key, decoder)

    def whole_pages(self) -> tuple[MergedPages, Callable[[], float]] | None:
        """The unread pages of all records, and their reader; None if the selection needs other records or
        times, or there are no pages."""
        return self.files[0].whole_pages() if self.timelines == (Timeline(),) else None

    def events_with_records(self) -> list[EventDecoder]:
        """The selected events with records, in the order of the first ones. Reads the whole file, up to an
        error."""
        return self.reading().events()

    # Columns. Each event has a table of its own: COMMON_COLUMNS of _columns, then its fields.

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
        batch = Batch(found, text_as_bytes=text_as_bytes, with_place=self.is_merged)
        schema = columns.arrow_schema(batch, self.metadata)
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
        tables: dict[str, list[pyarrow.Table]] = {}
        layouts: set[str] = set()
        for decoder, batches in found.items():
            name = str(EventName(decoder.system, decoder.name))
            is_layout = decoder.opcode >= 0 or self.is_merged
            # A file may describe one event twice.
            while name in tables and not (is_layout and name in layouts):
                name += "'"
            if is_layout:
                layouts.add(name)
            tables.setdefault(name, []).append(pa.Table.from_batches(batches, schemas[decoder]))
        whole = {
            name: those[0] if len(those) == 1 else columns.joined(*those) for name, those in tables.items()
        }
        if event is not None:
            return convert(next(iter(whole.values())))
        return {name: convert(table) for name, table in whole.items()}

    @property
    def unix_offset_ns(self) -> int | None:
        """Offset from a time to nanoseconds since 1970-01-01 UTC; None if unknown."""
        return self.origin.unix_offset_ns

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of tables: the clock, and the known parts of `origin`."""
        known = {"clock": self.clock, "clock_in_ns": str(self.clock_in_ns).lower()}
        if self.unix_offset_ns is not None:
            known["unix_offset_ns"] = str(self.unix_offset_ns)
        known |= {"host": self.origin.host} if self.origin.host else {}
        return known | ({"boot_id": self.origin.boot_id} if self.origin.boot_id else {})

    def __repr__(self) -> str:
        about = f"{self.format}, clock {self.clock}, {len(self.events)} events"
        return f"<{type(self).__name__} {self.path}: {about}>"


class Reading:
    """One iteration over a Recording."""

    def __init__(self, where: Callable[[], str], records: Records, progress: Callable[[], float]) -> None:
        self._where = where
        """The path of the file with invalid data."""
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
        """Convert an error of the compiled readers to the one to raise."""
        return TraceError(
            errno.EINVAL,
            f"{self._where()}: broken: {error}; --recover (recover=True) reads what is behind it",
        )


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
) -> Recording:
    """Open a trace.dat (version 6 or 7, not compressed) or a perf.data of tracepoint samples; several are
    merged by time.

    Of several files the times are times of day, by their `origin`; or, if all are of one boot and clock,
    those of that clock, so that their order is exact. Records of different hosts that are closer than the
    hosts' uncertainties (`Recording.notes`) may be in the wrong order. A file given twice is read once.

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

    OSError: the file cannot be opened. TraceError(EINVAL): the file has another format or an invalid header,
    or one of several files has no time of day; ENOENT: one of `events` matches no event; FilterError: the
    filter is invalid for all events.
    """
    paths = [path] if isinstance(path, str | bytes | os.PathLike) else list(path)
    if not paths:
        raise ValueError("no recording was given")
    # By file, not by path: two names of one file would double its records.
    found: dict[tuple[int, int], str] = {}
    for one in paths:
        stat = os.stat(one)
        found.setdefault((stat.st_dev, stat.st_ino), os.fspath(one))
    selected = Selected(
        (events,) if isinstance(events, str) else tuple(events),
        None if pids is None else frozenset(pids),
        None if cpus is None else frozenset(cpus),
        since_ns,
        until_ns,
        bytes_of(filter) if isinstance(filter, str) else filter,
        raw_eventheader,
    )
    # Files are read at the same time, so they share the memory.
    read_bytes = _READ_BYTES if len(found) == 1 else max(_READ_BYTES // len(found), _READ_LEAST)
    with contextlib.ExitStack() as stack:
        files = []
        for name in found.values():
            reader = _reader(name, read_bytes, recover)
            stack.callback(reader.close)
            files.append(RecordedFile(reader, os.fsdecode(name), selected))
        # A pattern or a filter may be good for one file only; it is wrong when it fits none.
        recording = Recording(files, selected)
        for pattern in selected.events:
            if all(pattern in file.missing for file in files):
                raise recording.no_such_event(pattern)
        errors = [file.filter_error for file in files if file.filter_error is not None]
        if len(errors) == len(files):
            raise errors[0]
        # Until here an error closes all files; from here on they are the recording's.
        stack.pop_all()
        return recording


def _reader(path: str, read_bytes: int, recover: bool) -> TraceDatReader | PerfDataReader:
    with builtins.open(path, "rb") as file:
        magic = file.read(len(TRACE_DAT_MAGIC))
    if magic == TRACE_DAT_MAGIC:
        return TraceDatReader(path, read_bytes=read_bytes, recover=recover)
    if magic[:8] in (PERF_MAGIC, PERF_MAGIC[::-1]):
        return PerfDataReader(path, read_bytes=read_bytes, recover=recover)
    raise TraceError(errno.EINVAL, f"{os.fsdecode(path)}: is neither a trace.dat nor a perf.data")


def _known_to(timeline: Timeline) -> str:
    if timeline.uncertainty_ns is None:
        return "of unknown uncertainty (no NTP, or an older recording)"
    return f"± {timeline.uncertainty_ns / 10**6:,.3f} ms"
