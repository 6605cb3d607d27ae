"""Columns beside the records that they are made of; Arrow, pandas and polars read them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import utracefs
from tests.client.export.example import EVENTS, TEXTS, write
from tests.client.recordings.columns import SHORT, expected, short_file
from tests.client.recordings.events import Events
from tests.client.recordings.trace_dat import example
from tests.judges import library
from utracefs import Recording
from utracefs.recordings import columns
from utracefs.recordings._columns import Batch
from utracefs.recordings._records import EventDecoder
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.text import bytes_of

pandas = library("pandas")
polars = library("polars")
pa = library("pyarrow")

INTS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    with utracefs.open(write(tmp_path / "t.dat", lost=5)) as recording:
        yield recording


def test_arrow_has_every_field_of_every_record(recording: Recording) -> None:
    tables = recording.to_arrow()
    assert sorted(tables) == sorted(f"user_events:{e.name.decode()}" for e in EVENTS.declared.values())
    for name, table in tables.items():
        table.validate(full=True)
        assert table.to_pylist() == expected(recording, name.partition(":")[2])
        # (What was lost belongs to the next record that is read, of whatever event.)
        assert recording.to_arrow(name).drop(["lost"]).equals(table.drop(["lost"]))
    assert [str(t) for t in tables["user_events:ints"].schema.types[7:]] == INTS
    text = tables["user_events:text"].schema
    assert [(f.name, str(f.type)) for f in text][7:] == [
        ("fixed", "string"),
        ("raw", "binary"),
        ("data", "string"),
        ("rel", "string"),
    ]
    assert text.metadata == {
        b"utracefs.system": b"user_events",
        b"utracefs.event": b"text",
        b"utracefs.clock": b"mono",
        b"utracefs.clock_in_ns": b"true",
    }
    assert tables["user_events:select"].column_names[7:] == ["field_cpu", "field_time_ns", "three", "from"]


def test_text_as_bytes(recording: Recording) -> None:
    table = recording.to_arrow("text", text_as_bytes=True)
    assert table.drop(["lost"]).to_pylist() == [
        {name: value for name, value in row.items() if name != "lost"}
        for row in expected(recording, "text", text=bytes_of)
    ]
    assert [row["data"] for row in table.to_pylist()] == [bytes_of(text) for text in TEXTS]


def test_pandas(recording: Recording) -> None:
    frame = recording.to_pandas("ints")
    assert [str(t) for t in frame.dtypes[7:]] == INTS
    assert frame.attrs["utracefs.clock"] == "mono"
    for name, table in recording.to_pandas().items():
        assert table.to_dict("records") == expected(recording, name.partition(":")[2])


def test_polars(recording: Recording) -> None:
    frame = recording.to_polars("user_events:ints")
    assert [str(t).lower() for t in frame.dtypes[7:]] == INTS
    for name, table in recording.to_polars().items():
        assert isinstance(table, polars.DataFrame)
        assert table.to_dicts() == expected(recording, name.partition(":")[2])


def test_what_is_absent(tmp_path: Path) -> None:
    with utracefs.open(short_file(tmp_path / "t.dat")) as recording:
        whole = {"big": 2**64 - 1, "small": -1, "text": "é", "s": b"abc"}
        table = recording.to_arrow("ev")
        table.validate(full=True)
        rows = table.to_pylist()
        assert [{k: row[k] for k in whole} for row in rows] == [whole, dict.fromkeys(whole), whole]
        assert [row["time_ns"] for row in rows] == [1, None, None]
        assert rows[0]["lost"] is None
        frame = recording.to_pandas("ev")
        assert [str(t) for t in frame.dtypes[["time_ns", "cpu", "big", "small"]]] == [
            "Int64",
            "int32",
            "UInt64",
            "Int8",
        ]
        assert frame["big"].tolist() == [2**64 - 1, pandas.NA, 2**64 - 1]
        assert recording.to_polars("ev")["big"].to_list() == [2**64 - 1, None, 2**64 - 1]


def test_two_events_of_one_name(tmp_path: Path) -> None:
    formats = {b"a": [*SHORT.formats(), *Events(8, b"ev u32 x").formats()]}
    records = [(1, SHORT.entry(7, 1, 1, 1, "", b"123")), (2, Events(8, b"ev u32 x").entry(8, 1, 5))]
    with utracefs.open(example.write(tmp_path / "t", [example.pages(records)], formats=formats)) as recording:
        assert [table.num_rows for table in recording.to_arrow().values()] == [1, 1]
        assert list(recording.to_arrow()) == ["a:ev", "a:ev'"]


def test_batches(tmp_path: Path) -> None:
    """More texts of two cpus than a batch holds: all there, in the order of time."""
    path = example.write(
        tmp_path / "t", [example.pages(example.many_records(cpu, 20_000)) for cpu in range(2)]
    )
    with utracefs.open(path) as recording:
        rows: list[int] = []
        times: list[int] = []
        for batch in recording.batches():
            rows.append(batch.rows)
            times.extend(memoryview(batch.columns[0].values).cast("q"))
        assert len(rows) > 1 and min(rows) > 0 and max(rows) <= 65536
        assert (sum(rows), times) == (40_000, sorted(times))
        assert [batch.rows for batch in recording.batches("rpc")] == rows


def test_a_broken_file_gives_the_records_before_the_fault(tmp_path: Path) -> None:
    path = example.write(tmp_path / "t", [example.pages(example.many_records(0, 1000))])
    data = bytearray(path.read_bytes())
    data[4096 * 100 + 8 : 4096 * 100 + 12] = b"\xff\xff\xff\x07"
    path.write_bytes(data)
    with utracefs.open(path) as recording:
        rows, error = 0, None
        try:
            for batch in recording.batches():
                rows += batch.rows
        except TraceError as raised:
            error = raised
        assert error is not None and "broken" in str(error)
        assert rows > 0
        with pytest.raises(TraceError, match="broken"):
            recording.to_arrow()


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=40), st.integers(0, 40)), max_size=80)
)
@settings(max_examples=60, deadline=None)
def test_the_same_as_records(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, bytes, int]]
) -> None:
    path = tmp_path_factory.mktemp("columns") / "t.dat"
    entries = []
    for number, (big, text, cut) in enumerate(rows):
        whole = SHORT.entry(7, 1, big, number % 100, text, b"123")
        entries.append((number, whole[: max(len(whole) - cut // 20 * cut, 8)]))
    formats = {b"user_events": SHORT.formats()}
    example.write(path, [example.pages(entries)], formats=formats)
    with utracefs.open(path) as recording:
        table = recording.to_arrow("ev")
        table.validate(full=True)
        got = [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
        assert got == expected(recording, "ev")


def test_column_names() -> None:
    assert columns.column_names(["a", "cpu", "field_cpu", "\udcff"], ["cpu"]) == {
        "a": "a",
        "cpu": "field_cpu",
        "field_cpu": "field_field_cpu",
        "\udcff": "\ufffd",
    }
    assert columns.column_names(["a", "A", "CPU"], ["cpu"], str.casefold) == {
        "a": "a",
        "A": "field_A",
        "CPU": "field_CPU",
    }


def test_a_batch_of_its_constructor_is_empty() -> None:
    decoder = EventDecoder("s", "ev", parse(b"ev u32 a; char[3] b").fields)
    batch = Batch(decoder)
    assert (batch.rows, [column.type for column in batch.columns[7:]]) == (0, ["uint32", "string"])
    assert len(columns.arrow_batch(batch, columns.arrow_schema(batch, {}))) == 0
    assert [column.type for column in Batch(decoder, text_as_bytes=True).columns[7:]] == ["uint32", "binary"]


@pytest.mark.parametrize(
    ("module", "call", "extra"),
    [
        ("pyarrow", "to_arrow", "arrow"),
        ("pandas", "to_pandas", "pandas"),
        ("polars", "to_polars", "polars"),
    ],
)
def test_a_missing_library(tmp_path: Path, module: str, call: str, extra: str) -> None:
    program = f"import sys, utracefs\nsys.modules[{module!r}] = None\nutracefs.open(sys.argv[1]).{call}()"
    path = write(tmp_path / "t.dat")
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert f"{module} is not installed: pip install 'utracefs[{extra}]'" in done.stderr


def test_without_any_library_there_are_batches(tmp_path: Path) -> None:
    program = (
        "import sys, utracefs\nr = utracefs.open(sys.argv[1])\nassert sum(b.rows for b in r.batches()) == 15;"
        "assert not {'pyarrow', 'pandas', 'polars', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(write(tmp_path / "t.dat"))], check=True, timeout=60)


def test_types() -> None:
    """All names of types are Arrow's."""
    for name in (*INTS, "string", "binary"):
        assert isinstance(getattr(pa, name)(), pa.DataType)
