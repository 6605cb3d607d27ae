"""The installed bpftrace, unchanged, on events of user_events."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import utracefs
from tests.integration.bpf.workload import EVENTS, PROGRAMS, REQUEST, command, plain, started
from tests.integration.conftest import DaemonProcess
from tests.integration.mount.mounting import wait_for
from tests.judges import judge

judge("bpftrace")


def run(daemon: DaemonProcess, *words: str, **options: object) -> "subprocess.CompletedProcess[str]":
    with utracefs.Session(daemon.directory) as session:
        events = session.events(f"{name} {fields}".strip() for name, fields in EVENTS.items())
        wait_for(lambda: events[-1].registered, "registered")
        return subprocess.run(
            [*command(daemon), *words], capture_output=True, text=True, timeout=60, check=False
        )


def result(daemon: DaemonProcess, text: str, *options: str, prefix: Sequence[str] = ()) -> str:
    with started(daemon, text, *options, prefix=prefix) as (_, tool):
        tool.attached().emit()
        status, out, error = tool.end()
    assert (status, error) == (0, "")
    return out


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(daemon: DaemonProcess, name: str) -> None:
    program = PROGRAMS[name]
    out = plain(result(daemon, program.text))
    assert program.fits(out), out


def test_ctrl_c_while_the_daemon_hangs(daemon: DaemonProcess) -> None:
    """The tool waits for an answer once, not for each probe."""
    with started(daemon, f"{REQUEST} {{ @ = count(); }}") as (_, tool):
        tool.attached()
        os.kill(daemon.pid, signal.SIGSTOP)
        began = time.monotonic()
        try:
            _, _, error = tool.interrupt()
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
    assert "the daemon does not answer: records that it has not taken in are not counted" in error
    assert time.monotonic() - began < 25


def test_json(daemon: DaemonProcess) -> None:
    out = result(daemon, f"{REQUEST} {{ @[args->status] = count(); }}", "-f", "json")
    maps = [json.loads(line) for line in out.splitlines() if line.startswith('{"type": "map"')]
    assert maps == [{"type": "map", "data": {"@": {"200": 10, "404": 10, "500": 10}}}]


def test_output_to_a_file(daemon: DaemonProcess, tmp_path: Path) -> None:
    done = run(daemon, "-o", str(tmp_path / "out"), "-e", 'BEGIN { printf("x\\n"); exit(); }')
    assert (done.returncode, (tmp_path / "out").read_text().split()[-1]) == (0, "x")


def test_list(daemon: DaemonProcess) -> None:
    listed = run(daemon, "-l", "tracepoint:user_events:bt_*").stdout.split()
    assert listed == [f"tracepoint:user_events:{name}" for name in sorted(EVENTS)]
    fields = run(daemon, "-lv", REQUEST).stdout
    for field in ("unsigned short status", "unsigned int usec", "__data_loc char[] path"):
        assert field in fields


@pytest.mark.parametrize("own", [False, True])
def test_a_command_is_no_tool(daemon: DaemonProcess, tmp_path: Path, own: bool) -> None:
    """-c: it starts without the library, and has the events of a recorded command; without a daemon those of
    one of its own."""
    text = "import os, utracefs; print(os.environ['LD_PRELOAD'], os.geteuid());"
    text += " event = utracefs.event('bt_child u32 n'); [event.emit(n) for n in range(10)]"
    script = tmp_path / "child.py"
    script.write_text(text)
    words = ["bpftrace", "--reg", "bt_child u32 n", "-c", f"{sys.executable} {script}", "-e"]
    words += ["tracepoint:user_events:bt_child /pid == cpid/ { @ = sum(args->n); }"]
    environ = os.environ | {"UTRACEFS_DIR": str(tmp_path) if own else daemon.directory}
    done = subprocess.run(
        [*command(daemon)[:3], *words], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert plain(done.stdout).split()[-2:] == ["@:", "45"], done.stderr
    assert "libutracefs-preload.so" in done.stdout and "libutracefs-bpf" not in done.stdout


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (f"{REQUEST} {{ @[kstack] = count(); }}", "stacks are not part of a record"),
        (f"{REQUEST} {{ @[uid] = count(); }}", "user is not part of a record"),
        ("tracepoint:sched:sched_switch { @ = count(); }", "the kernel's own do not exist here"),
        (
            "tracepoint:user_events:bt_gone { @ = count(); }",
            "start one first, or declare it by `utracefs reg` or `utracefs bpftrace --reg`",
        ),
        ("kprobe:vfs_read { @ = count(); }", "kprobes and uprobes do not exist here"),
        ("hardware:cache-misses:1000 { @ = count(); }", "hardware counters do not exist here"),
        ("software:page-faults:100 { @ = count(); }", "software events"),
    ],
)
def test_refusals_come_before_those_of_the_tool(daemon: DaemonProcess, program: str, reason: str) -> None:
    done = run(daemon, "-e", program)
    ours, _, theirs = done.stderr.partition("utracefs: ")[2].partition("\n")
    assert done.returncode and reason in ours and "ERROR" in theirs


def test_ctrl_c(daemon: DaemonProcess) -> None:
    text = f'{REQUEST} {{ @ = count(); }} END {{ printf("end\\n"); }}'
    with started(daemon, text) as (_, tool):
        tool.attached().emit()
        status, out, _ = tool.interrupt()
    assert status == 0 and plain(out) == "end\n@: 30"


def test_as_nobody_without_capabilities_and_sys(daemon: DaemonProcess) -> None:
    """In a mount namespace in which nothing of /sys/kernel is there."""
    if os.geteuid():
        pytest.skip("needs root")
    setpriv = shutil.which("setpriv")
    assert setpriv
    inside = 'mount -t tmpfs none /sys/kernel && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"'
    prefix = ["unshare", "-m", "sh", "-c", inside, "sh"]
    prefix += ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
    program = PROGRAMS["histograms by text"]
    for path in (daemon.directory, f"{daemon.directory}/tracefs"):
        os.chown(path, 65534, 65534)
    assert plain(result(daemon, program.text, prefix=prefix)) == program.output
