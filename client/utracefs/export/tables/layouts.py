"""The layouts of one event as one Arrow stream, so a query reads the file once, whatever their number.

    batches, each of one layout ─▶ several of them ─▶ one batch with the columns of all layouts

    A column that a record's layout does not have is null.

DuckDB's own union needs a scan of the file for each layout, and ten seconds to plan 1,000 of them.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from utracefs.recordings import columns
from utracefs.recordings._columns import Batch
from utracefs.recordings._records import EventDecoder

if TYPE_CHECKING:
    import pyarrow


MAX_COLUMNS: Final = 2048
"""Limit of columns for several layouts. Further fields are left out: each costs DuckDB 0.2 ms per query."""
_CELLS: Final = 1 << 22
"""Rows of a batch, times columns."""
_BYTES: Final = 64 << 20
"""Limit of the values of a batch."""


class Layouts:
    """schema: the columns of all layouts; one of several types has the type that fits all. left_out: number
    of fields beyond `most` columns."""

    def __init__(self, schemas: Mapping[EventDecoder, "pyarrow.Schema"]) -> None:
        pa = columns.library("pyarrow")
        self._schemas = schemas
        types: dict[str, set[pyarrow.DataType]] = {}
        names: dict[str, pyarrow.Field] = {}
        """DuckDB ignores case."""
        self.left_out = 0
        self.most: Final = MAX_COLUMNS if len(schemas) > 1 else sys.maxsize
        for field in (field for schema in schemas.values() for field in schema):
            key = field.name.casefold()
            if key not in names and len(names) == self.most:
                self.left_out += 1
                continue
            names.setdefault(key, field)
            types.setdefault(key, set()).add(field.type)
        first = next(iter(schemas.values()))
        self._fields = {key: field.with_type(_common(types[key])) for key, field in names.items()}
        self.schema: pyarrow.Schema = pa.schema(list(self._fields.values()), first.metadata)

    def read(self, batches: Iterable[Batch]) -> "Iterator[pyarrow.RecordBatch]":
        """All rows, with all columns."""
        if len(self._schemas) == 1:
            yield from (columns.arrow_batch(batch, self.schema) for batch in batches)
            return
        most = max(_CELLS // len(self._fields), 1)
        pending: list[pyarrow.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            whole = columns.arrow_batch(batch, self._schemas[batch.event])
            for begin in range(0, batch.rows, most):
                part = whole.slice(begin, most)
                if rows + part.num_rows > most or size > _BYTES:
                    yield self._together(pending, rows)
                    pending, rows, size = [], 0, 0
                pending.append(part)
                rows += part.num_rows
                size += part.nbytes
        if pending:
            yield self._together(pending, rows)

    def _together(self, batches: "list[pyarrow.RecordBatch]", rows: int) -> "pyarrow.RecordBatch":
        pa = columns.library("pyarrow")
        parts: dict[str, list[pyarrow.Array]] = {key: [] for key in self._fields}
        filled = dict.fromkeys(self._fields, 0)
        begin = 0
        for batch in batches:
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                key = name.casefold()
                if field := self._fields.get(key):
                    if begin > filled[key]:
                        parts[key].append(pa.nulls(begin - filled[key], field.type))
                    parts[key].append(_cast(array, field.type))
                    filled[key] = begin + batch.num_rows
            begin += batch.num_rows
        for key, field in self._fields.items():
            if rows > filled[key]:
                parts[key].append(pa.nulls(rows - filled[key], field.type))
        return pa.RecordBatch.from_arrays(
            [pa.concat_arrays(those) for those in parts.values()], schema=self.schema
        )


def _common(types: "set[pyarrow.DataType]") -> "pyarrow.DataType":
    """The type of DuckDB's union of these, but double for a float and an integer."""
    pa = columns.library("pyarrow")
    if len(types) == 1:
        return next(iter(types))
    for type_ in (pa.binary(), pa.string()):
        if type_ in types:
            return type_
    if any(pa.types.is_floating(type_) for type_ in types):
        return pa.float64()
    signed = [type_.bit_width for type_ in types if pa.types.is_signed_integer(type_)]
    unsigned = [type_.bit_width for type_ in types if pa.types.is_unsigned_integer(type_)]
    if not signed:
        return getattr(pa, f"uint{max(unsigned)}")()
    bits = max(signed + [2 * width for width in unsigned])
    return getattr(pa, f"int{bits}")() if bits <= 64 else pa.decimal128(20, 0)


def _cast(array: Any, type_: "pyarrow.DataType") -> Any:
    pa = columns.library("pyarrow")
    if array.type == type_:
        return array
    if type_ == pa.binary():
        array = array.cast(pa.string())
    if array.type == pa.bool_() and pa.types.is_decimal(type_):
        array = array.cast(pa.int8())
    return array.cast(type_, safe=False)
