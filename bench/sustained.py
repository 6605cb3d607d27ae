"""Commands that record, at a steady rate and at full speed: the share of the records that they keep, and cpu
time per kept record, beside LTTng-UST with its defaults (4 sub-buffers of 1 MiB for each cpu, discard) and
other peers.

Records are two u64 of one program in C, in bursts of a millisecond, options the defaults. A row has the
shares at RATES, up to the first one below half, and the highest rate without a loss, found by bisection.
Records that a command has not read when it ends count as lost. UTRACEFS_BENCH_S is the length of a run in
seconds [2]; a million records of a trace.dat are 28 MB.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from bench.loops import compiled, lttng_session
from bench.measure import Row, at_least_row, at_most_row, daemon, ratio_row
from utracefs.forward.forwarder import STATUS_FILE
from utracefs.tree.tracefs import Tracefs

HERE = Path(__file__).parent
CLIENT = HERE.parent / "client" / "utracefs" / "c"
MILLION = 1_000_000
RATES = (1, 2, 5, 8, 12)
"""Millions a second."""
STEPS = 2
"""Steps of the bisection between two rates."""
FLAT_OUT = 60
"""Millions of records of a program in C that emits as fast as it can."""

PYTHON = """
import sys, time, utracefs
event = utracefs.event("bench_two u64 i; u64 five")
while not (event.registered and event):
    time.sleep(0.001)
end, i = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    for i in range(i, i + 10_000):
        event.emit(i, 5)
print(i, 0, 0)
"""

VIZTRACER = """
import sys, time, viztracer
tracer = viztracer.VizTracer(verbose=0)
tracer.start()
end, i = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    for i in range(i, i + 10_000):
        tracer.add_instant("two", {"i": i, "five": 5})
tracer.stop()
tracer.parse()
print(i, sum(one["ph"] == "i" for one in tracer.data["traceEvents"]))
"""


def cpu_ns(pid: int) -> int:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)


@attrs.frozen
class Run:
    emitted: int
    lost: int
    took_s: float
    reader_ns: float
    """Cpu time of the command per kept record, before it finishes its file."""
    daemon_ns: float
    emit_ns: float
    """Cpu time of the first program per record."""

    @property
    def kept(self) -> int:
        return self.emitted - self.lost

    @property
    def share(self) -> float:
        return 100 * self.kept / self.emitted


def run(command: Sequence[str], programs: Sequence[Sequence[str]]) -> Run:
    """Run a command of utracefs beside programs that emit."""
    with tempfile.TemporaryDirectory(prefix="utracefs-bench-") as folder, daemon() as directory:
        served = int(os.environ["UTRACEFS_BENCH_DAEMON"])
        words = [sys.executable, "-m", "utracefs.cli", *command]
        reader = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until = time.monotonic() + 1  # some commands have no stream
        with Tracefs(directory) as tree:
            while not tree.read_file("daemon_stats").count(b"streams: 1 ") and time.monotonic() < until:
                time.sleep(0.05)
        time.sleep(0.3)
        before = cpu_ns(reader.pid), cpu_ns(served)
        begun = time.monotonic()
        running = [subprocess.Popen(words, stdout=subprocess.PIPE) for words in programs]
        printed = [program.communicate()[0].split() for program in running]
        emitted = sum(int(words[0]) for words in printed)
        took_s = time.monotonic() - begun
        time.sleep(0.3)
        used = cpu_ns(reader.pid) - before[0], cpu_ns(served) - before[1]
        reader.send_signal(signal.SIGINT)
        error = reader.communicate()[1].decode()
        lost = lost_by_forward(Path(folder)) if command[0] == "forward" else lost_by(error)
    assert reader.returncode == 0, error
    kept = max(emitted - lost, 1)
    return Run(emitted, lost, took_s, used[0] / kept, used[1] / kept, float(printed[0][1]))


def lost_by(text: str) -> int:
    """According to the last lines of a command."""
    lost = re.findall(r"(\d+) (?:records )?lost", text)
    unread = re.findall(r"not printed when it ended: (\d+)", text)
    return int(lost[-1] if lost else 0) + int(unread[-1] if unread else 0)


def lost_by_forward(folder: Path) -> int:
    status = json.loads((folder / "spool" / STATUS_FILE).read_text())
    return sum(n or 0 for causes in status["lost"].values() for n in causes.values())


@contextlib.contextmanager
def sink() -> Iterator[str]:
    """A target for `forward` that takes all and keeps nothing."""
    process = subprocess.Popen([sys.executable, HERE / "otlp_sink.py"], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield f"otlp://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait()


def highest(name: str, share_at: Callable[[float], float], at_least: float) -> Row:
    """A row of the table."""
    shares: dict[int, float] = {}
    for rate in RATES:
        shares[rate] = share_at(rate)
        if shares[rate] < 50:
            break
    below: float = max((rate for rate, share in shares.items() if share == 100), default=0)
    above: float = min((rate for rate, share in shares.items() if share < 100 and rate > below), default=0)
    for _ in range(STEPS if above else 0):
        between = (below + above) / 2
        below, above = (between, above) if share_at(between) == 100 else (below, between)
    text = " / ".join(f"{shares[rate]:.3g}" if rate in shares else "-" for rate in RATES)
    return at_least_row(f"{name}: {text} % kept; none lost at", below, at_least, "million/s")


def commands(target: str) -> dict[str, tuple[tuple[str, ...], float]]:
    """Name to command, and the rate that it is to keep."""
    forward = ("forward", target, "-e", "bench_two", "--spool", "spool", "--drain", "0")
    return {
        "record": (("record",), 12),
        "record --flight 64M": (("record", "--flight", "64M"), 12),
        "record --switch-output 64M": (("record", "--switch-output", "64M", "--max-files", "2"), 8),
        "record --compress": (("record", "--compress"), 2),
        "perf record": (("perf", "record"), 5),
        "export --live": (("export", "--live", "-e", "bench_two"), 8),
        "stream --json": (("stream", "--json", "-e", "bench_two"), 8),
        "stream": (("stream", "-e", "bench_two"), 1),
        "forward (OTLP)": (forward, 2),
    }


def worst_read_ms(program: str) -> float:
    """A read of `user_events_status`, beside a program at full speed and a recorder."""
    with tempfile.TemporaryDirectory(prefix="utracefs-bench-") as folder, daemon() as directory:
        command = [sys.executable, "-m", "utracefs.cli", "record", "--", program, "0", str(4 * FLAT_OUT)]
        recorder = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        worst = 0.0
        with Tracefs(directory) as tree:
            while recorder.poll() is None:
                begun = time.perf_counter()
                emits = b"bench_two" in tree.read_file("user_events_status")
                worst = max(worst, (time.perf_counter() - begun) * 1000 * emits)
                time.sleep(0.01)
    return worst


def by_lttng(per_s: float, amount: float) -> Run | None:
    """A run of the program; None: LTTng is not there."""
    with (
        tempfile.TemporaryDirectory(prefix="utracefs-bench-") as folder,
        lttng_session(folder, "sustained.c") as session,
    ):
        if session is None:
            return None
        words = [session.program, str(int(per_s)), str(int(amount))]
        environment = os.environ | session.environment
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True)
        session.run("stop", session.name)
        lost = re.search(r"Discarded events: (\d+)", session.run("list", session.name) or "")
        emitted, emit_ns, seconds = map(float, done.stdout.split())
        assert lost
        return Run(int(emitted), int(lost[1]), seconds, 0, 0, emit_ns)


def share_of_lttng(rate: float, seconds: float) -> float:
    made = by_lttng(rate * MILLION, seconds)
    return made.share if made else 0


def by_viztracer(seconds: str) -> None:
    """A line, since a Python tracer of calls is no equal: it keeps the last million in memory."""
    done = subprocess.run(
        [sys.executable, "-c", VIZTRACER, seconds], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"  (left out: viztracer: {done.stderr.splitlines()[-1]})")
        return
    emitted, kept = map(int, done.stdout.split()[-2:])
    rate = emitted / float(seconds) / MILLION
    share = f"{100 * kept / emitted:.3g} % kept"
    print(f"  (viztracer, add_instant from Python: {rate:.2f} million/s emitted, {share})")


def rows() -> Iterator[Row]:
    seconds = os.environ.get("UTRACEFS_BENCH_S", "2")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="utracefs-bench-"))
        program = compiled(
            folder, "sustained.c", f"-I{CLIENT}/include", f"{CLIENT}/lib/libutracefs.a", "-pthread"
        )
        runs: dict[float, Run] = {}

        def share_at(words: Sequence[str], rate: float) -> float:
            runs[rate] = run(words, [[program, str(int(rate * MILLION)), seconds]])
            return runs[rate].share

        for name, (words, at_least) in commands(stack.enter_context(sink())).items():
            yield highest(name, functools.partial(share_at, words), at_least)
            if name == "record":
                yield at_most_row(
                    "the same at the highest: the recorder", runs[max(runs)].reader_ns, 15, "ns/record"
                )
                made = runs[max(runs)]
                what = "the same: the daemon"
                yield ratio_row(what, made.daemon_ns, made.emit_ns, "an emit in C", 2.3, "ns/record")
        for kind in ("parquet", "csv", "json"):
            made = run(("record", "-o", f"trace.{kind}"), [[program, str(5 * MILLION), "1"]])
            yield at_least_row(f"record -o trace.{kind} at 5 million/s", made.share, 100, "% kept")
        theirs = by_lttng(0, FLAT_OUT)
        if theirs is not None:
            yield highest("LTTng-UST", lambda rate: share_of_lttng(rate, float(seconds)), 0)
        print("  (left out: Perfetto, whose SDK no package has; trace-cmd record, which sets ftrace_enabled)")
        made = run(("record",), [[program, str(5 * MILLION), seconds]] * 2)
        yield at_least_row("record, two programs in C at 5 million/s", made.share, 100, "% kept")
        made = run(("record",), [[program, "100000", seconds]] * 64)
        yield at_least_row("record, 64 programs at 100,000/s", made.share, 100, "% kept")
        made = run(("record",), [[sys.executable, "-c", PYTHON, seconds]])
        name = f"record, Python at full speed, {made.emitted / float(seconds) / MILLION:.0f} million/s"
        yield at_least_row(name, made.share, 100, "% kept")
        by_viztracer(seconds)
        made = run(("record",), [[program, "0", str(FLAT_OUT)]])
        stored = made.kept / made.took_s / MILLION
        name = f"record, C at full speed, {made.emitted / made.took_s / MILLION:.0f} million/s"
        yield at_least_row(name, stored, 15, "million/s")
        if theirs is not None:
            what = "the same, beside LTTng-UST"
            yield at_least_row(what, stored, theirs.kept / theirs.took_s / MILLION, "million/s")
        yield at_most_row("the longest read of a file beside that", worst_read_ms(program), 50, "ms")
