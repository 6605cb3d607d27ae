"""How long an administrator waits while 200 hostile connections attack: `python -m bench attack`.

For each kind of attack (bench/attackers.py) hostile processes of other users have 200 connections for
SECONDS. Meanwhile an honest administrator opens a connection and reads a small file, an honest program of
yet another user registers an event, and both measure how long that takes; 200 times at least.

On a busy machine a part of that time is waiting for a cpu. That part is known exactly (`queued_ns`); the rest
is shown as *net*, and judged. Beside it is a *control*, measured at the same moments: a server that answers
one byte with one byte and uses as much cpu time as the daemon (it reads the daemon's and spins as long). Its
time is the noise of the machine and of this program.

`python -m bench.attack KIND...` runs some kinds alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import statistics
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs

from bench.attackers import KINDS, OF_AN_ADMINISTRATOR, WITH_FUSE, Where, registration
from bench.measure import Row, at_most_row, daemon
from tests.soak.attacks.fuse import FuseFiles
from tests.soak.crew import Crew, Job, Notes
from tests.soak.house import Usage
from utracefs.tree.tracefs import Tracefs

CONNECTIONS = 200
PROCESSES = 4
SECONDS = 5.0
LEAST = 200
"""Reads per kind, unless that takes longer than LONGEST_S."""
LONGEST_S = 20.0
PROMISED_MS = 100.0
"""The most that an attack may add to the control's time."""

PAUSE_S = 0.005
"""Between two reads: an administrator who never pauses would be a flood himself."""

MEMORY_MIB = 200
REST_S = 10.0
"""After an attack, until the daemon is idle."""

_HONEST_UID = 61_900
_TIMEOUT = struct.pack("ll", 30, 0)
_SPIN_NS = 1_000_000
_MOST_DEBT_NS = 20_000_000


@attrs.define
class Waits:
    """Nanoseconds of the three kinds of requests, and those to the daemon without the time in which it was
    runnable and had no cpu."""

    read: list[int] = attrs.field(factory=list)
    net_read: list[int] = attrs.field(factory=list)
    register: list[int] = attrs.field(factory=list)
    net_register: list[int] = attrs.field(factory=list)
    control: list[int] = attrs.field(factory=list)

    def text(self) -> str:
        names = ("read", "net_read", "register", "net_register", "control")
        return "  ".join(f"{name.replace('_', ' ')} {_figures(getattr(self, name))}" for name in names)


def _figures(waits: list[int]) -> str:
    return f"{_ms(statistics.median(waits)):6.1f} {p99(waits):6.1f} {_ms(max(waits)):6.1f}"


def _ms(ns: float) -> float:
    return ns / 1e6


def p99(waits: list[int]) -> float:
    """Milliseconds."""
    return _ms(sorted(waits)[len(waits) * 99 // 100])


def spun_ns(pid: int) -> int:
    """cpu time of a process's first thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def queued_ns(pid: int) -> int:
    """How long it was runnable without a cpu (sched_info.run_delay of the kernel)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])


def echoing(path: str, pid: int) -> Job:
    """The control. Never idle while `pid` is not."""

    def job(notes: Notes) -> Counter[str]:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            listener.setblocking(False)
            begin, mine = spun_ns(pid), time.process_time_ns()
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            while not notes.stopped:
                debt = spun_ns(pid) - begin - (time.process_time_ns() - mine)
                if debt > _MOST_DEBT_NS:
                    begin += debt - _MOST_DEBT_NS
                until = time.monotonic_ns() + min(max(debt, 0), _SPIN_NS)
                while time.monotonic_ns() < until:
                    pass
                if poll.poll(0 if debt > _SPIN_NS else 2):
                    sock, _ = listener.accept()
                    sock.setblocking(True)
                    with sock:
                        sock.settimeout(1)
                        with contextlib.suppress(OSError):
                            sock.sendall(sock.recv(1))
        return Counter()

    return job


class Bench:
    """One daemon, the honest clients, and the control beside it."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.pid = int(os.environ["UTRACEFS_BENCH_DAEMON"])
        self.crew = Crew()
        self.control = Crew()
        self._echo = os.path.join(directory, "control")
        os.chmod(directory, 0o755)
        os.chmod(os.path.join(directory, "user_events_data"), 0o666)
        self.control.add("control", echoing(self._echo, self.pid))
        self.fuse: FuseFiles | None = None
        self.registered = 0
        self.peak_mib = 0.0
        with Tracefs(directory) as tree:
            tree.write_file("standing_events", b"user_events:*\n")
            tree.write_file("dynamic_events", b"u:honest_first u32 a\n")
        self._wait_for_rest()
        self.at_start = Usage.of(self.pid)

    def mount(self) -> bool:
        """Files whose close hangs. False: mounting is not permitted."""
        try:
            self.fuse = FuseFiles(os.path.join(self.directory, "fuse"))
        except OSError:
            return False
        self.fuse.watch(self.pid)
        return True

    def unmount(self) -> None:
        """Ends all hanging closes."""
        if self.fuse is not None:
            self.fuse.close()
            self.fuse = None

    def close(self) -> None:
        self.crew.close()
        self.control.close()
        self.unmount()
        with contextlib.suppress(OSError):
            os.unlink(self._echo)

    def _read(self) -> None:
        with Tracefs(self.directory, timeout_s=30) as tree:
            tree.read_file("tracing_on")

    def _register(self) -> None:
        """A program of another user, with an event of its own."""
        self.registered += 1
        with socket.socket(socket.AF_UNIX) as sock:
            # connect(2) waits for a place in the queue, as a program's does; with settimeout it would not
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEOUT)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEOUT)
            if os.getuid() == 0:
                os.seteuid(_HONEST_UID)
            try:
                sock.connect(os.path.join(self.directory, "user_events_data"))
            finally:
                if os.getuid() == 0:
                    os.seteuid(0)
            sock.sendall(registration(f"honest_{self.registered % 1000} u32 a"))
            answer = sock.recv(4096)
            if not answer.startswith(b"\x94\x01\x01\xc0"):
                raise SystemExit(f"bench: an honest registration was answered {answer!r}")

    def _ask_control(self) -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(30)
            sock.connect(self._echo)
            sock.sendall(b"x")
            sock.recv(1)

    def measure(self, seconds: float, least: int = LEAST) -> Waits:
        waits = Waits()
        begin = time.monotonic()
        while (now := time.monotonic()) < begin + seconds or (
            len(waits.read) < least and now < begin + LONGEST_S
        ):
            for ask, found, net in (
                (self._read, waits.read, waits.net_read),
                (self._ask_control, waits.control, None),
                (self._register, waits.register, waits.net_register),
            ):
                queued, asked = queued_ns(self.pid), time.monotonic_ns()
                ask()
                took = time.monotonic_ns() - asked
                found.append(took)
                if net is not None:
                    net.append(took - min(took, queued_ns(self.pid) - queued))
            self.peak_mib = max(self.peak_mib, Usage.of(self.pid).own_mib)
            time.sleep(PAUSE_S)
        return waits

    def attacked(self, kind: str) -> Waits:
        """While this attack runs."""
        for number in range(PROCESSES):
            where = Where(
                self.directory, number, CONNECTIONS // PROCESSES, self.fuse.path if self.fuse else None
            )
            admin = kind in OF_AN_ADMINISTRATOR and number == 0
            self.crew.add(
                f"attacker {number}", _attacking(kind, where), None if admin else self.crew.next_uid()
            )
        time.sleep(0.3)
        waits = self.measure(SECONDS)
        _, bad = self.crew.stop()
        if bad:
            raise SystemExit(f"bench: attackers failed: {bad}")
        return waits

    def _wait_for_rest(self) -> float:
        """Wait until the daemon uses no cpu; returns seconds, REST_S if it never does."""
        begin = time.monotonic()
        while time.monotonic() < begin + REST_S:
            before = spun_ns(self.pid)
            time.sleep(0.3)
            if spun_ns(self.pid) - before < 300_000:
                break
        return time.monotonic() - begin

    def left(self) -> tuple[float, int]:
        """(seconds until it is idle, descriptors more than at the start)."""
        rest_s = self._wait_for_rest()
        return rest_s, Usage.of(self.pid).descriptors - self.at_start.descriptors


def _attacking(kind: str, where: Where) -> Job:
    return lambda notes: KINDS[kind](where, notes)


def rows(kinds: list[str] | None = None) -> Iterator[Row]:
    with daemon("--buffer-size-kb", "1024") as directory:
        bench = Bench(directory)
        try:
            print(f"  {'milliseconds: median, p99, worst':<40}", flush=True)
            idle = bench.measure(2.0)
            print(f"  {'nobody attacks':<26} {idle.text()}", flush=True)
            for kind in kinds or KINDS:
                if kind in WITH_FUSE and not bench.mount():
                    print(f"  ({kind}: nothing may be mounted)")
                    continue
                waits = bench.attacked(kind)
                bench.unmount()
                rest_s, left = bench.left()
                print(
                    f"  {kind:<26} {waits.text()}  rests after {rest_s:.1f} s, {left} descriptors more,"
                    f" {bench.peak_mib:.0f} MiB at most",
                    flush=True,
                )
                yield from _judged(kind, waits)
            yield at_most_row(
                "attacks: memory of the daemon more than idle",
                bench.peak_mib - bench.at_start.own_mib,
                MEMORY_MIB,
                "MiB",
            )
        finally:
            bench.close()


def _judged(kind: str, waits: Waits) -> Iterator[Row]:
    """The longest waits of honest clients, beside the control's."""
    control = _ms(max(waits.control))
    for what, found in (("read", waits.net_read), ("registration", waits.net_register)):
        worst = _ms(max(found))
        yield Row(
            f"{kind}: {what}, worst of {len(found)}",
            worst,
            "ms",
            f"<= +{PROMISED_MS:.0f} ms",
            worst <= control + PROMISED_MS,
            control,
            "control",
        )


if __name__ == "__main__":
    for row in rows(sys.argv[1:] or None):
        print(row.text(), flush=True)
