"""Every field of every record, read back by the json module; slices, counters and names."""

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import utracefs
from tests.client.export.example import ROWS, comm, name, shown, write
from tests.client.perf_data.example import comm as comm_record
from tests.client.perf_data.example import sample
from tests.client.perf_data.example import write as write_perf_data
from tests.client.test_recording import break_first_page
from tests.client.trace_dat.example import CPU0, EVENTS, pages
from tests.client.trace_dat.example import write as write_pages
from utracefs.export import Exported, Slice, Tracks, write_chrome
from utracefs_protocol.errors import TraceError


def export(path: Path, tracks: Tracks | None = None, **selection: Any) -> list[dict[str, Any]]:
    out = io.BytesIO()
    with utracefs.open(path, **selection) as recording:
        write_chrome(recording, out, tracks=tracks)
    return read(out.getvalue())


def read(data: bytes) -> list[dict[str, Any]]:
    """Times in nanoseconds, exactly."""
    assert data.isascii() and b"</" not in data
    text = json.loads(data, parse_float=Decimal)
    assert text["displayTimeUnit"] == "ns"
    for event in text["traceEvents"]:
        for key in ("ts", "dur"):
            if key in event:
                event[key] = int(event[key] * 1000)
    return [event for event in text["traceEvents"] if event["name"] != "utracefs"]


def number(value: object) -> object:
    """Readers have signed 64 bit at most."""
    return str(value) if isinstance(value, int) and value >= 2**63 else value


def test_all_records(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.dat")
    assert [event for event in export(path) if event["ph"] != "M"] == [
        {
            "ph": "i",
            "s": "t",
            "cat": "user_events",
            "name": name(event_id),
            "pid": tid,
            "tid": tid,
            "ts": time,
            "args": {"cpu": n % 2} | {key: number(shown(value)) for key, value in values.items()},
        }
        for n, (tid, event_id, time, values) in enumerate(ROWS)
    ]


def test_threads_and_processes_are_named(tmp_path: Path) -> None:
    names = [event for event in export(write(tmp_path / "trace.dat")) if event["ph"] == "M"]
    assert {(e["name"], e["pid"], e["args"]["name"]) for e in names} == {
        (kind, tid, comm(tid)) for kind in ("thread_name", "process_name") for tid, *_ in ROWS
    }
    path = write_perf_data(
        tmp_path / "perf.data",
        EVENTS,
        [
            comm_record(11, 11, b"main"),
            comm_record(11, 12, b"worker"),
            sample(1, 0, 11, 12, CPU0[0][1]),
            sample(2, 0, 11, 11, CPU0[0][1]),
            comm_record(11, 12, b"renamed", 3),
            sample(4, 0, 11, 12, CPU0[0][1]),
        ],
    )
    names = [event for event in export(path) if event["ph"] == "M"]
    assert [(e["name"], e["pid"], e.get("tid"), e["args"]["name"]) for e in names] == [
        ("process_name", 11, None, "worker"),
        ("thread_name", 11, 12, "worker"),
        ("process_name", 11, None, "main"),
        ("thread_name", 11, 11, "main"),
        ("thread_name", 11, 12, "renamed"),
    ]


def test_two_events_are_a_slice(tmp_path: Path) -> None:
    tracks = Tracks(slices=(Slice("begin", "done", "key"),))
    found = export(write(tmp_path / "trace.dat"), tracks, events=["begin", "done"])
    assert [(e["ph"], e["name"], e["id"], e["ts"], e["tid"]) for e in found if e["ph"] != "M"] == [
        ("b", "begin", "key=7", 1_000_000_351, 0),
        ("b", "begin", "key=8", 2_000_000_000, -1),
        ("e", "begin", "key=7", 3_000_000_999, 13),
    ]
    assert found[-1]["args"] == {"key": 7, "usec": 1500, "cpu": 0}


@pytest.mark.parametrize(("unit", "ns"), [(1, 1500), (1000, 1_500_000), (10**9, 3_000_000_999)])
def test_a_field_is_a_duration(tmp_path: Path, unit: int, ns: int) -> None:
    """Of a slice that would begin before the clock does, the part that is left."""
    found = export(write(tmp_path / "trace.dat"), Tracks(durations={("done", "usec"): unit}), events=["done"])
    assert (found[-1]["ph"], found[-1]["ts"], found[-1]["dur"]) == ("X", 3_000_000_999 - ns, ns)


def test_fields_are_counters(tmp_path: Path) -> None:
    tracks = Tracks(counters=frozenset({("begin", "size"), ("begin", "key"), ("text", "fixed")}))
    found = export(write(tmp_path / "trace.dat"), tracks)
    assert [(e["name"], e["pid"], e["ts"], e["args"]) for e in found if e["ph"] == "C"] == [
        ("begin.key", 0, 1_000_000_351, {"value": 7}),
        ("begin.size", 0, 1_000_000_351, {"value": 100}),
        ("begin.key", -1, 2_000_000_000, {"value": 8}),
        ("begin.size", -1, 2_000_000_000, {"value": 2**63}),
    ]


def test_lost_records_are_a_point_of_their_own(tmp_path: Path) -> None:
    for lost, shown_as in (3, 3), (-1, "not counted"):
        found = [e for e in export(write(tmp_path / "trace.dat", lost=lost)) if e["name"] == "lost records"]
        assert [(e["ts"], e["args"]) for e in found] == [(2, {"number": shown_as})]


def test_no_records(tmp_path: Path) -> None:
    assert export(write(tmp_path / "trace.dat"), pids=[999]) == []


def test_a_broken_recording_makes_a_complete_file(tmp_path: Path) -> None:
    out = io.BytesIO()
    path = break_first_page(write_pages(tmp_path / "trace.dat", [pages(CPU0)]))
    with utracefs.open(path) as recording, pytest.raises(TraceError, match="broken: cpu 0"):
        write_chrome(recording, out)
    assert [e["ts"] for e in read(out.getvalue()) if e["ph"] == "i"] == [100000000001]


def test_what_was_written_is_told(tmp_path: Path) -> None:
    with utracefs.open(write(tmp_path / "trace.dat", lost=2)) as recording:
        assert write_chrome(recording, io.BytesIO()) == Exported(len(ROWS), 2, False)
