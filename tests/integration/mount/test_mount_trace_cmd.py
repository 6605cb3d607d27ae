"""trace-cmd over a mount on /sys/kernel/tracing in a mount namespace of its own: `utracefs mount
/sys/kernel/tracing --trace-cmd`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import DaemonProcess
from tests.integration.mount.mounting import must_mount, run
from tests.judges import judge

TRACEFS = "/sys/kernel/tracing"

EMITTER = """
import sys, time, utracefs
event = utracefs.event("shop u32 count; char[8] what")
deadline = time.monotonic() + 60
while not (event.registered and event) and time.monotonic() < deadline:
    time.sleep(0.005)
assert event
for count in range(100):
    event.emit(count, b"thing")
assert utracefs.flush(60)
"""


class TraceCmd:
    """Runs commands of a shell where trace-cmd finds the mount."""

    def __init__(self, daemon: DaemonProcess, folder: Path) -> None:
        self.folder = folder
        (folder / "emit.py").write_text(EMITTER)
        self._env = {**os.environ, "UTRACEFS_DIR": daemon.directory, "PYTHON": sys.executable}

    def __call__(self, script: str, *inside: str) -> str:
        done = subprocess.run(
            [*inside, sys.executable, "-m", "utracefs.cli", "mount", TRACEFS, "--", "bash", "-ec", script],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def trace_cmd(daemon: DaemonProcess, tmp_path: Path) -> Iterator[TraceCmd]:
    if os.geteuid():
        pytest.skip("only root has a mount namespace with tracefs in it")
    judge("trace-cmd")
    if not os.path.isdir(TRACEFS) or run(["unshare", "-m", "true"], Path("/")).returncode:
        pytest.skip(f"no {TRACEFS}, or no mount namespaces")
    must_mount(tmp_path / "probe")
    with daemon.tree() as tree:
        tree.write_file("dynamic_events", b"u:shop u32 count; char[8] what\n", truncate=False)
        tree.write_file("buffer_size_kb", b"256")
    yield TraceCmd(daemon, tmp_path)


@pytest.mark.parametrize("mounted", [False, True])
def test_it_never_sees_the_trace_of_the_machine(mounted: bool, trace_cmd: TraceCmd) -> None:
    """Whether the machine's own tracefs is mounted somewhere else, or nowhere."""
    place = trace_cmd.folder / "machine"
    place.mkdir()
    before = f"mount -t tracefs none {place}" if mounted else "true"
    hide = f'umount -q -a -t tracefs; {before} && exec "$@"'
    inside = ["unshare", "-m", "sh", "-c", hide, "sh"]
    assert "user_events:shop\n" in trace_cmd("trace-cmd list -e", *inside)


def counts(report: str) -> list[int]:
    return [int(number) for number in re.findall(r" shop: +count=(\d+) what=thing", report)]


def test_stat_and_list(trace_cmd: TraceCmd) -> None:
    said = trace_cmd(
        "trace-cmd stat; trace-cmd list -e; trace-cmd list -e shop -F; trace-cmd list -o; trace-cmd list -B"
    )
    assert "Tracing is enabled" in said
    assert "\nuser_events:shop\n" in said
    assert "\tfield:u32 count;\toffset:8;\tsize:4;\tsigned:0;\n" in said
    assert "\noverwrite\n" in said


@pytest.mark.parametrize("options", ["", "--nosplice", "-B mine", "-B mine --nosplice -f 'count >= 40'"])
def test_record(trace_cmd: TraceCmd, options: str) -> None:
    """-f applies to the event before it."""
    buffer, _, rest = options.partition(" -f")
    filtered = f"-f{rest}" if rest else ""
    report = trace_cmd(
        f"trace-cmd record {buffer} -e user_events:shop {filtered} -o out.dat $PYTHON emit.py > log 2>&1"
        " || cat log; trace-cmd report out.dat"
    )
    said = (trace_cmd.folder / "log").read_text()
    assert counts(report) == list(range(40 if rest else 0, 100)), (report, said)


def test_start_stop_show_extract_clear(trace_cmd: TraceCmd) -> None:
    said = trace_cmd(
        "trace-cmd start -e user_events:shop > /dev/null; $PYTHON emit.py; trace-cmd stop;"
        " trace-cmd show | grep -c shop:; trace-cmd extract -o out.dat > /dev/null 2>&1;"
        f" trace-cmd report out.dat; echo left $(grep -c shop: {TRACEFS}/trace);"
        " trace-cmd clear; trace-cmd restart"
    )
    assert said.startswith("100\n")
    assert counts(said) == list(range(100))
    assert "left 0\n" in said


def test_stream(trace_cmd: TraceCmd) -> None:
    """By default a cpu's buffer has to fill up to half before its reader wakes, in any tracefs."""
    said = trace_cmd(
        f"echo 0 > {TRACEFS}/buffer_percent;"
        " setsid stdbuf -oL trace-cmd stream --nosplice -e user_events:shop > out 2>&1 & reader=$!;"
        f" until grep -q Hit out && grep -q 1 {TRACEFS}/tracing_on; do sleep 0.05; done; $PYTHON emit.py;"
        " for i in $(seq 400); do test $(grep -c shop: out) -ge 100 && break; sleep 0.05; done;"
        " kill -- -$reader; wait $reader || true; cat out"
    )
    assert counts(said) == list(range(100)), said


def test_snapshot(trace_cmd: TraceCmd) -> None:
    said = trace_cmd(
        f"echo first > {TRACEFS}/trace_marker; trace-cmd snapshot -s; echo second > {TRACEFS}/trace_marker;"
        " trace-cmd snapshot; trace-cmd snapshot -f"
    )
    assert "first" in said and "second" not in said


def test_reset(trace_cmd: TraceCmd) -> None:
    said = trace_cmd(
        f"cd {TRACEFS}; shop=events/user_events/shop; echo 1 > $shop/enable; echo 'count > 5' > $shop/filter;"
        " echo traceoff > $shop/trigger; echo 0 > tracing_on; echo mono > trace_clock;"
        " trace-cmd reset;"
        " cat $shop/{enable,filter} tracing_on; grep -v '^#' $shop/trigger || true;"
        " cat trace_clock dynamic_events; cd /"
    )
    lines = said.splitlines()
    assert lines[:3] == ["0", "none", "1"]
    assert lines[3].startswith("[local]")
    assert lines[4:] == ["u:shop u32 count; char[8] what"]


def test_the_machines_own_tracefs_is_left_alone(trace_cmd: TraceCmd) -> None:
    before = mounts_there()
    trace_cmd("true")
    assert mounts_there() == before


def mounts_there() -> list[str]:
    """The file systems mounted on it, in the order of mounting; other tests mount elsewhere meanwhile."""
    return [line for line in Path("/proc/mounts").read_text().splitlines() if f" {TRACEFS} " in line]
