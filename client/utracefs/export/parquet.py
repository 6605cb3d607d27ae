"""Apache Parquet, for DuckDB, pandas, polars, Spark and the like; needs pyarrow.

    OUT/event=user_events:http_request/day=2026-11-22/host=box/part-0.parquet

A table for each event, in files of a day and a host; or one file with the table of one event. Columns and
types are those of `Recording.to_arrow`, and so are the metadata, by which `utracefs sql` knows the event. A
field that is called as a partition (`event`, `day`, `host`) gets `field_` in front, too, since readers add
those as columns. In names of directories is percent-encoded what is not a letter, a digit or one of `_.-~:`;
a name that is too long then is cut, and ends in `~` and a digest of the whole.

The day is that of UTC. A perf.data says which moment of its clock was which time of day; of other
recordings, whose clock does not tell that, the file's last change is taken for the time of the last record.
Where the clock does not count nanoseconds the day is 1970-01-01.
"""

import datetime
import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import quote

from utracefs import columns
from utracefs._columns import Batch
from utracefs._records import EventDecoder
from utracefs.export.common import Exported, Progress
from utracefs.recording import Reading, Recording
from utracefs_protocol.text import bytes_of, clean

if TYPE_CHECKING:
    import pyarrow

__all__ = ["PARTITIONS", "write_parquet", "write_parquet_file"]

PARTITIONS: Final = ("event", "day", "host")
"""What the directories are called by, from the outer to the inner one."""

_OPEN_FILES: Final = 64
"""Files that are open for writing at a time: a recording may have thousands of events."""
_DAY_NS: Final = 86400 * 10**9
_FIRST_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_UPTIME_NS: Final = 10**18
"""Clocks that have counted more, 31 years, count from 1970."""
_NAME_MAX: Final = 255
"""Of a directory, in bytes (NAME_MAX of Linux)."""
_COMPRESSION: Final = "zstd"
_ROW_GROUP: Final = 1 << 20


def write_parquet(
    recording: Recording,
    directory: str | os.PathLike[str],
    *,
    host: str | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write all records into a new directory. host: instead of what the file says.

    OSError: it exists (FileExistsError), or cannot be written. ImportError: pyarrow is missing. TraceError at
    what is broken, after all before it is written and the files are complete.
    """
    columns.library("pyarrow.parquet")
    os.mkdir(directory)
    where = _folder("host", host or recording.host or "unknown")
    offset = _unix_offset(recording)
    reading = recording.reading()
    files = _Files(os.fspath(directory))
    schemas: dict[EventDecoder, pyarrow.Schema] = {}
    try:
        for batch in _watched(reading, progress):
            event = batch.event
            if event not in schemas:
                schemas[event] = columns.arrow_schema(
                    batch, recording.metadata, taken=PARTITIONS, key=str.casefold
                )
            name = _folder("event", f"{event.system}:{event.name}")
            table = columns.arrow_batch(batch, schemas[event])
            for day, begin, end in _days(table, offset):
                files.write(f"{name}/day={day}/{where}", event, table.slice(begin, end - begin))
    finally:
        files.close()
    return Exported.of(reading)


def write_parquet_file(
    recording: Recording, out: BinaryIO, *, event: str, progress: Progress | None = None
) -> Exported:
    """Write the records of one event, named as for `Recording.find_event`. Errors as `write_parquet`."""
    parquet = columns.library("pyarrow.parquet")
    found = recording.find_event(event)
    schema = columns.arrow_schema(Batch(found), recording.metadata, taken=PARTITIONS, key=str.casefold)
    reading = recording.reading(found)
    with parquet.ParquetWriter(out, schema, compression=_COMPRESSION) as writer:
        for batch in _watched(reading, progress):
            writer.write_batch(columns.arrow_batch(batch, schema), _ROW_GROUP)
    return Exported.of(reading)


def _folder(key: str, value: str) -> str:
    """With U+FFFD for what is not UTF-8, which readers refuse."""
    name = f"{key}={quote(clean(value), safe=':')}"
    if len(name) <= _NAME_MAX:
        return name
    end = "~" + hashlib.sha256(bytes_of(value)).hexdigest()[:16]
    begin = clean(value)[:_NAME_MAX]
    while len(name) + len(end) > _NAME_MAX:
        begin = begin[:-1]
        name = f"{key}={quote(begin, safe=':')}"
    return name + end


class _Files:
    """The files of a directory while they are written; those that were used last are open."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._open: OrderedDict[tuple[str, EventDecoder], Any] = OrderedDict()
        self._parts: dict[str, int] = {}

    def write(self, folder: str, event: EventDecoder, batch: "pyarrow.RecordBatch") -> None:
        key = (folder, event)
        if key not in self._open:
            if len(self._open) == _OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            self._open[key] = self._create(folder, batch.schema)
        self._open.move_to_end(key)
        self._open[key].write_batch(batch, _ROW_GROUP)

    def _create(self, folder: str, schema: "pyarrow.Schema") -> Any:
        path = os.path.join(self._directory, folder)
        os.makedirs(path, exist_ok=True)
        number = self._parts[folder] = self._parts.get(folder, -1) + 1
        writer = columns.library("pyarrow.parquet").ParquetWriter
        return writer(os.path.join(path, f"part-{number}.parquet"), schema, compression=_COMPRESSION)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


def _watched(reading: Reading, progress: Progress | None) -> Iterator[Batch]:
    for batch in reading.batches():
        yield batch
        if progress is not None:
            progress(reading.done)


def _unix_offset(recording: Recording) -> int | None:
    """What added to a time gives nanoseconds since 1970; None: times are no nanoseconds, so nothing does."""
    if recording.unix_offset_ns is not None:
        return recording.unix_offset_ns
    if not recording.clock_in_ns:
        return None
    reading = recording.reading()
    reading.events()
    last = reading.records.last_ns
    return 0 if last > _UPTIME_NS else os.stat(recording.path).st_mtime_ns - last


def _days(batch: "pyarrow.RecordBatch", offset: int | None) -> Iterator[tuple[str, int, int]]:
    """The day, and from which row on up to which one."""

    def day(time: int | None) -> str:
        if offset is None:
            return "1970-01-01"
        number = ((time or 0) + offset) // _DAY_NS
        return datetime.date.fromordinal(_FIRST_DAY + number).isoformat()

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
