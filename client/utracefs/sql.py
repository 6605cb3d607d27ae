"""Recordings as tables of DuckDB, which reads them as a query asks for them; nothing is written.

    trace.dat, perf.data   a table per event: Recording.arrow_reader, anew for each scan
                           records: the compiled AllRecords
    Parquet of ours        a table per event: a dataset of its files, with `day` and `host`
                           records: all of them, put together

    user_events.http_request    the table of an event: SCHEMA.NAME, SCHEMA the system
    http_request                the same, where only one system has an event of that name
    records                     time_ns, cpu, pid, tid, comm, instance, lost, system, name, fields (JSON)

DuckDB does not tell upper from lower case: of names that differ in nothing else, the later ones get `_` at
their end, and fields `field_` in front. So do systems that are called as something of DuckDB's.

What a query may do: it cannot reach any file, the network, extensions, or Python's variables, and cannot
change settings, some of which would let it do that, or end the process.
"""

import contextlib
import errno
import functools
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

import utracefs.recording
from utracefs import columns
from utracefs._columns import Batch
from utracefs._records import EventDecoder
from utracefs.event_names import EventName
from utracefs.export._all_records import AllRecords
from utracefs.export.parquet import PARTITIONS
from utracefs.recording import Recording
from utracefs_protocol.errors import TraceError
from utracefs_protocol.text import clean, text_of

if TYPE_CHECKING:
    import duckdb
    import pyarrow

__all__ = ["RECORDS", "Scannable", "Table", "Tables", "open_tables", "quoted"]

_PARQUET_MAGIC: Final = b"PAR1"
RECORDS: Final = "records"
_OF_DUCKDB: Final = frozenset({"", "main", "temp", "system", "memory", "information_schema", "pg_catalog"})
_FEW: Final = 200
"""Tables that are made whether the query names them or not; a millisecond each."""


class Scannable:
    """What DuckDB asks for a stream of batches, as often as a query reads it, and on threads of its own (the
    Arrow PyCapsule interface)."""

    def __init__(
        self, schema: "pyarrow.Schema", batches: Callable[[], Iterator[Batch]], failures: list[TraceError]
    ) -> None:
        self._schema = schema
        self._batches = batches
        self._failures = failures

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = columns.library("pyarrow").RecordBatchReader.from_batches(self._schema, self._read())
        return reader.__arrow_c_stream__(requested_schema)

    def _read(self) -> "Iterator[pyarrow.RecordBatch]":
        try:
            for batch in self._batches():
                yield columns.arrow_batch(batch, self._schema)
        except TraceError as error:
            self._failures.append(error)
            raise


@attrs.frozen
class Table:
    """One table."""

    schema: str
    """In DuckDB, of the event's system."""
    name: str
    event: EventName
    columns: "pyarrow.Schema"
    source: Any
    """What DuckDB reads: a Scannable or a dataset."""
    is_alone: bool
    """Only one event has the name, so the schema may be left out."""


@attrs.frozen
class Tables:
    """All tables of a recording. failures: what was broken while a query read it, which DuckDB's error does
    not say as clearly."""

    events: list[Table]
    records: Scannable | None
    """None: it is made of the others."""
    failures: list[TraceError]

    def connect(self, query: str | None = None) -> "duckdb.DuckDBPyConnection":
        """A database in memory that has them; to be closed. query: where there are many tables, only those
        that it may name are there. ImportError: duckdb is missing."""
        connection: duckdb.DuckDBPyConnection = columns.library("duckdb").connect(
            ":memory:",
            config={
                "autoload_known_extensions": False,
                "python_enable_replacements": False,
                "temp_directory": "",
            },
        )
        # As part of `config` this would except files that are called `:memory:`, in the working directory.
        connection.execute("SET enable_external_access = false")
        # What DuckDB's views read must not hide an event's table.
        prefix = "__"
        while any(table.name.casefold().startswith(prefix) for table in self.events):
            prefix += "_"
        text = None if query is None else query.replace('""', '"').casefold()
        is_named = [
            text is None or len(self.events) <= _FEW or table.name.casefold() in text for table in self.events
        ]
        schemas = set()
        for number, table in enumerate(self.events):
            if not is_named[number] and (self.records is not None or RECORDS not in (text or "")):
                continue
            if table.schema not in schemas:
                schemas.add(table.schema)
                connection.execute(f"CREATE SCHEMA {quoted(table.schema)}")
            source, place = f"{prefix}{number}", f"{quoted(table.schema)}.{quoted(table.name)}"
            connection.register(source, table.source)
            connection.execute(f"CREATE VIEW {place} AS FROM {quoted(source)}")
            if table.is_alone:
                connection.execute(f"CREATE VIEW main.{quoted(table.name)} AS FROM {place}")
        if self.records is not None:
            connection.register(f"{prefix}{RECORDS}", self.records)
            connection.execute(
                f"CREATE VIEW {RECORDS} AS SELECT * REPLACE (fields::JSON AS fields) FROM {prefix}{RECORDS}"
            )
        elif self.events and (text is None or RECORDS in text):
            connection.execute(
                f"CREATE VIEW {RECORDS} AS " + " UNION ALL ".join(map(_as_records, self.events))
            )
        connection.execute("SET lock_configuration = true")
        return connection


@contextlib.contextmanager
def open_tables(path: str | os.PathLike[str], *, recover: bool = False) -> Iterator[Tables]:
    """The tables of a trace.dat, a perf.data, a Parquet file of ours or a directory of such.

    recover: as `utracefs.open` has it. OSError, TraceError: as there. ImportError: pyarrow is missing.
    """
    columns.library("pyarrow.dataset")
    name = os.fspath(path)
    if os.path.isdir(name):
        yield _of_parquet(name, sorted(map(str, Path(name).rglob("*.parquet"))))
        return
    with open(name, "rb") as file:
        is_parquet = file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    if is_parquet:
        yield _of_parquet(name, [name])
        return
    with utracefs.recording.open(name, recover=recover) as recording:
        yield _of_recording(recording)


def _of_recording(recording: Recording) -> Tables:
    failures: list[TraceError] = []
    sources: list[tuple[EventName, pyarrow.Schema, Any]] = []
    for decoder in recording.decoders():
        schema = columns.arrow_schema(Batch(decoder), recording.metadata, key=str.casefold)
        source = Scannable(schema, functools.partial(_batches, recording, decoder), failures)
        sources.append((EventName(decoder.system, decoder.name), schema, source))
    schema = columns.arrow_schema(AllRecords(recording.reading().records).empty(), recording.metadata)
    records = Scannable(schema, functools.partial(_all_batches, recording), failures)
    return Tables(_named(sources), records, failures)


def _batches(recording: Recording, decoder: EventDecoder) -> Iterator[Batch]:
    return recording.reading(decoder).batches()


def _all_batches(recording: Recording) -> Iterator[Batch]:
    reading = recording.reading()
    try:
        yield from AllRecords(reading.records)
    except ValueError as error:
        raise reading.broken(error) from None


def _of_parquet(path: str, files: list[str]) -> Tables:
    pa, parquet = columns.library("pyarrow"), columns.library("pyarrow.parquet")
    found: dict[EventName, list[tuple[str, pyarrow.Schema]]] = {}
    for file in files:
        try:
            schema = parquet.read_schema(file)
        except pa.ArrowException as error:
            raise TraceError(errno.EINVAL, f"{file}: broken: {_first_line(error)}") from None
        told = schema.metadata or {}
        if told.keys() >= {b"utracefs.event", b"utracefs.system"}:
            names = Counter(name.casefold() for name in schema.names)
            if not names.keys() >= set(columns.COMMON_COLUMNS) or max(names.values()) > 1:
                raise TraceError(errno.EINVAL, f"{file}: its columns are not those of utracefs")
            name = EventName(text_of(told[b"utracefs.system"]), text_of(told[b"utracefs.event"]))
            found.setdefault(name, []).append((file, schema))
    if not found:
        raise TraceError(errno.EINVAL, f"{path}: has no Parquet file of utracefs")
    base = path if os.path.isdir(path) else os.path.dirname(path)
    sources = []
    for name, those in found.items():
        try:
            schema = pa.unify_schemas([schema for _, schema in those], promote_options="permissive")
        except pa.ArrowException as error:
            raise TraceError(errno.EINVAL, f"{path}: files of {name} differ: {_first_line(error)}") from None
        try:
            source = _dataset(base, [file for file, _ in those], schema)
        except pa.ArrowException as error:
            raise TraceError(errno.EINVAL, f"{path}: {name}: {_first_line(error)}") from None
        sources.append((name, source.schema, source))
    return Tables(_named(sources), None, [])


def _dataset(base: str, files: list[str], schema: "pyarrow.Schema") -> Any:
    """With the partitions that the directories below `base` are, but for `event`, which is the table."""
    pa, dataset = columns.library("pyarrow"), columns.library("pyarrow.dataset")
    types = {"event": pa.string(), "day": pa.date32(), "host": pa.string()}
    there = {
        part.partition("=")[0] for file in files for part in os.path.relpath(file, base).split(os.sep)[:-1]
    }
    keys = [pa.field(name, types[name]) for name in PARTITIONS if name in there]
    for key in keys:
        if key.name != "event":
            schema = schema.append(key)
    partitioning = dataset.partitioning(pa.schema(keys), flavor="hive") if keys else None
    return dataset.dataset(
        files, schema=schema, format="parquet", partitioning=partitioning, partition_base_dir=base
    )


def _named(sources: "Iterable[tuple[EventName, pyarrow.Schema, Any]]") -> list[Table]:
    """Tables with names that DuckDB can tell apart."""
    schemas: dict[str, str] = {}
    taken = set(_OF_DUCKDB)
    names_in: dict[str, set[str]] = {}
    tables = []
    for event, schema, source in sources:
        if event.system not in schemas:
            schemas[event.system] = _free_name(event.system, taken)
            taken.add(schemas[event.system].casefold())
        here = names_in.setdefault(event.system, {""})
        name = _free_name(event.name, here)
        here.add(name.casefold())
        tables.append(Table(schemas[event.system], name, event, schema, source, True))
    names = Counter(table.name.casefold() for table in tables)
    names[RECORDS] += 1
    return [attrs.evolve(table, is_alone=names[table.name.casefold()] == 1) for table in tables]


def _free_name(text: str, taken: Collection[str]) -> str:
    name = _clean(text)
    while name.casefold() in taken:
        name += "_"
    return name


def _clean(text: str) -> str:
    return clean(text).replace("\0", "\ufffd")


def quoted(name: str) -> str:
    """A name as SQL has any name."""
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + _clean(value).replace("'", "''") + "'"


def _as_records(table: Table) -> str:
    """A query that gives the table's rows as those of `records`."""
    own = [field for field in table.columns if field.name not in (*columns.COMMON_COLUMNS, *PARTITIONS)]
    members = ", ".join(
        f"{_text(field.name)}: "
        + (f"lower(hex({quoted(field.name)}))" if str(field.type) == "binary" else quoted(field.name))
        for field in own
    )
    fields = f"to_json({{{members}}})" if own else "'{}'::JSON"
    names = ", ".join(columns.COMMON_COLUMNS)
    what = f"{_text(table.event.system)} AS system, {_text(table.event.name)} AS name, {fields} AS fields"
    return f"SELECT {names}, {what} FROM {quoted(table.schema)}.{quoted(table.name)}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
