"""Every field of every record, read back by the json module; slices, counters and names."""

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import utracefs
from tests.client.export.example import ROWS, comm, name, shown, write
from tests.client.export.timelines.drawing import TRACKS, Picture, draw
from tests.client.export.timelines.trace_processor import ask
from tests.client.recordings.test_recording import break_first_page
from tests.client.recordings.trace_dat.example import CPU0, pages
from tests.client.recordings.trace_dat.example import write as write_pages
from utracefs.export import Counter, Duration, Exported, Slice, Tracks, write_chrome
from utracefs_protocol.errors import TraceError


def export(path: Path, tracks: Tracks | None = None, **selection: Any) -> list[dict[str, Any]]:
    out = io.BytesIO()
    with utracefs.open(path, **selection) as recording:
        write_chrome(recording, out, tracks=tracks)
    return read(out.getvalue())


def read(data: bytes) -> list[dict[str, Any]]:
    """Times in nanoseconds, exactly."""
    text = json.loads(data.decode(), parse_float=Decimal)
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
            "args": {key: number(shown(value)) for key, value in values.items()}
            | {"_cpu" if "cpu" in values else "cpu": n % 2},
        }
        for n, (tid, event_id, time, values) in enumerate(ROWS)
    ]


def test_threads_and_processes_are_named(tmp_path: Path) -> None:
    names = [event for event in export(write(tmp_path / "trace.dat")) if event["ph"] == "M"]
    assert {(e["name"], e["pid"], e["args"]["name"]) for e in names} == {
        (kind, tid, comm(tid)) for kind in ("thread_name", "process_name") for tid, *_ in ROWS
    }


def test_two_events_are_a_slice(tmp_path: Path) -> None:
    tracks = Tracks(slices=(Slice("begin", ("done",), ("key",)),))
    found = export(write(tmp_path / "trace.dat"), tracks, events=["begin", "done"])
    lanes = [(e["ph"], e["name"], e["ts"], e["pid"], e["tid"], e["args"]) for e in found if e["ph"] in "be"]
    assert lanes == [
        ("b", "begin", 1_000_000_351, 0, 0, {"key": 7, "size": 100, "cpu": 0, "tid": 0}),
        ("b", "begin", 2_000_000_000, -1, -1, {"key": 8, "size": str(2**63), "cpu": 1, "tid": -1}),
        (
            "e",
            "begin",
            3_000_000_999,
            0,
            13,
            {"end": {"key": 7, "usec": 1500, "cpu": 0, "tid": 13, "pid": 13}},
        ),
    ]
    ids = [e["id2"]["local"] for e in found if e["ph"] in "be"]
    assert ids[0] == ids[2] != ids[1]


@pytest.mark.parametrize(("unit", "ns"), [(1, 1500), (1000, 1_500_000), (10**9, 3_000_000_999)])
def test_a_field_is_a_duration(tmp_path: Path, unit: int, ns: int) -> None:
    """A slice that would begin before the clock does is cut."""
    tracks = Tracks(durations=(Duration("done", "usec", unit),))
    found = export(write(tmp_path / "trace.dat"), tracks, events=["done"])
    assert (found[-1]["ph"], found[-1]["ts"], found[-1]["dur"]) == ("X", 3_000_000_999 - ns, ns)


def test_fields_are_counters(tmp_path: Path) -> None:
    tracks = Tracks(counters=(Counter("begin", "key"), Counter("begin", "size", "bytes")))
    found = export(write(tmp_path / "trace.dat"), tracks)
    assert [(e["name"], e["pid"], e["ts"], e["args"]) for e in found if e["ph"] == "C"] == [
        ("begin.key", 0, 1_000_000_351, {"value": 7}),
        ("bytes", 0, 1_000_000_351, {"value": 100}),
        ("begin.key", -1, 2_000_000_000, {"value": 8}),
        ("bytes", -1, 2_000_000_000, {"value": Decimal("9.22337203685477581e+18")}),
    ]


SLICES = """select s.ts, s.dur, s.name, th.tid, coalesce(tp.pid, p.pid) as pid, s.arg_set_id from slice s
    left join thread_track tt on tt.id = s.track_id left join thread th on th.utid = tt.utid
    left join process tp on tp.upid = th.upid left join process_track pt on pt.id = s.track_id
    left join process p on p.upid = pt.upid order by s.ts, s.id"""
COUNTERS = """select c.ts, c.value, replace(t.name, ' value', '') as name, p.pid from counter c
    join process_counter_track t on t.id = c.track_id join process p on p.upid = t.upid order by c.id"""
ARGUMENTS = "select arg_set_id, key, display_value from args where key glob 'args.*'"


def test_perfetto_draws_slices_that_overlap_right(tmp_path: Path) -> None:
    """Begin, end, name and process of each one, whatever is beside, within or across it."""
    picture = draw(tmp_path / "perf.data", 7)
    with utracefs.open(tmp_path / "perf.data") as recording, (tmp_path / "out.json").open("wb") as out:
        done = write_chrome(recording, out, tracks=TRACKS)
    assert (done.begins_without_end, done.ends_without_begin) == (picture.unfinished, picture.unmatched)
    slices, counters = ask(tmp_path / "out.json", SLICES, COUNTERS)
    assert Picture.of(slices, counters) == picture


def test_perfetto_has_all_fields(tmp_path: Path) -> None:
    with utracefs.open(write(tmp_path / "trace.dat")) as recording, (tmp_path / "out.json").open("wb") as out:
        write_chrome(recording, out)
    slices, arguments = ask(tmp_path / "out.json", SLICES, ARGUMENTS)
    args: dict[str, dict[str, str]] = {}
    for row in arguments:
        args.setdefault(row["arg_set_id"], {})[row["key"].removeprefix("args.")] = row["display_value"]
    assert [(row["ts"], row["name"], args[row["arg_set_id"]]) for row in slices] == [
        (
            str(time),
            name(event_id),
            {key: as_perfetto_has_it(value) for key, value in values.items()}
            | {"_cpu" if "cpu" in values else "cpu": str(n % 2)},
        )
        for n, (_, event_id, time, values) in enumerate(ROWS)
    ]


def as_perfetto_has_it(value: object) -> str:
    """It does not decode the escapes of a text unless there is a quote."""
    text = str(shown(value))
    return text if '"' in text else json.dumps(text, ensure_ascii=False)[1:-1]


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


def test_written_records_are_reported(tmp_path: Path) -> None:
    with utracefs.open(write(tmp_path / "trace.dat", lost=2)) as recording:
        assert write_chrome(recording, io.BytesIO()) == Exported(len(ROWS), 2, False)
