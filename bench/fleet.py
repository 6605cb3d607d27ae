"""A fleet: daemons with forwarders to Parquet, a nats-server and the programs, all on this machine.

UTRACEFS_BENCH_HOSTS=50 sets their number. The rows have no promise but the one that counts: each record
arrives, or is reported as lost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.measure import Row, at_most_row
from tests.client.nats.server import serving
from utracefs import Session
from utracefs.fleet.buckets import Fleet
from utracefs.fleet.report import Host
from utracefs.fleet.wish import Wish

HOSTS = int(os.environ.get("UTRACEFS_BENCH_HOSTS", "20"))
DECLARATION = "bench_fleet u32 status; u64 usec"
IDLE_S = 10.0
EMIT_S = 10.0
WAIT_S = 180.0
"""At most, for each state of the whole fleet."""


def rows() -> Iterator[Row]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="utracefs-bench-")))
        server = stack.enter_context(serving(folder / "nats"))
        fleet = Fleet(server.connection())
        stack.callback(fleet.close)
        fleet.create()
        directories = [str(folder / f"d{n}") for n in range(HOSTS)]
        daemons = [_started(stack, "utracefsd", "--dir", one) for one in directories]
        _wait(lambda: all(Path(one, "tracefs").exists() for one in directories))
        forwarders = [
            _started(
                stack, "utracefs.cli", "--dir", one, "forward", f"parquet:{folder / 'events'}",
                "-O", "gather=1",
                "--fleet", f"nats://127.0.0.1:{server.port}", "--host-name", f"host{n}",
                "--spool", str(folder / f"spool{n}"),
            )
            for n, one in enumerate(directories)
        ]  # fmt: skip
        sessions = [stack.enter_context(Session(one)) for one in directories]
        events = [session.event(DECLARATION) for session in sessions]
        _wait(
            lambda: (
                sum(bool(host.members["attached"]) and bool(host.names("events")) for host in _hosts(fleet))
                == HOSTS
            )
        )
        cpu = [_cpu_s(pids) for pids in (daemons, forwarders)]
        time.sleep(IDLE_S)
        for what, pids, before in zip(("daemon", "forwarder"), (daemons, forwarders), cpu, strict=True):
            idle = (_cpu_s(pids) - before) / IDLE_S / HOSTS * 100
            yield Row(f"{HOSTS} hosts: idle {what}", idle, "% of a cpu", "", True)
            yield Row(f"{HOSTS} hosts: memory of a {what}", _pss_mb(pids) / HOSTS, "MiB PSS", "", True)

        begin = time.monotonic()
        fleet.wishes.put("bench", Wish(("bench_fleet",), 3600).to_bytes())
        _wait(lambda: all(events))
        enabled_s = time.monotonic() - begin
        _wait(lambda: _number(fleet, lambda host: host.names("enabled")) == HOSTS)
        yield Row(f"{HOSTS} hosts: enable to the last program", enabled_s, "s", "", True)
        yield Row(f"{HOSTS} hosts: enable to the last report", time.monotonic() - begin, "s", "", True)

        emitted, begin = 0, time.monotonic()
        while time.monotonic() - begin < EMIT_S:
            for event in events:
                for n in range(200):
                    event.emit(500, n)
                emitted += 200
        rate = emitted / (time.monotonic() - begin)
        for session in sessions:
            session.flush(WAIT_S)
        ended = time.monotonic()
        told = [0, 0]

        def is_over() -> bool:
            hosts = _hosts(fleet)
            told[:] = (
                sum(int(host.number("records_sent")) for host in hosts),
                sum(sum(host.lost.values()) for host in hosts),
            )
            return sum(told) >= emitted

        _wait(is_over)
        yield Row(f"{HOSTS} hosts: emitted by one process", rate, "records/s", "", True)
        yield Row(f"{HOSTS} hosts: until all are stored or told", time.monotonic() - ended, "s", "", True)
        yield Row(f"{HOSTS} hosts: lost", told[1] / emitted * 100, "%", "", True)
        yield at_most_row(f"{HOSTS} hosts: neither arrived nor told", abs(emitted - sum(told)), 0, "records")


def _started(stack: contextlib.ExitStack, module: str, *words: str) -> int:
    process = subprocess.Popen([sys.executable, "-m", module, *words], stderr=subprocess.DEVNULL)

    def end() -> None:
        process.send_signal(signal.SIGINT)  # after Ctrl-C a daemon keeps no state
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)
    return process.pid


def _wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("bench: the fleet is not ready")
        time.sleep(0.05)


def _hosts(fleet: Fleet) -> list[Host]:
    return [Host.of(value) for value in fleet.hosts.present()]


def _number(fleet: Fleet, condition: Callable[[Host], object]) -> int:
    return sum(bool(condition(host)) for host in _hosts(fleet))


def _cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _pss_mb(pids: list[int]) -> float:
    """Shared pages count for each process in part."""
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024
