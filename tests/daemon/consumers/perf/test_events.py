"""perf events: opening, keeping an event alive, counts and samples, and the ioctls."""

import errno
import itertools
import mmap
import os
import struct
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.daemon.record_path import write as write_record
from tests.protocol.pages.perf_records import perf_records
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import REG_MULTI_FORMAT
from utracefs_protocol.messages.tracefs import PerfAttr
from utracefs_protocol.pages.perf_ring import Counts, PerfRingReader, ReadFormat, Sample
from utracefsd.consumers.perf.events import PerfEvent, PerfEvents
from utracefsd.events.event import CommandString, Event
from utracefsd.events.event_table import EventTable
from utracefsd.machine._writer_names import WriterNames

SECOND_NS = 1_000_000_000


@pytest.fixture
def perf(table: EventTable, event: Event) -> PerfEvents:
    return PerfEvents(table, lambda: 5 * SECOND_NS, nr_cpus=4)


def opened_with(perf: PerfEvents, attr: Mapping[str, Any], *, handle: int) -> PerfEvent:
    return perf.open(PerfAttr.from_params([dict(attr)]), handle=handle)


def write(event: Event, value: int = 1, *, cpu: int = 0, pid: int = 1, ts_ns: int = 7) -> int:
    return write_record(event.tracepoint, struct.pack("<I", value), ts_ns=ts_ns, cpu=cpu, pid=pid)


def count(data: bytes) -> int:
    assert len(data) == 8
    return int.from_bytes(data, "little")


def test_what_only_counts_cannot_be_waited_for(perf: PerfEvents) -> None:
    opened = opened_with(perf, {"name": "test"}, handle=1)
    with pytest.raises(TraceError) as caught:
        opened.ready()
    assert caught.value.errno == errno.EINVAL
    opened.close()


def test_multi_format_events_have_a_system_of_their_own(perf: PerfEvents, table: EventTable) -> None:
    multi = table.register(CommandString.parse(b"test u8 a"), REG_MULTI_FORMAT, privileged=True)
    table.acquire(multi)
    opened = opened_with(perf, {"name": b"user_events_multi:test.0"}, handle=1)
    assert multi.status.names() == ["perf"]
    opened.close()


@pytest.mark.parametrize(
    ("attr", "number"),
    [
        ({"config": 999}, errno.ENOENT),
        ({"name": "nobody"}, errno.ENOENT),
        ({"name": "sched:test"}, errno.ENOENT),
        ({"name": "user_events:"}, errno.ENOENT),
        ({"name": ""}, errno.ENOENT),
        ({"name": "test", "cpu": 4}, errno.EINVAL),
        ({"name": "test", "pid": 0}, errno.EINVAL),
        ({"name": "test", "pid": (1 << 31) - 1}, errno.ESRCH),
        ({"name": "test", "filter": "b > 1"}, errno.EINVAL),
        ({"name": "test", "filter": "(a > 1"}, errno.EINVAL),
        ({"name": "test", "filter": "a > 1)"}, errno.EINVAL),
        ({"name": "test", "filter": "COMM == 'x"}, errno.EINVAL),
        ({"name": "test", "filter": ""}, errno.EINVAL),
        ({"name": "test", "filter": "0"}, errno.EINVAL),
        ({"name": "test", "read_format": 8}, errno.EINVAL),
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
        ({}, "SET_FILTER", "b > 1", errno.EINVAL),
        ({}, "SET_FILTER", None, errno.EINVAL),
        ({}, "SET_FILTER", 7, errno.EINVAL),
        ({"filter": "a > 0"}, "SET_FILTER", "a > 1", errno.EEXIST),
        ({}, "REFRESH", 1, errno.ENOTTY),
        ({}, "PERIOD", 1, errno.EINVAL),  # it only counts
        ({"sample_period": 1, "data_pages": 1}, "PERIOD", 0, errno.EINVAL),
        ({"sample_period": 1, "data_pages": 1}, "PERIOD", 1 << 63, errno.EINVAL),
        ({"sample_period": 1, "data_pages": 1}, "PERIOD", "1", errno.EINVAL),
        ({"sample_period": 1, "data_pages": 1}, "PERIOD", None, errno.EINVAL),
        ({"sample_freq": 100, "data_pages": 1}, "PERIOD", 0, errno.EINVAL),
        ({"sample_freq": 100, "data_pages": 1}, "PERIOD", 100_001, errno.EINVAL),
    ],
)
def test_ioctls_that_fail(perf: PerfEvents, attr: dict[str, Any], name: str, arg: Any, number: int) -> None:
    opened = opened_with(perf, {"name": "test", **attr}, handle=1)
    with pytest.raises(TraceError) as caught:
        opened.ioctl(name, arg)
    assert errno.errorcode[caught.value.errno] == errno.errorcode[number], caught.value.text
    opened.close()


def test_a_filter_asks_for_the_name_of_the_thread(table: EventTable, event: Event) -> None:
    names = WriterNames(lambda pid: b"worker" if pid == 7 else b"other")
    perf = PerfEvents(table, lambda: 0, nr_cpus=4, names=names)
    opened = opened_with(perf, {"name": "test", "filter": "COMM ~ 'work*' && CPU == 2"}, handle=1)
    for pid in (7, 8):
        for cpu in (1, 2):
            write(event, cpu=cpu, pid=pid)
    assert count(opened.read()) == 1
    opened.close()


class Clock:
    """Set by hand."""

    def __init__(self) -> None:
        self.now_ns = 1000

    def __call__(self) -> int:
        return self.now_ns


def test_time_runs_while_it_is_enabled(table: EventTable, event: Event) -> None:
    clock = Clock()
    perf = PerfEvents(table, clock, nr_cpus=4)
    attr = {"name": "test", "read_format": 0x17, "disabled": True, "sample_period": 1, "data_pages": 1}
    opened = opened_with(perf, attr, handle=1)

    def counts() -> Counts:
        return Counts.from_bytes(opened.read(), ReadFormat(0x17))

    clock.now_ns += 5
    assert counts() == Counts(0, 0, 0, opened.ioctl("ID"), 0)
    for name, expected in (("ENABLE", 7), ("ENABLE", 14), ("DISABLE", 14), ("RESET", 14), ("ENABLE", 21)):
        opened.ioctl(name)
        clock.now_ns += 7
        assert counts().time_enabled_ns == counts().time_running_ns == expected, name
    while event.tracepoint.stats_text().endswith(b"lost 0\n"):
        write(event)
    assert counts().lost == 1
    opened.close()


@pytest.mark.parametrize("wanted", range(32))
def test_read_gives_the_requested_members(table: EventTable, event: Event, wanted: int) -> None:
    clock = Clock()
    perf = PerfEvents(table, clock, nr_cpus=4)
    if wanted & 8:  # GROUP: there are none
        with pytest.raises(TraceError, match="read_format"):
            opened_with(perf, {"name": "test", "read_format": wanted}, handle=1)
        return
    opened = opened_with(perf, {"name": "test", "read_format": wanted}, handle=1)
    clock.now_ns += 9
    parts = [9 if wanted & 1 else None, 9 if wanted & 2 else None, 1 if wanted & 4 else None]
    values = [0, *(part for part in parts if part is not None), *([0] if wanted & 16 else [])]
    assert opened.read() == struct.pack(f"<{len(values)}Q", *values)
    opened.close()


def test_the_frequency_can_be_changed(perf: PerfEvents, event: Event) -> None:
    """A record each millisecond: at 1,000 a second all of them are sampled, at 10 every hundredth."""
    opened = opened_with(perf, {"name": "test", "sample_freq": 1000, "data_pages": 64}, handle=1)
    fd = opened.descriptor()
    ring = mmap.mmap(fd, 0)
    os.close(fd)
    samples = []
    for freq in (1000, 10):
        opened.ioctl("PERIOD", freq)
        for ms in range(2000):
            write(event, ts_ns=(1 + ms + 10_000 * (freq == 10)) * 1_000_000)
        samples.append(sum(isinstance(one, Sample) for one in perf_records(PerfRingReader(ring))))
    assert samples[0] == 2000
    assert samples[1] < 200
    ring.close()
    opened.close()


class ModelSampler:
    """The expected work of a sampler, in plain Python: no wrapping, no words of memory."""

    def __init__(self, attr: Mapping[str, Any], identifier: int) -> None:
        self.pid, self.cpu = attr.get("pid", -1), attr.get("cpu", -1)
        self.period = self.left = attr.get("sample_period", 0)
        self.enabled = not attr.get("disabled", False)
        self.above = attr.get("above", -1)
        self.id = identifier
        self.count = self.recorded = self.filtered = self.lost = self.untold = 0
        self.unread: list[tuple[str, int]] = []
        """A sample and its value, or LOST and how many."""

    def write(self, value: int, cpu: int, pid: int) -> None:
        wanted = self.enabled and self.pid in (-1, pid) and self.cpu in (-1, cpu) and value > self.above
        if not wanted:
            self.filtered += 1
            return
        self.count += 1
        self.left -= 1
        if self.left != 0:  # of a period of 0 it never is
            self.recorded += 1
            return
        self.left = self.period
        # 72: header, identifier, ip, pid and tid, time, cpu, period, size of raw and the raw entry.
        # 56: header, identifier, number, and the trailer of 32 bytes. One byte stays free.
        held = sum(72 if kind == "sample" else 56 for kind, _ in self.unread)
        if held + 72 + (56 if self.untold else 0) >= 4096:
            self.lost += 1
            self.untold += 1
            return
        if self.untold:
            self.unread.append(("lost", self.untold))
            self.untold = 0
        self.unread.append(("sample", value))
        self.recorded += 1

    def filled(self, watermark: int) -> bool:
        held = sum(72 if kind == "sample" else 56 for kind, _ in self.unread)
        return held >= (watermark or 2048) or self.untold > 0


SAMPLERS = st.fixed_dictionaries(
    {},
    optional={
        "sample_period": st.integers(1, 4),
        "cpu": st.integers(0, 1),
        "pid": st.just(os.getpid()),
        "disabled": st.booleans(),
        "above": st.integers(0, 2),
        "wakeup_watermark": st.sampled_from([1, 500, 4000]),
    },
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3), st.integers(0, 1), st.sampled_from([1, os.getpid()])),
        st.tuples(st.just("burst"), st.integers(1, 100)),
        st.tuples(
            st.sampled_from(["ENABLE", "DISABLE", "RESET", "PERIOD", "SET_FILTER", "read ring"]),
            st.integers(0, 3),
            st.integers(1, 4),
        ),
    ),
    max_size=40,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SAMPLERS, min_size=1, max_size=4), STEPS)
@example([{"sample_period": 1}], [("burst", 100), ("read ring", 0, 1), ("burst", 100)])
def test_samplers_on_one_event_do_as_the_model(
    table: EventTable, event: Event, wanted: list[dict[str, Any]], steps: list[tuple[Any, ...]]
) -> None:
    perf = PerfEvents(table, lambda: 0, nr_cpus=4)
    opened, models, rings, readers = [], [], [], []
    for members in wanted:
        attr = {"name": "test", "data_pages": 1, **{k: v for k, v in members.items() if k != "above"}}
        if "above" in members:
            attr["filter"] = f"a > {members['above']}"
        opened.append(opened_with(perf, attr, handle=next(HANDLES)))
        models.append(ModelSampler(members, opened[-1].ioctl("ID")))
        fd = opened[-1].descriptor()
        rings.append(mmap.mmap(fd, 0))
        os.close(fd)
        readers.append(PerfRingReader(rings[-1]))
    try:
        for name, *args in steps:
            if name == "write":
                write(event, args[0], cpu=args[1], pid=args[2])
                for model in models:
                    model.write(*args)
            elif name == "burst":
                for _ in range(args[0]):
                    write(event, 3, cpu=1, pid=os.getpid())
                    for model in models:
                        model.write(3, 1, os.getpid())
            else:
                i = args[0] % len(models)
                do(opened[i], models[i], readers[i], name, args[1])
        stats = event.tracepoint.stats_text().decode()
        for one, model, reader, attr in zip(opened, models, readers, wanted, strict=True):
            assert count(one.read()) == model.count
            assert one.ready() == model.filled(attr.get("wakeup_watermark", 0))
            assert (
                f"perf:{one.handle}: recorded {model.recorded} filtered {model.filtered} lost {model.lost}\n"
                in stats
            )
            assert read_ring(reader, model.id) == model.unread
    finally:
        for ring in rings:
            ring.close()
        for one in opened:
            one.close()


HANDLES = itertools.count(100)
"""The name of a consumer is unique over all examples: `stats` keeps removed ones."""


def read_ring(reader: PerfRingReader, identifier: int) -> list[tuple[str, int]]:
    found = []
    for one in perf_records(reader):
        assert one.id == identifier
        if isinstance(one, Sample):
            found.append(("sample", struct.unpack_from("<I", one.raw, 8)[0]))
        else:
            found.append(("lost", one.count))
    return found


def do(opened: PerfEvent, model: ModelSampler, reader: PerfRingReader, name: str, number: int) -> None:
    """One ioctl, or reading the ring."""
    match name:
        case "ENABLE" | "DISABLE":
            opened.ioctl(name)
            model.enabled = name == "ENABLE"
        case "RESET":
            opened.ioctl(name)
            model.count = 0
        case "PERIOD":
            if model.period:
                opened.ioctl(name, number)
                model.period = model.left = number
            else:
                with pytest.raises(TraceError):
                    opened.ioctl(name, number)
        case "SET_FILTER":
            if model.above == -1:
                opened.ioctl(name, f"a > {number - 1}")
                model.above = number - 1
            else:
                with pytest.raises(TraceError):
                    opened.ioctl(name, "a > 0")
        case _:
            assert read_ring(reader, model.id) == model.unread
            model.unread.clear()


def test_a_ring_costs_no_descriptor_and_memory_with_the_first_sample(perf: PerfEvents, event: Event) -> None:
    before = len(os.listdir("/proc/self/fd"))
    opened = opened_with(perf, {"name": "test", "sample_period": 1, "data_pages": 64}, handle=1)
    fd = opened.descriptor()
    assert opened.descriptor() == -1
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert os.fstat(fd).st_blocks * 512 <= mmap.PAGESIZE
    write(event)
    assert os.fstat(fd).st_blocks * 512 == 65 * mmap.PAGESIZE
    os.close(fd)
    opened.close()


def test_no_descriptor_is_leaked(perf: PerfEvents) -> None:
    before = len(os.listdir("/proc/self/fd"))
    opened = opened_with(perf, {"name": "test", "sample_period": 1, "data_pages": 1024}, handle=1)
    os.close(opened.descriptor())
    opened.close()
    assert len(os.listdir("/proc/self/fd")) == before
