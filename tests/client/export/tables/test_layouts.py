"""Layouts of one event: one scan of the file, the types that fit all, limits."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.client.recordings.event_header.event_headers import field, payload, write
from utracefs.export.tables import layouts
from utracefs.export.tables.sql import Scannable, open_tables

pytest.importorskip("duckdb")

U8 = (2, 1, b"\x07")
S8 = (2, 2, b"\xfe")
S64 = (5, 2, struct.pack("<q", -5))
U64 = (5, 1, struct.pack("<Q", 2**64 - 1))
DOUBLE = (5, 8, struct.pack("<d", 0.5))
BOOL = (2, 7, b"\1")
TEXT = (7, 11, b"hi\0")
BYTES = (2, 9, b"\xff")

Value = tuple[int, int, bytes]


def log(name: bytes, value: Value) -> bytes:
    return payload(b"Log", [field(name, value[0], value[1])], value[2])


def recorded(tmp_path: Path, values: Sequence[tuple[bytes, Value]]) -> Path:
    return write(tmp_path / "trace.dat", [log(name, value) for name, value in values])


@pytest.mark.parametrize(
    ("values", "type_", "found"),
    [
        ((U8, U64), "UBIGINT", [7, 2**64 - 1]),
        ((U8, S8), "SMALLINT", [7, -2]),
        ((U64, S64, BOOL), "DECIMAL(20,0)", [2**64 - 1, -5, 1]),
        ((BOOL, S8), "TINYINT", [1, -2]),
        ((DOUBLE, U64), "DOUBLE", [0.5, float(2**64)]),
        ((BOOL, DOUBLE), "DOUBLE", [1.0, 0.5]),
        ((BOOL, TEXT), "VARCHAR", ["true", "hi"]),
        ((U64, TEXT), "VARCHAR", [str(2**64 - 1), "hi"]),
        ((BYTES, TEXT, U8), "BLOB", [b"\xff", b"hi", b"7"]),
    ],
)
def test_a_column_has_the_type_that_fits_all(
    tmp_path: Path, values: tuple[Value, ...], type_: str, found: list[Any]
) -> None:
    path = recorded(tmp_path, [(b"a", value) for value in values])
    with open_tables(path) as tables, tables.connect() as connection:
        rows = connection.execute("SELECT a, typeof(a) FROM Log ORDER BY time_ns").fetchall()
    assert rows == [(value, type_) for value in found]


def test_many_layouts_are_one_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[Scannable] = []
    read = Scannable.read

    def counted(scanned: Scannable) -> Any:
        scans.append(scanned)
        return read(scanned)

    monkeypatch.setattr(Scannable, "read", counted)
    path = recorded(tmp_path, [(b"f%d" % (n % 100), U8) for n in range(200)])
    with open_tables(path) as tables, tables.connect() as connection:
        query = "SELECT count(*), count(f0), count(f99), sum(level) FROM Log"
        assert connection.execute(query).fetchall() == [(200, 2, 2, 800)]
    assert len(scans) == 1


def test_batches_are_bounded_by_rows_times_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "_CELLS", 30)
    path = recorded(tmp_path, [(b"a", U8), *[(b"b", U8)] * 10])
    with open_tables(path) as tables, tables.connect() as connection:
        (source,) = tables.events[-1].sources
        assert [batch.num_rows for batch in source.scanned.batches()] == [1] + [2] * 5
        assert connection.execute("SELECT sum(a), sum(b) FROM Log").fetchall() == [(7, 70)]


def test_fields_beyond_the_limit_are_left_out_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "MAX_COLUMNS", 10)
    path = recorded(tmp_path, [(b"a", U8), (b"b", U8), (b"c", U8)])
    with open_tables(path) as tables, tables.connect() as connection:
        assert tables.notes == ["Shop:Log: 2 fields beyond 10 columns are left out; `records` has them"]
        assert connection.execute("SELECT count(*), sum(a), sum(level) FROM Log").fetchall() == [(3, 7, 12)]
        query = "SELECT fields->>'c' FROM records WHERE name = 'Log' ORDER BY time_ns"
        assert connection.execute(query).fetchall() == [(None,), (None,), ("7",)]
