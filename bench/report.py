"""Printing a trace.dat: lines a second beside `trace-cmd report` on the same file."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Row, at_most_row
from tests.protocol.events.plain_layout import Layout
from tests.protocol.pages.page_writer import PageWriter
from utracefs.recordings.trace_dat.writer import Contents, TraceDatWriter
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import format_text
from utracefs_protocol.pages.subbuf import HEADER_EVENT_TEXT, header_page_text

RECORDS = 1_000_000
CPUS = 4
RUNS = 5
EVENTS = {
    "integers": (b"numbers u32 a; u64 b; s32 c", (7, 1 << 40, -3)),
    "strings": (b"request u16 status; u32 usec; __rel_loc char[] path", (200, 1834, "/api/v1/orders/17")),
}
LARGE_BYTES = 1 << 30
OUTPUTS = ("/dev/null", "a pipe")


def make(path: Path, declaration: bytes, values: tuple[object, ...]) -> None:
    """RECORDS records, in turns of a few on each cpu."""
    event = parse(declaration)
    entries = [
        struct.pack("<HBBi", 2000, 0, 0, 1000 + n) + Layout(event.fields).pack(*values) for n in range(50)
    ]
    with TraceDatWriter(path, nr_cpus=CPUS) as writer:
        pages = [PageWriter() for _ in range(CPUS)]
        for n in range(RECORDS):
            cpu = n // 7 % CPUS
            ts, entry = 10**12 + n * 1500, entries[n // 1000 % len(entries)]
            if not pages[cpu].add(ts, entry):
                writer.add_page(cpu, pages[cpu].page())
                pages[cpu] = PageWriter()
                pages[cpu].add(ts, entry)
        for cpu, page in enumerate(pages):
            writer.add_page(cpu, page.page())
        writer.finish(
            Contents(
                header_page=header_page_text(),
                header_event=HEADER_EVENT_TEXT,
                formats={b"user_events": [format_text(event.name, 2000, event.fields)]},
                cmdlines=b"".join(b"%d worker-%d\n" % (1000 + n, n) for n in range(50)),
                trace_clock=b"[mono]",
            )
        )


def make_large(path: Path) -> None:
    """LARGE_BYTES, some 2,000 seconds of a program that is busy on two cpus."""
    declaration, values = EVENTS["integers"]
    event = parse(declaration)
    entry = struct.pack("<HBBi", 2000, 0, 0, 1000) + Layout(event.fields).pack(*values)
    writer = PageWriter()
    while writer.add(100_000 * writer.count, entry):
        pass
    page = bytearray(writer.page())
    with TraceDatWriter(path, nr_cpus=2) as file:
        for n in range(LARGE_BYTES // len(page)):
            struct.pack_into("<Q", page, 0, 10**12 + n // 2 * 100_000 * writer.count)
            file.add_page(n % 2, bytes(page))
        file.finish(
            Contents(
                header_page=header_page_text(),
                header_event=HEADER_EVENT_TEXT,
                formats={b"user_events": [format_text(event.name, 2000, event.fields)]},
                trace_clock=b"[mono]",
            )
        )


def seconds(words: list[str], output: str) -> float:
    """One run, the start of the program included."""
    with contextlib.ExitStack() as stack:
        begin = time.perf_counter()
        if output == "a pipe":
            process = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
            assert process.stdout
            lines = 0
            while data := os.read(process.stdout.fileno(), 1 << 16):
                lines += data.count(b"\n")
            assert lines > RECORDS, lines
        else:
            process = stack.enter_context(subprocess.Popen(words, stdout=subprocess.DEVNULL))
        assert process.wait() == 0
        return time.perf_counter() - begin


def rows() -> Iterator[Row]:
    theirs = shutil.which("trace-cmd")
    if theirs is None:
        print("  (left out: report: there is no trace-cmd)")
        return
    with tempfile.TemporaryDirectory(prefix="utracefs-bench-") as folder:
        for kind, (declaration, values) in EVENTS.items():
            path = Path(folder) / f"{kind}.dat"
            make(path, declaration, values)
            for output in OUTPUTS:
                commands = {
                    "ours": [sys.executable, "-m", "utracefs.cli", "report", str(path)],
                    "theirs": [theirs, "report", "-i", str(path)],
                }
                took: dict[str, list[float]] = {name: [] for name in commands}
                for _ in range(RUNS):
                    for name, words in commands.items():
                        took[name].append(seconds(words, output))
                ours, baseline = (RECORDS / statistics.median(took[name]) for name in ("ours", "theirs"))
                yield Row(
                    f"report of 1,000,000 records with {kind} to {output}",
                    ours,
                    "lines/s",
                    ">= 1 x",
                    ours >= baseline,
                    baseline,
                    "trace-cmd report",
                )
            path.unlink()
        path = Path(folder) / "large.dat"
        make_large(path)
        words = [sys.executable, "-m", "utracefs.cli", "report", "--last", "1", str(path)]
        took_s = min(seconds(words, "/dev/null") for _ in range(RUNS))
        yield at_most_row(
            "the last second of a trace.dat of 1 GiB, from the start of the program", took_s, 0.5, "s"
        )
