"""Apache Parquet, for DuckDB, pandas, polars, Spark and others; needs pyarrow.

    OUT/event=user_events%3Ahttp_request/day=2026-11-22/host=box/part-0.parquet

A table for each event, in files by day and host; or one file with the table of one event. Columns, types
and metadata are those of `Recording.to_arrow`; `utracefs sql` finds the event in the metadata. A field with
the name of a partition (`event`, `day`, `host`) gets the prefix `field_`, too, since readers add those as
columns. Names of directories are percent-encoded except for letters, digits and `_.-~`, as in Hive (Spark's
globs refuse a colon); a name that is then too long is cut, and ends in `~` and a digest of the whole.

The day is that of UTC, by the recording's pairs of clocks (recordings/origin.py). For a recording without the
time of day, as from trace-cmd, the file's last change is taken for the time of the last record, or its times
for those since 1970 if they count 31 years. If the clock does not count nanoseconds the day is 1970-01-01.
"""

import datetime
import functools
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import quote

import attrs

from utracefs.export.common import Exported, Progress, write_parts
from utracefs.recordings import columns
from utracefs.recordings._columns import Batch
from utracefs.recordings._records import EventDecoder
from utracefs.recordings.partial_files import NO_ROOM, NoRoom, WholeFile
from utracefs.recordings.recording import Reading, Recording
from utracefs_protocol.text import bytes_of, clean

if TYPE_CHECKING:
    import pyarrow


PARTITIONS: Final = ("event", "day", "host")
"""The partitions, from the outer to the inner one."""

_OPEN_FILES: Final = 64
"""Limit of files open for writing: a recording may have thousands of events."""
DAY_NS: Final = 86400 * 10**9
_FIRST_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_UPTIME_NS: Final = 10**18
"""Clocks above 31 years count from 1970."""
_NAME_MAX: Final = 255
"""Bytes of a directory's name (NAME_MAX of Linux)."""
COMPRESSION: Final = "zstd"
_ROW_GROUP: Final = 1 << 20
_LEAST_ROWS: Final = 256
"""Rows dropped at a time."""
_END_BYTES: Final = 16 << 10
_COLUMN_BYTES: Final = 4 << 10
"""Space for Arrow's data besides values: in total, and for each column."""
_GROUP_BYTES: Final = 512
_STATISTIC_BYTES: Final = 4 << 10
"""For each row group and column, at the end of the file; values above 4 KiB are not in its statistics."""


def write_parquet(
    recording: Recording,
    directory: str | os.PathLike[str],
    *,
    host: str | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write all records into a new directory. host: in place of the file's.

    OSError: it exists (FileExistsError), or cannot be written. ImportError: pyarrow is missing. TraceError at
    invalid data, after all before it is written and the files are complete.
    """
    columns.library("pyarrow.parquet")
    os.mkdir(directory)
    files = _Files(os.fspath(directory))
    room = _Room()
    try:
        done = write_parts(recording, functools.partial(_write_part, files, room, host), progress)
    finally:
        files.close()
    return done.without(room.missing, room.error)


def _write_part(
    files: "_Files", room: "_Room", host: str | None, recording: Recording, progress: Progress | None
) -> Exported:
    where = partition("host", host or recording.host or "unknown")
    offset, day_guessed = _unix_offset(recording)
    reading = recording.reading()
    schemas: dict[EventDecoder, pyarrow.Schema] = {}
    for batch in _watched(reading, progress):
        event = batch.event
        if event not in schemas:
            schemas[event] = columns.arrow_schema(
                batch, recording.metadata, taken=PARTITIONS, key=str.casefold
            )
        name = partition("event", f"{event.system}:{event.name}")
        table = columns.arrow_batch(batch, schemas[event])
        for day, begin, end in _days(table, offset):
            write = functools.partial(files.write, f"{name}/day={day}/{where}", event)
            room.write(table.slice(begin, end - begin), write)
    return attrs.evolve(Exported.of(reading), day_guessed=day_guessed)


def write_parquet_file(
    recording: Recording, out: BinaryIO, *, event: str, progress: Progress | None = None
) -> Exported:
    """Write the records of one event, named as for `Recording.find_event`. Errors as `write_parquet`."""
    parquet = columns.library("pyarrow.parquet")
    found = recording.find_event(event)
    batch = Batch(found, with_place=recording.is_merged)
    schema = columns.arrow_schema(batch, recording.metadata, taken=PARTITIONS, key=str.casefold)
    reading = recording.reading(found)
    room = _Room()
    with parquet.ParquetWriter(out, schema, compression=COMPRESSION) as writer:
        groups = _RowGroups(writer, out)
        for batch in _watched(reading, progress):
            room.write(columns.arrow_batch(batch, schema), groups.write)
    return Exported.of(reading).without(room.missing, room.error)


class _Room:
    """Tracks space: after a failure these rows and all later ones are lost."""

    def __init__(self) -> None:
        self.error: OSError | None = None
        self.missing = 0
        """Rows."""

    def write(self, rows: "pyarrow.RecordBatch", write: Callable[["pyarrow.RecordBatch"], None]) -> None:
        """Write as many of the rows as fit."""
        if self.error is None:
            try:
                write(rows)
                return
            except NoRoom as error:
                if rows.num_rows > _LEAST_ROWS:
                    half = rows.num_rows // 2
                    self.write(rows.slice(0, half), write)
                    self.write(rows.slice(half), write)
                    return
                self.error = error
        self.missing += rows.num_rows


class _RowGroups:
    """Writes row groups. The end of the file describes each, so its size grows with their number, which is
    large where `_Room` divides rows."""

    def __init__(self, writer: Any, out: BinaryIO) -> None:
        self.writer = writer
        self._out = out
        self._described_bytes = 0
        """Space for the descriptions of the groups so far."""

    def write(self, rows: "pyarrow.RecordBatch") -> None:
        """NoRoom if the rows and the end of the file may not fit: Arrow cannot continue after an error."""
        described = self._described_bytes + sum(map(_description_bytes, rows.schema.names, rows.columns))
        if isinstance(self._out, WholeFile):
            self._out.need(2 * rows.nbytes + described + _END_BYTES + _COLUMN_BYTES * rows.num_columns)
        self.writer.write_batch(rows, _ROW_GROUP)
        self._described_bytes = described


def _description_bytes(name: str, column: Any) -> int:
    """Upper bound of a row group's description of a column: its name, numbers, and the least and the largest
    value, each twice."""
    size = _GROUP_BYTES + len(name.encode())
    arrow = columns.library("pyarrow")
    if not (arrow.types.is_string(column.type) or arrow.types.is_binary(column.type)):
        return size
    compute = columns.library("pyarrow.compute")
    longest = compute.max(compute.binary_length(column)).as_py() or 0
    return size + 4 * min(longest, _STATISTIC_BYTES)


def partition(key: str, value: str) -> str:
    """Name of a directory, `KEY=VALUE`. With U+FFFD for bytes that are not UTF-8, which readers refuse."""
    name = f"{key}={quote(clean(value), safe='')}"
    if len(name) <= _NAME_MAX:
        return name
    end = "~" + hashlib.sha256(bytes_of(value)).hexdigest()[:16]
    begin = clean(value)[:_NAME_MAX]
    while len(name) + len(end) > _NAME_MAX:
        begin = begin[:-1]
        name = f"{key}={quote(begin, safe='')}"
    return name + end


class _Files:
    """The files of a directory while they are written; the most recently used ones are open."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._open: OrderedDict[tuple[str, EventDecoder], tuple[_RowGroups, WholeFile]] = OrderedDict()
        self._parts: dict[str, int] = {}

    def write(self, folder: str, event: EventDecoder, batch: "pyarrow.RecordBatch") -> None:
        key = (folder, event)
        if key not in self._open:
            if len(self._open) == _OPEN_FILES:
                self._close(*self._open.popitem(last=False)[1])
            self._open[key] = self._create(folder, batch.schema)
        self._open.move_to_end(key)
        self._open[key][0].write(batch)

    def _create(self, folder: str, schema: "pyarrow.Schema") -> tuple[_RowGroups, WholeFile]:
        path = os.path.join(self._directory, folder)
        number = self._parts.get(folder, -1) + 1
        try:
            os.makedirs(path, exist_ok=True)
            out = WholeFile(os.path.join(path, f"part-{number}.parquet"), reserve=0)
            try:
                out.need(_END_BYTES + _COLUMN_BYTES * len(schema))
            except OSError:
                out.close()
                os.unlink(out.name)
                raise
        except OSError as error:
            raise NoRoom(error.errno, error.strerror) if error.errno in NO_ROOM else error from None
        self._parts[folder] = number
        writer = columns.library("pyarrow.parquet").ParquetWriter(out, schema, compression=COMPRESSION)
        return _RowGroups(writer, out), out

    def close(self) -> None:
        while self._open:
            self._close(*self._open.popitem()[1])

    def _close(self, groups: _RowGroups, out: WholeFile) -> None:
        with out:
            groups.writer.close()


def _watched(reading: Reading, progress: Progress | None) -> Iterator[Batch]:
    for batch in reading.batches():
        yield batch
        if progress is not None:
            progress(reading.done)


def _unix_offset(recording: Recording) -> tuple[int | None, bool]:
    """Offset from a time to nanoseconds since 1970 (None: times are no nanoseconds), and whether that is a
    guess."""
    if recording.unix_offset_ns is not None:
        return recording.unix_offset_ns, False
    if not recording.clock_in_ns:
        return None, False
    last = recording.last_ns()
    if last > _UPTIME_NS:
        return 0, True
    return os.stat(recording.path).st_mtime_ns - last, True


def day_text(number: int) -> str:
    """number: days since 1970."""
    return datetime.date.fromordinal(_FIRST_DAY + number).isoformat()


def _days(batch: "pyarrow.RecordBatch", offset: int | None) -> Iterator[tuple[str, int, int]]:
    """The days, each with its range of rows."""

    def day(time: int | None) -> str:
        if offset is None:
            return "1970-01-01"
        return day_text(((time or 0) + offset) // DAY_NS)

    times = batch.column("time_ns")
    ends = columns.library("pyarrow.compute").min_max(times)
    days = {day(ends["min"].as_py()), day(ends["max"].as_py())}
    if len(days) == 1 and not times.null_count:
        yield days.pop(), 0, batch.num_rows
        return
    at = 0
    for found, rows in groupby(times.to_pylist(), day):
        end = at + sum(1 for _ in rows)
        yield found, at, end
        at = end
