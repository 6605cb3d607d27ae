"""An application that emits through its client library while the daemon is killed, stopped and started again.

It numbers its records. Whatever happens to the daemon, each committed number is in `trace` once.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.integration.conftest import DaemonProcess

APPLICATION = """
import signal, sys, time, utracefs
running = True
def stop(*_):
    global running
    running = False
signal.signal(signal.SIGUSR1, stop)
event = utracefs.event("count u64 n")
n = 0
print("started", flush=True)
while running:
    if event:
        before = event.emitted
        event.emit(n)
        n += event.emitted - before
    if n % 64 == 0:
        time.sleep(0.0005)
print(n, event.lost, flush=True)
sys.stdin.read()
"""


def numbers(text: bytes) -> list[int]:
    return [int(n) for n in re.findall(rb" count: n=0x[0-9a-f]+ \((\d+)\)", text)]


def recorded(daemon: DaemonProcess) -> int:
    with daemon.tree() as tree:
        text = tree.read_file("per_cpu/cpu0/stats") + tree.read_file("per_cpu/cpu1/stats")
    return sum(int(n) for n in re.findall(rb"entries: (\d+)", text))


@pytest.mark.parametrize(("kill", "pause_s"), [(True, 0.3), (False, 0.0)], ids=["SIGKILL", "SIGTERM"])
def test_nothing_is_lost_or_recorded_twice(
    kill: bool,
    pause_s: float,
    daemon: DaemonProcess,
    environment: dict[str, str],
    eventually: Callable[..., None],
) -> None:
    with daemon.tree() as tree:
        tree.write_file("buffer_size_kb", b"32768\n")
        tree.write_file("standing_events", b"count\n")
    application = subprocess.Popen(
        [sys.executable, "-c", APPLICATION],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert application.stdout is not None
        assert application.stdin is not None
        assert application.stdout.readline() == "started\n"
        for _ in range(3):
            before = recorded(daemon)
            eventually(lambda before=before: recorded(daemon) > before + 2000, "records arrive")
            daemon.stop(kill=kill)
            time.sleep(pause_s)
            daemon.start()
        before = recorded(daemon)
        eventually(lambda: recorded(daemon) > before + 2000, "records arrive again")
        application.send_signal(signal.SIGUSR1)
        emitted, lost = map(int, application.stdout.readline().split())
        with daemon.tree() as tree:
            found = numbers(tree.read_file("trace"))
            status = tree.read_file("user_events_status")
    finally:
        application.kill()
        application.communicate()
    assert b"count # Used by ftrace" in status
    assert lost == 0
    assert len(found) == len(set(found)), "recorded twice"
    missing = set(range(emitted)) - set(found)
    assert not missing, f"{len(missing)} of {emitted} are missing, the first is {min(missing)}"
    assert found == sorted(found)


def test_without_a_daemon_an_event_is_off_within_a_second(
    daemon: DaemonProcess, environment: dict[str, str]
) -> None:
    script = """
import time, utracefs
event = utracefs.event("off u64 n")
while not event:
    pass
print("on", flush=True)
begin = time.monotonic()
while event and time.monotonic() < begin + 10:
    event.emit(1)
    time.sleep(0.001)
print(time.monotonic(), flush=True)
"""
    with daemon.tree() as tree:
        tree.write_file("standing_events", b"off\n")
    application = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert application.stdout is not None
        assert application.stdout.readline() == "on\n"
        killed = time.monotonic()
        daemon.stop(kill=True)
        assert float(application.stdout.readline()) < killed + 1
    finally:
        application.kill()
        application.communicate()
        daemon.start()  # to take over the leftover state, and remove it when it is stopped
