"""perf events: what may be opened, what keeps an event alive, counts and samples, and the ioctls."""

import errno
import mmap
import os
import struct
from collections.abc import Mapping
from typing import Any

import pytest

from utracefs_protocol.declaration import REG_MULTI_FORMAT
from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages.tracefs import PerfAttr
from utracefs_protocol.perf_ring import PerfRingReader, Sample
from utracefsd.consumers.perf.events import PerfEvent, PerfEvents
from utracefsd.events.event import Event
from utracefsd.events.event_table import EventTable

SECOND_NS = 1_000_000_000


@pytest.fixture
def event(table: EventTable) -> Event:
    made = table.register(b"test u32 a", privileged=True)
    table.acquire(made)
    return made


@pytest.fixture
def perf(table: EventTable, event: Event) -> PerfEvents:
    return PerfEvents(table, lambda: 5 * SECOND_NS, nr_cpus=4)


def opened_with(perf: PerfEvents, attr: Mapping[str, Any], *, handle: int) -> PerfEvent:
    return perf.open(PerfAttr.from_params([dict(attr)]), handle=handle)


def write(event: Event, value: int = 1, *, cpu: int = 0, pid: int = 1, ts_ns: int = 7) -> int:
    return event.tracepoint.write(struct.pack("<I", value), ts_ns=ts_ns, cpu=cpu, pid=pid)


def count(data: bytes) -> int:
    assert len(data) == 8
    return int.from_bytes(data, "little")


def test_counting(perf: PerfEvents, event: Event, table: EventTable) -> None:
    opened = opened_with(perf, {"config": event.id}, handle=3)
    assert opened.descriptor() == -1
    assert table.status_text() == b"test # Used by perf\n\nActive: 1\nBusy: 1\n"
    for value in range(5):
        assert write(event, value) == 0
    assert count(opened.read()) == 5
    opened.ioctl("RESET")
    write(event)
    assert count(opened.read()) == 1
    opened.close()
    opened.close()
    assert table.status_text() == b"test\n\nActive: 1\nBusy: 0\n"
    assert b"perf:3: recorded 6 filtered 0 lost 0\n" in event.tracepoint.stats_text()


def test_a_disabled_one_stays_attached(perf: PerfEvents, event: Event, table: EventTable) -> None:
    opened = opened_with(perf, {"name": "user_events:test", "disabled": True}, handle=1)
    assert event.status.names() == ["perf"]
    write(event)
    opened.ioctl("ENABLE", None)
    write(event)
    opened.ioctl("DISABLE", 0)
    write(event)
    assert event.status.names() == ["perf"]
    assert count(opened.read()) == 1
    opened.close()
    assert b"perf:1: recorded 1 filtered 2 lost 0\n" in event.tracepoint.stats_text()


def test_it_keeps_its_event_alive(perf: PerfEvents, event: Event, table: EventTable) -> None:
    opened = opened_with(perf, {"name": "test"}, handle=1)
    table.release(event, 0)
    table.reap(5 * SECOND_NS)
    assert len(table) == 1
    opened.close()
    table.reap(6 * SECOND_NS)
    assert len(table) == 0


def test_samples(perf: PerfEvents, event: Event) -> None:
    opened = opened_with(perf, {"config": event.id, "sample_period": 2, "data_pages": 4}, handle=9)
    fd = opened.descriptor()
    ring = mmap.mmap(fd, 5 * mmap.PAGESIZE)
    os.close(fd)
    for value in range(6):
        write(event, value, cpu=2, ts_ns=100 + value)
    samples = list(PerfRingReader(ring))
    assert [struct.unpack_from("<I", s.raw, 8)[0] for s in samples if isinstance(s, Sample)] == [1, 3, 5]
    assert {s.id for s in samples} == {opened.ioctl("ID")}
    assert count(opened.read()) == 6
    opened.ioctl("PERIOD", 1)
    write(event)
    write(event)
    assert len(list(PerfRingReader(ring))) == 2
    opened.close()
    ring.close()


@pytest.mark.parametrize(("watermark", "samples"), [(0, 2), (1, 1), (100, 1), (3072, 3), (1 << 31, 4)])
def test_a_watcher_is_woken_at_the_watermark(
    perf: PerfEvents, table: EventTable, watermark: int, samples: int
) -> None:
    """A ring of one page holds 4095 bytes; a sample has 1024 of them here."""
    event = table.register(b"large char[952] text", privileged=True)
    attr = {"name": "large", "sample_period": 1, "data_pages": 1, "wakeup_watermark": watermark}
    opened = opened_with(perf, attr, handle=1)
    fd = opened.descriptor()
    ring = mmap.mmap(fd, 2 * mmap.PAGESIZE)
    os.close(fd)
    for lap in range(3):
        for _ in range(samples):
            assert not opened.ready(), lap
            assert event.tracepoint.write(bytes(952), ts_ns=1, cpu=0, pid=1) == 0
        assert opened.ready()
        read = [one for one in PerfRingReader(ring) if isinstance(one, Sample)]
        assert len(read) == min(samples, 3)  # the fourth finds no room, which wakes, too
        if samples == 4:
            return
    opened.close()


def test_what_only_counts_cannot_be_waited_for(perf: PerfEvents) -> None:
    opened = opened_with(perf, {"name": "test"}, handle=1)
    with pytest.raises(TraceError) as caught:
        opened.ready()
    assert caught.value.errno == errno.EINVAL
    opened.close()


def test_identifiers_differ(perf: PerfEvents) -> None:
    opened = [opened_with(perf, {"name": "test"}, handle=handle) for handle in (5, 6)]
    assert opened[0].ioctl("ID") != opened[1].ioctl("ID")
    for one in opened:
        one.close()


def test_cpu_and_pid_are_filtered(perf: PerfEvents, event: Event) -> None:
    on_cpu = opened_with(perf, {"name": "test", "cpu": 1}, handle=1)
    of_pid = opened_with(perf, {"name": "test", "pid": os.getpid()}, handle=2)
    write(event, cpu=1, pid=os.getpid())
    write(event, cpu=0, pid=os.getpid())
    write(event, cpu=1, pid=1)
    assert count(on_cpu.read()) == 2
    assert count(of_pid.read()) == 2
    on_cpu.close()
    of_pid.close()


def test_multi_format_events_have_a_system_of_their_own(perf: PerfEvents, table: EventTable) -> None:
    multi = table.register(b"test u8 a", REG_MULTI_FORMAT, privileged=True)
    table.acquire(multi)
    opened = opened_with(perf, {"name": b"user_events_multi:test.0"}, handle=1)
    assert multi.status.names() == ["perf"]
    opened.close()


@pytest.mark.parametrize(
    ("attr", "number"),
    [
        ({}, errno.EINVAL),
        ({"config": 20, "name": "test"}, errno.EINVAL),
        ({"config": "20"}, errno.EINVAL),
        ({"config": -1}, errno.EINVAL),
        ({"config": 1 << 70}, errno.EINVAL),
        ({"name": 20}, errno.EINVAL),
        ({"config": 999}, errno.ENOENT),
        ({"name": "nobody"}, errno.ENOENT),
        ({"name": "sched:test"}, errno.ENOENT),
        ({"name": "user_events:"}, errno.ENOENT),
        ({"name": ""}, errno.ENOENT),
        ({"name": "test", "data_pages": 3}, errno.EINVAL),
        ({"name": "test", "data_pages": -1}, errno.EINVAL),
        ({"name": "test", "data_pages": 2048}, errno.EINVAL),
        ({"name": "test", "data_pages": 1 << 40}, errno.EINVAL),
        ({"name": "test", "sample_period": 1}, errno.EINVAL),  # samples without a ring
        ({"name": "test", "sample_period": -1, "data_pages": 1}, errno.EINVAL),
        ({"name": "test", "sample_period": 1 << 63, "data_pages": 1}, errno.EINVAL),
        ({"name": "test", "sample_period": 1, "sample_freq": 99, "data_pages": 1}, errno.EINVAL),
        ({"name": "test", "sample_type": 1 << 30}, errno.EINVAL),
        ({"name": "test", "cpu": 4}, errno.EINVAL),
        ({"name": "test", "cpu": -2}, errno.EINVAL),
        ({"name": "test", "pid": 0}, errno.EINVAL),
        ({"name": "test", "pid": (1 << 31) - 1}, errno.ESRCH),
        ({"name": "test", "disabled": "yes"}, errno.EINVAL),
        ({"name": "test", "filter": "a > 1"}, errno.EOPNOTSUPP),
        ({"name": "test", "precise_ip": 1}, errno.E2BIG),
    ],
)
def test_what_cannot_be_opened(perf: PerfEvents, event: Event, attr: dict[str, Any], number: int) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TraceError) as caught:
        opened_with(perf, attr, handle=1)
    assert errno.errorcode[caught.value.errno] == errno.errorcode[number], caught.value.text
    assert event.references == 1
    assert event.status == 0
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize(
    ("attr", "name", "arg", "number"),
    [
        ({}, "SET_FILTER", "a > 1", errno.EOPNOTSUPP),
        ({}, "REFRESH", 1, errno.ENOTTY),
        ({}, "PERIOD", 1, errno.EINVAL),  # it only counts
        ({"sample_period": 1, "data_pages": 1}, "PERIOD", 0, errno.EINVAL),
        ({"sample_period": 1, "data_pages": 1}, "PERIOD", 1 << 63, errno.EINVAL),
        ({"sample_period": 1, "data_pages": 1}, "PERIOD", "1", errno.EINVAL),
        ({"sample_period": 1, "data_pages": 1}, "PERIOD", None, errno.EINVAL),
        ({"sample_freq": 100, "data_pages": 1}, "PERIOD", 7, errno.EINVAL),
    ],
)
def test_ioctls_that_fail(perf: PerfEvents, attr: dict[str, Any], name: str, arg: Any, number: int) -> None:
    opened = opened_with(perf, {"name": "test", **attr}, handle=1)
    with pytest.raises(TraceError) as caught:
        opened.ioctl(name, arg)
    assert errno.errorcode[caught.value.errno] == errno.errorcode[number], caught.value.text
    opened.close()


def test_no_descriptor_is_leaked(perf: PerfEvents) -> None:
    before = len(os.listdir("/proc/self/fd"))
    opened = opened_with(perf, {"name": "test", "sample_period": 1, "data_pages": 1024}, handle=1)
    os.close(opened.descriptor())
    opened.close()
    assert len(os.listdir("/proc/self/fd")) == before
