"""The record path: the checks of a write, the counting of every consumer, and what hostile bytes can do."""

import errno
import fcntl
import mmap
import os
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utracefs_protocol.declaration import parse
from utracefs_protocol.limits import MAX_DATA_OBJECT
from utracefs_protocol.perf_ring import MMAP_PAGE_FIELDS, Lost, PerfRingReader, Sample, SampleType
from utracefsd.consumers.ftrace._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace._sink import CLOCKS, FtraceProbe, FtraceSink
from utracefsd.consumers.perf._sink import PerfProbe, PerfSink
from utracefsd.consumers.plugins._batch import BatchProbe
from utracefsd.events._tracepoint import Probe, Tracepoint
from utracefsd.intake._index_table import IndexTable

PID = 46


def tracepoint(command: bytes = b"test u32 a", event_id: int = 1039) -> Tracepoint:
    declaration = parse(command)
    return Tracepoint(event_id, declaration.name, declaration.fields)


def write(to: Tracepoint, payload: bytes, *, ts_ns: int = 1000, cpu: int = 0, pid: int = PID) -> int:
    return to.write(payload, ts_ns=ts_ns, cpu=cpu, pid=pid)


def ftrace(nr_cpus: int = 2, size_kb: int = 64) -> FtraceSink:
    return FtraceSink(RingBuffer(nr_cpus, size_kb))


def numbers(probe: Probe) -> tuple[int, int, int]:
    return probe.recorded, probe.filtered, probe.lost


# ---- what a kernel answered ----

TRANSCRIPT = Path(__file__).parents[2] / "conformance" / "6.12.117" / "08_writes.txt"
ESCAPES = re.compile(rb"\\(0)")


def piece(text: str) -> bytes:
    """A field in the language of the scenario scripts: u32:5, loc:OFFSET,SIZE, s:text\\0, x:hex, z:zeros,
    r:count:byte."""
    kind, _, value = text.partition(":")
    match kind:
        case "loc":
            offset, size = map(int, value.split(","))
            return struct.pack("<HH", offset, size)
        case "s":
            return ESCAPES.sub(b"\0", value.encode())
        case "x":
            return bytes.fromhex(value)
        case "z":
            return bytes(int(value))
        case "r":
            count, byte = value.split(":")
            return bytes([int(byte, 0)]) * int(count)
    return struct.pack({"u8": "<B", "u16": "<H", "u32": "<I"}[kind], int(value, 0))


class Player:
    """Plays the writes of a transcript against the bare record path."""

    def __init__(self) -> None:
        self.sink = ftrace(1, 1408)
        self.sink.clock = "counter"
        self.first = self.sink.now() - 2  # in the transcript, setting the clock left the counter at 2
        self.tables: dict[str, IndexTable] = {}
        self.indices: dict[tuple[str, str], int] = {}
        self.events: dict[str, Tracepoint] = {}

    def enable(self, name: str, on: bool) -> None:
        event = self.events[name]
        if on and not event.probes:
            event.attach(FtraceProbe(self.sink))
        elif not on:
            event.detach(event.probes[0])

    def play(self, words: list[str]) -> int | None:
        """The result of an operation; None for one that has nothing to do with us."""
        match words:
            case ["open", name]:
                self.tables[name] = IndexTable()
            case ["close", name]:
                self.tables[name].clear()
            case ["reg", table, name, *_]:
                command = " ".join(words[2:]).encode()
                event = self.events.setdefault(name, tracepoint(command, 1039 + len(self.events)))
                self.indices[table, name] = self.tables[table].append(event)
            case ["write" | "write1", table, index, *fields]:
                number = self.indices[table, index[1:]] if index.startswith("@") else int(index)
                record = struct.pack("<i", number) + b"".join(map(piece, fields))
                return self.tables[table].write(record, PID)
            case ["pwrite", table, "0", *rest]:
                return self.play(["write", table, *rest])
            case ["rawwrite", table, data]:
                return self.tables[table].write(piece(data), PID)
            case ["w", "events/user_events/enable", on]:
                for name in self.events:
                    self.enable(name, on == "1")
            case ["w", path, on] if path.startswith("events/user_events/"):
                self.enable(path.split("/")[2], on == "1")
            case ["w", "tracing_on", on]:
                self.sink.tracing_on = on == "1"
            case ["wn", "trace"]:
                self.sink.now()  # clearing reads the clock
                self.sink.ring_buffer.clear()
        return None

    def trace(self) -> list[tuple[int, str]]:
        names = {event.id: name for name, event in self.events.items()}
        return [
            (ts - self.first, names[struct.unpack_from("<H", data)[0]])
            for _, ts, data, _ in self.sink.ring_buffer.cursor()
        ]


def test_the_writes_of_a_kernel() -> None:
    """Every result, and the counter of every record: what refused records cost in ticks shows in it."""
    player = Player()
    results = traces = 0
    lines = TRANSCRIPT.read_text("latin-1").splitlines()
    for at, line in enumerate(lines):
        if line.startswith("# several pieces"):
            break
        if not line.startswith("> "):
            continue
        words = line[2:].split()
        got = player.play(words)
        if got is not None:
            expected = re.match(r"= (?:writev?: (-1) \w+\((\d+)\)|(\d+))", lines[at + 1])
            assert expected, lines[at + 1]
            assert got == (-int(expected[2]) if expected[1] else int(expected[3])), line
            results += 1
        elif words == ["cat", "trace"]:
            shown = []
            for text in lines[at + 1 :]:
                if text.startswith("="):
                    break
                if found := re.match(r"\| +\S+ +\[\d+\] \.{5} +(\d+): (\w+):", text):
                    shown.append((int(found[1]), found[2]))
            assert player.trace() == shown
            traces += 1
    assert (results, traces) == (108, 6)


# ---- the tracepoint ----


def test_the_order_of_the_checks() -> None:
    event = tracepoint(b"test u32 a; __rel_loc char[] s")
    bad = struct.pack("<IHH", 1, 0, 99)
    assert write(event, bad[:7]) == -errno.EINVAL
    assert write(event, bad) == -errno.EBADF
    event.attach(FtraceProbe(ftrace()))
    assert write(event, bad[:7]) == -errno.EINVAL
    assert write(event, bad) == -errno.EFAULT
    assert write(event, bytes(8)) == 0
    assert event.emitted == 1


@pytest.mark.parametrize(
    "probe", [FtraceProbe(ftrace()), PerfProbe(PerfSink(1), "perf:1"), BatchProbe("p", print)]
)
def test_a_soft_disabled_probe_takes_nothing_and_validates_nothing(probe: Probe) -> None:
    event = tracepoint(b"test __data_loc char[] s")
    event.attach(probe)
    bad = struct.pack("<HH", 65535, 65535)
    assert write(event, bad) == -errno.EFAULT
    probe.soft_disabled = True
    assert write(event, bad) == 0
    assert numbers(probe) == (0, 1, 0)
    assert event.status == probe.status_bit


def test_whoever_looks_decides_for_all() -> None:
    event = tracepoint(b"test __data_loc char[] s")
    off, on = FtraceProbe(ftrace(), "ftrace:off"), FtraceProbe(ftrace())
    off.sink.tracing_on = False
    event.attach(off)
    bad = struct.pack("<HH", 0, 1)
    assert write(event, bad) == 0
    event.attach(on)
    assert write(event, bad) == -errno.EFAULT
    assert (numbers(off), numbers(on), event.emitted) == ((0, 1, 0), (0, 0, 0), 1)


def test_a_full_or_too_small_buffer_does_not_look() -> None:
    event = tracepoint(b"test __data_loc char[] s")
    probe = FtraceProbe(ftrace(1, 1))
    probe.sink.ring_buffer.overwrite = False
    event.attach(probe)
    bad = struct.pack("<HH", 0, 1)
    assert write(event, bad + bytes(4064)) == 0  # too large for a sub-buffer
    while write(event, bytes(100)) == 0 and probe.lost < 2:
        pass
    assert write(event, bad + bytes(100)) == 0
    assert probe.lost == 3


def test_status_is_what_is_attached() -> None:
    event = tracepoint()
    probes = [FtraceProbe(ftrace()), PerfProbe(PerfSink(7), "perf:1"), BatchProbe("plug", print)]
    for probe, status in zip(probes, (1, 3, 0x83), strict=True):
        event.attach(probe)
        assert event.status == status
    assert event.probes == tuple(probes)
    with pytest.raises(ValueError, match="already"):
        event.attach(probes[0])
    event.detach(probes[1])
    assert event.status == 0x81
    with pytest.raises(ValueError, match="not attached"):
        event.detach(probes[1])
    event.detach(probes[0])
    event.detach(probes[2])
    assert event.status == 0
    assert write(event, bytes(4)) == -errno.EBADF


def test_stats_remember_who_has_gone() -> None:
    event = tracepoint()
    assert event.stats_text() == b"emitted: 0\n"
    sink = ftrace()
    for count in (3, 2):
        probe = FtraceProbe(sink)
        event.attach(probe)
        for _ in range(count):
            write(event, bytes(4))
        sink.tracing_on = False
        write(event, bytes(4))
        sink.tracing_on = True
        event.detach(probe)
    assert event.past == [("ftrace", 5, 2, 0)]
    assert event.stats_text() == b"emitted: 7\nftrace: recorded 5 filtered 2 lost 0\n"
    event.attach(BatchProbe("count", len))
    event.attach(FtraceProbe(sink))
    write(event, bytes(4))
    assert event.stats_text() == (
        b"emitted: 8\ncount: recorded 1 filtered 0 lost 0\nftrace: recorded 6 filtered 2 lost 0\n"
    )


@pytest.mark.parametrize("event_id", [0, -1, 65536])
def test_ids_are_16_bits(event_id: int) -> None:
    with pytest.raises(ValueError, match="id"):
        tracepoint(event_id=event_id)


@settings(deadline=None)
@given(
    command=st.sampled_from(
        [
            b"t __rel_loc char[] a; u8 b; __data_loc char[] c",
            b"t __data_loc u8[] a; __rel_loc u8[] b",
            b"t u8 x; __rel_loc char[] a; __rel_loc unsigned char[] b",
        ]
    ),
    payload=st.binary(min_size=9, max_size=40),
)
def test_locations_never_lead_outside(command: bytes, payload: bytes) -> None:
    """Against the rule written down plainly (user_events.md 4.6)."""
    declaration = parse(command)
    event = tracepoint(command)
    event.attach(FtraceProbe(ftrace(1, 8)))
    entry = struct.pack("<HBBi", 1039, 0, 0, PID) + payload
    valid = True
    for field in declaration.fields:
        if field.is_loc:
            offset, size = struct.unpack_from("<HH", entry, field.offset)
            start = offset if field.kind.name == "DATA_LOC" else field.offset + 4 + offset
            end = start + size
            valid &= end <= len(entry) and (not field.is_string or end == 0 or entry[end - 1] == 0)
    assert write(event, payload) == (0 if valid else -errno.EFAULT)


# ---- ftrace ----


def test_an_entry_is_the_common_fields_and_the_payload() -> None:
    sink = ftrace()
    event = tracepoint()
    event.attach(FtraceProbe(sink))
    write(event, b"abcdefgh", ts_ns=77, cpu=1, pid=-2)
    assert list(sink.ring_buffer.cursor()) == [
        (1, 77, struct.pack("<HBBi8s", 1039, 0, 0, -2, b"abcdefgh"), 0)
    ]


def test_what_ftrace_filters() -> None:
    sink = ftrace()
    event = tracepoint()
    probe = FtraceProbe(sink)
    event.attach(probe)

    def recorded(**kwargs: int) -> bool:
        before = numbers(probe)
        assert write(event, bytes(4), **kwargs) == 0
        taken = probe.recorded - before[0]
        assert numbers(probe) == (before[0] + taken, before[1] + 1 - taken, 0)
        return bool(taken)

    assert recorded()
    sink.tracing_on = False
    assert not recorded()
    sink.tracing_on = True
    sink.cpumask = 2
    assert [recorded(cpu=cpu) for cpu in (0, 1)] == [False, True]
    sink.cpumask = None
    sink.pids = frozenset({5, 6})
    assert [recorded(pid=pid) for pid in (4, 5, 6)] == [False, True, True]
    sink.notrace_pids = frozenset({6})
    assert [recorded(pid=pid) for pid in (4, 5, 6)] == [False, True, False]
    sink.pids = None
    assert [recorded(pid=pid) for pid in (4, 5, 6)] == [True, True, False]
    sink.pids = frozenset()
    assert not recorded()
    assert (sink.cpumask, sink.pids, sink.notrace_pids) == (None, frozenset(), frozenset({6}))


@pytest.mark.parametrize("cpu", [0, 1, 63, 64, 100])
def test_cpumask_of_many_cpus(cpu: int) -> None:
    sink = ftrace(nr_cpus=101, size_kb=1)
    event = tracepoint()
    probe = FtraceProbe(sink)
    event.attach(probe)
    sink.cpumask = 1 << cpu
    for other in range(101):
        write(event, bytes(4), cpu=other)
    assert numbers(probe) == (1, 100, 0)
    assert sink.ring_buffer.entries(cpu) == 1


def test_a_cpu_without_a_ring_of_its_own() -> None:
    sink = ftrace(nr_cpus=2)
    event = tracepoint()
    event.attach(FtraceProbe(sink))
    write(event, bytes(4), cpu=5)
    assert sink.ring_buffer.entries(1) == 1
    with pytest.raises(ValueError, match="cpu"):
        write(event, bytes(4), cpu=-1)


def test_what_ftrace_loses() -> None:
    sink = ftrace(1, 1)
    event = tracepoint()
    probe = FtraceProbe(sink)
    event.attach(probe)
    assert write(event, bytes(4064)) == 0
    assert numbers(probe) == (1, 0, 0)
    for size in (4065, 4072, 4081, 65536, 500000):
        assert write(event, bytes(size)) == 0
    assert numbers(probe) == (1, 0, 5)
    assert sink.ring_buffer.stats(0).dropped_events == 0
    sink.ring_buffer.overwrite = False
    write(event, bytes(4064))
    write(event, bytes(4064))
    assert numbers(probe) == (2, 0, 6)
    assert sink.ring_buffer.stats(0).dropped_events == 1
    sink.ring_buffer = RingBuffer(1, 8, subbuf_size=8192)
    write(event, bytes(8192 - 32))
    assert numbers(probe) == (3, 0, 6)


def test_internal_records() -> None:
    sink = ftrace(2, 1)
    assert sink.append_raw(500, 1, PID, 5, bytes(8) + b"hello\n\0") == 0
    assert list(sink.ring_buffer.cursor()) == [
        (1, 500, struct.pack("<HBBiQ7sx", 5, 0, 0, PID, 0, b"hello\n\0"), 0)
    ]
    assert sink.append_raw(500, 0, PID, 5, bytes(4064)) == 0
    assert sink.append_raw(500, 0, PID, 5, bytes(4065)) == 2
    sink.pids = frozenset({1})
    assert sink.append_raw(500, 0, PID, 5, b"") == 0  # pid lists are about events
    sink.cpumask = 2
    assert sink.append_raw(500, 0, PID, 5, b"") == 1
    sink.cpumask = None
    sink.tracing_on = False
    assert sink.append_raw(500, 0, PID, 5, b"") == 1
    sink.tracing_on = True
    sink.ring_buffer.overwrite = False
    while (code := sink.append_raw(500, 0, PID, 5, bytes(2000))) == 0:
        pass
    assert code == 1
    for bad in ((0, 0), (65536, 0), (5, -1)):
        with pytest.raises(ValueError):
            sink.append_raw(0, bad[1], PID, bad[0], b"")


# ---- trace clocks ----


@pytest.mark.parametrize(
    ("name", "clock"),
    [
        ("local", time.CLOCK_MONOTONIC),
        ("global", time.CLOCK_MONOTONIC),
        ("perf", time.CLOCK_MONOTONIC),
        ("mono", time.CLOCK_MONOTONIC),
        ("mono_raw", time.CLOCK_MONOTONIC_RAW),
        ("boot", time.CLOCK_BOOTTIME),
        ("tai", time.CLOCK_TAI),
    ],
)
def test_clocks_in_nanoseconds(name: str, clock: int) -> None:
    sink = ftrace()
    sink.clock = name
    before = time.clock_gettime_ns(clock)
    now = sink.now()
    sink.append_raw(time.monotonic_ns(), 0, 1, 5, b"")
    after = time.clock_gettime_ns(clock)
    (record,) = sink.ring_buffer.cursor()
    slack = 0 if clock == time.CLOCK_MONOTONIC else 1_000_000  # between the two readings that make the offset
    assert before - slack <= now <= record[1] + slack <= after + 2 * slack


def test_mono_is_the_producers_own_time() -> None:
    sink = ftrace()
    sink.append_raw(123, 0, 1, 5, b"")
    assert next(sink.ring_buffer.cursor())[1] == 123


def test_counter_counts_readings_for_all_instances() -> None:
    one, two = ftrace(), ftrace()
    one.clock = two.clock = "counter"
    first = one.now()
    assert (two.now(), one.now()) == (first + 1, first + 2)
    for sink in (one, two):
        sink.append_raw(999, 0, 1, 5, b"")
    assert [next(s.ring_buffer.cursor())[1] - first for s in (one, two)] == [3, 4]
    one.append_raw(0, 0, 1, 5, bytes(5000))  # refused before the clock is read
    one.append_raw(0, 0, 1, 5, bytes(4064))  # read again for the next page
    assert one.now() == first + 7


def test_other_clocks() -> None:
    sink = ftrace()
    sink.clock = "uptime"
    assert abs(sink.now() - time.monotonic_ns() // 10_000_000) <= 1
    if "x86-tsc" in CLOCKS:
        sink.clock = "x86-tsc"
        assert sink.now() < sink.now()
    assert CLOCKS[:9] == ("local", "global", "counter", "uptime", "perf", "mono", "mono_raw", "boot", "tai")
    for name in ("", "monotonic", "[mono]", "MONO"):
        with pytest.raises(ValueError, match="clock"):
            sink.clock = name
    sink.clock = "boot"
    assert sink.clock == "boot"


# ---- perf ----


class Ring:
    """A perf event with a ring, and a reader's mapping of it."""

    def __init__(self, **attr: Any) -> None:
        self.sink = PerfSink(77, **{"data_pages": 1, **attr})
        self.mapping = mmap.mmap(self.sink.fd, 0)
        self.reader = PerfRingReader(self.mapping, SampleType(self.sink.sample_type))
        self.probe = PerfProbe(self.sink, "perf:1")
        self.event = tracepoint()
        self.event.attach(self.probe)

    def tail(self, value: int) -> None:
        struct.pack_into("<Q", self.mapping, 1032, value)

    def head(self) -> int:
        return self.reader.metadata("data_head")

    def close(self) -> None:
        self.mapping.close()
        self.sink.close()


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring = Ring()
    yield ring
    ring.close()


def test_a_sample(ring: Ring) -> None:
    assert ring.event.write(b"abcdefg", ts_ns=12345, cpu=3, pid=8, tgid=7) == 0
    raw = struct.pack("<HBBi7s", 1039, 0, 0, 8, b"abcdefg") + bytes(5)
    assert list(ring.reader) == [Sample(77, 0, 7, 8, 12345, 3, 1, raw)]
    assert len(raw) % 8 == 4
    assert ring.head() == 8 + 8 * 6 + 4 + len(raw)
    assert list(ring.reader) == []


def test_the_metadata_page(ring: Ring) -> None:
    assert {field.name: ring.reader.metadata(field.name) for field in MMAP_PAGE_FIELDS} == {
        **dict.fromkeys((field.name for field in MMAP_PAGE_FIELDS), 0),
        "size": 96,
        "data_offset": 4096,
        "data_size": 4096,
    }


@pytest.mark.parametrize("size", [4, 5, 6, 7, 8, 11, 12, 13, 100])
def test_raw_sizes_keep_records_on_8_bytes(ring: Ring, size: int) -> None:
    payload = bytes(range(size))
    for _ in range(200):  # wraps at every offset
        write(ring.event, payload)
        (sample,) = ring.reader
        assert isinstance(sample, Sample)
        assert sample.raw[8 : 8 + size] == payload
        assert len(sample.raw) % 8 == 4
        assert not any(sample.raw[8 + size :])
    assert numbers(ring.probe) == (200, 0, 0)


@pytest.mark.parametrize("sample_type", [0, 0x400, 0x10486, 0x10000, 0x10587, 0x107C7, 0x40 | 0x200 | 4])
def test_sample_types(sample_type: int) -> None:
    ring = Ring(sample_type=sample_type)
    try:
        ring.event.write(b"abcd", ts_ns=1 << 40, cpu=3, pid=8, tgid=7)
        parts = [
            (0x10000, struct.pack("<Q", 77)),
            (1, bytes(8)),
            (2, struct.pack("<ii", 7, 8)),
            (4, struct.pack("<Q", 1 << 40)),
            (0x40, struct.pack("<Q", 77)),
            (0x200, struct.pack("<Q", 77)),
            (0x80, struct.pack("<II", 3, 0)),
            (0x100, struct.pack("<Q", 1)),
            (0x400, struct.pack("<IHHi4s", 12, 1039, 0, 8, b"abcd")),
        ]
        body = b"".join(part for bit, part in parts if sample_type & bit)
        expected = struct.pack("<IHH", 9, 2, 8 + len(body)) + body
        assert ring.mapping[4096 : 4096 + ring.head()] == expected
    finally:
        ring.close()


@pytest.mark.parametrize("sample_id_all", [False, True])
def test_lost_samples_are_told_before_the_next_that_fits(sample_id_all: bool) -> None:
    ring = Ring(sample_id_all=sample_id_all)
    try:
        count = 0
        while ring.probe.lost < 3:
            write(ring.event, bytes(4))
            count += 1
        assert numbers(ring.probe) == (count - 3, 0, 3)
        assert ring.sink.count == count
        assert ring.sink.lost == 3
        head = ring.head()
        assert 4096 - 8 - 72 <= head < 4096
        assert len(list(ring.reader)) == count - 3
        ring.event.write(bytes(4), ts_ns=99, cpu=1, pid=8, tgid=7)
        lost, sample = ring.reader
        assert lost == Lost(77, 3)
        assert isinstance(sample, Sample)
        trailer = struct.pack("<iiQIIQ", 7, 8, 99, 1, 0, 77) if sample_id_all else b""
        expected = struct.pack("<IHHQQ", 2, 0, 24 + len(trailer), 77, 3) + trailer
        data = ring.mapping[4096 + head :] + ring.mapping[4096:8192]
        assert data[: len(expected)] == expected
        write(ring.event, bytes(4))
        assert len(list(ring.reader)) == 1  # told once
    finally:
        ring.close()


@pytest.mark.parametrize("tail", [1, 100, 1 << 20, 1 << 63, (1 << 64) - 1, (1 << 64) - 4096])
def test_a_hostile_tail_means_full(ring: Ring, tail: int) -> None:
    """Ahead of the head, or further behind it than the ring is large."""
    ring.tail(tail)
    for _ in range(100):
        write(ring.event, bytes(4))
    assert ring.head() == 0
    assert numbers(ring.probe) == (0, 0, 100)
    ring.tail(0)
    write(ring.event, bytes(4))
    assert isinstance(next(iter(ring.reader)), Lost)


@settings(deadline=None, max_examples=30)
@given(
    tails=st.lists(st.integers(0, (1 << 64) - 1) | st.integers(0, 20000), max_size=30),
    size=st.integers(4, 5000),
)
def test_any_scribbling_stays_within_the_ring(tails: list[int], size: int) -> None:
    ring = Ring()
    try:
        for tail in tails:
            ring.mapping[0:4096] = bytes([tail & 255]) * 4096
            ring.tail(tail)
            write(ring.event, bytes(size))
        assert sum(numbers(ring.probe)) == len(tails)
    finally:
        ring.close()


def test_too_large_for_perf(ring: Ring) -> None:
    big = Ring(data_pages=8)
    try:
        for size in (8184, 8185):
            assert write(big.event, bytes(size)) == 0
        assert numbers(big.probe) == (1, 0, 1)
        assert write(ring.event, bytes(8184)) == 0  # larger than the whole ring
        assert numbers(ring.probe) == (0, 0, 1)
    finally:
        big.close()


def test_every_nth_is_sampled(ring: Ring) -> None:
    ring.sink.sample_period = 10
    for i in range(35):
        write(ring.event, struct.pack("<I", i))
    assert [struct.unpack_from("<I", s.raw, 8)[0] for s in ring.reader if isinstance(s, Sample)] == [
        9,
        19,
        29,
    ]
    assert ring.sink.count == 35
    assert numbers(ring.probe) == (35, 0, 0)
    ring.sink.sample_period = 2
    write(ring.event, bytes(4))
    assert list(ring.reader) == []
    write(ring.event, bytes(4))
    (sample,) = ring.reader
    assert isinstance(sample, Sample)
    assert sample.period == 2
    ring.sink.sample_period = 0
    write(ring.event, bytes(4))
    assert (list(ring.reader), ring.sink.count) == ([], 38)


@pytest.mark.parametrize("rate", [500, 10_000, 200_000])
def test_a_frequency_adapts_the_period(rate: int) -> None:
    ring = Ring(sample_freq=100, sample_period=0, data_pages=64)
    try:
        step = 1_000_000_000 // rate
        samples = []
        for i in range(rate * 4):
            write(ring.event, bytes(4), ts_ns=1_000_000 + i * step)
            if i % 1000 == 999:
                samples += [s for s in ring.reader if isinstance(s, Sample)]
        assert ring.probe.lost == 0
        last = [s for s in samples if s.time > 3_000_000_000]
        assert 80 <= len(last) <= 120
        assert last[-1].period == pytest.approx(rate / 100, rel=0.35, abs=1)
    finally:
        ring.close()


def test_a_frequency_survives_records_of_one_moment() -> None:
    ring = Ring(sample_freq=1)
    try:
        for _ in range(100_000):
            write(ring.event, bytes(4), ts_ns=5)
        assert 1 <= ring.sink.sample_period <= 1_000_000_000
    finally:
        ring.close()


def test_pid_cpu_and_enabled() -> None:
    sink = PerfSink(1, pid=7, cpu=1)
    probe = PerfProbe(sink, "perf:3")
    event = tracepoint()
    event.attach(probe)
    for pid, tgid, cpu in ((7, 7, 1), (8, 7, 1), (7, 6, 1), (8, 8, 1), (7, 7, 0)):
        event.write(bytes(4), ts_ns=1, cpu=cpu, pid=pid, tgid=tgid)
    assert (sink.count, numbers(probe)) == (3, (3, 2, 0))
    sink.enabled = False
    event.write(bytes(4), ts_ns=1, cpu=1, pid=7)
    assert (sink.count, numbers(probe)) == (3, (3, 3, 0))
    assert event.status == 2
    sink.reset()
    assert sink.count == 0
    assert event.stats_text() == b"emitted: 6\nperf:3: recorded 3 filtered 3 lost 0\n"


@pytest.mark.parametrize(
    "attr",
    [
        {"id": 0},
        {"id": 1 << 64},
        {"data_pages": 3},
        {"data_pages": -1},
        {"data_pages": 1 << 15},
        {"sample_period": -1},
        {"sample_period": 5, "sample_freq": 5},
        {"sample_freq": 1 << 32},
        {"sample_type": 8},
        {"sample_type": 1 << 40},
        {"sample_type": -1},
        {"pid": -2},
        {"cpu": -2},
    ],
)
def test_perf_attributes_that_are_refused(attr: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        PerfSink(**{"id": 1, **attr})


def test_the_ring_cannot_be_pulled_away(ring: Ring) -> None:
    fd = os.open(f"/proc/self/fd/{ring.sink.fd}", os.O_RDWR)
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def test_closing_a_ring_goes_on_counting(ring: Ring) -> None:
    fd = ring.sink.fd
    ring.sink.close()
    ring.sink.close()
    assert ring.sink.fd == -1
    with pytest.raises(OSError):
        os.fstat(fd)
    write(ring.event, bytes(4))
    assert (ring.sink.count, numbers(ring.probe)) == (1, (1, 0, 0))


def test_a_dropped_sink_closes_its_descriptor() -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        PerfSink(1, data_pages=1)
    assert os.listdir("/proc/self/fd") == before


# ---- plug-ins ----


def test_batches() -> None:
    got: list[tuple[int, int, int, int, bytes]] = []
    probe = BatchProbe("count", got.extend)
    event = tracepoint()
    event.attach(probe)
    for i in range(3):
        event.write(bytes([i]) * 4, ts_ns=i, cpu=1, pid=8, tgid=7)
    assert (probe.pending, got) == (3, [])
    assert probe.flush() == 3
    assert got == [(i, 1, 8, 7, bytes([i]) * 4) for i in range(3)]
    assert (probe.flush(), probe.pending) == (0, 0)


def test_a_batch_that_is_full_loses() -> None:
    probe = BatchProbe("count", len, 2)
    event = tracepoint()
    event.attach(probe)
    for _ in range(5):
        write(event, bytes(4))
    assert numbers(probe) == (2, 0, 3)
    probe.flush()
    write(event, bytes(4))
    assert numbers(probe) == (3, 0, 3)
    with pytest.raises(ValueError):
        BatchProbe("count", len, 0)


def test_a_plug_in_that_fails_is_counted() -> None:
    def fail(batch: list[tuple[int, int, int, int, bytes]]) -> None:
        raise RuntimeError("no")

    probe = BatchProbe("bad", fail)
    event = tracepoint()
    event.attach(probe)
    for _ in range(5):
        write(event, bytes(4))
    assert probe.flush() == 5
    assert (numbers(probe), probe.failures, str(probe.last_error)) == ((0, 0, 5), 1, "no")


def test_detaching_delivers_the_rest() -> None:
    got: list[tuple[int, int, int, int, bytes]] = []
    probe = BatchProbe("count", got.extend)
    event = tracepoint()
    event.attach(probe)
    write(event, bytes(4))
    event.detach(probe)
    assert len(got) == 1
    assert event.past == [("count", 1, 0, 0)]


def test_a_plug_in_may_detach_itself() -> None:
    event = tracepoint()
    probe = BatchProbe("once", lambda batch: event.detach(probe))
    event.attach(probe)
    write(event, bytes(4))
    event.detach(probe)
    assert (event.probes, event.past) == ((), [("once", 1, 0, 0)])


def test_a_plug_in_may_emit_and_attach_while_it_is_handed_a_batch() -> None:
    event = tracepoint()

    def again(batch: list[tuple[int, int, int, int, bytes]]) -> None:
        if len(event.probes) == 1:
            event.attach(FtraceProbe(ftrace()))
        write(event, bytes(4))

    probe = BatchProbe("again", again)
    event.attach(probe)
    write(event, bytes(4))
    assert probe.flush() == 1
    assert (probe.pending, event.emitted) == (1, 2)


# ---- write_index tables ----


def table_of(*commands: bytes) -> tuple[IndexTable, list[Tracepoint]]:
    table = IndexTable()
    events = [tracepoint(command) for command in commands]
    for index, event in enumerate(events):
        assert table.append(event) == index
        event.attach(FtraceProbe(ftrace()))
    return table, events


def test_the_acknowledged_write() -> None:
    table, (event, _) = table_of(b"one u32 a", b"two u32 a; u32 b")
    assert len(table) == 2
    assert table[0] is event
    for record, result in (
        (b"", -errno.EFAULT),
        (b"\0\0\0", -errno.EFAULT),
        (struct.pack("<i", -1), -errno.EINVAL),
        (struct.pack("<i", -(1 << 31)), -errno.EINVAL),
        (struct.pack("<i", 2), -errno.ENOENT),
        (struct.pack("<i", (1 << 31) - 1), -errno.ENOENT),
        (struct.pack("<ii", 1, 5), -errno.EINVAL),
        (struct.pack("<ii", 0, 5), 8),
        (struct.pack("<iii", 1, 5, 6), 12),
        (struct.pack("<iii", 0, 5, 6), 12),
    ):
        assert table.write(record, PID) == result
    assert table.total_refused == 0  # the caller was told
    before = time.monotonic_ns()
    table.write(struct.pack("<ii", 0, 5), PID)
    probe = event.probes[0]
    assert isinstance(probe, FtraceProbe)
    *_, (_, ts, data, _) = probe.sink.ring_buffer.cursor()
    assert before <= ts <= time.monotonic_ns()
    assert data == struct.pack("<HBBiI", 1039, 0, 0, PID, 5)
    event.detach(probe)
    assert table.write(struct.pack("<ii", 0, 5), PID) == -errno.EBADF
    table.clear()
    assert table.write(struct.pack("<ii", 0, 5), PID) == -errno.ENOENT


def bin_object(data: bytes, width: int = 0) -> bytes:
    if not width:
        packed = msgpack.packb(data)
        assert isinstance(packed, bytes)
        return packed
    return {1: b"\xc4", 2: b"\xc5", 4: b"\xc6"}[width] + len(data).to_bytes(width, "big") + data


def test_taking_in_all_three_sizes() -> None:
    table, (event,) = table_of(b"one u32 a")
    records = [struct.pack("<i", 0) + bytes(n) for n in (4, 251, 252, 300, 4060)]
    stream = b"".join(map(bin_object, records)) + bin_object(records[0], 2) + bin_object(records[0], 4)
    for buffer in (stream, bytearray(stream), memoryview(b"xx" + stream)[2:]):
        before = event.emitted
        assert table.take_in(buffer, 0, PID) == len(stream)
        assert event.emitted - before == 7
    assert table.total_refused == 0


def test_an_incomplete_object_stays() -> None:
    table, (event,) = table_of(b"one u32 a")
    for width in (1, 2, 4):
        record = bin_object(struct.pack("<ii", 0, 5), width)
        stream = record * 2
        for cut in range(len(stream)):
            before = event.emitted
            assert table.take_in(stream[:cut], 0, PID) == cut // len(record) * len(record)
            assert event.emitted - before == cut // len(record)
        assert table.take_in(stream, len(record), PID) == len(stream)


@pytest.mark.parametrize("other", [b"\x94\0\1\2\3", b"\xc0", b"\xc7\1\1x", b"\xc3", b"\xd9\1x", b"\0"])
def test_anything_else_stays(other: bytes) -> None:
    table, (event,) = table_of(b"one u32 a")
    record = bin_object(struct.pack("<ii", 0, 5))
    assert table.take_in(record + other + record, 0, PID) == len(record)
    assert table.take_in(record + other + record, len(record), PID) == len(record)
    assert event.emitted == 1


def test_an_object_that_is_too_large_stays() -> None:
    table, (event,) = table_of(b"one u32 a")
    largest = bin_object(bytes(MAX_DATA_OBJECT - 3))
    assert len(largest) == MAX_DATA_OBJECT
    assert table.take_in(largest, 0, PID) == len(largest)
    assert event.emitted == 1
    for data in (
        bin_object(bytes(MAX_DATA_OBJECT - 2)),
        bin_object(bytes(MAX_DATA_OBJECT)),
        bin_object(bytes(MAX_DATA_OBJECT - 4), 4),
        b"\xc6\xff\xff\xff\xff" + bytes(100),
        b"\xc6\x7f\xff\xff\xff" + bytes(100000),
    ):
        assert table.take_in(data, 0, PID) == 0
    assert event.emitted == 1


def test_what_is_refused_is_counted_by_reason() -> None:
    table, (event,) = table_of(b"one u32 a; __rel_loc char[] s")
    records = [
        b"",
        b"\0\0\0",
        struct.pack("<i", -5),
        struct.pack("<i", 7),
        struct.pack("<i", 7),
        struct.pack("<ii", 0, 1),
        struct.pack("<iihh", 0, 1, 0, 1),
        struct.pack("<iihh", 0, 1, 0, 0),
    ]
    stream = b"".join(map(bin_object, records))
    assert table.take_in(stream, 0, PID) == len(stream)
    event.detach(event.probes[0])
    table.take_in(bin_object(records[-1]), 0, PID)
    expected = {
        (errno.EFAULT, -1): 2,
        (errno.EINVAL, -5): 1,
        (errno.ENOENT, 7): 2,
        (errno.EINVAL, 0): 1,
        (errno.EFAULT, 0): 1,
        (errno.EBADF, 0): 1,
    }
    assert table.refused == expected
    assert table.total_refused == 8
    assert table.take_refused() == expected
    assert (table.refused, table.total_refused, event.emitted) == ({}, 8, 1)


def test_refusals_are_remembered_within_bounds() -> None:
    table, _ = table_of(b"one u32 a")
    stream = b"".join(bin_object(struct.pack("<i", index)) for index in range(1, 2001))
    table.take_in(stream, 0, PID)
    assert table.total_refused == 2000
    assert sum(table.refused.values()) == 2000
    assert len(table.refused) <= 257
    assert table.refused[errno.ENOENT, -1] == 2000 - 256


@pytest.mark.parametrize("offset", [-1, 11, 1 << 40])
def test_an_offset_outside(offset: int) -> None:
    with pytest.raises(ValueError, match="offset"):
        IndexTable().take_in(bytes(10), offset, PID)


@settings(deadline=None)
@given(stream=st.binary(max_size=300), offset=st.integers(0, 300))
def test_any_bytes_are_survived(stream: bytes, offset: int) -> None:
    table, _ = table_of(b"one u32 a; __rel_loc char[] s; __data_loc char[] t")
    if offset <= len(stream):
        assert offset <= table.take_in(stream, offset, PID) <= len(stream)


# ---- conservation ----


@settings(deadline=None, max_examples=50)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 5), st.binary(min_size=8, max_size=200)), max_size=150
    )
)
def test_every_record_is_counted_once_by_every_consumer(steps: list[tuple[int, int, bytes]]) -> None:
    """emitted = recorded + filtered + lost while attached, whatever is switched in between."""
    event = tracepoint(b"test u32 a; __rel_loc char[] s")
    small = ftrace(2, 1)
    small.ring_buffer.overwrite = False
    perf = PerfSink(1, data_pages=1, sample_period=2)
    probes = [
        FtraceProbe(small),
        FtraceProbe(ftrace(2, 1), "ftrace:other"),
        PerfProbe(perf, "perf:1"),
        BatchProbe("plug", len, 7),
    ]
    attached_at: dict[int, int] = {}
    seen = dict.fromkeys(range(len(probes)), 0)
    for action, which, payload in steps:
        probe = probes[which % len(probes)]
        number = which % len(probes)
        if action == 0 and number not in attached_at:
            event.attach(probe)
            attached_at[number] = event.emitted
        elif action == 1 and number in attached_at:
            event.detach(probe)
            seen[number] += event.emitted - attached_at.pop(number)
        elif action == 2:
            small.tracing_on = not small.tracing_on
        elif action == 3:
            probe.soft_disabled = not probe.soft_disabled
        elif action == 4:
            perf.enabled = not perf.enabled
        else:
            write(event, payload, cpu=which % 2)
    for number, start in attached_at.items():
        seen[number] += event.emitted - start
    for number, probe in enumerate(probes):
        assert sum(numbers(probe)) == seen[number]
    assert small.ring_buffer.entries() == probes[0].recorded
    perf.close()
