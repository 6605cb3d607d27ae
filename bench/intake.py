"""Records per second that the daemon takes in, on one core, and its idle cost."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import msgpack

from bench.measure import Row, at_least_row, at_most_row, daemon
from utracefs.tree.tracefs import Tracefs


def call(sock: socket.socket, msgid: int, method: str, *params: object) -> object:
    sock.sendall(msgpack.packb([0, msgid, method, list(params)]))
    unpacker = msgpack.Unpacker()
    while True:
        unpacker.feed(sock.recv(65536))
        for message in unpacker:
            if message[0] == 1 and message[1] == msgid:
                if message[2]:
                    raise SystemExit(f"bench: {method}: {message[2]}")
                return message[3]


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rows() -> Iterator[Row]:
    cpus = sorted(os.sched_getaffinity(0))
    with daemon(cpu=cpus[0]) as directory, Tracefs(directory) as tree:
        os.sched_setaffinity(0, {cpus[-1]})
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(os.path.join(directory, "user_events_data"))
        call(sock, 1, "DIAG_IOCSREG", {"name_args": "bench_in u64 a; u64 b"})
        tree.write_file("events/user_events/bench_in/enable", b"1\n")
        batch = msgpack.packb(bytes(20)) * 5_000
        best = 0.0
        for _ in range(7):
            begin = time.perf_counter()
            for _ in range(40):
                sock.sendall(batch)
            call(sock, 2, "sync")
            best = max(best, 40 * 5_000 / (time.perf_counter() - begin))
        stats = tree.read_file("events/user_events/bench_in/stats").decode()
        assert f"recorded {7 * 40 * 5_000}" in stats, stats
        yield at_least_row("records taken in over one socket connection", best, 300_000, "records/s")
        pid = int(os.environ["UTRACEFS_BENCH_DAEMON"])
        before = cpu_seconds(pid)
        time.sleep(3)
        yield at_most_row("cpu of the idle daemon in 3 s", (cpu_seconds(pid) - before) * 1e3, 0, "ms")
        os.sched_setaffinity(0, set(cpus))
        sock.close()
