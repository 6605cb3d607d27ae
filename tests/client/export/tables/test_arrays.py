"""Arrays of numbers as every reader and every format has them."""

import csv
import io
import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

import utracefs
from tests.client.export.test_floats import same, written
from tests.client.export.timelines.trace_processor import ask
from tests.client.html.chromium import Chromium
from tests.client.html.example import page_of
from tests.client.recordings.events import Events, trace_cmd
from tests.client.recordings.trace_dat import example
from tests.judges import library, run_judge
from utracefs.export import (
    Slice,
    Tracks,
    write_chrome,
    write_csv,
    write_ctf,
    write_json_lines,
    write_parquet_file,
    write_perfetto,
)
from utracefs.recordings.report import report_text
from utracefs_protocol.errors import TraceError

SHORT = struct.unpack("<f", struct.pack("<f", 0.1))[0]
ARRAYS: dict[str, list[Any]] = {
    "u8": [0, 255],
    "u16": [0, 2**16 - 1],
    "u32": [1, 2**32 - 1],
    "u64": [2, 2**64 - 1],
    "s8": [-128, 127],
    "s16": [-(2**15), 2**15 - 1],
    "s32": [-(2**31), 2**31 - 1],
    "s64": [-(2**63), 2**63 - 1],
    "float": [SHORT, -0.0],
    "double": [math.nan, 0.1],
    "bool": [True, False],
}
SIZES = {name: int(name[1:]) // 8 for name in ARRAYS if name[1:].isdigit()} | {
    "float": 4,
    "double": 8,
    "bool": 1,
}
EVENTS = Events(
    100,
    b"rows " + "; ".join(f"struct {name}_2 {name} {2 * SIZES[name]}" for name in ARRAYS).encode(),
    # No arrays: bytes.
    b"none struct u32_9999999 x 16; struct u32_04 y 16; struct u8_ z 2; struct int_2 w 8",
    b"long struct u8_3800 x 3800",
)
RAW = (bytes(range(16)), bytes(16), b"ab", b"12345678")
LONG = [n % 256 for n in range(3800)]
JSON = {
    name: "[0.1,-0.0]"
    if name == "float"
    else '["NaN",0.1]'
    if name == "double"
    else json.dumps(row).replace(" ", "")
    for name, row in ARRAYS.items()
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    records = [
        (1_000_000, EVENTS.entry(100, 7, *ARRAYS.values())),
        (2_000_000, EVENTS.entry(101, 7, *RAW)),
        (3_000_000, EVENTS.entry(102, 7, LONG)),
    ]
    return example.write_app(tmp_path / "t.dat", EVENTS, records)


def test_open(file: Path) -> None:
    with utracefs.open(file) as recording:
        rows, none, long = recording
    assert same(rows.fields, ARRAYS)
    assert tuple(none.fields.values()) == RAW
    assert long.fields == {"x": LONG}


def test_report_and_trace_cmd(file: Path) -> None:
    with utracefs.open(file) as recording:
        rows, none, long = b"".join(report_text(recording)).decode().splitlines()[1:]
    assert rows.partition("rows:")[2].split() == [f"{name}={JSON[name]}" for name in ARRAYS]
    assert f"x={RAW[0].hex()} y={RAW[1].hex()}" in none
    assert f"x={LONG}".replace(" ", "") in long
    # Up to 8 bytes it prints the number that they are.
    shown = trace_cmd("report", str(file)).splitlines()[1].partition("rows:")[2].split()
    assert shown[:3] == ["u8=65280", f"u16={0xFFFF0000}", f"u32={0xFFFFFFFF00000001}"]
    assert [one.partition("=")[0] for one in shown] == list(ARRAYS)


@pytest.mark.parametrize("text", ["u8 == 1", "u8 & 1", "u64 == 1", 'u8 == "x"', "u8 & CPUS{0}"])
def test_no_filters(file: Path, text: str) -> None:
    with pytest.raises(TraceError, match="Illegal operation for field type"):
        utracefs.open(file, filter=text, events=["rows"])


def test_json_lines(file: Path) -> None:
    rows, none, long = (json.loads(line)["fields"] for line in written(file, write_json_lines).splitlines())
    assert same(rows, {name: json.loads(text) for name, text in JSON.items()})
    assert none["x"] == RAW[0].hex()
    assert long == {"x": LONG}


def test_chrome(file: Path) -> None:
    tracks = Tracks(slices=(Slice("rows", ("rows",), ("u8",)),))
    for options in ({}, {"tracks": tracks}):
        items = json.loads(written(file, write_chrome, **options))["traceEvents"]
        rows = next(item["args"] for item in items if item["name"] == "rows" and "u8" in item.get("args", {}))
        assert same({name: rows[name] for name in ARRAYS}, {name: json.loads(JSON[name]) for name in ARRAYS})


def test_csv(file: Path) -> None:
    header, rows, *_ = csv.reader(io.StringIO(written(file, write_csv)))
    assert [json.loads(cell) for cell in rows[7 : 7 + len(ARRAYS)]][:8] == list(ARRAYS.values())[:8]
    assert header[7:18] == list(ARRAYS)


def test_arrow_parquet_and_data_frames(file: Path, tmp_path: Path) -> None:
    library("pyarrow")
    pq = library("pyarrow.parquet")
    with utracefs.open(file) as recording:
        table = recording.to_arrow("rows")
        long = recording.to_arrow("long")
        with (tmp_path / "p").open("wb") as out:
            write_parquet_file(recording, out, event="rows")
    table.validate(full=True)
    for one in (table, pq.read_table(tmp_path / "p")):
        assert {str(field.type) for field in one.schema}.issuperset({"string"})
        (row,) = one.to_pylist()
        assert {name: row[name] for name in ARRAYS} == JSON
    assert json.loads(long.to_pylist()[0]["x"]) == LONG


def test_sql(file: Path) -> None:
    library("duckdb")
    from utracefs.export.tables.sql import open_tables

    query = "select cast(u32::json as bigint[])[2], s8 from rows where float = '[0.1,-0.0]'"
    with open_tables(file) as tables:
        connection = tables.connect(query)
        assert connection.execute(query).fetchall() == [(2**32 - 1, "[-128,127]")]
        connection.close()


READ_CTF = """
import bt2, sys
for message in bt2.TraceCollectionMessageIterator(sys.argv[1]):
    if type(message) is bt2._EventMessageConst:
        print(repr([[float(x) if 'Real' in type(x).__name__ else int(x) for x in row]
                    for row in message.event.payload_field.values()]))
"""


def test_ctf(file: Path, tmp_path: Path) -> None:
    with utracefs.open(file) as recording:
        write_ctf(recording, tmp_path / "ctf")
    found = run_judge("bt2", "-c", READ_CTF, tmp_path / "ctf").decode().splitlines()
    *numbers, truths = ARRAYS.values()
    assert found[0] == repr([*numbers, [int(one) for one in truths]])
    assert found[2] == repr([LONG])


def test_perfetto(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pftrace"
    with utracefs.open(file) as recording, out.open("wb") as opened:
        write_perfetto(recording, opened)
    (arguments,) = ask(out, "select key, display_value from args where key glob 'debug.*'")
    shown = {row["key"].removeprefix("debug."): row["display_value"] for row in arguments}
    assert {name: shown[name] for name in ARRAYS} == JSON


def test_a_page(file: Path, chromium: Chromium) -> None:
    with chromium.page(page_of(file)) as page:
        page.until("/s8=\\[-128,127\\] +s16=/.test(document.body?.innerText)")
