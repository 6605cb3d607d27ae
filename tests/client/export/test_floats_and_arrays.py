"""Floats, bools and arrays of numbers as every reader and every format has them."""

import csv
import io
import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

import utracefs
from tests.client.export.timelines.trace_processor import ask
from tests.client.html.chromium import Chromium
from tests.client.html.example import page_of
from tests.client.recordings.events import Events, trace_cmd
from tests.client.recordings.trace_dat import example
from tests.judges import library, run_judge
from utracefs.export import (
    Counter,
    Duration,
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
VALUES = [1.5, -0.0, 0.1, 1e300, 5e-324, math.inf, -math.inf, math.nan, 1e16, 18.340000000000003]
ROWS = [
    (value, math.inf if abs(value) > 1e38 else SHORT if value == 0.1 else 0.25, n % 2 == 1, n)
    for n, value in enumerate(VALUES)
]
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
    b"real struct double d 8; struct float f 4; struct bool ok 1; u32 n",
    b"rows " + "; ".join(f"struct {name}_2 {name} {2 * SIZES[name]}" for name in ARRAYS).encode(),
    # No arrays: bytes.
    b"none struct u32_9999999 x 16; struct u32_04 y 16; struct u8_ z 2; struct int_2 w 8",
    b"long struct u8_3800 x 3800",
)
RAW = (bytes(range(16)), bytes(16), b"ab", b"12345678")
LONG = [n % 256 for n in range(3800)]
JSON = {name: json.dumps(row).replace(" ", "") for name, row in ARRAYS.items()}
JSON |= {"float": "[0.1,-0.0]", "double": '["NaN",0.1]'}
NOT_IN_JSON = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
IN_JSON = [
    dict(zip(("d", "f", "ok", "n"), [NOT_IN_JSON.get(repr(one), one) for one in row], strict=True))
    for row in ROWS
]
ARRAYS_IN_JSON = {name: json.loads(text) for name, text in JSON.items()}
TRACKS = Tracks(
    slices=(Slice("rows", ("rows",), ("u8",)),),
    durations=(Duration("real", "d", 10**6),),
    counters=(Counter("real", "d"), Counter("real", "ok")),
)


def same(found: Any, expected: Any) -> bool:
    """By repr: NaN equals itself, -0.0 not 0.0, True not 1."""
    return repr(found) == repr(expected)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    entries: list[tuple[int, tuple[Any, ...]]] = [(100, row) for row in ROWS]
    entries += [(101, (*ARRAYS.values(),)), (102, RAW), (103, (LONG,))]
    records = [(1_000_000 * n, EVENTS.entry(number, 7, *row)) for n, (number, row) in enumerate(entries, 1)]
    return example.write_app(tmp_path / "t.dat", EVENTS, records)


def written(file: Path, write: Any, **options: Any) -> str:
    out = io.BytesIO()
    with utracefs.open(file) as recording:
        write(recording, out, **options)
    return out.getvalue().decode()


def test_open(file: Path) -> None:
    with utracefs.open(file) as recording:
        *real, rows, none, long = recording
    assert same([tuple(r.fields.values()) for r in real], ROWS)
    assert same(rows.fields, ARRAYS)
    assert tuple(none.fields.values()) == RAW
    assert long.fields == {"x": LONG}


def test_filters(file: Path) -> None:
    def numbers(text: str) -> list[object]:
        with utracefs.open(file, filter=text, events=["real"]) as recording:
            return [r.fields["n"] for r in recording]

    assert numbers("d >= 1.5 && d < 1e16") == [0, 9]
    assert numbers("f == 0.1") == [2]
    assert numbers("ok == 1 && d == 0") == [1]
    for text in ("u8 == 1", "u8 & 1", "u64 == 1", 'u8 == "x"', "u8 & CPUS{0}"):
        with pytest.raises(TraceError, match="Illegal operation for field type"):
            utracefs.open(file, filter=text, events=["rows"])


def test_report_and_trace_cmd(file: Path) -> None:
    with utracefs.open(file) as recording:
        *real, rows, none, long = b"".join(report_text(recording)).decode().splitlines()[1:]
    assert [line.partition("real:")[2].split() for line in real] == [
        [f"d={d!r}", f"f={f!r}", f"ok={ok:d}", f"n={n}"] for d, f, ok, n in ROWS
    ]
    assert rows.partition("rows:")[2].split() == [f"{name}={JSON[name]}" for name in ARRAYS]
    assert f"x={RAW[0].hex()} y={RAW[1].hex()}" in none
    assert f"x={LONG}".replace(" ", "") in long
    # trace-cmd prints up to 8 bytes as the number that they are.
    shown = [line.partition(": ")[2].split()[1:] for line in trace_cmd("report", str(file)).splitlines()[1:]]
    bits = [struct.unpack("<QI", struct.pack("<df", d, f)) for d, f, _, _ in ROWS]
    assert shown[:-3] == [
        [f"d={d}", f"f={f}", f"ok={ok:d}", f"n={n}"] for (d, f), (_, _, ok, n) in zip(bits, ROWS, strict=True)
    ]
    assert shown[-3][:3] == ["u8=65280", f"u16={0xFFFF0000}", f"u32={0xFFFFFFFF00000001}"]
    assert [one.partition("=")[0] for one in shown[-3]] == list(ARRAYS)


def test_json_lines(file: Path) -> None:
    lines = [json.loads(line)["fields"] for line in written(file, write_json_lines).splitlines()]
    assert same(lines[:-3], IN_JSON)
    assert same(lines[-3], ARRAYS_IN_JSON)
    assert lines[-2]["x"] == RAW[0].hex()
    assert lines[-1] == {"x": LONG}


def test_chrome(file: Path) -> None:
    plain, drawn = (
        json.loads(written(file, write_chrome, **options))["traceEvents"]
        for options in ({}, {"tracks": TRACKS})
    )
    found = [item["args"] for item in plain if item["ph"] == "i" and item["name"] == "real"]
    assert same([{key: one[key] for key in IN_JSON[0]} for one in found], IN_JSON)
    for items in (plain, drawn):
        rows = next(item["args"] for item in items if item["name"] == "rows" and "u8" in item.get("args", {}))
        assert same({name: rows[name] for name in ARRAYS}, ARRAYS_IN_JSON)
    counted = [item["args"]["value"] for item in drawn if item["ph"] == "C" and item["name"] == "real.d"]
    assert same(counted, [value for value in VALUES if math.isfinite(value)])
    (slice_,) = (item for item in drawn if item["ph"] == "X" and item["args"].get("n") == 0)
    assert (slice_["ts"], slice_["dur"]) == (0, 1000)


def test_csv(file: Path) -> None:
    lines = list(csv.DictReader(io.StringIO(written(file, write_csv))))
    assert [[line[name] for name in IN_JSON[0]] for line in lines[:-3]] == [
        [repr(d), repr(f), "true" if ok else "false", str(n)] for d, f, ok, n in ROWS
    ]
    assert {name: lines[-3][name] for name in ARRAYS} == {
        **JSON,
        "float": f"[{SHORT},-0.0]",
        "double": "[NaN,0.1]",
    }


def test_arrow_parquet_and_data_frames(file: Path, tmp_path: Path) -> None:
    library("pyarrow")
    pq = library("pyarrow.parquet")
    tables = {}
    with utracefs.open(file) as recording:
        long = recording.to_arrow("long")
        for name in ("real", "rows"):
            tables[name] = [recording.to_arrow(name)]
            with (tmp_path / name).open("wb") as out:
                write_parquet_file(recording, out, event=name)
            tables[name][0].validate(full=True)
            tables[name].append(pq.read_table(tmp_path / name))
    for one in tables["real"]:
        assert [str(field.type) for field in one.schema][-4:] == ["double", "float", "bool", "uint32"]
        assert same([tuple(row.values())[-4:] for row in one.to_pylist()], ROWS)
    for one in tables["rows"]:
        (row,) = one.to_pylist()
        assert {name: row[name] for name in ARRAYS} == JSON
    assert json.loads(long.to_pylist()[0]["x"]) == LONG
    library("pandas")
    with utracefs.open(file) as recording:
        frame = recording.to_pandas("real")
    assert [str(kind) for kind in frame.dtypes][-4:] == ["float64", "float32", "bool", "uint32"]


READ_CTF = """
import bt2, sys
def plain(x):
    kind = type(x).__name__
    return [plain(one) for one in x] if 'Array' in kind else float(x) if 'Real' in kind else int(x)
for message in bt2.TraceCollectionMessageIterator(sys.argv[1]):
    if type(message) is bt2._EventMessageConst:
        print(repr([plain(one) for one in message.event.payload_field.values()]))
"""


def test_ctf(file: Path, tmp_path: Path) -> None:
    with utracefs.open(file) as recording:
        write_ctf(recording, tmp_path / "ctf")
    *real, rows, _, long = run_judge("bt2", "-c", READ_CTF, tmp_path / "ctf").decode().splitlines()
    assert real == [repr([d, f, int(ok), n]) for d, f, ok, n in ROWS]
    *numbers, truths = ARRAYS.values()
    assert rows == repr([*numbers, [int(one) for one in truths]])
    assert long == repr([LONG])


def test_perfetto(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pftrace"
    with utracefs.open(file) as recording, out.open("wb") as opened:
        write_perfetto(recording, opened, tracks=TRACKS)
    arguments, counters = ask(
        out,
        "select arg_set_id, key, display_value from args where key glob 'debug.*'",
        "select c.value from counter c join process_counter_track t on t.id = c.track_id"
        " where t.name = 'real.d' order by c.id",
    )
    records: dict[str, dict[str, str]] = {}
    for row in arguments:
        records.setdefault(row["arg_set_id"], {})[row["key"].removeprefix("debug.")] = row["display_value"]
    shown = {int(one["n"]): one for one in records.values() if "n" in one}
    assert [shown[n]["ok"] for n in range(len(ROWS))] == ["false", "true"] * 5
    for n in (0, 9):
        assert float(shown[n]["d"]) == pytest.approx(VALUES[n])
    assert [row["value"] for row in counters] == [value for value in VALUES if math.isfinite(value)]
    rows = next(one for one in records.values() if "u8" in one)
    assert {name: rows[name] for name in ARRAYS} == JSON


def test_a_page(file: Path, chromium: Chromium) -> None:
    with chromium.page(page_of(file)) as page:
        page.until(
            "/d=18.340000000000003 +f=0.25 +ok=true +n=9[^]* s8=\\[-128,127\\] +s16=/"
            ".test(document.body?.innerText)"
        )
