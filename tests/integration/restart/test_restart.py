"""The daemon is killed, or stopped, and started again: what the simulation does not see of that.

The producer is written from docs/protocol.md with struct and a socket, independent of the client library.
"""

from __future__ import annotations

import mmap
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.integration.conftest import DaemonProcess
from tests.simulation.rings import DataRing as MadeRing
from tests.soak.plain import PlainConnection
from utracefsd.server.runtime import locate

SIZE = 64 << 10
COMMITTED = 1 << 31
DATA = 65536
HEAD, TAIL, LOST, NEED_WAKEUP = 64, 128, 192, 256


class Producer:
    """Registers an event with a field `u64 n`; emits into a data ring and takes it to the next daemon."""

    def __init__(self, directory: str, name: str = "a") -> None:
        self.path = os.path.join(directory, "user_events_data")
        self.name = name
        self.ring: tuple[int, int] | None = None
        self.memory = mmap.mmap(-1, 1)
        self.status = mmap.mmap(-1, 1)
        self.emitted = 0
        self.connect()

    def come_back(self) -> None:
        """To the next daemon."""
        self.sock.close()
        self.connect()

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)
        self.unpacker = msgpack.Unpacker()
        registered = self.call("DIAG_IOCSREG", {"name_args": f"{self.name} u64 n"})
        assert registered["write_index"] == 0
        self.status_index = registered["status_index"]
        self.id = registered["id"]
        fds: list[int] = []
        size = self.call("mmap_status", got=fds)["size"]
        self.status = mmap.mmap(fds[0], size, prot=mmap.PROT_READ)
        os.close(fds[0])
        if self.ring is None:
            fds = MadeRing.make(SIZE)
            self.ring = (fds[0], fds[1])
            self.memory = mmap.mmap(fds[0], os.fstat(fds[0]).st_size)
            # Loads and stores of 8 bytes at once, as the protocol demands; struct writes zeros first.
            self.words = memoryview(self.memory).cast("Q")
        assert self.call("adopt_ring", {}, fds=self.ring) == {"size": SIZE, "version": 2}

    def call(self, method: str, *params: Any, fds: tuple[int, ...] = (), got: list[int] | None = None) -> Any:
        socket.send_fds(self.sock, [msgpack.packb([0, 1, method, list(params)])], fds)
        while True:
            for message in self.unpacker:
                if message[0] == 1:
                    assert message[2] is None, message[2]
                    return message[3]
            data, came, _, _ = socket.recv_fds(self.sock, 65536, 4)
            assert data, "the daemon hung up"
            if got is not None:
                got += came
            self.unpacker.feed(data)

    def enabled(self) -> bool:
        return bool(self.status[self.status_index])

    def emit(self, count: int) -> None:
        """The next numbers; does not wait, so numbers that do not fit are not emitted."""
        for _ in range(count):
            head, tail = self.words[HEAD // 8], self.words[TAIL // 8]
            if head + 32 - tail > SIZE:
                return
            struct.pack_into(
                "<IIQIHHQ",
                self.memory,
                DATA + head % SIZE,
                *(COMMITTED | 8, 0, time.monotonic_ns(), os.getpid(), 0, 0, self.emitted),
            )
            self.words[HEAD // 8] = head + 32
            self.emitted += 1
            if struct.unpack_from("<I", self.memory, NEED_WAKEUP)[0] == 1:
                struct.pack_into("<I", self.memory, NEED_WAKEUP, 0)
                assert self.ring is not None
                os.eventfd_write(self.ring[1], 1)

    def close(self) -> None:
        self.sock.close()
        if self.ring is not None:
            os.close(self.ring[0])
            os.close(self.ring[1])


@pytest.fixture
def producer(daemon: DaemonProcess) -> Iterator[Producer]:
    made = Producer(daemon.directory)
    yield made
    made.close()


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


def test_discard(daemon: DaemonProcess) -> None:
    with daemon.tree() as tree:
        tree.write_file("dynamic_events", b"u:kept u32 n\n", truncate=False)
    daemon.stop(kill=True)
    daemon.options = ("--discard-state",)
    daemon.start()
    assert read(daemon, "dynamic_events") == [b""]


@pytest.mark.parametrize("method", [None, "write"])
def test_records_over_the_socket_are_behind_older_records(
    daemon: DaemonProcess, producer: Producer, method: str | None
) -> None:
    """Also when the ring with those comes back later."""
    write(daemon, events__enable=b"1")
    other = Producer(daemon.directory, "a")
    record = struct.pack("<iQ", 0, 10**6)
    try:
        daemon.stop(kill=True)
        producer.emit(50)
        daemon.start()
        other.come_back()
        request = record if method is None else [0, 2, method, [record]]
        other.sock.send(msgpack.packb(request))
        # a connection that comes later is served later, so this one's records have been read
        later = PlainConnection(daemon.directory)
        later.call("sync")
        later.close()
        producer.come_back()
        trace, *stats = read(daemon, "trace", *(f"per_cpu/cpu{n}/stats" for n in range(os.cpu_count() or 1)))
    finally:
        other.close()
    assert numbers(trace) == [*range(50), 10**6]
    assert not any(b"late events" in text for text in stats)


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
