"""Parquet files in a folder: `parquet:/data/events`, or `parquet:s3://bucket/events`. Needs pyarrow.

    ROOT/event=user_events%3Ahttp_request/day=2026-11-22/host=box/FORWARDER-FIRST-LAST-CLOCKS-LAYOUT.parquet
    ROOT/event=utracefs.counts/...      records and losses of each batch, by tracepoint; see docs/forward.md

The folders are those of `utracefs export --to parquet`. One `send` writes a file for each event, day and
host. FIRST and LAST are sequence numbers of batches, CLOCKS a digest of their boots and clocks: a copy of the
spool, which numbers other batches the same, replaces no file. LAYOUT is a digest of the columns: files with
the same one have the same columns and types. An event that was declared anew gets files with another layout.

Readers see whole files only. On a local file system a file is written under a hidden name, synced, and
renamed; an object store shows an object when it is complete. So there is no manifest and no table format:
readers take all files that they find.

Files of the same batches always get the same names, so sending batches again replaces files and adds none.
For that the batches must be cut into the same ranges as before: `target-parquet.json` in the spool's
directory has the ranges not yet known to be acknowledged and the names of their files. It is stored before
the first file appears.
"""

import contextlib
import errno
import hashlib
import inspect
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

from utracefs.export.tables.parquet import COMPRESSION, DAY_NS, PARTITIONS, day_text, partition
from utracefs.forward.batch import ARRIVED, LEFT_OUT, Batch
from utracefs.forward.target import Limits, Sent, Settings, time_option
from utracefs.recordings import columns
from utracefs.recordings._columns import ColumnBatches
from utracefs_protocol.errors import TraceError

if TYPE_CHECKING:
    import pyarrow


COUNTS: Final = "utracefs.counts"
"""The table of counts, in place of an event (whose name always has a colon)."""

JOURNAL: Final = "target-parquet.json"
"""In the spool's directory."""

MAX_TIME_NS: Final = (1 << 63) - 1
"""The last timestamp, in 2262."""

_OWN: Final = ("time", "boot_id", "forwarder")
"""Columns beside those of recordings."""
_WITHOUT_STATISTICS: Final = ("boot_id", "forwarder", "cpu", "comm")
"""Columns without statistics: all files have similar values, so readers could skip none."""
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_OBJECT_STORES: Final = ("abfs", "gcs", "s3")
"""Type names of pyarrow: an object is there when it is complete."""
_S3_OPTIONS: Final = ("endpoint_override", "region", "scheme")

_OPTIONS: Final[Mapping[str, float]] = {"records": 1_000_000, "bytes": 64 << 20, "gather": 60}
"""Options of the command line and their defaults; they limit the batches of one file. gather: a time."""


class ParquetTarget:
    """See `utracefs.forward.target`. LookupError, ValueError, ImportError as of `open_target`; OSError: the
    folder cannot be made."""

    options = tuple(_OPTIONS)
    secrets = ("access_key", "secret_key", "session_token")

    def __init__(self, address: str, settings: Settings) -> None:
        columns.library("pyarrow.parquet")
        values = {**_OPTIONS, **{name: _number(name, text) for name, text in settings.options.items()}}
        self.limits = Limits(int(values["records"]), int(values["bytes"]), values["gather"])
        self._store: Final = _store(address.partition(":")[2], settings)
        self._journal: Final = _Journal(settings.directory / JOURNAL, address)

    def close(self) -> None:
        pass

    def send(self, batches: Sequence[Batch]) -> Sent:
        refused: Counter[str] = Counter()
        for group in self._journal.groups(batches, self._store):
            files, not_decoded = _files(group)
            with self._journal.writing(group, list(files), self._store):
                for path, table in files.items():
                    self._store.put(path, _encoded(table))
            refused.update(not_decoded)
        return refused


def _number(name: str, text: str) -> float:
    if name == "gather":
        return time_option(name, text)
    if not re.fullmatch(r"\d{1,12}", text) or not int(text):
        raise ValueError(f"option {name}: {text!r} is no valid number")
    return int(text)


# Records


def _files(batches: Sequence[Batch]) -> tuple[dict[str, "pyarrow.Table"], Counter[str]]:
    """Path to content, the counts last; and the records that cannot be decoded, by tracepoint."""
    pa = columns.library("pyarrow")
    found: dict[str, list[pyarrow.RecordBatch]] = {}
    refused: Counter[str] = Counter()
    counts: dict[str, list[dict[str, Any]]] = {}
    first, last = batches[0], batches[-1]
    clocks = _digest([(batch.boot_id, batch.clock.clock_ns) for batch in (first, last)])
    end = f"{first.forwarder}-{first.sequence:012}-{last.sequence:012}-{clocks}"
    for batch in batches:
        is_whole = True
        try:
            tables = list(_tables(batch))
        except (ValueError, TraceError):
            refused.update(batch.counts)
            tables = []
            is_whole = False
        for where, table in tables:
            path = f"{where}/{_host(batch)}/{end}-{_layout(table.schema)}.parquet"
            found.setdefault(path, []).append(table)
        where = f"{partition('event', COUNTS)}/day={day_text(batch.clock.unix_ns // DAY_NS)}/{_host(batch)}"
        counts.setdefault(where, []).extend(_counts(batch, is_whole=is_whole))
    files = {path: pa.Table.from_batches(tables).unify_dictionaries() for path, tables in found.items()}
    for where, rows in counts.items():
        table = pa.Table.from_pylist(rows, _counts_schema())
        files[f"{where}/{end}-{_layout(table.schema)}.parquet"] = table
    return files, refused


def _host(batch: Batch) -> str:
    return partition("host", batch.host or "unknown")


def _layout(schema: "pyarrow.Schema") -> str:
    """Digest of the columns as readers find them: names are texts in a file."""
    return _digest([(f.name, "string" if f.name == "comm" else str(f.type)) for f in schema])


def _digest(values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:8]


def _tables(batch: Batch) -> Iterator[tuple[str, "pyarrow.RecordBatch"]]:
    """`event=.../day=...` and records. ValueError, TraceError: they cannot be decoded."""
    rows = 0
    for one in ColumnBatches(batch.records(), coded=True):
        schema = columns.arrow_schema(one, {}, taken=(*PARTITIONS, *_OWN), key=str.casefold)
        table = _with_own(columns.arrow_batch(one, schema), batch)
        event = partition("event", f"{one.event.system}:{one.event.name}")
        for day, part in _by_day(table, batch.clock.unix_ns // DAY_NS):
            yield f"{event}/day={day_text(day)}", part
        rows += one.rows
    if rows != batch.nr_records:
        raise ValueError(f"{rows} records, not {batch.nr_records}")


def _by_day(table: "pyarrow.RecordBatch", today: int) -> Iterator[tuple[int, "pyarrow.RecordBatch"]]:
    """Days since 1970. Programs write the times: those without or with a strange one are at the next of three
    days."""
    pa, pc = columns.library("pyarrow"), columns.library("pyarrow.compute")
    time = table.column("time").cast(pa.int64())
    ends = pc.min_max(time)
    if not time.null_count and ends["min"].as_py() // DAY_NS == ends["max"].as_py() // DAY_NS == today:
        yield today, table
        return
    first, end = (today - 1) * DAY_NS, min((today + 2) * DAY_NS, 1 << 63) - 1
    time = pc.max_element_wise(pc.min_element_wise(pc.fill_null(time, today * DAY_NS), end), first)
    day = pc.add(pc.divide(pc.subtract(time, first), DAY_NS), today - 1)  # (divide rounds towards 0)
    for number in sorted(pc.unique(day).to_pylist()):
        yield number, table.filter(pc.equal(day, number))


def _with_own(table: "pyarrow.RecordBatch", batch: Batch) -> "pyarrow.RecordBatch":
    pa, pc = columns.library("pyarrow"), columns.library("pyarrow.compute")
    offset = pa.scalar(batch.unix_offset_ns, pa.int64())
    time_ns = table.column("time_ns")
    latest = MAX_TIME_NS - batch.unix_offset_ns  # later times would be before 1970
    if (pc.max(time_ns).as_py() or 0) > latest:
        time_ns = pc.if_else(pc.less_equal(time_ns, pa.scalar(latest, pa.int64())), time_ns, None)
    time = pc.add(time_ns, offset).cast(pa.timestamp("ns", "UTC"))
    zeros = pa.Array.from_buffers(pa.int8(), table.num_rows, [None, pa.py_buffer(bytes(table.num_rows))])
    constants = [
        pa.DictionaryArray.from_arrays(zeros, pa.array([text]), safe=False)
        for text in (batch.boot_id, batch.forwarder)
    ]
    kept = [n for n, name in enumerate(table.schema.names) if name not in LEFT_OUT]
    return pa.RecordBatch.from_arrays(
        [time, *constants, *(table.column(n) for n in kept)],
        schema=pa.schema(
            [
                pa.field("time", time.type),
                *(pa.field(name, one.type) for name, one in zip(_OWN[1:], constants, strict=True)),
                *(table.schema.field(n) for n in kept),
            ],
            table.schema.metadata,
        ),
    )


def _counts_schema() -> "pyarrow.Schema":
    pa = columns.library("pyarrow")
    text = pa.string()
    return pa.schema(
        {
            "time": pa.timestamp("ns", "UTC"),
            "boot_id": text,
            "forwarder": text,
            "sequence": pa.uint64(),
            "tracepoint": text,
            "cause": text,
            "count": pa.uint64(),
        }
    )


def _named(tracepoint: str) -> str:
    """As readers find it in the partition `event`."""
    return unquote(partition("event", tracepoint).partition("=")[2])


def _counts(batch: Batch, *, is_whole: bool) -> Iterator[dict[str, Any]]:
    """The rows of a batch in COUNTS. is_whole: its records are in files."""
    about = {
        "time": batch.clock.unix_ns,
        "boot_id": batch.boot_id,
        "forwarder": batch.forwarder,
        "sequence": batch.sequence,
    }
    for tracepoint, cause, count in batch.count_rows():
        if is_whole or cause != ARRIVED:
            yield {**about, "tracepoint": _named(tracepoint), "cause": cause, "count": count}


def _encoded(table: "pyarrow.Table") -> "pyarrow.Buffer":
    """A file. Arrow's own schema is left out, so that all readers find the same plain types."""
    pa, parquet = columns.library("pyarrow"), columns.library("pyarrow.parquet")
    out = pa.BufferOutputStream()
    types = {field.name: field.type for field in table.schema}
    texts = [n for n, t in types.items() if pa.types.is_string(t) or pa.types.is_dictionary(t)]
    settings: dict[str, Any] = {
        "compression": COMPRESSION,
        "use_dictionary": texts,
        "column_encoding": {
            n: "DELTA_BINARY_PACKED"  # half the CPU time and size of plain integers behind zstd
            for n, t in types.items()
            if pa.types.is_integer(t) or pa.types.is_timestamp(t)
        },
        "write_statistics": [n for n in types if n not in _WITHOUT_STATISTICS],
        "store_schema": False,
        "write_batch_size": 1 << 16,  # a tenth less CPU time than with batches of 1,024 values
    }
    if "max_rows_per_page" in inspect.signature(parquet.write_table).parameters:
        # Versions with it would begin a page each 20,000 rows, which costs; bytes of a page are limited.
        settings["max_rows_per_page"] = 1 << 20
    parquet.write_table(table, out, **settings)
    return out.getvalue()


# Ranges


@attrs.define
class _Range:
    first: int
    last: int
    files: list[str]


class _Journal:
    """Ranges of batches that may be sent again, in their order."""

    def __init__(self, path: Path, address: str) -> None:
        self._path: Final = path
        self._address: Final = address
        self._forwarder = ""
        self._ranges: list[_Range] = []
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            stored = json.loads(path.read_bytes())
            if stored["address"] == address:
                self._ranges = [_Range(*one) for one in stored["ranges"]]
                self._forwarder = stored["forwarder"]

    def groups(self, batches: Sequence[Batch], store: "_Store") -> list[list[Batch]]:
        """The batches by ranges, with the same limits as before. If a known range is not complete among them,
        its files are removed: their records are in another range now, or reported as lost."""
        if batches[0].forwarder != self._forwarder:
            self._forwarder, self._ranges = batches[0].forwarder, []
        cuts = {one.last for one in self._ranges}
        groups: list[list[Batch]] = [[]]
        for batch in batches:
            groups[-1].append(batch)
            if batch.sequence in cuts:
                groups.append([])
        groups = [group for group in groups if group]
        sent = {(group[0].sequence, group[-1].sequence) for group in groups}
        begin, end = batches[0].sequence, batches[-1].sequence
        self._ranges = [one for one in self._ranges if one.last >= begin]
        for one in [one for one in self._ranges if one.first <= end and (one.first, one.last) not in sent]:
            for path in one.files:
                store.remove(path)
            self._ranges.remove(one)
        return groups

    @contextlib.contextmanager
    def writing(self, batches: Sequence[Batch], files: Sequence[str], store: "_Store") -> Iterator[None]:
        """Keeps these files of a range in the journal while they are written. OSError: the journal cannot be
        written."""
        first, last = batches[0].sequence, batches[-1].sequence
        before = next((one for one in self._ranges if (one.first, one.last) == (first, last)), None)
        known = before or _Range(first, last, [])
        if before is None:
            self._ranges.append(known)
        # (these have records of batches that were dropped, and counted as lost, since)
        others = [path for path in known.files if path not in files]
        known.files = [*files, *others]
        self._write()
        yield
        for path in others:
            store.remove(path)
        known.files = list(files)

    def _write(self) -> None:
        stored = {
            "address": self._address,
            "forwarder": self._forwarder,
            "ranges": [attrs.astuple(one) for one in self._ranges],
        }
        try:
            write_file(self._path, json.dumps(stored).encode())
        except OSError as error:
            # A full disk must not stop the target, which makes room there. If it is killed now, some records
            # may be in two files.
            if error.errno not in _NO_ROOM:
                raise


# Places


# A folder of files. put: replace a file, or make it: readers find nothing, the old one, or the whole new one.
# remove: a file that may be absent. Both raise OSError.


class _Local:
    def __init__(self, root: str) -> None:
        self._root: Final = Path(root).absolute()
        self._root.mkdir(parents=True, exist_ok=True)

    def put(self, path: str, content: "pyarrow.Buffer") -> None:
        if not self._root.is_dir():  # made at the start; now another one could be on another disk
            raise FileNotFoundError(errno.ENOENT, "the folder is gone", str(self._root))
        at = self._root / path
        made = [folder for folder in at.relative_to(self._root).parents if not (self._root / folder).exists()]
        at.parent.mkdir(parents=True, exist_ok=True)
        write_file(at, content)
        for parent in made:
            _sync(self._root / parent.parent)

    def remove(self, path: str) -> None:
        at = self._root / path
        at.unlink(missing_ok=True)
        _hidden(at).unlink(missing_ok=True)


class _Objects:
    """An object store, by pyarrow. After an error it connects anew, with the secrets of that moment."""

    def __init__(self, uri: str, settings: Settings) -> None:
        self._uri: Final = uri
        self._settings: Final = settings
        self._opened: tuple[Any, str] | None = None
        if urlsplit(uri).password is not None or urlsplit(uri).username is not None:
            raise ValueError("no secrets in addresses: --secret access_key=FILE --secret secret_key=FILE")
        self._open()

    def _open(self) -> tuple[Any, str]:
        if self._opened is None:
            fs = columns.library("pyarrow.fs")
            place, root = fs.FileSystem.from_uri(self._uri)
            if place.type_name not in _OBJECT_STORES:
                raise ValueError(f"{self._uri}: other programs would see incomplete files there")
            if place.type_name == "s3":
                place = self._s3()
            self._opened = place, root
        return self._opened

    def _s3(self) -> Any:
        options = dict(parse_qsl(urlsplit(self._uri).query))
        if "@" in options.get("endpoint_override", ""):
            raise ValueError("no secrets in addresses: endpoint_override is HOST:PORT")
        if unknown := options.keys() - _S3_OPTIONS:
            raise ValueError(f"no option {min(unknown)!r} of s3; there are: {', '.join(_S3_OPTIONS)}")
        settings = self._settings
        return columns.library("pyarrow.fs").S3FileSystem(
            access_key=settings.secret("access_key"),
            secret_key=settings.secret("secret_key"),
            session_token=settings.secret("session_token"),
            connect_timeout=settings.timeout_s,
            request_timeout=settings.timeout_s,
            tls_ca_file_path=settings.ca,
            **options,
        )

    @contextlib.contextmanager
    def _using(self) -> Iterator[tuple[Any, str]]:
        try:
            yield self._open()
        except OSError:
            self._opened = None
            raise

    def put(self, path: str, content: "pyarrow.Buffer") -> None:
        with self._using() as (place, root), place.open_output_stream(f"{root}/{path}") as out:
            out.write(content)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._using() as (place, root):
            place.delete_file(f"{root}/{path}")


_Store = _Local | _Objects


def _store(place: str, settings: Settings) -> _Store:
    if not place:
        raise ValueError("give a folder: parquet:/data/events")
    if "://" in place:
        return _Objects(place, settings)
    return _Local(place)


def _hidden(path: Path) -> Path:
    """Its temporary name: readers ignore it, and it ends in another suffix."""
    return path.with_name(f".{path.name}.new")


def write_file(path: Path, content: "bytes | pyarrow.Buffer") -> None:
    """Replace it with a whole file that survives a crash of the system. OSError."""
    hidden = _hidden(path)
    try:
        with hidden.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
    except OSError as error:
        error.filename = str(path)  # write(2) names none
        with contextlib.suppress(OSError):
            hidden.unlink()
        raise
    _sync(path.parent)


def _sync(directory: Path) -> None:
    """Write a directory's names to the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
