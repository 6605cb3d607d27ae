"""Enabling an event with 100 notified processes: each sets a bit of its own and acknowledges it."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import statistics
import time
from collections.abc import Iterator

import msgpack

from bench.measure import Row, at_most_row, daemon
from tests.soak.plain import PlainConnection
from utracefs.tree.tracefs import Tracefs

PROCESSES = 100
TOGGLES = 20
ENABLE = "events/user_events/bench_told/enable"


def _program(directory: str, states: mmap.mmap, number: int, ready: int) -> None:
    """Acknowledges each notification until it is killed."""
    connection = PlainConnection(directory)
    connection.sock.settimeout(None)
    connection.call("notify_enablers", {})
    connection.call("DIAG_IOCSREG", {"name_args": "bench_told u32 a", "enable_token": number})
    os.write(ready, b".")
    unpacker = msgpack.Unpacker()
    while data := connection.sock.recv(1 << 16):
        unpacker.feed(data)
        for _, _, (seq, changes) in unpacker:
            for token, state in changes:
                states[token] = state
            connection.sock.sendall(msgpack.packb([2, "enablers_written", [seq]]))


@contextlib.contextmanager
def _programs(directory: str, states: mmap.mmap) -> Iterator[None]:
    ready, ready_w = os.pipe()
    pids = []
    try:
        for number in range(PROCESSES):
            pid = os.fork()
            if not pid:
                try:
                    _program(directory, states, number, ready_w)
                finally:
                    os._exit(1)
            pids.append(pid)
        came = 0
        while came < PROCESSES:
            came += len(os.read(ready, PROCESSES))
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(ready)
        os.close(ready_w)


def rows() -> Iterator[Row]:
    with (
        daemon() as directory,
        mmap.mmap(-1, PROCESSES) as states,
        _programs(directory, states),
        Tracefs(directory) as tree,
    ):
        seen = []
        for toggle in range(TOGGLES):
            on = toggle % 2 == 0
            begin = time.perf_counter()
            tree.write_file(ENABLE, b"1" if on else b"0")
            seen.append((time.perf_counter() - begin) * 1e3)
            assert states[:] == bytes([on]) * PROCESSES, "it returned too early"
        name = f"enable told to {PROCESSES} processes, until all have done it"
        yield at_most_row(f"{name} (median of {TOGGLES})", statistics.median(seen), 20, "ms")


if __name__ == "__main__":
    for row in rows():
        print(row.text())
