"""Threads and processes that end right after their first record: each under its own name, on its cpu."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.c.building import SOURCE, build, kernel_abi, preload_library
from tests.client.daemons.fake_daemon import wait_for
from tests.integration.conftest import DaemonProcess
from tests.integration.mount.mounting import mounted, must_mount

HERE = Path(__file__).parent

CPU = max(os.sched_getaffinity(0))

NAMES = {f"t{n}" for n in range(300)} | {f"p{n}" for n in range(150)}

IN_PYTHON = f"""
import ctypes, os, threading, time, utracefs
os.sched_setaffinity(0, [{CPU}])
event = utracefs.event("c_short u32 n")
deadline = time.monotonic() + 60
while not (event.registered and event):
    assert time.monotonic() < deadline
    time.sleep(0.001)
libc = ctypes.CDLL(None)

def say(kind, n):
    libc.prctl(15, f"{{kind}}{{n}}".encode(), 0, 0, 0)  # PR_SET_NAME
    event.emit(n)

for n in range(300):
    thread = threading.Thread(target=say, args=("t", n))
    thread.start()
    thread.join()
for n in range(150):
    pid = os.fork()
    if not pid:
        say("p", n)
        utracefs.flush(60)
        os._exit(0)
    os.waitpid(pid, 0)
utracefs.flush(60)
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("short_lived")

    def compiled(name: str) -> Path:
        program = folder / name
        library = build("all")
        flags = [f"-I{SOURCE}/include", f"-L{library}", "-lutracefs", f"-Wl,-rpath,{library}"]
        if name == "abi":
            flags = ["-DKERNEL_ABI", *kernel_abi()]
        command = [
            "gcc",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            str(HERE / "short_lived.c"),
            "-o",
            str(program),
        ]
        subprocess.run([*command, *flags], check=True)
        return program

    return compiled


def shown(daemon: DaemonProcess) -> set[str]:
    """The names in `trace`, each once; on the cpu that the program was bound to."""
    with daemon.tree() as tree:
        # (150 processes that do not wait are a flood, which is taken in by and by.)
        file = "events/user_events/c_short/stats"
        wait_for(lambda: "emitted: 450\n" in tree.read_file(file).decode())
        lines = re.findall(
            r"^ *(.*)-\d+ +\[(\d+)\].*: c_short: n=(\S+)", tree.read_file("trace").decode(), re.MULTILINE
        )
        stats = tree.read_file(file).decode()
    assert "recorded 450 filtered 0 lost 0" in stats
    assert len(lines) == 450, lines[:3]
    assert {int(line[1]) for line in lines} == {CPU}
    assert [name for name, _, n in lines if name in NAMES and int(name[1:]) != int(n, 0)] == []
    return {name for name, _, _ in lines}


@pytest.fixture
def wanted(daemon: DaemonProcess) -> DaemonProcess:
    with daemon.tree() as tree:
        tree.write_file("standing_events", b"user_events:c_short\n")
    return daemon


def run(daemon: DaemonProcess, *command: object, **environment: str) -> None:
    env = {**os.environ, "UTRACEFS_DIR": daemon.directory, **environment}
    subprocess.run([str(word) for word in command], env=env, check=True, timeout=100)


@pytest.mark.parametrize("rings", ["1", "0"], ids=["ring", "socket"])
def test_python(wanted: DaemonProcess, rings: str) -> None:
    run(wanted, sys.executable, "-c", IN_PYTHON, UTRACEFS_DATA_RING=rings)
    assert shown(wanted) == NAMES


@pytest.mark.parametrize("rings", ["1", "0"], ids=["ring", "socket"])
def test_c(wanted: DaemonProcess, programs: Callable[[str], Path], rings: str) -> None:
    run(wanted, programs("c"), CPU, UTRACEFS_DATA_RING=rings)
    assert shown(wanted) == NAMES


@pytest.mark.parametrize("rings", ["1", "0"], ids=["ring", "socket"])
def test_preloaded(wanted: DaemonProcess, programs: Callable[[str], Path], rings: str) -> None:
    file = "/sys/kernel/tracing/user_events_data"
    run(wanted, programs("abi"), CPU, file, LD_PRELOAD=str(preload_library()), UTRACEFS_DATA_RING=rings)
    assert shown(wanted) == NAMES


def test_mount(wanted: DaemonProcess, programs: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "tracing"
    must_mount(folder)
    with mounted(wanted.directory, folder):
        run(wanted, programs("abi"), CPU, folder / "user_events_data")
        assert shown(wanted) == NAMES


BEFORE_THE_ANSWER = f"""
import ctypes, os, utracefs
os.sched_setaffinity(0, [{CPU}])
event = utracefs.event("c_short u32 n")
pid = os.fork()
if not pid:
    ctypes.CDLL(None).prctl(15, b"early", 0, 0, 0)  # PR_SET_NAME
    event.emit(7)
    os._exit(0)
os.waitpid(pid, 0)
print(pid)
"""


def test_a_child_that_ends_before_the_daemon_has_answered_its_parent(wanted: DaemonProcess) -> None:
    """Over the socket it names its writer all the same."""
    assert wanted.process
    wanted.process.send_signal(signal.SIGSTOP)
    env = os.environ | {"UTRACEFS_DIR": wanted.directory, "UTRACEFS_DATA_RING": "0"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", BEFORE_THE_ANSWER], env=env, capture_output=True, check=True, timeout=100
        )
    finally:
        wanted.process.send_signal(signal.SIGCONT)
    with wanted.tree() as tree:
        wait_for(lambda: "n=0x7" in tree.read_file("trace").decode())
        text = tree.read_file("trace").decode()
    assert f" early-{int(done.stdout)} " in text
    assert f"[{CPU:03}]" in text
