"""Floats and bools as every reader and every format has them."""

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
    Tracks,
    write_chrome,
    write_csv,
    write_ctf,
    write_json_lines,
    write_parquet_file,
    write_perfetto,
)
from utracefs.recordings.report import report_text

EVENTS = Events(100, b"real struct double d 8; struct float f 4; struct bool ok 1; u32 n")
SHORT = struct.unpack("<f", struct.pack("<f", 0.1))[0]
VALUES = [1.5, -0.0, 0.1, 1e300, 5e-324, math.inf, -math.inf, math.nan, 1e16, 18.340000000000003]
ROWS = [
    (value, math.inf if abs(value) > 1e38 else SHORT if value == 0.1 else 0.25, n % 2 == 1, n)
    for n, value in enumerate(VALUES)
]


def same(found: Any, expected: Any) -> bool:
    """By repr: NaN equals itself, -0.0 not 0.0, True not 1."""
    return repr(found) == repr(expected)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    records = [(1_000_000 * (n + 1), EVENTS.entry(100, 7, *row)) for n, row in enumerate(ROWS)]
    return example.write_app(tmp_path / "t.dat", EVENTS, records)


def written(file: Path, write: Any, **options: Any) -> str:
    out = io.BytesIO()
    with utracefs.open(file) as recording:
        write(recording, out, **options)
    return out.getvalue().decode()


def test_open(file: Path) -> None:
    with utracefs.open(file) as recording:
        assert same([tuple(r.fields.values()) for r in recording], ROWS)


def test_filters_of_a_recording(file: Path) -> None:
    def numbers(text: str) -> list[object]:
        with utracefs.open(file, filter=text) as recording:
            return [r.fields["n"] for r in recording]

    assert numbers("d >= 1.5 && d < 1e16") == [0, 9]
    assert numbers("f == 0.1") == [2]
    assert numbers("ok == 1 && d == 0") == [1]


def test_report_and_trace_cmd(file: Path) -> None:
    with utracefs.open(file) as recording:
        lines = b"".join(report_text(recording)).decode().splitlines()[1:]
    assert [line.partition("real:")[2].split() for line in lines] == [
        [f"d={d!r}", f"f={f!r}", f"ok={ok:d}", f"n={n}"] for d, f, ok, n in ROWS
    ]
    bits = [struct.unpack("<QI", struct.pack("<df", d, f)) for d, f, _, _ in ROWS]
    assert [
        line.partition("real:")[2].split() for line in trace_cmd("report", str(file)).splitlines()[1:]
    ] == [
        [f"d={d}", f"f={f}", f"ok={ok:d}", f"n={n}"] for (d, f), (_, _, ok, n) in zip(bits, ROWS, strict=True)
    ]


NOT_IN_JSON = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}


def in_json(row: tuple[Any, ...]) -> dict[str, Any]:
    values = [NOT_IN_JSON.get(repr(value), value) for value in row]
    return dict(zip(("d", "f", "ok", "n"), values, strict=True))


def test_json_lines(file: Path) -> None:
    lines = [json.loads(line) for line in written(file, write_json_lines).splitlines()]
    assert same([line["fields"] for line in lines], [in_json(row) for row in ROWS])


TRACKS = Tracks(
    durations=(Duration("real", "d", 10**6),), counters=(Counter("real", "d"), Counter("real", "ok"))
)


def test_chrome(file: Path) -> None:
    items = json.loads(written(file, write_chrome))["traceEvents"]
    found = [{key: item["args"][key] for key in ("d", "f", "ok", "n")} for item in items if item["ph"] == "i"]
    assert same(found, [in_json(row) for row in ROWS])
    drawn = json.loads(written(file, write_chrome, tracks=TRACKS))["traceEvents"]
    counted = [item["args"]["value"] for item in drawn if item["ph"] == "C" and item["name"] == "real.d"]
    assert same(counted, [value for value in VALUES if math.isfinite(value)])
    (slice_,) = (item for item in drawn if item["ph"] == "X" and item["args"]["n"] == 0)
    assert (slice_["ts"], slice_["dur"]) == (0, 1000)


def test_csv(file: Path) -> None:
    _, *rows = csv.reader(io.StringIO(written(file, write_csv)))
    assert [row[7:] for row in rows] == [
        [repr(d), repr(f), "true" if ok else "false", str(n)] for d, f, ok, n in ROWS
    ]


def test_arrow_parquet_and_data_frames(file: Path, tmp_path: Path) -> None:
    library("pyarrow")
    pq = library("pyarrow.parquet")
    with utracefs.open(file) as recording:
        table = recording.to_arrow("real")
        with (tmp_path / "p").open("wb") as out:
            write_parquet_file(recording, out, event="real")
    table.validate(full=True)
    for one in (table, pq.read_table(tmp_path / "p")):
        assert [str(field.type) for field in one.schema][-4:] == ["double", "float", "bool", "uint32"]
        assert same([tuple(row.values())[-4:] for row in one.to_pylist()], ROWS)
    library("pandas")
    with utracefs.open(file) as recording:
        frame = recording.to_pandas("real")
    assert [str(kind) for kind in frame.dtypes][-4:] == ["float64", "float32", "bool", "uint32"]


def test_sql(file: Path) -> None:
    library("duckdb")
    from utracefs.export.tables.sql import open_tables

    query = "select d, f, ok, n from real where ok or d < 2 or d > 2 order by n"
    with open_tables(file) as tables:
        connection = tables.connect(query)
        assert same(connection.execute(query).fetchall(), ROWS)
        connection.close()


READ_CTF = """
import bt2, sys
for message in bt2.TraceCollectionMessageIterator(sys.argv[1]):
    if type(message) is bt2._EventMessageConst:
        d, f, ok, n = message.event.payload_field.values()
        print(repr((float(d), float(f), bool(ok), int(n))))
"""


def test_ctf(file: Path, tmp_path: Path) -> None:
    with utracefs.open(file) as recording:
        write_ctf(recording, tmp_path / "ctf")
    found = run_judge("bt2", "-c", READ_CTF, tmp_path / "ctf").decode().splitlines()
    assert found == [repr(row) for row in ROWS]


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


def test_a_page(file: Path, chromium: Chromium) -> None:
    with chromium.page(page_of(file)) as page:
        page.until("/d=18.340000000000003 +f=0.25 +ok=true +n=9/.test(document.body?.innerText)")
