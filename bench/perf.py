"""The perf sampler: every record sampled, one of a thousand, and the work of its readers."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterator

from bench.measure import Row, at_least_row, in_turns, ratio_row
from bench.rings import taken_in_s
from utracefs.recordings.perf_data._records import Tally
from utracefs.recordings.perf_data.writer import PerfDataWriter
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.filter import parse_filter
from utracefs_protocol.pages.perf_ring import PerfRingReader
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.event._sink import FtraceProbe, FtraceSink
from utracefsd.consumers.perf._sink import PerfProbe
from utracefsd.events._tracepoint import Tracepoint

ROOM = 40_000
"""Samples of 88 bytes that fit into a ring of 4 MiB."""


def event(*probes: PerfProbe, with_ftrace: bool = False) -> Tracepoint:
    declaration = parse(b"bench_in u64 a; u64 b")
    tracepoint = Tracepoint(2000, declaration.name, declaration.fields)
    if with_ftrace:
        tracepoint.attach(FtraceProbe(FtraceSink(RingBuffer(os.cpu_count() or 1, 8192))))
    for probe in probes:
        tracepoint.attach(probe)
    return tracepoint


def every_record() -> Iterator[Row]:
    """Into a ring that is emptied in between; nothing is lost."""
    fields = parse(b"bench_in u64 a; u64 b").fields
    for what, filter_text in (("", b""), (", with a filter", b"a == 0 || b > 5")):
        probe = PerfProbe("perf:1", 1, sample_period=1, data_pages=1024)
        if filter_text:
            probe.filter = parse_filter(filter_text, fields)
        with mmap.mmap(probe.fd, 0) as mapping:
            reader = PerfRingReader(mapping)

            def take(reader: PerfRingReader = reader) -> None:
                list(reader.take())

            rate = taken_in_s(event(probe), ROOM, take)
        assert not probe.lost_samples
        assert probe.count
        probe.close()
        yield at_least_row(f"perf: records sampled at period 1{what}", rate, 3_000_000, "records/s")


def one_of_a_thousand() -> Iterator[Row]:
    sampled = PerfProbe("perf:1", 1, sample_period=1000, data_pages=1024)
    alone, both = event(with_ftrace=True), event(sampled, with_ftrace=True)
    best = in_turns(
        {"alone": lambda: 1e9 / taken_in_s(alone), "both": lambda: 1e9 / taken_in_s(both)}, repeats=3
    )
    sampled.close()
    yield ratio_row(
        "perf: taking in, 1 of 1,000 sampled", best["both"], best["alone"], "no sampler", 1.2, "ns/record"
    )


def recording() -> Iterator[Row]:
    """The work of `perf record` on its samples, without the daemon."""
    raw = struct.pack("<IHHQQIIQIIQI", 9, 2, 88, 1, 0, 7, 8, 1 << 40, 0, 0, 1, 28) + bytes(28)
    data = bytearray(raw * ROOM)
    best = float("inf")
    with tempfile.TemporaryDirectory(prefix="utracefs-bench-") as folder:
        for _ in range(7):
            with PerfDataWriter(os.path.join(folder, "perf.data")) as writer:
                tally = Tally()
                begin = time.perf_counter()
                tally.add(data, 3)
                writer.add(data)
                best = min(best, time.perf_counter() - begin)
    yield at_least_row("perf record: samples counted and written", ROOM / best, 1_000_000, "records/s")


def rows() -> Iterator[Row]:
    yield from every_record()
    yield from one_of_a_thousand()
    yield from recording()
