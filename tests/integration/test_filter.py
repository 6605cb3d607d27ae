"""A filter on the writing thread and on a field, from a real program to its records, across a kill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from tests.integration.conftest import DaemonProcess

PROGRAM = """
import ctypes, sys, threading, time
import utracefs

event = utracefs.event("work u32 n")

def name_thread(name):
    ctypes.CDLL(None).prctl(15, name)

def emit():
    for n in range(100):
        event.emit(n)

turn, done = threading.Semaphore(0), threading.Semaphore(0)

def worker():
    # It lives on: of a thread that is gone before its records are looked at nobody knows the name.
    name_thread(b"worker")
    while True:
        turn.acquire()
        emit()
        done.release()

threading.Thread(target=worker, daemon=True).start()
name_thread(b"boss")
for line in sys.stdin:
    deadline = time.monotonic() + 60
    while not event:
        assert time.monotonic() < deadline, "the event was not enabled"
        time.sleep(0.01)
    emit()
    turn.release()
    done.acquire()
    print("done", flush=True)
"""


def test_writers_across_a_kill(
    daemon: DaemonProcess,
    environment: dict[str, str],
    eventually: Callable[[Callable[[], object], str], None],
) -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as program:
        assert program.stdin is not None and program.stdout is not None

        def emit() -> None:
            program.stdin.write(b"go\n")  # type: ignore[union-attr]
            assert program.stdout.readline() == b"done\n"  # type: ignore[union-attr]

        def numbers() -> str:
            with daemon.tree() as tree:
                return tree.read_file("events/user_events/work/stats").decode().partition("ftrace: ")[2]

        with daemon.tree() as tree:
            eventually(lambda: b"work" in tree.read_file("available_events"), "registered")
            tree.write_file("events/user_events/work/filter", b'comm == "worker" && n >= 70\n')
            tree.write_file("events/user_events/work/enable", b"1\n")
        emit()
        assert numbers() == "recorded 30 filtered 170 lost 0\n"
        daemon.stop(kill=True)
        daemon.start()
        emit()
        assert numbers() == "recorded 30 filtered 170 lost 0\n", "numbers of events begin anew"
        with daemon.tree() as tree:
            lines = [line for line in tree.read_file("trace").splitlines() if b": work: " in line]
        program.stdin.close()
        assert program.wait(60) == 0
    assert [line.rpartition(b"n=")[2] for line in lines] == [
        b"0x%x (%d)" % (n, n) for n in range(70, 100)
    ] * 2
    assert {line.split(b"-")[0].strip() for line in lines} == {b"worker"}
