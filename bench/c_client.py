"""A record from a program in C, by the client library and by the kernel's ABI with the preload library."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.loops import RING, InC, compare, compiled, lttng_in_c
from bench.measure import Row, at_most_row, daemon, in_turns, ratio_row
from utracefs.tree.tracefs import Tracefs

CLIENT = Path(__file__).parents[1] / "client" / "c"
KERNEL_ABI = Path(__file__).parents[1] / "tests" / "abi" / "include"
COUNT = 100_000
CHECKS = 10_000_000
REPEATS = 15


def rows() -> Iterator[Row]:
    subprocess.run(["make", "-s", "-C", CLIENT], check=True, capture_output=True)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="utracefs-bench-"))
        directory = stack.enter_context(daemon("--buffer-size-kb", "65536"))
        tree = stack.enter_context(Tracefs(directory))
        tree.write_file("standing_events", b"user_events:c_*\n")
        yield from measured(stack, folder)


def measured(stack: contextlib.ExitStack, folder: str) -> Iterator[Row]:
    library = CLIENT / "build"
    environment = {"UTRACEFS_RING_KB": str(RING >> 10)}
    flags = [f"-I{CLIENT / 'include'}", f"-L{library}", "-lutracefs", f"-Wl,-rpath,{library}"]
    client = InC([compiled(folder, "c_client.c", *flags)], [], environment)
    stack.callback(client.close)
    by_preload = environment | {"LD_PRELOAD": str(library / "libutracefs-preload.so")}
    kernel = InC([compiled(folder, "preload.c", f"-I{KERNEL_ABI}")], [], by_preload)
    stack.callback(kernel.close)
    lttng = stack.enter_context(lttng_in_c(folder))
    pid = int(os.environ["UTRACEFS_BENCH_DAEMON"])

    def asleep(take: Callable[[], float]) -> Callable[[], float]:
        """Without the intake meanwhile: the cost of the program alone. All is taken in afterwards."""

        def run() -> float:
            os.kill(pid, signal.SIGSTOP)
            try:
                took = take()
            finally:
                os.kill(pid, signal.SIGCONT)
            ask(client, "f", 1)
            return took

        return run

    ask(client, "f", 1)
    subjects: dict[str, Callable[[], float]] = {
        "emit": asleep(lambda: ask(client, "e", COUNT)),
        "text": asleep(lambda: ask(client, "s", COUNT)),
        "iovec": asleep(lambda: ask(client, "v", COUNT)),
        "writev": asleep(lambda: kernel.run(COUNT)[0]),
        "check": lambda: ask(client, "d", CHECKS),
        "loop": lambda: ask(client, "n", CHECKS),
    }
    if lttng is not None:
        subjects["lttng"] = lambda: lttng.run(COUNT)[0]
    in_turns(subjects, 2)
    best = in_turns(subjects, REPEATS)
    yield compare("UTRACEFS_EMIT of two numbers", best["emit"], best.get("lttng"), "LTTng-UST", 0.6)
    yield at_most_row("UTRACEFS_EMIT of two numbers", best["emit"], 45, "ns")
    yield ratio_row("UTRACEFS_EMIT with a text of 19 bytes", best["text"], best["emit"], "two numbers", 2.0)
    yield ratio_row("utracefs_emit_iov of two pieces", best["iovec"], best["emit"], "UTRACEFS_EMIT", 1.5)
    yield ratio_row("writev with the preload library", best["writev"], best["emit"], "UTRACEFS_EMIT", 1.5)
    yield at_most_row("UTRACEFS_EMIT of an event that is off", max(best["check"] - best["loop"], 0), 1, "ns")


def ask(program: InC, what: str, count: int) -> float:
    """Nanoseconds of cpu time for each of `count` turns."""
    assert program.process.stdin is not None
    assert program.process.stdout is not None
    print(f"{what}{count}", file=program.process.stdin, flush=True)
    cpu, _, lost = program.process.stdout.readline().split()
    if int(lost):
        raise SystemExit(f"bench: {lost} records lost in C")
    return float(cpu)
