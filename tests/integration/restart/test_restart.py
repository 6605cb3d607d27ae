"""The daemon is killed, or stopped, and started again: what the simulation does not see of that.

The producer is written from docs/protocol.md, independent of the client library.
"""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.conftest import DaemonProcess
from tests.simulation.rings import DataRing
from tests.soak.plain import PlainConnection
from utracefsd.server.runtime import locate


class Producer:
    """Registers an event with a field `u64 n`; emits into a data ring and takes it to the next daemon."""

    def __init__(self, directory: str, name: str = "a") -> None:
        self.directory, self.name = directory, name
        self.fds = DataRing.make(64 << 10)
        self.ring = DataRing(self.fds[0])
        self.emitted = 0
        self.connect()

    def connect(self) -> None:
        self.connection = PlainConnection(self.directory)
        assert self.connection.register(f"{self.name} u64 n")[0] == 0
        self.connection.call("adopt_ring", {}, fds=tuple(self.fds))

    def come_back(self) -> None:
        """To the next daemon."""
        self.connection.close()
        self.connect()

    def emit(self, count: int) -> None:
        """The next numbers; does not wait, so numbers that do not fit are not emitted."""
        for _ in range(count):
            payload = struct.pack("<Q", self.emitted)
            if not self.ring.write(0, payload, time.monotonic_ns(), os.getpid(), 0):
                return
            self.emitted += 1

    def close(self) -> None:
        self.connection.close()
        self.ring.close()
        for fd in self.fds:
            os.close(fd)


def numbers(trace: bytes) -> list[int]:
    return [int(n) for n in re.findall(rb" a: n=0x[0-9a-f]+ \((\d+)\)", trace)]


def read(daemon: DaemonProcess, *paths: str) -> list[bytes]:
    with daemon.tree() as tree:
        return [tree.read_file(path) for path in paths]


def write(daemon: DaemonProcess, **files: bytes) -> None:
    with daemon.tree() as tree:
        for path, data in files.items():
            tree.write_file(path.replace("__", "/"), data)


def end(daemon: DaemonProcess, number: int) -> Path:
    """End it by a signal; returns its status folder."""
    assert daemon.process is not None
    daemon.process.send_signal(number)
    daemon.process.wait(60)
    daemon.stop()
    return locate(daemon.directory).status_folder


@pytest.mark.parametrize(
    ("number", "options", "connected", "kept"),
    [
        (signal.SIGTERM, [], False, False),
        (signal.SIGTERM, [], True, True),
        (signal.SIGTERM, ["--keep-state"], False, True),
        (signal.SIGTERM, ["--exit-with-parent", "--keep-state"], True, False),
        (signal.SIGINT, ["--keep-state"], True, False),
        (signal.SIGHUP, ["--keep-state"], True, False),
        (signal.SIGKILL, [], False, True),
    ],
)
def test_which_ends_leave_something(
    directory: str, number: int, options: list[str], connected: bool, kept: bool
) -> None:
    daemon = DaemonProcess(directory, *options)
    daemon.start()
    try:
        with daemon.tree() as tree:
            tree.write_file("dynamic_events", b"u:kept u32 n\n", truncate=False)
        producer = Producer(directory) if connected else None
        folder = end(daemon, number)
        assert folder.exists() == kept
        if producer is not None:
            producer.close()
        daemon.options = ()
        daemon.start()
        assert (b"kept" in read(daemon, "dynamic_events")[0]) == kept
        assert not end(daemon, signal.SIGINT).exists()
    finally:
        daemon.stop(kill=True)


def test_without_a_daemon_an_event_is_off_within_a_second(
    daemon: DaemonProcess, environment: dict[str, str]
) -> None:
    script = """
import time, utracefs
event = utracefs.event("off u64 n")
while not (event.registered and event):
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
