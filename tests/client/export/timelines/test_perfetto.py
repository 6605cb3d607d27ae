"""Every field of every record, slice, counter and name, as read by Perfetto's own trace processor."""

import io
from pathlib import Path
from typing import Any

import pytest

import utracefs
from tests.client.export.example import ROWS, comm, name, shown, write
from tests.client.export.timelines.drawing import EVENTS as DRAWN
from tests.client.export.timelines.drawing import TRACKS, Picture, draw
from tests.client.export.timelines.trace_processor import ask
from tests.client.recordings.perf_data.example import comm as comm_record
from tests.client.recordings.perf_data.example import sample
from tests.client.recordings.perf_data.example import write as write_perf_data
from tests.client.recordings.trace_dat.example import CPU0, EVENTS
from utracefs.export import Counter, Exported, Slice, Tracks, write_perfetto
from utracefs_protocol.errors import TraceError

SLICES = """select s.ts, s.dur, s.name, s.category, s.depth, s.track_id, t.name as track, s.arg_set_id,
    th.tid, th.name as thread, coalesce(p.pid, tp.pid) as pid from slice s join track t on t.id = s.track_id
    left join thread_track tt on tt.id = t.id left join thread th on th.utid = tt.utid
    left join process tp on tp.upid = th.upid left join process_track pt on pt.id = t.id
    left join process p on p.upid = pt.upid order by s.ts, s.id"""
COUNTERS = """select c.ts, c.value, t.name, p.pid from counter c
    join process_counter_track t on t.id = c.track_id join process p on p.upid = t.upid order by c.id"""
ARGUMENTS = "select arg_set_id, key, display_value from args where key glob 'debug.*'"


def export(path: Path, tracks: Tracks | None = None, **selection: Any) -> tuple[bytes, Exported]:
    out = io.BytesIO()
    with utracefs.open(path, **selection) as recording:
        done = write_perfetto(recording, out, tracks=tracks)
    return out.getvalue(), done


def judge(tmp_path: Path, data: bytes) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The processor's slices, each with `args`, and its counters; integers as text."""
    out = tmp_path / "out.pftrace"
    out.write_bytes(data)
    slices, counters, arguments = ask(out, SLICES, COUNTERS, ARGUMENTS)
    args: dict[str, dict[str, str]] = {}
    for row in arguments:
        args.setdefault(row["arg_set_id"], {})[row["key"].removeprefix("debug.")] = row["display_value"]
    for row in slices:
        row["args"] = args.get(row.pop("arg_set_id"), {})
    return slices, counters


def test_all_records(tmp_path: Path) -> None:
    data, done = export(write(tmp_path / "trace.dat"))
    assert done == Exported(len(ROWS), 0, False)
    slices, _ = judge(tmp_path, data)
    assert [
        (row["ts"], row["dur"], row["name"], row["category"], row["tid"], row["args"]) for row in slices
    ] == [
        (
            str(time),
            "0",
            name(event_id),
            "user_events",
            str(tid),
            {key: str(shown(value)) for key, value in values.items()}
            | {"_cpu" if "cpu" in values else "cpu": str(n % 2)},
        )
        for n, (tid, event_id, time, values) in enumerate(ROWS)
    ]
    # The processor has a name of its own for thread 0.
    assert {row["tid"]: row["thread"] for row in slices} == {
        str(tid): comm(tid) if tid else "swapper" for tid, *_ in ROWS
    }


def test_threads_and_processes_are_named(tmp_path: Path) -> None:
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
            sample(5, 0, 2**31 - 1, 2**31 - 1, CPU0[0][1]),
        ],
    )
    data, _ = export(path)
    (tmp_path / "out.pftrace").write_bytes(data)
    threads, processes = ask(
        tmp_path / "out.pftrace",
        "select tid, name from thread where utid order by tid",
        "select pid, name from process where upid order by pid",
    )
    assert [tuple(row.values()) for row in threads] == [
        ("11", "main"),
        ("12", "renamed"),
        (str(2**31 - 1), "<...>"),
    ]
    assert [tuple(row.values()) for row in processes] == [("11", "main"), (str(2**31 - 1), "<...>")]


def test_two_events_are_a_slice(tmp_path: Path) -> None:
    tracks = Tracks(slices=(Slice("begin", ("done",), ("key",), "request"),))
    data, done = export(write(tmp_path / "trace.dat"), tracks, events=["begin", "done"])
    assert (done.begins_without_end, done.ends_without_begin) == (1, 0)
    slices, _ = judge(tmp_path, data)
    assert [
        (row["ts"], row["dur"], row["name"], row["track"], row["pid"], row["args"]) for row in slices
    ] == [
        (
            "1000000351",
            "2000000648",
            "request",
            "request",
            "0",
            {
                "key": "7",
                "size": "100",
                "cpu": "0",
                "tid": "0",
                "end.key": "7",
                "end.usec": "1500",
                "end.cpu": "0",
                "end.tid": "13",
                "end.pid": "13",
            },
        ),
        # Its end is not there: the processor says so by -1.
        (
            "2000000000",
            "-1",
            "request",
            "request",
            slices[1]["pid"],
            {"key": "8", "size": str(2**63), "cpu": "1", "tid": "-1"},
        ),
    ]


def test_fields_are_counters(tmp_path: Path) -> None:
    tracks = Tracks(counters=(Counter("begin", "size", "bytes"), Counter("ints", "g")))
    _, counters = judge(tmp_path, export(write(tmp_path / "trace.dat"), tracks)[0])
    assert [(row["ts"], float(row["value"]), row["name"]) for row in counters] == [
        ("1", float(-(2**63)), "ints.g"),
        ("2", float(2**63 - 1), "ints.g"),
        ("1000000351", 100, "bytes"),
        ("2000000000", 2.0**63, "bytes"),
    ]
    assert [row["pid"] for row in counters[:3]] == ["11", "11", "0"]


@pytest.mark.parametrize("seed", range(3))
def test_slices_that_overlap_are_drawn_right(tmp_path: Path, seed: int) -> None:
    """Begin, end, name and process of each one, whatever is beside, within or across it."""
    picture = draw(tmp_path / "perf.data", seed)
    data, done = export(tmp_path / "perf.data", TRACKS)
    assert (done.begins_without_end, done.ends_without_begin) == (picture.unfinished, picture.unmatched)
    slices, counters = judge(tmp_path, data)
    assert Picture.of(slices, counters) == picture


@pytest.mark.parametrize(("lost", "number"), [(3, "3"), (-1, "not counted")])
def test_lost_records_are_a_point_of_their_own(tmp_path: Path, lost: int, number: str) -> None:
    data, _ = export(write(tmp_path / "trace.dat", lost=lost))
    slices, _ = judge(tmp_path, data)
    found = [row for row in slices if row["name"] == "lost records"]
    assert [(row["ts"], row["track"], row["args"]) for row in found] == [
        ("2", "lost records", {"number": number})
    ]


def test_no_records(tmp_path: Path) -> None:
    data, done = export(write(tmp_path / "trace.dat"), pids=[999])
    assert done.records == 0 and judge(tmp_path, data) == ([], [])


def test_tracks_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    out = io.BytesIO()
    with (
        utracefs.open(write(tmp_path / "trace.dat")) as recording,
        pytest.raises(TraceError, match="no such"),
    ):
        write_perfetto(recording, out, tracks=Tracks(counters=(Counter("nosuch", "n"),)))
    assert out.getvalue() == b""


def test_the_judge_knows_the_events() -> None:
    assert TRACKS.events() <= {d.name.decode() for d in DRAWN.declared.values()}
