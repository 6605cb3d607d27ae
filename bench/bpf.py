"""bpftrace's programs: in the interpreter, beside hist triggers of the same question, and in a whole tool."""

from __future__ import annotations

import functools
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import utracefs
from bench.loops import compiled
from bench.measure import Row, at_most_row, daemon, in_turns, ratio_row
from bench.rings import put
from tests.daemon.consumers.ftrace.histograms import defined
from tests.daemon.intake.producing import new_ring
from utracefs_protocol.events.declaration import parse
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.event._sink import FtraceProbe, FtraceSink
from utracefsd.consumers.ftrace.hist._hist import Hist, HistTable
from utracefsd.consumers.ftrace.hist.program import compile_definition
from utracefsd.consumers.ftrace.trigger._triggers import HistTrigger
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._intake import Intake

CLIENT = Path(__file__).parents[1] / "client" / "c"
EVENT = "http_request u16 status; u32 usec; __rel_loc char[] path"
RING = 16 << 20
PAYLOADS = [
    struct.pack("<HII", 503 if i % 10 == 0 else 200, i * 7919 % 3000, len(path) << 16) + path
    for i in range(1024)
    for path in [b"/item/%d.html\0" % (i % 3)]
]
QUESTIONS = {
    "count_by_status": b"status",
    "hist_by_status": b"status,usec.log2",
    "count_by_path": b"path",
    "hist_by_path": b"path,usec.log2",
}
"""Programs of client/c/tests/bpf_programs.h, and keys."""


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="utracefs-bench-") as folder:
        yield from beside_triggers(folder)
    yield from whole_reader()


# ---- the engine alone


def beside_triggers(folder: str) -> Iterator[Row]:
    engine = [str(CLIENT / "src" / "bpf" / f"{name}.c") for name in ("engine", "helpers", "maps", "rings")]
    flags = ["-D_GNU_SOURCE", f"-I{CLIENT / 'src' / 'bpf'}", f"-I{CLIENT / 'tests'}", *engine, "-pthread"]
    program = compiled(folder, "bpf.c", *flags)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def run_ns(name: str) -> float:
            assert process.stdin and process.stdout
            print(name, file=process.stdin, flush=True)
            return float(process.stdout.readline())

        bare = taking_in(None)
        for name, keys in QUESTIONS.items():
            counted = taking_in(keys)
            best = in_turns(
                {"program": functools.partial(run_ns, name), "bare": bare, "trigger": counted}, 25
            )
            added = best["trigger"] - best["bare"]
            what = f"a record in bpftrace's {name}, the engine alone"
            yield ratio_row(what, best["program"], added, f"added by hist:keys={keys.decode()}", 1.3)
        yield at_most_row("the same: count()", in_turns({"": lambda: run_ns("count")}, 25)[""], 40, "ns")
        rejects = in_turns({"": lambda: run_ns("predicate")}, 25)[""]
        yield at_most_row("the same: a predicate of two fields that rejects", rejects, 30, "ns")


def taking_in(keys: bytes | None) -> Callable[[], float]:
    """Thread cpu time of a record that is taken in and not stored, but counted by these keys; ns."""
    declaration = parse(EVENT.encode())
    tracepoint = Tracepoint(2000, declaration.name, declaration.fields)
    probe = FtraceProbe(FtraceSink(RingBuffer(os.cpu_count() or 1, 8192)))
    probe.soft_disabled = True
    tracepoint.attach(probe)
    if keys is not None:
        definition = defined(b"keys=" + keys, declaration)
        program = compile_definition(definition)
        table = HistTable.create(12, definition.key_size, program.nr_words)
        probe.triggers = (HistTrigger(probe.sink, Hist(program, table)),)
    indexes = IndexTable()
    indexes.append(tracepoint)
    ring = new_ring(indexes, RING)
    intake = Intake(os.cpu_count() or 1)
    intake.add(ring)
    memory = mmap.mmap(ring.fd, os.fstat(ring.fd).st_size)
    data = b"".join(
        struct.pack("<IIQIHH", 1 << 31 | len(p), 0, time.monotonic_ns(), os.getpid(), 0, 0)
        + p
        + bytes(-len(p) % 8)
        for p in PAYLOADS
    )

    def take() -> float:
        put(memory, RING, data)
        begin = time.thread_time_ns()
        taken = intake.take_in()
        took = time.thread_time_ns() - begin
        assert taken == len(PAYLOADS)
        return took / len(PAYLOADS)

    return take


# ---- a tool

READER = {
    "count() by a number": ("{ @[args->status] = count(); }", 90),
    "hist() by a text": ("{ @[str(args->path)] = hist(args->usec); }", 200),
    "a predicate that rejects": ("/args->status >= 900 && args->usec > 1000/ { @ = count(); }", 60),
}
EMITTED = 1_000_000
BURST = 50_000
"""Fits into a ring."""


def whole_reader() -> Iterator[Row]:
    if not shutil.which("bpftrace"):
        pytest.skip("needs bpftrace")
    subprocess.run(["make", "-s", "-C", CLIENT], check=True, capture_output=True)
    with daemon() as directory, utracefs.Session(directory) as session:
        event = session.event(EVENT)
        for what, (program, limit) in READER.items():
            best = min(reader_ns(session, event, program) for _ in range(3))
            yield at_most_row(f"`utracefs bpftrace`, its cpu time a record: {what}", best, limit, "ns")


def reader_ns(session: utracefs.Session, event: utracefs.Event, program: str) -> float:
    """All threads of the tool, from its attachment to the last record, for each record that it got."""
    probe = f"tracepoint:user_events:http_request {program}"
    command = [sys.executable, "-m", "utracefs", "bpftrace", "-e", probe]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as tool:
        try:
            while not (event.registered and event):
                assert tool.poll() is None
                time.sleep(0.01)
            time.sleep(1)
            begin = cpu_ns(tool.pid)
            for start in range(0, EMITTED, BURST):
                for i in range(start, start + BURST):
                    event.emit(200, i % 3000, f"/item/{i % 3}.html")
                session.flush(20)
            time.sleep(1)
            took = cpu_ns(tool.pid) - begin
        finally:
            tool.send_signal(signal.SIGINT)
            said, _ = tool.communicate(timeout=20)
    lost = sum(map(int, re.findall(r"Lost (\d+) events", said)))
    return took / (EMITTED - lost)


def cpu_ns(pid: int) -> int:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
