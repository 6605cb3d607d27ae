"""Streams: their events, now and later, their limits, and their end."""

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.daemon.consumers.stream.plain_reader import Format, Page, PlainReader, Taken
from tests.daemon.record_path import write
from tests.daemon.tree.world import World
from tests.protocol.pages.page_writer import decode_page
from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import MIN_STREAM_RING
from utracefs_protocol.messages.tracefs import StreamAttr
from utracefsd.consumers.stream import streams as module
from utracefsd.consumers.stream.streams import Streams
from utracefsd.events.event import CommandString, Event
from utracefsd.events.event_table import EventTable
from utracefsd.machine import disk
from utracefsd.machine._writer_names import WriterNames


class Bench:
    """The consumer, and readers of its streams."""

    def __init__(self, table: EventTable, instances: Any = {}, **options: Any) -> None:  # noqa: B006
        """instances: an Instances; by default there are none."""
        self.table = table
        self.streams = Streams(table, 2, instances, **options)
        self.opened: list[Any] = []
        self.readers: list[PlainReader] = []

    def open(self, *events: bytes, **attr: Any) -> tuple[Any, PlainReader]:
        handle = len(self.readers) + 1
        stream = self.streams.open(StreamAttr(events, size=MIN_STREAM_RING, **attr), handle=handle)
        self.opened.append(stream)
        self.readers.append(PlainReader(*stream.descriptors()))
        return stream, self.readers[-1]

    def refused(self, *events: bytes, **attr: Any) -> TraceError:
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(TraceError) as caught:
            self.streams.open(StreamAttr(events, size=MIN_STREAM_RING, **attr), handle=99)
        assert set(os.listdir("/proc/self/fd")) <= before
        return caught.value

    def register(self, command: bytes) -> Event:
        event = self.table.register(CommandString.parse(command), privileged=True)
        self.table.acquire(event)
        return event

    def close(self) -> None:
        for one in (*self.opened, *self.readers):
            one.close()


@pytest.fixture
def bench(table: EventTable) -> Iterator[Bench]:
    with contextlib.closing(Bench(table)) as bench:
        yield bench


@pytest.fixture
def tree_bench(world: World) -> Iterator[Bench]:
    """Its streams may be of the instances of `world`."""
    with contextlib.closing(Bench(world.table, instances=world.instances)) as bench:
        yield bench


def emit(event: Event, *values: int) -> None:
    for value in values:
        assert write(event.tracepoint, struct.pack("<I", value), ts_ns=1, cpu=0, pid=8) == 0


def values(bench: Bench, reader: PlainReader) -> list[tuple[int, int]]:
    bench.streams.publish()
    return [(one.id, one.payload[0]) for one in reader.take() if isinstance(one, Taken)]


def test_events_that_are_there_and_that_come(bench: Bench, table: EventTable) -> None:
    one, other = bench.register(b"http_get u32 a"), bench.register(b"db u32 a")
    stream, reader = bench.open(b"http_*", b"exact")
    later, exact = bench.register(b"http_put u32 a"), bench.register(b"exact u32 a")
    for event in (one, later, exact):
        emit(event, 1, 2)
    assert other.tracepoint.status == 0
    assert one.tracepoint.status == later.tracepoint.status == 0x80
    assert values(bench, reader) == [(event.id, i) for event in (one, later, exact) for i in (1, 2)]
    assert stream.events() == [one, later, exact]
    assert b"stream:1: recorded 2 filtered 0 lost 0" in one.tracepoint.stats_text()
    stream.close()
    stream.close()
    assert one.tracepoint.status == 0
    bench.register(b"http_x u32 a")
    assert reader.rings() > 0
    assert reader.rings() == -1


def test_a_filter_leaves_out_what_it_does_not_fit(bench: Bench) -> None:
    fits, not_ = bench.register(b"fits u32 status"), bench.register(b"not_ u32 a")
    stream, reader = bench.open(b"*", filter=b"status >= 500")
    later = bench.register(b"later u32 status")
    bench.register(b"later_not u32 b")
    emit(fits, 1, 2)
    assert stream.events() == [fits, later]
    assert not_.tracepoint.status == 0
    assert values(bench, reader) == []
    assert "of event 'not_'" in bench.refused(b"fits", b"not_", filter=b"status == 1").text
    assert "Field not found" in bench.refused(b"not_*", filter=b"status == 1").text
    assert fits.tracepoint.status == 0x80
    assert "filter: " in bench.refused(b"nothing_yet", filter=b"(a == 1").text
    bench.open(b"nothing_yet", filter=b"status == 1")


def test_names(table: EventTable) -> None:
    bench = Bench(table, names=WriterNames(lambda pid: b"prog%d" % pid))
    event = bench.register(b"ev u32 a")
    _, reader = bench.open(b"ev", filter=b'COMM ~ "prog*"')
    emit(event, 1)
    bench.streams.publish()
    assert [type(one).__name__ for one in reader.take()] == ["Format", "Comm", "Taken"]
    reader.close()


@pytest.mark.parametrize(
    ("attr", "number"),
    [
        ({"events": (b"a:b:c",)}, errno.EINVAL),
        ({"events": (b"x" * 128,)}, errno.EINVAL),
        ({"events": (b"a",), "instances": (b"web",)}, errno.ENOENT),
    ],
)
def test_what_is_refused(bench: Bench, attr: dict[str, Any], number: int) -> None:
    events = attr.pop("events")
    assert bench.refused(*events, **attr).errno == number


def test_limits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STREAMS", 2)
    first, _ = bench.open(b"a")
    bench.open(b"a")
    assert bench.refused(b"a").errno == errno.EMFILE
    assert len(bench.streams) == 2
    assert bench.streams.text() == f"streams: 2 of 2, {2 * MIN_STREAM_RING} of {1 << 30} bytes\n"
    first.close()
    monkeypatch.setattr(module, "MAX_BYTES", 2 * MIN_STREAM_RING - 1)
    assert bench.refused(b"a").errno == errno.ENOMEM


def test_no_memory_no_stream(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "posix_fallocate", full)
    assert bench.refused(b"a").errno == errno.ENOSPC
    assert len(bench.streams) == 0


def test_ready(bench: Bench) -> None:
    event = bench.register(b"ev u32 a")
    stream, reader = bench.open(b"ev")
    assert not stream.ready()
    emit(event, 1)
    assert stream.ready()
    assert len(reader.take()) == 2
    assert not stream.ready()


def test_an_idle_event_goes_where_there_is_no_room(table: EventTable) -> None:
    bench = Bench(table)
    stream, reader = bench.open(b"*")
    table.user_events_max = 2
    first = table.register(CommandString.parse(b"first u32 a"), privileged=True)
    table.acquire(first)
    emit(first, 1)
    table.release(first)  # its program is gone; the stream keeps it
    bench.register(b"second u32 a")
    third = bench.register(b"third u32 a")
    assert first.removed
    emit(third, 3)
    assert values(bench, reader) == [(first.id, 1), (third.id, 3)]
    assert first not in stream.events()
    stream.close()
    reader.close()


def test_the_filters_of_an_instance(world: World, tree_bench: Bench) -> None:
    event, other = tree_bench.register(b"ev u32 a"), tree_bench.register(b"other u32 b")
    events = world.instances.make(b"web").events
    with pytest.raises(TraceError):
        events.set_filter(other, b"a > 1")
    for one in (event, other):
        events.enable(one)
    stream, reader = tree_bench.open(b"*", instances=(b"web",), filtered=True)
    assert stream.events() == [event]  # the other's filter is invalid
    emit(event, 1)
    events.set_filter(event, b"a > 1")
    emit(event, 1, 2)
    assert values(tree_bench, reader) == [(event.id, 1), (event.id, 2)]
    events.set_filter(event, b"a > 1")
    events.set_filter(other, b"0")
    assert set(stream.events()) == {event, other}
    with pytest.raises(TraceError):
        events.set_filter(event, b"no == 1")
    assert stream.events() == [other]
    events.set_filter(event, b"0")
    emit(event, 3)
    assert values(tree_bench, reader) == [(event.id, 3)]
    events.disable(event)
    events.set_filter(event, b"a > 1")
    assert stream.events() == [other]


def test_events_that_instances_have_enabled(world: World, tree_bench: Bench) -> None:
    instances = world.instances
    one, other = tree_bench.register(b"one u32 a"), tree_bench.register(b"other u32 a")
    web = instances.make(b"web")
    web.events.enable(one)
    stream, reader = tree_bench.open(b"*", instances=(b"web", b""))
    assert stream.events() == [one]
    instances.top.events.enable(other)
    instances.top.events.enable(one)
    assert stream.events() == [one, other]
    web.events.disable(one)
    instances.top.events.disable(other)
    assert stream.events() == [one]
    emit(one, 4)
    assert values(tree_bench, reader) == [(one.id, 4)]
    with pytest.raises(TraceError):
        instances.remove(b"web")
    stream.close()
    instances.top.events.disable(one)
    instances.remove(b"web")


def pages(bench: Bench, reader: PlainReader) -> list[bytes]:
    bench.streams.publish()
    return [one.data for one in reader.take() if isinstance(one, Page)]


def test_the_pages_of_an_instance(world: World, tree_bench: Bench) -> None:
    web = world.instances.make(b"web")
    event = tree_bench.register(b"ev u32 a")
    web.events.enable(event)
    stream, reader = tree_bench.open(instances=(b"web",), pages=True)
    assert tree_bench.refused(instances=(b"web",), pages=True).errno == errno.EBUSY
    emit(event, *range(300))
    found = pages(tree_bench, reader)
    assert len(found) == 1 and stream.ready()
    found += pages(tree_bench, reader)
    assert len(found) == 2 and not stream.ready()
    emit(event, *range(300, 20_000))  # more than the ring has room for: the rest stays in the buffer
    while stream.ready() or web.buffer.entries():
        found += pages(tree_bench, reader)
    found += pages(tree_bench, reader)
    records = [one for page in found for one in decode_page(page).records]
    assert [int.from_bytes(one.data[8:12], "little") for one in records] == list(range(20_000))
    with pytest.raises(TraceError):
        world.instances.remove(b"web")
    stream.close()
    assert web.sink.page_reader is None
    emit(event, 1)
    assert web.buffer.entries() == 1


def test_whose_programs_a_lossless_reader_lets_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root and the daemon's own user those of all, an administrator by his group his own."""
    monkeypatch.setattr(os, "geteuid", lambda: 50)
    world = World()
    world.instances.make(b"web")
    bench = Bench(world.table, instances=world.instances)
    for uid, waits in ((0, {7: 9, 8: 9}), (50, {7: 9, 8: 9}), (7, {7: 9, 8: 0})):
        attr = StreamAttr((), (b"web",), None, 1 << 20, 1, pages=True, lossless_us=9)
        stream = bench.streams.open(attr, handle=99, uid=uid)
        assert {of: bench.streams.wait_us(of) for of in (7, 8)} == waits
        stream.close()
        assert bench.streams.wait_us(7) == 0
    world.close()


def test_formats_are_in_front_of_the_first_page(world: World, tree_bench: Bench) -> None:
    """Those of events that were or are enabled, or only injected; also when there was no room."""
    top = world.instances.top
    events = [tree_bench.register(b"ev%d u32 a" % n) for n in range(4)]
    top.events.enable(events[0])
    top.events.disable(events[0])
    stream, reader = tree_bench.open(instances=(b"",), pages=True)
    found = []
    for event in events[1:3]:
        top.events.enable(event)
        emit(event, *range(30_000))
    top.events.inject(events[3], b"a=7", 0, 1)
    while stream.ready() or top.buffer.entries():
        tree_bench.streams.publish()
        found += reader.take()
    known: set[int] = set()
    for one in found:
        if isinstance(one, Format):
            assert one.text.startswith(b"user_events\0name: ev") and one.id not in known
            known.add(one.id)
        elif isinstance(one, Page):
            assert {int.from_bytes(r.data[:2], "little") for r in decode_page(one.data).records} <= known
    assert known == {event.id for event in events}


def test_an_event_that_is_deleted_under_a_reader_of_pages(world: World, tree_bench: Bench) -> None:
    """The reader gets its records before the buffer is cleared; no other event gets its id."""
    _, reader = tree_bench.open(instances=(b"",), pages=True)
    event = world.event(b"old u32 a")
    world.instances.top.events.enable(event)
    emit(event, *range(3))
    world.instances.top.events.disable(event)
    world.let_go(event)
    world.table.dynamic_removed()
    assert world.event(b"new u64 a").id != event.id
    assert [len(decode_page(page).records) for page in pages(tree_bench, reader)] == [3]


def test_a_reader_of_pages_that_falls_behind(world: World, tree_bench: Bench) -> None:
    """The marks are in the pages, and add up."""
    event = tree_bench.register(b"ev u32 a")
    world.instances.top.events.enable(event)
    stream, reader = tree_bench.open(instances=(b"",), pages=True)
    emit(event, *range(200_000))
    found = []
    while stream.ready() or world.instances.top.buffer.entries():
        found += pages(tree_bench, reader)
    found += pages(tree_bench, reader)
    whole = [decode_page(page) for page in found]
    records = [int.from_bytes(one.data[8:12], "little") for page in whole for one in page.records]
    lost = sum(page.missed_events for page in whole)
    assert lost == world.instances.top.buffer.overruns() > 0 and len(records) + lost == 200_000
    assert records == sorted(records) and records[-1] == 199_999


def test_records_that_it_missed(bench: Bench, table: EventTable) -> None:
    """Before it was attached, or left out by its filter; also of events that are removed."""
    early = bench.register(b"early u32 a")
    first, _ = bench.open(b"*")
    emit(early, 1, 2)
    second, _ = bench.open(b"early", b"late", filter=b"a > 5")
    emit(early, 3, 7, 8)
    late = bench.register(b"late u32 a")
    emit(late, 9)
    for stream, wanted in ((first, [(0, 0), (0, 0)]), (second, [(3, 0), (0, 0)])):
        missed = stream.missed()
        assert [(one.count, one.epoch) for one in missed.events] == wanted
        assert [one.event for one in missed.events] == [b"user_events:early", b"user_events:late"]
        assert missed.origin == table.emitted.saved.origin.encode()
    for stream in (first, second):
        stream.let_go(late)
    table.release(late)
    table.reap()
    emit(bench.register(b"late u16 b; u16 a"), 1)
    emit(bench.register(b"other u32 a"), 1)
    assert [(one.event, one.count) for one in second.missed().events] == [
        (b"user_events:early", 3),
        (b"user_events:late", 1),
    ]
