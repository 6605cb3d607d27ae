"""The cost of a record in a program that emits in a loop, compared with alternatives.

Every number of a loop is a new object, the ring is larger than the caches, and no record is lost. `asleep`:
the daemon is stopped, so only the producer uses the ring. `taken in`: the daemon takes the records in
meanwhile, on another cpu. Figures are cpu time of the thread; where the wall clock was more than a tenth
higher, a line says so.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import msgpack

import utracefs
from bench.intake import call
from bench.measure import Row, daemon, in_turns, ratio_row, until_off
from tests.simulation.rings import DataRing
from utracefs.tree.tracefs import Tracefs

HERE = Path(__file__).parent
INCLUDE = HERE.parent / "protocol" / "utracefs_protocol" / "include"
KERNEL_INSTANCES = Path("/sys/kernel/tracing/instances")

RING = 16 << 20
COUNT = 400_000
"""Records in one run: with 40 bytes each they fit the ring."""

REPEATS = 9


class Clocks:
    """The best wall clock time of each subject, beside the cpu time that `in_turns` keeps."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}

    def note(self, name: str, cpu: float, wall: float) -> float:
        self.wall[name] = min(wall, self.wall.get(name, wall))
        return cpu

    def say(self, best: dict[str, float]) -> None:
        for name, wall in self.wall.items():
            if wall > 1.1 * best[name]:
                print(f"  ({name}: {wall:.1f} ns by the wall clock)")


def timed(loop: Callable[..., None], *arguments: Any, count: int = COUNT) -> tuple[float, float]:
    wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
    loop(*arguments, count)
    cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
    return cpu / count, wall / count


def emitting(event: utracefs.Event, count: int) -> None:
    for i in range(1000, 1000 + count):
        event.emit(i, 5)


def marking(fd: int, pack: Callable[..., bytes], count: int) -> None:
    write = os.write
    for i in range(1000, 1000 + count):
        write(fd, pack(7, i, 5))


@contextlib.contextmanager
def kernel_marker() -> Iterator[int | None]:
    """`trace_marker_raw` of an instance of the kernel's tracefs made for this, or None."""
    instance = KERNEL_INSTANCES / f"utracefs-bench-{os.getpid()}"
    try:
        instance.mkdir()
        fd = os.open(instance / "trace_marker_raw", os.O_WRONLY)
    except OSError as error:
        with contextlib.suppress(OSError):
            instance.rmdir()
        print(f"  (left out: the kernel's trace_marker_raw: {error.strerror})")
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)
        instance.rmdir()


class InC:
    """A program that emits as many records as each line of its stdin demands."""

    def __init__(self, program: list[str], fds: list[int], environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=fds,
            env=os.environ | (environment or {}),
        )

    def run(self, count: int = COUNT) -> tuple[float, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(count, file=self.process.stdin, flush=True)
        cpu, wall, lost = self.process.stdout.readline().split()
        if int(lost):
            raise SystemExit(f"bench: {lost} records lost in C")
        return float(cpu), float(wall)

    def close(self) -> None:
        self.process.communicate()


def compiled(folder: str, source: str, *flags: str) -> str:
    program = f"{folder}/{Path(source).stem}"
    command = ["gcc", "-O2", f"-I{INCLUDE}", f"-I{HERE}", str(HERE / source), "-o", program, *flags]
    subprocess.run(command, check=True, capture_output=True)
    return program


@contextlib.contextmanager
def ring_in_c(folder: str, directory: str) -> Iterator[tuple[InC, Callable[[], object]]]:
    """ring.c with a ring of the daemon's, and a function that waits until its records are taken in."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(os.path.join(directory, "user_events_data"))
        registered: Any = call(sock, 1, "DIAG_IOCSREG", {"name_args": "bench_c u64 a; u64 b"})
        fds = DataRing.make(RING)
        socket.send_fds(sock, [msgpack.packb([0, 2, "adopt_ring", [{}]])], fds)
        if msgpack.unpackb(sock.recv(65536))[2]:
            raise SystemExit("bench: adopt_ring failed")
        program = compiled(folder, "ring.c")
        numbers = [*fds, RING, registered["write_index"]]
        producer = InC([program, *map(str, numbers)], fds)
        for fd in fds:
            os.close(fd)
        try:
            yield producer, lambda: call(sock, 3, "sync")
        finally:
            producer.close()


@attrs.frozen
class LttngSession:
    name: str
    environment: dict[str, str]
    program: str

    def run(self, *arguments: str) -> str | None:
        """The output of `lttng`; None: it failed."""
        done = subprocess.run(
            ["lttng", "--no-sessiond", *arguments],
            env=os.environ | self.environment,
            capture_output=True,
            check=False,
            text=True,
        )
        return done.stdout if done.returncode == 0 else None


@contextlib.contextmanager
def lttng_session(folder: str, source: str, *channel: str) -> Iterator[LttngSession | None]:
    """A compiled program, and a session that records it and discards excess records; channel: its options.
    None where LTTng is not installed."""
    environment = {"LTTNG_HOME": folder, "LTTNG_UST_REGISTER_TIMEOUT": "-1"}
    sessions: subprocess.Popen[bytes] | None = None
    name = f"utracefs-bench-{os.getpid()}"
    try:
        if shutil.which("lttng") is None or shutil.which("lttng-sessiond") is None:
            raise FileNotFoundError
        program = compiled(folder, source, "-DLTTNG", "-llttng-ust", "-ldl")
    except (FileNotFoundError, subprocess.CalledProcessError):
        print("  (left out: LTTng-UST; Debian packages lttng-tools and liblttng-ust-dev)")
        yield None
        return
    session = LttngSession(name, environment, program)
    lttng = session.run
    if lttng("list") is None:
        command = ["lttng-sessiond", "--no-kernel", "--quiet"]
        sessions = subprocess.Popen(command, env=os.environ | environment)
        deadline = time.monotonic() + 10
        while lttng("list") is None and time.monotonic() < deadline:
            time.sleep(0.05)
    try:
        steps = (
            ("create", name, "--output", f"{folder}/lttng-trace"),
            ("enable-channel", "-u", "-s", name, *channel, "bench"),
            ("enable-event", "-u", "-s", name, "-c", "bench", "utracefs_bench:*"),
            ("start", name),
        )
        if any(lttng(*step) is None for step in steps):
            print("  (left out: LTTng-UST; its session daemon does not carry out commands)")
            yield None
            return
        try:
            yield session
        finally:
            lttng("destroy", name)
    finally:
        if sessions is not None:
            sessions.terminate()
            sessions.wait(20)


@contextlib.contextmanager
def lttng_in_c(folder: str) -> Iterator[InC | None]:
    """lttng.c with large buffers, or None."""
    with lttng_session(folder, "lttng.c", "--subbuf-size", "8M", "--num-subbuf", "8") as session:
        if session is None:
            yield None
            return
        producer = InC([session.program], [], session.environment)
        try:
            yield producer
        finally:
            producer.close()


def rows() -> Iterator[Row]:
    before = os.environ.get("UTRACEFS_RING_KB")
    os.environ["UTRACEFS_RING_KB"] = str(RING >> 10)
    try:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="utracefs-bench-"))
            directory = stack.enter_context(daemon("--buffer-size-kb", "65536"))
            yield from measured(stack, folder, directory)
    finally:
        os.environ.pop("UTRACEFS_RING_KB")
        if before is not None:
            os.environ["UTRACEFS_RING_KB"] = before


def measured(stack: contextlib.ExitStack, folder: str, directory: str) -> Iterator[Row]:
    tree = stack.enter_context(Tracefs(directory))
    session = stack.enter_context(utracefs.Session(directory))
    marker = stack.enter_context(kernel_marker())
    in_c, sync = stack.enter_context(ring_in_c(folder, directory))
    lttng = stack.enter_context(lttng_in_c(folder))
    event = session.event("bench_loop u64 a; u64 b")
    until_off(event)
    tree.write_file("events/user_events/enable", b"1\n")
    pid = int(os.environ["UTRACEFS_BENCH_DAEMON"])
    clocks = Clocks()

    def subject(
        name: str, take: Callable[[], tuple[float, float]], settle: Callable[[], object], asleep: bool
    ) -> Callable[[], float]:
        def run() -> float:
            if asleep:
                os.kill(pid, signal.SIGSTOP)
            try:
                figures = take()
            finally:
                os.kill(pid, signal.SIGCONT)
            settle()
            return clocks.note(name, *figures)

        return run

    def python() -> tuple[float, float]:
        return timed(emitting, event)

    def flush() -> None:
        if not session.flush(20):
            raise SystemExit("bench: the daemon does not answer")

    subjects = {
        "Python, asleep": subject("Python, asleep", python, flush, asleep=True),
        "Python, taken in": subject("Python, taken in", python, flush, asleep=False),
        "C, asleep": subject("C, asleep", in_c.run, sync, asleep=True),
        "C, taken in": subject("C, taken in", in_c.run, sync, asleep=False),
    }
    if marker is not None:
        pack = struct.Struct("<IQQ").pack
        subjects["marker"] = lambda: timed(marking, marker, pack, count=COUNT // 8)[0]
    if lttng is not None:
        subjects["lttng"] = lambda: lttng.run()[0]
    in_turns(subjects, 2)  # the pages of both laps, in all processes
    best = in_turns(subjects, REPEATS)
    clocks.say(best)
    if event.lost:
        raise SystemExit(f"bench: {event.lost} records lost, though the ring has room")
    for name, at_most in (("asleep", 0.12), ("taken in", 0.14)):
        what = f"event.emit(i, 5) in a loop, {name}"
        yield compare(
            what, best[f"Python, {name}"], best.get("marker"), "trace_marker_raw from Python", at_most
        )
    for name in ("asleep", "taken in"):
        yield compare(f"the same loop in C, {name}", best[f"C, {name}"], best.get("lttng"), "LTTng-UST", 0.4)


def compare(what: str, value: float, baseline: float | None, name: str, at_most: float) -> Row:
    if baseline is None:
        return Row(what, value, "ns", "no baseline here", held=True)
    return ratio_row(what, value, baseline, name, at_most)
