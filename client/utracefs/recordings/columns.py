"""Tables of records for Arrow, pandas and polars, and the names of their columns.

    Batch (compiled) ─▶ pyarrow.RecordBatch ─▶ pyarrow.Table ─▶ pandas, polars, Parquet, DuckDB

The libraries are extras: they are imported when first needed, and ImportError says how to install a missing
one. The conversion to Arrow copies no data.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from utracefs.recordings._columns import Batch, Column
from utracefs_protocol.events.declaration import NUMBER_SIZES
from utracefs_protocol.text import clean, text_of

if TYPE_CHECKING:
    import pandas
    import pyarrow

_EXTRAS: Final = {"pyarrow": "arrow", "pandas": "pandas", "polars": "polars", "duckdb": "sql"}


def library(module: str) -> Any:
    """Import a module of an extra. ImportError if it is not installed, with what to do."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        extra = _EXTRAS[module.partition(".")[0]]
        raise ImportError(
            f"{package} is not installed: pip install 'utracefs[{extra}]'", name=error.name
        ) from None


FIELD: Final = "utracefs.field"
"""Metadata of a column that cannot have the name of its field: that name."""


def column_names(
    fields: Iterable[str], taken: Iterable[str], key: Callable[[str], str] = str
) -> dict[str, str]:
    """Names for the columns of these fields, beside columns that are `taken`: a field's own name, with U+FFFD
    for bytes that are not UTF-8, prefixed by `field_` as often as needed.

    key: names with the same key are equal; DuckDB ignores case.
    """
    seen = {key(name) for name in taken}
    found = {}
    for field in fields:
        name = clean(field).replace("\0", "\ufffd")
        while key(name) in seen:
            name = f"field_{name}"
        seen.add(key(name))
        found[field] = name
    return found


def arrow_schema(
    batch: Batch, metadata: Mapping[str, str], *, taken: Iterable[str] = (), key: Callable[[str], str] = str
) -> "pyarrow.Schema":
    """Schema of all batches of an event, of which this is one. metadata: that of the table; `system` and
    `event` are added. taken, key: further names that columns must not have, and their equality; see
    `column_names`."""
    pa = library("pyarrow")
    common, own = batch.columns[: batch.commons], batch.columns[batch.commons :]
    taken = [*(column.name for column in common), *taken]
    names = column_names((column.name for column in own), taken, key)
    described = {"system": batch.event.system, "event": batch.event.name, **metadata}
    return pa.schema(
        [pa.field(column.name, _type(column)) for column in common]
        + [
            pa.field(
                name, _type(column), metadata=None if name == column.name else {FIELD: clean(column.name)}
            )
            for column in own
            for name in (names[column.name],)
        ],
        {f"utracefs.{name}".encode(): clean(text).encode() for name, text in described.items()},
    )


def _type(column: Column) -> "pyarrow.DataType":
    pa = library("pyarrow")
    found = getattr(pa, column.type)()
    return found if column.dictionary is None else pa.dictionary(found, pa.string())


def arrow_batch(batch: Batch, schema: "pyarrow.Schema") -> "pyarrow.RecordBatch":
    """The batch, which keeps its memory alive while it is in use. Only bools are copied."""
    pa = library("pyarrow")
    arrays = []
    for column, field in zip(batch.columns, schema, strict=True):
        buffers = [column.validity, column.offsets, column.values]
        if column.offsets is None:
            del buffers[1]
        wrapped = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
        stored = pa.uint8() if column.type == "bool_" else getattr(pa, column.type)()
        array = pa.Array.from_buffers(stored, batch.rows, wrapped, column.nulls)
        if (texts := column.dictionary) is not None:
            array = pa.DictionaryArray.from_arrays(array, pa.array(texts, pa.string()), safe=False)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def joined(*tables: "pyarrow.Table") -> "pyarrow.Table":
    """The rows of tables of one event, in the order of time, with the columns of all: absent values are null,
    and columns of different types are texts."""
    pa = library("pyarrow")
    types: dict[str, set[pyarrow.DataType]] = {}
    for field in (field for table in tables for field in table.schema):
        types.setdefault(field.name, set()).add(field.type)

    def with_texts(table: "pyarrow.Table") -> "pyarrow.Table":
        for i, field in enumerate(table.schema):
            if len(types[field.name]) > 1 and field.type != pa.string():
                values = [None if value is None else str(value) for value in table.column(i).to_pylist()]
                table = table.set_column(i, field.name, pa.array(values, pa.string()))
        return table

    return pa.concat_tables(map(with_texts, tables), promote_options="default").sort_by("time_ns")


def pandas_table(table: "pyarrow.Table") -> "pandas.DataFrame":
    """Integers in numpy's types; columns with absent values in pandas' own types, since numpy would convert
    them to floating point, which loses digits. The metadata are in `attrs`."""
    pandas = library("pandas")
    pa = library("pyarrow")
    nullable = {
        getattr(pa, name.lower())(): getattr(pandas, f"{name}Dtype")()
        for size in NUMBER_SIZES
        for name in (f"Int{8 * size}", f"UInt{8 * size}")
    }
    frame = pandas.DataFrame(
        {
            name: column.to_pandas(types_mapper=nullable.get if column.null_count else None)
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
    )
    frame.attrs = {key.decode(): text_of(value) for key, value in (table.schema.metadata or {}).items()}
    return frame
