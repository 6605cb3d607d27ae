"""A latency between two events: hist triggers generate a synthetic event, which is recorded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.integration.conftest import DaemonProcess
from tests.judges import run_judge

APP = """
import utracefs
start, done = utracefs.event("start u64 id"), utracefs.event("done u64 id; s32 rc")
for i in range(3):
    start.emit(i)
    done.emit(i, -i)
done.emit(0, 9)
"""


def utracefs(directory: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "utracefs", *arguments],
        env=os.environ | {"UTRACEFS_DIR": directory},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_latency_from_a_program_to_trace_cmd(daemon: DaemonProcess, tmp_path: Path) -> None:
    directory = daemon.directory
    utracefs(directory, "write", "--append", "dynamic_events", "u:start u64 id")
    utracefs(directory, "write", "--append", "dynamic_events", "u:done u64 id; s32 rc")
    utracefs(directory, "write", "--append", "synthetic_events", "lat u64 id; u64 delta; s32 rc")
    for event, trigger in [
        ("start", "hist:keys=id:ts0=common_timestamp.usecs"),
        ("done", "hist:keys=id:d=common_timestamp.usecs-$ts0:onmatch(user_events.start).lat(id,$d,rc)"),
    ]:
        utracefs(directory, "write", "--append", f"events/user_events/{event}/trigger", trigger)
    program, trace = tmp_path / "app.py", tmp_path / "trace.dat"
    program.write_text(APP)
    utracefs(directory, "record", "-e", "synthetic:lat", "-o", str(trace), "--", sys.executable, str(program))
    assert "Hits: 3\n" in utracefs(directory, "cat", "events/user_events/done/hist")
    for text in (
        utracefs(directory, "report", str(trace)),
        run_judge("trace-cmd", "report", str(trace)).decode(),
    ):
        found = re.findall(r"lat: +id=(\d+), delta=(\d+), rc=(-?\d+)", text)
        assert [(id, rc) for id, _, rc in found] == [("0", "0"), ("1", "-1"), ("2", "-2")]
