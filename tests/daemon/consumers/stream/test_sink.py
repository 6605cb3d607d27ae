"""The ring of a stream: its entries, losses, and hostile readers."""

import mmap
import os
import struct
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.daemon.consumers.stream.plain_reader import Comm, Format, Lost, PlainReader, Taken
from tests.daemon.record_path import numbers, tracepoint, write
from utracefs_protocol.limits import MAX_PAYLOAD, MIN_STREAM_RING
from utracefsd.consumers.stream._sink import StreamProbe, StreamSink
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.machine._writer_names import WriterNames

SIZE = MIN_STREAM_RING
RECORD = 40  # with a payload of 4 bytes


def reader_of(sink: StreamSink) -> PlainReader:
    return PlainReader(os.dup(sink.memory_fd), os.dup(sink.bell_fd))


class Ring:
    """A stream of the events 1000, 1001, ..., and its reader."""

    def __init__(self, events: int = 1, **options: Any) -> None:
        self.sink = StreamSink(SIZE, **options)
        self.reader = reader_of(self.sink)
        self.events: list[Tracepoint] = []
        self.probes: list[StreamProbe] = []
        for i in range(events):
            self.events.append(tracepoint(event_id=1000 + i))
            text = b"format of %d" % (1000 + i)
            self.probes.append(StreamProbe(self.sink, "stream:1", 1000 + i, partial(bytes, text)))
            self.events[-1].attach(self.probes[-1])

    def close(self) -> None:
        self.reader.close()
        self.sink.close()


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring = Ring()
    yield ring
    ring.close()


def fill(ring: Ring) -> int:
    """Write until one is lost; returns how many were stored."""
    count = 0
    while not ring.probes[0].lost:
        assert write(ring.events[0], struct.pack("<I", count)) == 0
        count += 1
    return count - 1


def test_a_record(ring: Ring) -> None:
    assert write(ring.events[0], b"abcdefg", ts_ns=12345, cpu=3, pid=8, tgid=7) == 0
    assert ring.reader.take() == []
    ring.sink.publish()
    assert ring.reader.take() == [Format(1000, b"format of 1000"), Taken(12345, 3, 7, 8, 1000, b"abcdefg")]
    write(ring.events[0], bytes(4))
    ring.sink.publish()
    assert ring.reader.take() == [Taken(1000, 0, 46, 46, 1000, bytes(4))]
    assert numbers(ring.probes[0]) == (2, 0, 0)
    assert ring.probes[0].status_bit == 0x80


def test_memory_comes_in_steps() -> None:
    """At once it would take 128 MiB 37 ms, in which programs lose records."""
    sink = StreamSink(8 << 20)
    probe = StreamProbe(sink, "stream:1", 1000, partial(bytes, b"format"))
    event = tracepoint(event_id=1000)
    event.attach(probe)
    reader, payload = reader_of(sink), bytes(range(256)) * 128

    def allocated() -> int:
        return os.fstat(sink.memory_fd).st_blocks * 512

    assert allocated() < 64 << 10
    seen = []
    while not probe.lost:
        write(event, payload)
        seen.append(allocated())
    assert seen[0] <= 1 << 20
    assert seen[100] <= 5 << 20
    assert seen[-1] == (8 << 20) + 4096
    for _ in range(2):  # two laps
        sink.publish()
        taken = [one for one in reader.take() if isinstance(one, Taken)]
        assert len(taken) > 250
        assert all(one.payload == payload for one in taken)
        for _ in taken:
            write(event, payload)
    assert probe.lost == 1
    reader.close()
    sink.close()


def test_a_record_across_the_first_lap_s_end_is_kept() -> None:
    sink = StreamSink(1 << 20)
    probe = StreamProbe(sink, "stream:1", 1000, partial(bytes, b"format"))
    event = tracepoint(event_id=1000)
    event.attach(probe)
    reader, kept = reader_of(sink), 0
    for n in range(100):
        write(event, bytes(60_000))
        if n % 10 == 9:
            sink.publish()
            kept += sum(isinstance(one, Taken) for one in reader.take())
    assert (kept, probe.lost) == (100, 0)
    reader.close()
    sink.close()


def test_threads_allocate_and_unmap_much_memory() -> None:
    sink = StreamSink(32 << 20)
    while os.fstat(sink.memory_fd).st_blocks * 512 < 32 << 20:
        time.sleep(0.01)
    sink.close()
    while "utracefs-stream" in Path("/proc/self/maps").read_text():
        time.sleep(0.01)


def test_a_killed_daemon(ring: Ring) -> None:
    """The reader finds the records and the number of losses that were not published."""
    header = mmap.mmap(ring.sink.memory_fd, 4096, prot=mmap.PROT_READ)
    stored = fill(ring)
    published, lost, written = (struct.unpack_from("<Q", header, at)[0] for at in (64, 192, 256))
    assert 0 < published < written == ring.sink.position
    assert lost == 1
    ring.sink.publish()
    assert len([one for one in ring.reader.take() if isinstance(one, Taken)]) == stored


@pytest.mark.parametrize("size", [4, 5, 7, 8, 9, 15, 16, 17, 1000, 4064, 9001])
def test_records_do_not_wrap(ring: Ring, size: int) -> None:
    payload = bytes(i % 251 for i in range(size))
    for _ in range(3 * SIZE // size // 8):
        for _ in range(8):
            write(ring.events[0], payload)
        ring.sink.publish()
        taken = [one for one in ring.reader.take() if isinstance(one, Taken)]
        assert [one.payload for one in taken] == [payload] * 8
    assert ring.probes[0].lost == 0


def test_the_largest_record(ring: Ring) -> None:
    for i in range(20):
        payload = bytes([i]) * MAX_PAYLOAD
        write(ring.events[0], payload)
        ring.sink.publish()
        assert ring.reader.take()[-1].payload == payload  # type: ignore[union-attr]
    write(ring.events[0], bytes(SIZE))
    assert numbers(ring.probes[0]) == (20, 0, 1)


def test_the_doorbell_rings_at_the_watermark() -> None:
    ring = Ring(watermark=RECORD * 10)
    try:
        write(ring.events[0], bytes(4))
        ring.sink.publish()
        assert (ring.reader.rings(), ring.sink.is_filled()) == (0, False)
        for _ in range(9):
            write(ring.events[0], bytes(4))
        ring.sink.publish()
        assert (ring.reader.rings(), ring.sink.is_filled()) == (1, True)
        ring.sink.publish()  # nothing new
        assert ring.reader.rings() == 0
        for _ in range(2 * SIZE // 4 // RECORD):  # within a round it rings, too
            write(ring.events[0], bytes(4))
        assert ring.reader.rings() > 0
        assert ring.reader.head > 0
    finally:
        ring.close()
    sink = StreamSink(SIZE)
    reader = reader_of(sink)
    sink.close()
    sink.close()
    assert reader.rings() == -1
    reader.close()


def test_a_doorbell_without_a_reader(ring: Ring) -> None:
    for _ in range(70_000):  # more than a pipe holds
        ring.reader.tail = ring.reader.head
        write(ring.events[0], bytes(4))
        ring.sink.publish()
    assert ring.probes[0].lost == 0
    os.close(ring.reader.bell_fd)
    write(ring.events[0], bytes(4))
    ring.sink.publish()
    ring.reader.bell_fd = os.dup(ring.sink.bell_fd)


def test_losses_are_reported_in_front_of_the_next_record(ring: Ring) -> None:
    stored = fill(ring)
    for _ in range(2):
        write(ring.events[0], bytes(4))
    ring.sink.publish()
    assert (ring.reader.lost, ring.sink.lost, ring.probes[0].unreported) == (3, 3, 3)
    assert ring.sink.is_filled()
    assert sum(isinstance(one, Taken) for one in ring.reader.take()) == stored
    write(ring.events[0], bytes(4))
    ring.sink.publish()
    assert ring.reader.take() == [Lost(1000, 3), Taken(1000, 0, 46, 46, 1000, bytes(4))]
    assert numbers(ring.probes[0]) == (stored + 1, 0, 3)


def test_losses_behind_the_last_record_are_reported_when_there_is_room(ring: Ring) -> None:
    fill(ring)
    ring.sink.publish()
    ring.reader.take()
    ring.reader.rings()
    ring.sink.publish()
    assert ring.reader.rings() == 1
    assert ring.reader.take() == [Lost(1000, 1)]
    ring.sink.publish()
    assert ring.reader.take() == []


def test_invalid_records_are_refused() -> None:
    sink = StreamSink(SIZE)
    event = tracepoint(b"test __rel_loc char[] s", 1000)
    probe = StreamProbe(sink, "stream:1", 1000, lambda: b"", None)
    event.attach(probe)
    assert write(event, struct.pack("<I", 4 << 16 | 100), ts_ns=1, cpu=0, pid=1) == -14
    assert numbers(probe) == (0, 0, 0)
    sink.close()


def test_names_of_threads() -> None:
    names = {8: b"worker", 264: b"other"}
    ring = Ring(names=WriterNames(lambda pid: names[pid]))

    def comms(pid: int, ts_ns: int) -> list[tuple[int, bytes]]:
        write(ring.events[0], bytes(4), ts_ns=ts_ns, cpu=0, pid=pid, tgid=7)
        ring.sink.publish()
        return [tuple(one) for one in ring.reader.take() if isinstance(one, Comm)]  # type: ignore[misc]

    try:
        assert comms(8, 10) == [(8, b"worker")]
        assert comms(8, 11) == []
        assert comms(264, 12) == [(264, b"other")]
        assert comms(8, 13) == [(8, b"worker")]  # its place was taken
        names[8] = b"renamed"
        assert comms(8, 1 << 62) == [(8, b"renamed")]
        assert comms(9, 5) == [(9, b"<...>")]  # asking failed
    finally:
        ring.close()


def test_a_format_that_cannot_be_made_loses_its_records() -> None:
    sink = StreamSink(SIZE)
    reader = reader_of(sink)
    event = tracepoint(event_id=1000)
    texts: list[bytes] = []
    probe = StreamProbe(sink, "stream:1", 1000, lambda: texts.pop(), None)
    event.attach(probe)
    write(event, bytes(4))
    assert numbers(probe) == (0, 0, 1)
    texts.append(b"x")
    write(event, bytes(4))
    sink.publish()
    assert reader.take()[:2] == [Format(1000, b"x"), Lost(1000, 1)]
    reader.close()
    sink.close()


def test_after_the_end_everything_is_lost(ring: Ring) -> None:
    write(ring.events[0], bytes(4))
    ring.sink.close()
    assert len(ring.reader.take()) == 2  # it was published
    write(ring.events[0], bytes(4))
    ring.sink.publish()
    assert numbers(ring.probes[0]) == (1, 0, 1)


@pytest.mark.parametrize("tail", [1, 100, 1 << 20, 1 << 63, -SIZE - 1, -2 * SIZE])
def test_a_hostile_tail_gives_no_room(ring: Ring, tail: int) -> None:
    """Ahead of the head, or further behind it than the ring is large."""
    stored = fill(ring)
    ring.sink.publish()
    ring.reader.tail = (ring.reader.head + tail) % (1 << 64)
    for _ in range(100):
        write(ring.events[0], bytes(4))
    ring.sink.publish()
    assert numbers(ring.probes[0]) == (stored, 0, 101)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_hostile_reader_harms_only_itself(data: st.DataObject) -> None:
    """It writes anything anywhere; another stream of the same event is exact, and all is counted."""
    ring = Ring()
    honest = Ring()
    ring.events[0].attach(honest.probes[0])
    emitted = received = 0
    try:
        for _ in range(data.draw(st.integers(1, 8))):
            for _ in range(data.draw(st.integers(0, 8))):
                where = data.draw(st.sampled_from([0, 4, 8, 64, 128, 128, 128, 192, 4096, 4096 + 40]))
                word = data.draw(st.integers(0, (1 << 64) - 1) | st.integers(0, SIZE * 2))
                struct.pack_into("<Q", ring.reader.mapping, where, word)
            for _ in range(data.draw(st.integers(0, 3000))):
                write(ring.events[0], struct.pack("<I", emitted))
                emitted += 1
            ring.sink.publish()
            honest.sink.publish()
            received += sum(isinstance(one, Taken) for one in honest.reader.take())
        assert sum(numbers(ring.probes[0])) == sum(numbers(honest.probes[0])) == emitted
        assert received == emitted - honest.probes[0].lost
    finally:
        ring.close()
        honest.close()


STEPS = st.lists(
    st.tuples(st.just("emit"), st.integers(0, 2), st.integers(4, 30_000), st.integers(1, 12))
    | st.tuples(st.just("publish"))
    | st.tuples(st.just("take"), st.integers(0, 2), st.integers(1, 40)),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_readers_that_stall_beside_a_model(steps: list[tuple[Any, ...]]) -> None:
    """Three streams of three events, read at any pace: each gets what was stored for it, in order, formats
    first; and for each event, records and LOST add up to what was emitted."""
    rings = [Ring(events=3) for _ in range(3)]
    events = rings[0].events
    for ring in rings[1:]:
        for event, probe in zip(events, ring.probes, strict=True):
            event.attach(probe)
    emitted: Counter[int] = Counter()
    got: list[list[tuple[int, bytes]]] = [[] for _ in rings]
    expected: list[list[tuple[int, bytes]]] = [[] for _ in rings]
    told: list[Counter[int]] = [Counter() for _ in rings]
    known: list[set[int]] = [set() for _ in rings]

    def take(which: int, most: int = 1 << 30) -> None:
        for one in rings[which].reader.take(most):
            if isinstance(one, Taken):
                assert one.id in known[which]
                got[which].append((one.id, one.payload))
            elif isinstance(one, Lost):
                assert one.id in known[which]
                told[which][one.id] += one.number
            elif isinstance(one, Format):
                known[which].add(one.id)

    number = 0
    try:
        for step, *args in steps:
            if step == "emit":
                event, size, times = args
                for _ in range(times):
                    number += 1
                    payload = struct.pack("<I", number) + bytes(size - 4)
                    before = [ring.probes[event].recorded for ring in rings]
                    assert write(events[event], payload) == 0
                    emitted[1000 + event] += 1
                    for i, ring in enumerate(rings):
                        if ring.probes[event].recorded > before[i]:
                            expected[i].append((1000 + event, payload))
            elif step == "publish":
                for ring in rings:
                    ring.sink.publish()
            elif step == "take":
                take(*args)
        for _ in range(3):
            for i, ring in enumerate(rings):
                ring.sink.publish()
                take(i)
        for i, ring in enumerate(rings):
            assert got[i] == expected[i]
            counts = Counter(event for event, _ in got[i])
            for id_, probe in enumerate(ring.probes, 1000):
                assert counts[id_] + told[i][id_] == emitted[id_] == sum(numbers(probe))
            assert ring.reader.lost == sum(told[i].values()) == ring.sink.lost
    finally:
        for ring in rings:
            ring.close()
