"""Reading /proc and /sys: threads with any names, cpus and memory."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from utracefsd.machine import procfs


def test_proc_tells_of_this_thread() -> None:
    task = procfs.read_task(os.getpid())
    assert task is not None
    with open("/proc/self/comm", "rb") as file:
        assert task.comm == file.read().rstrip(b"\n")
    assert task.start_time > 0
    assert procfs.read_tgid(threading.get_native_id()) == os.getpid()


def test_proc_names_may_hold_anything() -> None:
    with open("/proc/self/comm", "rb") as file:
        before = file.read().rstrip(b"\n")
    try:
        with open("/proc/self/comm", "wb") as file:
            file.write(b"a) (b\\n 1 \xff")
        task = procfs.read_task(os.getpid())
        assert task is not None
        assert task.comm == b"a) (b\\n 1 \xff"
    finally:
        with open("/proc/self/comm", "wb") as file:
            file.write(before)


def test_proc_knows_no_such_thread() -> None:
    assert procfs.read_task(1 << 30) is None
    assert procfs.read_tgid(1 << 30) is None


def test_a_process_that_has_closed_its_files_because_it_ends_does_not_run() -> None:
    """A connection ends before its process is a zombie."""
    me = procfs.read_task(os.getpid())
    assert me is not None
    assert procfs.is_running(os.getpid(), me.start_time)
    assert not procfs.is_running(os.getpid(), me.start_time - 1)
    for _ in range(30):
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            signal.pause()
        os.close(writer)
        child = procfs.read_task(pid)
        assert child is not None
        assert procfs.is_running(pid, child.start_time)
        os.kill(pid, signal.SIGKILL)
        assert os.read(reader, 1) == b""  # its end of the pipe is closed
        assert not procfs.is_running(pid, child.start_time)
        os.close(reader)
        os.waitpid(pid, 0)


def test_a_process_whose_first_thread_has_ended() -> None:
    program = (
        "import ctypes, threading\n"
        "threading.Thread(target=input).start()\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.pthread_exit(None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] != "Z":
            time.sleep(0.001)
        task = procfs.read_task(process.pid)
        assert task is not None
        assert procfs.is_running(process.pid, task.start_time)
        process.kill()


def test_the_machine() -> None:
    assert 1 <= procfs.possible_cpus() <= 8192
    assert procfs.free_memory_kb() > 0
    assert procfs.make_comm_table().comm(os.getpid()) != b"<...>"


STEADY = "processor\t: 0\nflags\t\t: fpu tsc constant_tsc nonstop_tsc avx\nprocessor\t: 1\nflags\t\t: fpu\n"


@pytest.mark.parametrize(
    ("clocksource", "cpuinfo", "machine", "expected"),
    [
        ("tsc\n", STEADY, "x86_64", True),
        ("hpet\n", STEADY, "x86_64", False),
        ("kvm-clock\n", STEADY, "x86_64", False),
        ("tsc-early\n", STEADY, "x86_64", False),
        ("tsc\n", STEADY.replace("nonstop_tsc", ""), "x86_64", False),
        ("tsc\n", STEADY.replace("constant_tsc", ""), "x86_64", False),
        ("tsc\n", "no flags here\n", "x86_64", False),
        ("tsc\n", STEADY, "aarch64", False),
        ("tsc\n", None, "x86_64", False),
        (None, STEADY, "x86_64", False),
    ],
)
def test_only_where_the_kernel_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clocksource: str | None,
    cpuinfo: str | None,
    machine: str,
    expected: bool,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    for name, text in (("clocksource", clocksource), ("cpuinfo", cpuinfo)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert procfs.tsc_is_trusted(tmp_path / "clocksource", tmp_path / "cpuinfo") is expected


def test_this_machine_has_an_answer() -> None:
    assert procfs.tsc_is_trusted() in (True, False)
