"""The common parts of recordings of one file and of several: records and tables."""

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeVar, overload

from utracefs.recordings import columns
from utracefs.recordings._columns import Batch, ColumnBatches
from utracefs.recordings._records import EventDecoder, MergedPages, Record, Records, RecordSource
from utracefs.recordings.origin import Origin
from utracefs.recordings.perf_data.reader import PerfDataReader
from utracefs.recordings.several.timeline import Clocked
from utracefs.recordings.trace_dat.reader import TraceDatReader
from utracefs.tree.event_names import EventName, no_such_event
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_format import EventFormat
from utracefs_protocol.filter import FilterError

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = ["AnyRecording", "OneFile", "Reading"]

T = TypeVar("T")


class AnyRecording(ABC):
    """A recording of one file (`Recording`) or of several (`MergedRecording`)."""

    path: str
    """The path, for messages; with several files the names of the first ones."""
    paths: Sequence[str]
    """Paths of all files."""
    format: str
    """`trace.dat` or `perf.data`."""
    clock: str
    """The name of the clock of all times, `mono` for CLOCK_MONOTONIC, `realtime` for times of day."""
    clock_in_ns: bool
    """False: the clock has another unit, and values called nanoseconds are in that unit."""
    origin: Origin
    """Host, boot, and pairs of this recording's times and times of day."""

    @property
    @abstractmethod
    def recordings(self) -> "Sequence[OneFile]":
        """One recording for each file."""

    @property
    @abstractmethod
    def labels(self) -> list[str]:
        """For each file its mark in a report: the host, the file if two have one host or one is unknown, or
        empty if there is only one file."""

    @property
    @abstractmethod
    def events(self) -> list[EventName]:
        """All events described in the files, with or without records."""

    @property
    @abstractmethod
    def formats(self) -> list[tuple[str, EventFormat]]:
        """System and format of all `events`."""

    @property
    @abstractmethod
    def selected_tracepoints(self) -> list[tuple[str, EventFormat]]:
        """System and format of all selected tracepoints, for a file with the original records."""

    @property
    @abstractmethod
    def cpu_stats(self) -> list[str]:
        """Counts of the buffers, as printed by `report --stat`; none in a perf.data."""

    @property
    @abstractmethod
    def selection(self) -> list[str]:
        """The selection, as printed; empty: all."""

    @abstractmethod
    def label(self, event_id: int) -> str:
        """Name of an event in a report."""

    @abstractmethod
    def format_of(self, event_id: int) -> EventFormat:
        """The format of an event; if the file has none, one whose name says so."""

    @abstractmethod
    def close(self) -> None:
        """Close the files. Running iterations keep them mapped until they end."""

    @abstractmethod
    def reading(self, *events: EventDecoder, apart: bool = False) -> "Reading":
        """An iterator over the records, with its progress. events: only their records; see `find_events`.
        apart: for viewers, which know one host only: process and thread ids of further hosts are above
        10,000,000, and names of threads begin with the host."""

    @abstractmethod
    def last_ns(self) -> int:
        """Time of the last record, of any event; 0 without records. Reads all of a perf.data."""

    @abstractmethod
    def decoders(self) -> list[EventDecoder]:
        """Formats of all selected events that the files describe."""

    @abstractmethod
    def find_events(self, event: str) -> list[EventDecoder]:
        """The selected event `SYSTEM:NAME` or `NAME`, all its layouts. TraceError(ENOENT): there is none;
        EINVAL: there are several."""

    @abstractmethod
    def whole_pages(self) -> tuple[MergedPages, Callable[[], float]] | None:
        """The unread pages of all records, and their reader; None if the selection needs other records or
        times, or there are no pages."""

    @property
    def is_merged(self) -> bool:
        """Whether it has records of several files."""
        return len(self.paths) > 1

    @property
    def parts(self) -> "Sequence[AnyRecording]":
        """Each file's records, with the times of all."""
        return [self]

    @property
    def ts_offsets(self) -> Sequence[int]:
        """For each file the nanoseconds that bring its times to the line of the first file's, as at the
        begin."""
        return [0]

    @property
    def notes(self) -> list[str]:
        """Lines about how the files were merged, to be printed."""
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> "Reading":
        return self.reading()

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
    def host(self) -> str:
        """The name of the host; empty if unknown."""
        return self.origin.host

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

    def find_event(self, event: str) -> EventDecoder:
        """As `find_events`; EINVAL also for one with several layouts."""
        found = self.find_events(event)
        if len(found) > 1:
            raise TraceError(errno.EINVAL, f"{self.path}: {event} has records of {len(found)} layouts")
        return found[0]

    def no_such_event(self, word: str) -> TraceError:
        """The error about a pattern without events."""
        return TraceError(errno.ENOENT, f"{self.path}: {no_such_event(word, self.events)}")

    def __repr__(self) -> str:
        about = f"{self.format}, clock {self.clock}, {len(self.events)} events"
        return f"<{type(self).__name__} {self.path}: {about}>"


class OneFile(AnyRecording):
    """A file, as `MergedRecording` reads it."""

    reader: TraceDatReader | PerfDataReader
    """The reader of the file, for whatever this class does not offer."""
    tgids: Mapping[int, int]
    """Thread id to process id, for a trace.dat, which has no processes."""
    missing: Sequence[str]
    """Patterns without an event."""
    filter_error: FilterError | None
    """The error if the filter is invalid for all events."""

    @property
    @abstractmethod
    def instances(self) -> list[str]:
        """The names of the buffers."""

    @property
    @abstractmethod
    def clocked(self) -> Clocked:
        """Description of its times."""

    @abstractmethod
    def source(self, since_ns: int | None, until_ns: int | None) -> tuple[RecordSource, Callable[[], float]]:
        """A source of all records between these times (and possibly of others), and a function that returns
        the part read."""

    @abstractmethod
    def decoder(self, event_id: int) -> EventDecoder | None:
        """The decoder of an event; None: it is not selected."""


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
