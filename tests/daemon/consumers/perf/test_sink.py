"""Samples in a perf ring, and hostile readers of it."""

import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.daemon.record_path import numbers, tracepoint, write
from tests.protocol.pages.perf_records import Lost, perf_records
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.filter import parse_filter
from utracefs_protocol.pages.perf_ring import PerfRingReader, Sample
from utracefsd.consumers.perf._sink import PerfProbe


class Ring:
    """A perf event with a ring, and a reader's mapping of it."""

    def __init__(self, **attr: Any) -> None:
        self.probe = PerfProbe("perf:1", 77, **{"data_pages": 1, **attr})
        self.mapping = mmap.mmap(self.probe.fd, 0)
        self.reader = PerfRingReader(self.mapping)
        self.event = tracepoint()
        self.event.attach(self.probe)

    def tail(self, value: int) -> None:
        struct.pack_into("<Q", self.mapping, 1032, value)

    def head(self) -> int:
        return int.from_bytes(self.mapping[1024:1032], "little")

    def read(self) -> Iterator[Sample | Lost]:
        return perf_records(self.reader, self.probe.sample_type)

    def close(self) -> None:
        self.mapping.close()
        self.probe.close()


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring = Ring()
    yield ring
    ring.close()


def test_a_sample(ring: Ring) -> None:
    assert write(ring.event, b"abcdefg", ts_ns=12345, cpu=3, pid=8, tgid=7) == 0
    raw = struct.pack("<HBBi7s", 1039, 0, 0, 8, b"abcdefg") + bytes(5)
    assert list(ring.read()) == [Sample(77, 0, 7, 8, 12345, 3, 1, raw)]
    assert len(raw) % 8 == 4
    assert ring.head() == 8 + 8 * 6 + 4 + len(raw)
    assert list(ring.read()) == []


def test_the_metadata_page(ring: Ring) -> None:
    """struct perf_event_mmap_page: size, data_offset, data_size."""
    page = bytearray(4096)
    struct.pack_into("<I", page, 72, 96)
    struct.pack_into("<QQ", page, 1040, 4096, 4096)
    assert ring.mapping[:4096] == page


@pytest.mark.parametrize("size", [4, 5, 6, 7, 8, 11, 12, 13, 100])
def test_raw_sizes_keep_records_on_8_bytes(ring: Ring, size: int) -> None:
    payload = bytes(range(size))
    for _ in range(200):  # wraps at every offset
        write(ring.event, payload)
        (sample,) = ring.read()
        assert isinstance(sample, Sample)
        assert sample.raw[8 : 8 + size] == payload
        assert len(sample.raw) % 8 == 4
        assert not any(sample.raw[8 + size :])
    assert numbers(ring.probe) == (200, 0, 0)


@pytest.mark.parametrize("sample_type", [0, 0x400, 0x10486, 0x10000, 0x10587, 0x107C7, 0x40 | 0x200 | 4])
def test_sample_types(sample_type: int) -> None:
    ring = Ring(sample_type=sample_type)
    try:
        write(ring.event, b"abcd", ts_ns=1 << 40, cpu=3, pid=8, tgid=7)
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


def test_lost_samples_are_reported_before_the_next_that_fits() -> None:
    ring = Ring()
    try:
        count = 0
        while ring.probe.lost < 3:
            write(ring.event, bytes(4))
            count += 1
        assert numbers(ring.probe) == (count - 3, 0, 3)
        assert ring.probe.count == count
        assert ring.probe.lost_samples == 3
        head = ring.head()
        assert 4096 - 8 - 72 <= head < 4096
        assert len(list(ring.read())) == count - 3
        write(ring.event, bytes(4), ts_ns=99, cpu=1, pid=8, tgid=7)
        lost, sample = ring.read()
        assert lost == Lost(77, 3)
        assert isinstance(sample, Sample)
        trailer = struct.pack("<iiQIIQ", 7, 8, 99, 1, 0, 77)
        expected = struct.pack("<IHHQQ", 2, 0, 24 + len(trailer), 77, 3) + trailer
        data = ring.mapping[4096 + head :] + ring.mapping[4096:8192]
        assert data[: len(expected)] == expected
        write(ring.event, bytes(4))
        assert len(list(ring.read())) == 1  # told once
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
    assert isinstance(next(iter(ring.read())), Lost)


@settings(max_examples=30)
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
    ring.probe.sample_period = 10
    for i in range(35):
        write(ring.event, struct.pack("<I", i))
    assert [struct.unpack_from("<I", s.raw, 8)[0] for s in ring.read() if isinstance(s, Sample)] == [
        9,
        19,
        29,
    ]
    assert ring.probe.count == 35
    assert numbers(ring.probe) == (35, 0, 0)
    ring.probe.sample_period = 2
    write(ring.event, bytes(4))
    assert list(ring.read()) == []
    write(ring.event, bytes(4))
    (sample,) = ring.read()
    assert isinstance(sample, Sample)
    assert sample.period == 2
    ring.probe.sample_period = 0
    write(ring.event, bytes(4))
    assert (list(ring.read()), ring.probe.count) == ([], 38)


@pytest.mark.parametrize("rate", [500, 10_000, 200_000])
def test_a_frequency_adapts_the_period(rate: int) -> None:
    ring = Ring(sample_freq=100, sample_period=0, data_pages=64)
    try:
        step = 1_000_000_000 // rate
        samples = []
        for i in range(rate * 4):
            write(ring.event, bytes(4), ts_ns=1_000_000 + i * step)
            if i % 1000 == 999:
                samples += [s for s in ring.read() if isinstance(s, Sample)]
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
        assert 1 <= ring.probe.sample_period <= 1_000_000_000
    finally:
        ring.close()


def test_pid_cpu_and_enabled() -> None:
    probe = PerfProbe("perf:3", 1, pid=7, cpu=1)
    event = tracepoint()
    event.attach(probe)
    for pid, tgid, cpu in ((7, 7, 1), (8, 7, 1), (7, 6, 1), (8, 8, 1), (7, 7, 0)):
        write(event, bytes(4), ts_ns=1, cpu=cpu, pid=pid, tgid=tgid)
    assert (probe.count, numbers(probe)) == (3, (3, 2, 0))
    probe.enabled = False
    write(event, bytes(4), ts_ns=1, cpu=1, pid=7)
    assert (probe.count, numbers(probe)) == (3, (3, 3, 0))
    assert event.status == 2
    probe.reset()
    assert probe.count == 0
    assert event.stats_text() == b"emitted: 6\nbytes: 24\nperf:3: recorded 3 filtered 3 lost 0\n"


def test_the_ring_cannot_be_pulled_away(ring: Ring) -> None:
    fd = os.open(f"/proc/self/fd/{ring.probe.fd}", os.O_RDWR)
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def test_closing_a_ring_does_not_end_counting(ring: Ring) -> None:
    fd = ring.probe.fd
    ring.probe.close()
    ring.probe.close()
    assert ring.probe.fd == -1
    with pytest.raises(OSError):
        os.fstat(fd)
    write(ring.event, bytes(4))
    assert (ring.probe.count, numbers(ring.probe)) == (1, (1, 0, 0))


def test_a_dropped_probe_closes_its_descriptor() -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        PerfProbe("perf:1", 1, data_pages=1)
    assert os.listdir("/proc/self/fd") == before


def test_what_a_filter_rejects_is_neither_counted_nor_sampled(ring: Ring) -> None:
    """It is the last condition: an invalid record is refused nevertheless."""
    assert ring.probe.filter is None
    ring.probe.filter = parse_filter(b"a & 1", parse(b"test u32 a").fields)
    for number in range(10):
        assert write(ring.event, number.to_bytes(4, "little")) == 0
    assert (ring.probe.count, len(list(ring.read())), numbers(ring.probe)) == (5, 5, (5, 5, 0))
    event = tracepoint(b"test u32 a; __data_loc char[] s")
    ring.event.detach(ring.probe)
    event.attach(ring.probe)
    assert write(event, bytes(4) + b"\xff" * 4) == -errno.EFAULT
    event.detach(ring.probe)
    ring.event.attach(ring.probe)
    ring.probe.filter = None
    assert write(ring.event, bytes(4)) == 0
    assert ring.probe.count == 6
