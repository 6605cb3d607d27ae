"""Commands that record, at a steady rate and at full speed: the share of the records that they keep, and cpu
time per kept record, beside LTTng-UST with its defaults (4 sub-buffers of 1 MiB for each cpu, discard).

Records are two u64, options the defaults. UTRACEFS_BENCH_S is the length of a run in seconds [4]; a million
records of a trace.dat are 28 MB.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from bench.loops import compiled, lttng_session
from bench.measure import Row, at_least_row, at_most_row, daemon, ratio_row
from utracefs.tree.tracefs import Tracefs

HERE = Path(__file__).parent
CLIENT = HERE.parent / "client" / "utracefs" / "c"
MILLION = 1_000_000
FLAT_OUT = 60
"""Millions of records of a program in C that emits as fast as it can."""

PYTHON = """
import sys, time, utracefs
event = utracefs.event("bench_two u64 i; u64 five")
while not event:
    time.sleep(0.001)
end, i = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    for i in range(i, i + 10_000):
        event.emit(i, 5)
print(i, 0, 0)
"""


def cpu_ns(pid: int) -> int:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)


@attrs.frozen
class Run:
    emitted: int
    kept: int
    took_s: float
    reader_ns: float
    """Cpu time of the command per kept record, before it finishes its file."""
    daemon_ns: float
    emit_ns: float
    """Cpu time of the first program per record."""

    @property
    def share(self) -> float:
        return 100 * self.kept / self.emitted


def run(command: Sequence[str], programs: Sequence[Sequence[str]], kept: str, ring_kb: str = "32768") -> Run:
    """Run a command of utracefs beside programs that emit. kept: pattern of the number in its output."""
    with tempfile.TemporaryDirectory(prefix="utracefs-bench-") as folder, daemon() as directory:
        served = int(os.environ["UTRACEFS_BENCH_DAEMON"])
        reader = subprocess.Popen(
            [sys.executable, "-m", "utracefs.cli", *command], cwd=folder, stderr=subprocess.PIPE
        )
        with Tracefs(directory) as tree:
            while not tree.read_file("daemon_stats").count(b"streams: 1 ") and reader.poll() is None:
                time.sleep(0.05)
        time.sleep(0.5)
        before = cpu_ns(reader.pid), cpu_ns(served)
        environment = {**os.environ, "UTRACEFS_RING_KB": ring_kb}
        begun = time.monotonic()
        running = [subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) for words in programs]
        printed = [program.communicate()[0].split() for program in running]
        emitted = sum(int(words[0]) for words in printed)
        took_s = time.monotonic() - begun
        time.sleep(0.3)
        used = cpu_ns(reader.pid) - before[0], cpu_ns(served) - before[1]
        reader.send_signal(signal.SIGINT)
        _, error = reader.communicate()
    found = re.search(kept, error.decode())
    assert found, error.decode()
    number = int(found[1])
    emit_ns = float(printed[0][1])
    return Run(emitted, number, took_s, used[0] / max(number, 1), used[1] / max(number, 1), emit_ns)


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


def stored_by_lttng(folder: str) -> Iterator[float]:
    """Records that it stores of a program at full speed, millions a second."""
    with lttng_session(folder, "sustained.c") as session:
        if session is None:
            return
        done = subprocess.run(
            [session.program, "0", str(FLAT_OUT)],
            env=os.environ | session.environment,
            stdout=subprocess.PIPE,
            check=True,
        )
        session.run("stop", session.name)
        lost = re.search(r"Discarded events: (\d+)", session.run("list", session.name) or "")
        emitted, _, seconds = map(float, done.stdout.split())
        assert lost
        yield (emitted - int(lost[1])) / MILLION / seconds


def rows() -> Iterator[Row]:
    seconds = os.environ.get("UTRACEFS_BENCH_S", "4")
    record, recorded = ("record",), r": (\d+) records?, "
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="utracefs-bench-"))
        program = compiled(
            folder, "sustained.c", f"-I{CLIENT}/include", f"{CLIENT}/lib/libutracefs.a", "-pthread"
        )
        python = [sys.executable, "-c", PYTHON, seconds]
        for per_s in (1, 5, 12):
            made = run(record, [[program, str(per_s * MILLION), seconds]], recorded)
            yield at_least_row(f"record, C at {per_s} million/s", made.share, 100, "% kept")
        yield at_most_row("the same: the recorder's cpu time", made.reader_ns, 15, "ns/record")
        name = "the same: the daemon's cpu time"
        yield ratio_row(name, made.daemon_ns, made.emit_ns, "an emit in C", 2.3, "ns/record")
        made = run(record, [[program, str(5 * MILLION), seconds]] * 2, recorded)
        yield at_least_row("record, two programs in C at 5 million/s", made.share, 100, "% kept")
        made = run(record, [[program, "100000", seconds]] * 64, recorded, ring_kb="1024")
        yield at_least_row("record, 64 programs at 100,000/s", made.share, 100, "% kept")
        made = run(record, [python], recorded)
        name = f"record, Python at full speed, {made.emitted / float(seconds) / MILLION:.0f} million/s"
        yield at_least_row(name, made.share, 100, "% kept")
        made = run(record, [[program, "0", str(FLAT_OUT)]], recorded)
        name = f"record, C at full speed, {made.emitted / made.took_s / MILLION:.0f} million/s"
        yield at_least_row(name, made.kept / made.took_s / MILLION, 15, "million/s")
        for stored in stored_by_lttng(folder):
            yield at_least_row(
                "the same, beside LTTng-UST", made.kept / made.took_s / MILLION, stored, "million/s"
            )
        yield at_most_row("the longest read of a file beside that", worst_read_ms(program), 50, "ms")
