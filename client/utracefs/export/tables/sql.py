"""Recordings as tables of DuckDB, which reads the records that a query needs; no file is written.

    trace.dat, perf.data   a table per event: Recording.arrow_reader, a new one for each scan
                           records: the compiled AllRecords
    exported Parquet       a table per event: a dataset of its files, with `day` and `host`
                           records: all of them, combined

    user_events.http_request    the table of an event: SCHEMA.NAME, SCHEMA the system
    http_request                the same, if only one system has an event of that name
    records                     time_ns, cpu, pid, tid, comm, instance, lost, system, name, fields (JSON)

With several inputs a table has the records of all with that event, and additional columns `host` and `file`;
a field with such a name gets the prefix `field_`. Times of several recordings are those of `utracefs.open` of
them all. If one does not know its time of day, each has its own times, and `Tables.notes` says so.

DuckDB ignores case: of names that differ only in case the later ones get the suffix `_`, and fields the
prefix `field_`. The same applies to systems with a name used by DuckDB.

Restrictions of a query: it cannot access files, the network, extensions, or Python's variables, and cannot
change settings, some of which would lift that, or end the process.
"""

import contextlib
import errno
import functools
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

import utracefs.recordings.recording
from utracefs.export.tables._all_records import AllRecords
from utracefs.export.tables.layouts import Layouts
from utracefs.export.tables.parquet import PARTITIONS
from utracefs.recordings import columns
from utracefs.recordings._columns import COMMON_COLUMNS, PLACE_COLUMNS, Batch
from utracefs.recordings._records import EventDecoder
from utracefs.recordings.recording import Recording
from utracefs.recordings.several.timeline import NotMergeableError
from utracefs.tree.event_names import EventName
from utracefs_protocol.errors import TraceError
from utracefs_protocol.text import clean, text_of

if TYPE_CHECKING:
    import duckdb
    import pyarrow


_PARQUET_MAGIC: Final = b"PAR1"
RECORDS: Final = "records"
_OF_DUCKDB: Final = frozenset({"", "main", "temp", "system", "memory", "information_schema", "pg_catalog"})
_OF_RECORDS: Final = (*COMMON_COLUMNS, "system", "name", "fields")
_FEW: Final = 200
"""Number of tables that are created even if the query does not name them; a millisecond each."""


@attrs.define(eq=False)
class Scannable:
    """Gives DuckDB a stream of batches (the Arrow PyCapsule interface) each time a query reads it, on
    DuckDB's threads."""

    _schema: "pyarrow.Schema"
    batches: "Callable[[], Iterator[pyarrow.RecordBatch]]"
    _failures: list[TraceError]

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = columns.library("pyarrow").RecordBatchReader.from_batches(self._schema, self.read())
        return reader.__arrow_c_stream__(requested_schema)

    def read(self) -> "Iterator[pyarrow.RecordBatch]":
        try:
            yield from self.batches()
        except TraceError as error:
            self._failures.append(error)
            raise


@attrs.frozen
class Source:
    """One input's part of a table."""

    file: str
    columns: "pyarrow.Schema"
    scanned: Any
    """The object read by DuckDB: a Scannable or a dataset."""
    host: str = ""
    """Host of all records; empty if unknown."""


@attrs.frozen
class Table:
    schema: str
    """DuckDB's schema for the event's system."""
    name: str
    event: EventName
    sources: list[Source]
    is_alone: bool
    """The name is unique, so the schema may be omitted."""


@attrs.frozen
class Tables:
    """All tables of the inputs. failures: errors in files read by a query, which are clearer than DuckDB's
    error."""

    files: list[str]
    events: list[Table]
    records: list[Source]
    """Tables of recordings; for Parquet they are combined from its tables."""
    failures: list[TraceError]
    notes: list[str]
    """Lines about how recordings were merged, to be printed."""

    def connect(self, query: str | None = None) -> "duckdb.DuckDBPyConnection":
        """A database in memory with these tables; close it. query: if there are many tables, create only
        tables that it may name. ImportError: duckdb is missing."""
        connection: duckdb.DuckDBPyConnection = columns.library("duckdb").connect(
            ":memory:",
            config={
                "autoload_known_extensions": False,
                "python_enable_replacements": False,
                "temp_directory": "",
            },
        )
        # As part of `config` this would exempt files called `:memory:` in the working directory.
        connection.execute("SET enable_external_access = false")
        # Schemas read by DuckDB's views must not hide an event's table.
        prefix = "__"
        while any(table.name.casefold().startswith(prefix) for table in self.events):
            prefix += "_"
        text = None if query is None else query.replace('""', '"').casefold()
        is_named = [
            text is None or len(self.events) <= _FEW or table.name.casefold() in text for table in self.events
        ]
        schemas = set()
        of_recordings = {source.file for source in self.records}
        wants_records = text is None or RECORDS in text
        records: list[tuple[Source, str, Sequence[str]]] = []
        for number, table in enumerate(self.events):
            for_records = [source for source in table.sources if source.file not in of_recordings]
            if not is_named[number] and not (wants_records and for_records):
                continue
            if table.schema not in schemas:
                schemas.add(table.schema)
                connection.execute(f"CREATE SCHEMA {quoted(table.schema)}")
            parts: list[tuple[Source, str, Sequence[str]]] = []
            for source in table.sources:
                part = f"{prefix}{number}_{len(parts)}"
                connection.register(part, source.scanned)
                parts.append((source, f"FROM {part}", source.columns.names))
                if source in for_records:
                    query_of_it = _as_records(table.event, source.columns, part)
                    records.append((source, query_of_it, _OF_RECORDS))
            place = f"{quoted(table.schema)}.{quoted(table.name)}"
            connection.execute(f"CREATE VIEW {place} AS {self._together(parts)}")
            if table.is_alone:
                connection.execute(f"CREATE VIEW main.{quoted(table.name)} AS FROM {place}")
        for number, source in enumerate(self.records):
            part = f"{prefix}{RECORDS}_{number}"
            connection.register(part, source.scanned)
            with_json = f"SELECT * REPLACE (fields::JSON AS fields) FROM {part}"
            records.append((source, with_json, source.columns.names))
        if records and wants_records:
            connection.execute(f"CREATE VIEW {RECORDS} AS {self._together(records)}")
        connection.execute("SET lock_configuration = true")
        return connection

    def _together(self, parts: list[tuple[Source, str, Sequence[str]]]) -> str:
        """A query for the rows of all these queries, with the host and file of each if there are several."""
        return " UNION ALL BY NAME ".join(self._with_place(*part) for part in parts)

    def _with_place(self, source: Source, query: str, names: Sequence[str]) -> str:
        """names: the columns of the query; of Parquet `host` is that of a directory, `file` a field."""
        begin = len(COMMON_COLUMNS)
        if len(self.files) == 1 or tuple(names[begin : begin + 2]) == PLACE_COLUMNS:
            return query
        there = {name.casefold(): name for name in names}
        added = [] if "host" in there else [f"{_text(source.host)} AS host"]
        kept = "*"
        if "file" in there:
            kept = f"* EXCLUDE ({quoted(there['file'])})"
            added.append(f"{quoted(there['file'])} AS {_free_name('field_file', there)}")
        wanted = ", ".join([kept, *added, f"{_text(source.file)} AS file"])
        return f"SELECT {wanted} FROM ({query})"


@contextlib.contextmanager
def open_tables(
    *paths: str | os.PathLike[str], recover: bool = False, raw_eventheader: bool = False
) -> Iterator[Tables]:
    """The tables of inputs: each a trace.dat, a perf.data, a Parquet file of `utracefs export` or a directory
    of such.

    recover, raw_eventheader: as for `utracefs.open`. OSError, TraceError: as there. ImportError: pyarrow is
    missing.
    """
    columns.library("pyarrow.dataset")
    failures: list[TraceError] = []
    events: list[tuple[EventName, Source]] = []
    records: list[Source] = []
    names = [os.fspath(path) for path in dict.fromkeys(paths)]
    notes: list[str] = []
    recordings: list[str] = []
    with contextlib.ExitStack() as stack:
        for name in names:
            if os.path.isdir(name):
                events += _of_parquet(name, sorted(map(str, Path(name).rglob("*.parquet"))))
                continue
            with open(name, "rb") as file:
                is_parquet = file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
            if is_parquet:
                events += _of_parquet(name, [name])
                continue
            recordings.append(name)
        read = functools.partial(
            utracefs.recordings.recording.open, recover=recover, raw_eventheader=raw_eventheader
        )
        opened: list[Recording] = []
        try:
            opened += [stack.enter_context(read(recordings))] if recordings else []
        except NotMergeableError as error:
            notes.append(f"{error.text}: times are those of each file's own clock")
            opened += [stack.enter_context(read(name)) for name in recordings]
        for recording in opened:
            notes += recording.notes
            events += _of_recording(recording, len(names) > 1, failures, notes)
            schema = columns.arrow_schema(AllRecords(recording.reading().records).empty(), recording.metadata)
            scanned = Scannable(schema, functools.partial(_all_batches, recording, schema), failures)
            records.append(Source(recording.path, schema, scanned, host=recording.host))
        yield Tables(names, _named(events), records, failures, notes)


def _of_recording(
    recording: Recording, is_one_of_many: bool, failures: list[TraceError], notes: list[str]
) -> Iterator[tuple[EventName, Source]]:
    """is_one_of_many: there are other inputs, so the tables have PLACE_COLUMNS in the end."""
    taken = PLACE_COLUMNS if is_one_of_many else ()
    found: dict[object, dict[EventDecoder, pyarrow.Schema]] = {}
    for decoder in recording.decoders():
        batch = Batch(decoder, with_place=recording.is_merged)
        schema = columns.arrow_schema(batch, recording.metadata, taken=taken, key=str.casefold)
        # A file may describe an event twice; layouts of EventHeader, or of several files, share a table.
        is_layout = decoder.opcode >= 0 or recording.is_merged
        found.setdefault((decoder.system, decoder.name) if is_layout else decoder, {})[decoder] = schema
    for schemas in found.values():
        event = EventName(next(iter(schemas)).system, next(iter(schemas)).name)
        layouts = Layouts(schemas)
        if layouts.left_out:
            beyond = f"{layouts.left_out} fields beyond {layouts.most} columns are left out"
            notes.append(f"{event}: {beyond}; `{RECORDS}` has them")
        scanned = Scannable(
            layouts.schema, functools.partial(_batches, recording, layouts, schemas), failures
        )
        yield event, Source(recording.path, layouts.schema, scanned, host=recording.host)


def _batches(
    recording: Recording, layouts: Layouts, decoders: Iterable[EventDecoder]
) -> "Iterator[pyarrow.RecordBatch]":
    return layouts.read(recording.reading(*decoders).batches())


def _all_batches(recording: Recording, schema: "pyarrow.Schema") -> "Iterator[pyarrow.RecordBatch]":
    reading = recording.reading()
    try:
        for batch in AllRecords(reading.records):
            yield columns.arrow_batch(batch, schema)
    except ValueError as error:
        raise reading.broken(error) from None


def _of_parquet(path: str, files: list[str]) -> Iterator[tuple[EventName, Source]]:
    pa, parquet = columns.library("pyarrow"), columns.library("pyarrow.parquet")
    found: dict[EventName, list[tuple[str, pyarrow.Schema]]] = {}
    for file in files:
        try:
            schema = parquet.read_schema(file)
        except pa.ArrowException as error:
            raise TraceError(errno.EINVAL, f"{file}: broken: {_first_line(error)}") from None
        metadata = schema.metadata or {}
        if metadata.keys() >= {b"utracefs.event", b"utracefs.system"}:
            names = Counter(name.casefold() for name in schema.names)
            if not names.keys() >= set(COMMON_COLUMNS) or max(names.values()) > 1:
                raise TraceError(errno.EINVAL, f"{file}: its columns are not those of utracefs")
            name = EventName(text_of(metadata[b"utracefs.system"]), text_of(metadata[b"utracefs.event"]))
            found.setdefault(name, []).append((file, schema))
    if not found:
        raise TraceError(
            errno.EINVAL,
            f"{path}: has no Parquet file of utracefs export; DuckDB itself reads those of forward",
        )
    base = path if os.path.isdir(path) else os.path.dirname(path)
    for name, those in found.items():
        try:
            schema = pa.unify_schemas([schema for _, schema in those], promote_options="permissive")
        except pa.ArrowException as error:
            raise TraceError(errno.EINVAL, f"{path}: files of {name} differ: {_first_line(error)}") from None
        try:
            source = _dataset(base, [file for file, _ in those], schema)
        except pa.ArrowException as error:
            raise TraceError(errno.EINVAL, f"{path}: {name}: {_first_line(error)}") from None
        yield name, Source(path, source.schema, source)


def _dataset(base: str, files: list[str], schema: "pyarrow.Schema") -> Any:
    """With the partitions given by the directories below `base`, except `event`, which is the table."""
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


def _named(found: Iterable[tuple[EventName, Source]]) -> list[Table]:
    """Tables with names that DuckDB distinguishes. An event described twice in a file is two tables."""
    sources: dict[tuple[EventName, int], list[Source]] = {}
    for event, source in found:
        number = 0
        while any(source.file == other.file for other in sources.get((event, number), ())):
            number += 1
        sources.setdefault((event, number), []).append(source)
    schemas: dict[str, str] = {}
    taken = set(_OF_DUCKDB)
    names_in: dict[str, set[str]] = {}
    tables = []
    for (event, _), those in sources.items():
        if event.system not in schemas:
            schemas[event.system] = _free_name(event.system, taken)
            taken.add(schemas[event.system].casefold())
        here = names_in.setdefault(event.system, {""})
        name = _free_name(event.name, here)
        here.add(name.casefold())
        tables.append(Table(schemas[event.system], name, event, those, True))
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
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + _clean(value).replace("'", "''") + "'"


def _as_records(event: EventName, schema: "pyarrow.Schema", place: str) -> str:
    """A query for the rows of an event's table in the columns of `records`."""
    own = [field for field in schema if field.name not in (*COMMON_COLUMNS, *PARTITIONS)]
    fields = f"json_object({', '.join(map(_member, own))})"
    names = ", ".join(COMMON_COLUMNS)
    what = f"{_text(event.system)} AS system, {_text(event.name)} AS name, {fields} AS fields"
    return f"SELECT {names}, {what} FROM {place}"


def _member(field: "pyarrow.Field") -> str:
    """Arguments of json_object: the field's name, and its value as exports have it."""
    name = (field.metadata or {}).get(columns.FIELD.encode(), field.name.encode()).decode()
    value = quoted(field.name)
    if str(field.type) == "binary":
        value = f"lower(hex({value}))"
    elif str(field.type) in ("float", "double"):
        text = f"replace(replace({value}::VARCHAR, 'nan', 'NaN'), 'inf', 'Infinity')"
        value = f"CASE WHEN NOT isfinite({value}) THEN to_json({text}) ELSE to_json({value}) END"
    return f"{_text(name)}, {value}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
