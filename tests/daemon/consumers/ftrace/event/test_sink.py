"""Recorded, filtered and lost records of ftrace, and its clocks."""

import errno
import struct
import time

import pytest

from tests.daemon.record_path import PID, ftrace, numbers, tracepoint, write
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.filter import parse_filter
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.event._sink import FtraceProbe, FtraceSink, recorded_ids
from utracefsd.consumers.ftrace.settings import CLOCKS
from utracefsd.machine._writer_names import WriterNames

FIELDS = parse(b"test u32 a").fields


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
    sink.set_cpumask(2)
    assert [recorded(cpu=cpu) for cpu in (0, 1)] == [False, True]
    sink.set_cpumask(None)
    sink.set_threads(frozenset({5, 6}))
    assert [recorded(pid=pid) for pid in (4, 5, 6)] == [False, True, True]
    sink.set_threads(frozenset({5, 6}), frozenset({6}))
    assert [recorded(pid=pid) for pid in (4, 5, 6)] == [False, True, False]
    sink.set_threads(None, frozenset({6}))
    assert [recorded(pid=pid) for pid in (4, 5, 6)] == [True, True, False]
    sink.set_threads(frozenset())
    assert not recorded()


def test_a_soft_disabled_probe_takes_nothing_and_validates_nothing() -> None:
    probe = FtraceProbe(ftrace())
    event = tracepoint(b"test __data_loc char[] s")
    event.attach(probe)
    bad = struct.pack("<HH", 65535, 65535)
    assert write(event, bad) == -errno.EFAULT
    probe.soft_disabled = True
    assert write(event, bad) == 0
    assert numbers(probe) == (0, 1, 0)
    assert event.status == probe.status_bit


@pytest.mark.parametrize("cpu", [0, 1, 63, 64, 100])
def test_cpumask_of_many_cpus(cpu: int) -> None:
    sink = ftrace(nr_cpus=101, size_kb=1)
    event = tracepoint()
    probe = FtraceProbe(sink)
    event.attach(probe)
    sink.set_cpumask(1 << cpu)
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
    sink.set_threads(frozenset({1}))
    assert sink.append_raw(500, 0, PID, 5, b"") == 0  # pid lists are about events
    sink.set_cpumask(2)
    assert sink.append_raw(500, 0, PID, 5, b"") == 1
    sink.set_cpumask(None)
    sink.tracing_on = False
    assert sink.append_raw(500, 0, PID, 5, b"") == 1
    sink.tracing_on = True
    sink.ring_buffer.overwrite = False
    while (code := sink.append_raw(500, 0, PID, 5, bytes(2000))) == 0:
        pass
    assert code == 1


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
    for name in ("", "monotonic", "[mono]", "MONO"):
        with pytest.raises(ValueError, match="clock"):
            sink.clock = name
    sink.clock = "boot"
    assert sink.clock == "boot"


def counter_sink() -> FtraceSink:
    sink = ftrace()
    sink.clock = "counter"
    return sink


def test_a_filter_decides_before_the_clock_is_read() -> None:
    """Rejected records take no tick of `counter`, and are counted as filtered."""
    sink = counter_sink()
    event = tracepoint()
    probe = FtraceProbe(sink)
    assert probe.filter is None
    event.attach(probe)
    probe.filter = parse_filter(b"a & 1", FIELDS)
    before = sink.now()
    for number in range(10):
        assert write(event, number.to_bytes(4, "little")) == 0
    assert numbers(probe) == (5, 5, 0)
    assert [ts for _, ts, *_ in sink.ring_buffer.cursor()] == [before + 1 + n for n in range(5)]
    probe.filter = None
    assert write(event, bytes(4)) == 0
    assert numbers(probe) == (6, 5, 0)


def test_what_a_filter_lets_pass_goes_the_way_of_all_records() -> None:
    sink = ftrace()
    event = tracepoint()
    probe = FtraceProbe(sink)
    probe.filter = parse_filter(b"a == 0", FIELDS)
    event.attach(probe)
    sink.tracing_on = False
    assert write(event, bytes(4)) == 0
    sink.tracing_on = True
    sink.set_cpumask(2)
    assert write(event, bytes(4)) == 0
    sink.set_cpumask(None)
    sink.set_threads(frozenset({1}))
    assert write(event, bytes(4)) == 0
    sink.set_threads(None)
    probe.soft_disabled = True
    assert write(event, bytes(4)) == 0
    assert numbers(probe) == (0, 4, 0)
    probe.soft_disabled = False
    assert write(event, bytes(4)) == 0
    assert write(event, bytes(5000)) == 0
    assert numbers(probe) == (1, 4, 1)


def test_an_invalid_record_is_refused_whatever_the_filter_says() -> None:
    """As in the kernel: it is checked before the filter, in another buffer."""
    sink = counter_sink()
    event = tracepoint(b"test u32 a; __data_loc char[] s")
    probe = FtraceProbe(sink)
    probe.filter = parse_filter(b"a == 1", FIELDS)
    event.attach(probe)
    bad = struct.pack("<HH", 65535, 65535)
    before = sink.now()
    for first in (bytes(4), b"\1" + bytes(3)):
        assert write(event, first + bad) == -errno.EFAULT
    sink.tracing_on = False
    assert write(event, bytes(4) + bad) == -errno.EFAULT
    assert sink.now() == before + 1
    assert (numbers(probe), event.emitted) == ((0, 0, 0), 0)
    # It is not checked if the thread is not wanted, or if no page is large enough for it.
    sink.set_threads(frozenset({1}))
    assert write(event, bytes(4) + bad) == 0
    sink.set_threads(None)
    sink.tracing_on = True
    assert write(event, bytes(4) + bad + bytes(5000)) == 0
    assert numbers(probe) == (0, 1, 1)


def test_each_probe_has_a_filter_of_its_own() -> None:
    event = tracepoint()
    probes = [FtraceProbe(ftrace()) for _ in range(3)]
    for probe, text in zip(probes, (b"a == 1", b"a != 1"), strict=False):
        probe.filter = parse_filter(text, FIELDS)
    for probe in probes:
        event.attach(probe)
    for number in range(4):
        assert write(event, number.to_bytes(4, "little")) == 0
    assert [numbers(probe) for probe in probes] == [(1, 3, 0), (3, 1, 0), (4, 0, 0)]
    assert b"ftrace: recorded 8 filtered 4 lost 0" in event.stats_text()


def test_a_filter_that_goes_while_it_judges() -> None:
    """Looking up a name runs Python, which may do anything."""
    event = tracepoint()
    probe = FtraceProbe(ftrace())

    def read(pid: int) -> bytes:
        probe.filter = None
        event.detach(probe)
        return b"drv"

    probe.filter = parse_filter(b"comm == 'x' || a == 0", FIELDS, names=WriterNames(read))
    event.attach(probe)
    assert write(event, bytes(4)) == 0
    assert probe.filter is None
    assert numbers(probe) == (1, 0, 0)


def test_the_ids_of_recorded_events() -> None:
    """Overwritten or consumed records do not count, those of the spare do."""
    buffer = RingBuffer(2, 8)

    def append(cpu: int, event_id: int, n: int = 1) -> None:
        for ts in range(n):
            assert buffer.append(cpu, ts, struct.pack("<Q", event_id) + bytes(56))

    assert recorded_ids(buffer) == set()
    append(0, 7)
    append(0, 0, 1000)
    append(0, 65535)
    append(1, 1039)
    assert recorded_ids(buffer) == {0, 65535, 1039}
    next(buffer.cursor(1, consume=True))
    buffer.add_spare()
    buffer.swap()
    append(1, 20)
    assert recorded_ids(buffer) == {0, 65535, 20}
