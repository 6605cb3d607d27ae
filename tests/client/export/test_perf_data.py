"""Every field of every record, read back by perf and by our own reader."""

import re
from pathlib import Path

import pytest

import utracefs
from tests.client.export.example import ROWS, name, write
from tests.client.recordings.test_recording import break_first_page
from tests.client.recordings.trace_dat.example import CPU0, EVENTS, pages
from tests.client.recordings.trace_dat.example import write as write_pages
from tests.judges import run_judge
from utracefs.export import Exported, write_perf_data
from utracefs_protocol.errors import TraceError


def exported(source: Path, out: Path, **selection: object) -> Exported:
    with utracefs.open(source, **selection) as recording:  # type: ignore[arg-type]
        return write_perf_data(recording, out)


def test_perf_reads_it(tmp_path: Path) -> None:
    out = tmp_path / "perf.data"
    exported(write(tmp_path / "trace.dat"), out, events=["ints", "begin", "done", "empty"])
    words = ["script", "--ns", "-f", "-F", "trace:comm,pid,tid,cpu,time,event,trace", "-i", out]
    lines = run_judge("perf", *words).decode("utf-8", "replace").splitlines()
    pattern = re.compile(r" *(.*?) +(-?\d+)/(-?\d+) +\[(\d+)\] +(\d+)\.(\d{9}): +user_events:(\w+): ?(.*?) *")
    found = [match.groups() for line in lines if (match := pattern.fullmatch(line))]
    assert len(found) == len(lines)
    assert [
        (int(tid), int(cpu), int(s + ns), event, text) for _, _, tid, cpu, s, ns, event, text in found
    ] == [
        (tid, n % 2, time, name(event_id), " ".join(f"{key}={value}" for key, value in values.items()))
        for n, (tid, event_id, time, values) in enumerate(ROWS)
        if name(event_id) in ("ints", "begin", "done", "empty")
    ]


def test_a_record_without_a_format_is_left_out(tmp_path: Path) -> None:
    """A recording whose writer was killed may have one."""
    known = EVENTS.entry(2001, 11, 7)
    records = [(1, known), (2, b"\xff\xff" + known[2:]), (3, known)]
    out = tmp_path / "perf.data"
    assert exported(write_pages(tmp_path / "trace.dat", [pages(records)]), out) == Exported(2, 1, False)
    assert run_judge("perf", "script", "-f", "-i", out, may_warn=True).count(b" user_events:") == 2


def test_a_broken_recording_makes_a_complete_file(tmp_path: Path) -> None:
    source = break_first_page(write_pages(tmp_path / "trace.dat", [pages(CPU0)]))
    out = tmp_path / "perf.data"
    with pytest.raises(TraceError, match="broken: cpu 0"):
        exported(source, out)
    with utracefs.open(out) as there:
        assert [r.time_ns for r in there] == [CPU0[0][0]]
    assert EVENTS.declared
