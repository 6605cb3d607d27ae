"""One data ring: its memory, claims of a producer and their checks, losses, taking over."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.daemon.intake.dying import copy_ring
from tests.daemon.intake.producing import (
    COMMITTED,
    COUNTED,
    DATA,
    HEAD,
    LOST,
    NEED_WAKEUP,
    SIZE,
    TAIL,
    Producer,
    Seen,
    World,
    new_ring,
    number,
)
from tests.daemon.record_path import write
from tests.daemon.stepping import stepping
from tests.left_over import descriptors, descriptors_since
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.event._sink import FtraceProbe, FtraceSink
from utracefsd.consumers.stream._sink import StreamProbe, StreamSink
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.intake._data_ring import DataRing
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._writers import AllWriters
from utracefsd.machine.comms import Task


def test_the_memory_cannot_be_taken_away(world: World) -> None:
    fd = world.rings[0].fd
    for length in (0, 1 << 24):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, length)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    world.producers[0].emit(0, number(1), 1)
    world.intake.take_in()
    assert world.seen.numbers() == [1]


def test_the_doorbell(world: World) -> None:
    world.intake.want_wakeup(True)
    assert struct.unpack_from("<I", world.producers[0].memory, NEED_WAKEUP)[0] == 1
    os.eventfd_write(world.rings[0].doorbell, 1)
    world.intake.want_wakeup(False)
    assert struct.unpack_from("<I", world.producers[0].memory, NEED_WAKEUP)[0] == 0


# ---- the thread that a record names


def test_a_thread_of_the_process_is_believed_and_no_other(world: World) -> None:
    ring = world.rings[0]
    for n, tid in enumerate((os.getpid(), 1, 0, 1 << 31, (1 << 32) - 1, os.getpid())):
        world.producers[0].emit(0, number(n), n, tid=tid)
    world.intake.take_in()
    assert world.seen.numbers() == list(range(6))
    assert {record[2:4] for record in world.seen.records} == {(os.getpid(), os.getpid())}
    assert ring.writers.threads() == [os.getpid()]


@pytest.mark.parametrize("is_its_peer", [True, False], ids=["of its process", "of a stranger with its pid"])
def test_a_second_thread(world: World, is_its_peer: bool) -> None:
    ring = world.rings[0]
    if not is_its_peer:
        ring.writers = AllWriters().of(os.getpid(), lives=lambda: None)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert thread.native_id
    world.producers[0].emit(0, number(1), 1, tid=thread.native_id)
    world.intake.take_in()
    done.set()
    thread.join()
    world.seen.probe.flush()
    writer = thread.native_id if is_its_peer else os.getpid()
    assert [record[2:4] for record in world.seen.records] == [(writer, os.getpid())]
    assert ring.writers.threads() == [thread.native_id] * is_its_peer


def test_threads_that_cannot_be_found_cost_little(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def exists(path: str) -> bool:
        asked.append(path)
        return False

    monkeypatch.setattr("os.path.exists", exists)
    for n in range(500):
        world.producers[0].emit(0, number(n), n, tid=1)
    world.intake.take_in()
    assert len(asked) == 1, "the answer holds for a while"
    for n in range(2000):
        world.producers[0].emit(0, number(n), n, tid=1000 + n)
    world.intake.take_in()
    assert len(asked) <= 512 + 40, "a round asks a bounded number of times"
    world.seen.probe.flush()
    assert {record[2] for record in world.seen.records} == {os.getpid()}


# ---- writes of a producer


@pytest.mark.parametrize("head", [-8, SIZE + 8, 1 << 63, 4, (1 << 64) - 8, SIZE * 3])
def test_invalid_positions_end_the_ring(world: World, head: int) -> None:
    world.producers[0].set_u64(HEAD, head)
    world.intake.take_in()
    assert world.rings[0].corrupt
    assert world.intake.take_in() == 0


@pytest.mark.parametrize(
    "word", [COMMITTED | 0xFFFFFF, COMMITTED | 65530, COMMITTED | 0x01000008, COMMITTED | 100]
)
def test_invalid_lengths_end_the_ring(world: World, word: int) -> None:
    world.producers[0].emit(0, number(1), 1, word=word)
    world.intake.take_in()
    assert world.rings[0].corrupt


def test_a_producer_s_tail_is_not_believed(world: World) -> None:
    producer = world.producers[0]
    producer.emit(0, number(1), 1)
    producer.set_u64(TAIL, 1 << 40)
    world.intake.take_in()
    assert world.seen.numbers() == [1]
    assert producer.u64(TAIL) == 32


@settings(max_examples=300)
@given(
    junk=st.binary(max_size=400),
    head=st.integers(0, 2**64 - 1),
    fields=st.dictionaries(
        st.sampled_from([0, 4, 8, 12, TAIL, LOST, NEED_WAKEUP, DATA + SIZE, DATA + SIZE + 16376]),
        st.integers(0, 2**64 - 1),
    ),
    small=st.booleans(),
)
def test_any_memory_is_survived(junk: bytes, head: int, fields: dict[int, int], small: bool) -> None:
    world = World()
    producer = world.producers[0]
    producer.put(0, junk)
    producer.set_u64(HEAD, head % (SIZE // 8) * 8 if small else head)
    for offset, value in fields.items():
        producer.set_u64(offset, value)
    world.intake.want_wakeup(True)
    world.intake.take_in()
    world.intake.want_wakeup(False)
    world.rings[0].dead = True
    world.intake.take_in()
    world.intake.remove(world.rings[0])
    producer.close()


# ---- losses


def test_losses_count_as_emitted_and_lost(world: World) -> None:
    producer = world.producers[0]
    stored = sum(producer.emit(0, number(n), n) for n in range(5000))
    world.intake.take_in()
    tracepoint = world.seen.tracepoint
    assert stored < 5000
    assert tracepoint.emitted == 5000
    assert len(world.seen.numbers()) == stored
    assert (world.seen.probe.recorded, world.seen.probe.lost) == (stored, 5000 - stored)
    world.intake.take_in()
    assert tracepoint.emitted == 5000, "counted once"


class Recorded:
    """An ftrace instance beside the probe that keeps everything, as its readers see it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.buffer = RingBuffer(4, 4096)
        self.probe = FtraceProbe(FtraceSink(self.buffer))
        world.seen.tracepoint.attach(self.probe)

    def told(self) -> list[int]:
        """Numbers of the records, and -n where n are reported missing."""
        told = []
        for _, _, data, lost in self.buffer.cursor(consume=True):
            told += [-lost] * bool(lost) + [struct.unpack_from("<Q", data, 8)[0]]
        return told


def streaming(world: World) -> StreamSink:
    sink = StreamSink(256 << 10)
    world.seen.tracepoint.attach(StreamProbe(sink, "stream:1", 20, lambda: b"format"))
    return sink


@pytest.mark.parametrize("size", [8, 100, 3000])
def test_losses_are_shown_where_they_happened(world: World, size: int) -> None:
    """A ring that is filled again and again while the daemon comes late, and in the end no more."""
    recorded, producer = Recorded(world), world.producers[0]
    missing = 0
    for n in range(12_000):
        missing += not producer.emit(0, struct.pack(f"<Q{size - 8}x", n), n, cpu=2)
        if n % 100 == 99:
            world.intake.take_in(80)
    world.intake.take_in()
    producer.emit(0, struct.pack(f"<Q{size - 8}x", 12_000), 12_000, cpu=2)
    world.intake.take_in()
    told = recorded.told()
    assert missing == recorded.probe.lost > 0
    before, due = -1, 0
    for n in told:
        if n < 0:
            due -= n
        else:
            assert due == n - before - 1, (before, n)
            before, due = n, 0
    assert before == 12_000


def test_losses_of_several_events_and_instances(world: World) -> None:
    first, second = Recorded(world), Recorded(world)
    other = Tracepoint(21, b"other", ())
    other.attach(FtraceProbe(second.probe.sink))
    off = FtraceProbe(FtraceSink(RingBuffer(4, 64)))
    off.sink.tracing_on = False
    other.attach(off)
    world.tables[0].append(other)
    producer = world.producers[0]
    while producer.emit(0, number(1), 1):
        pass
    for _ in range(3):
        producer.emit(1, bytes(100), 1)
    world.intake.take_in()
    producer.emit(0, number(2), 2)
    world.intake.take_in()
    assert [n for n in first.told() if n != 1] == [-1, 2]
    assert [n for n in second.told() if n != 1] == [-4, 2]
    assert (other.emitted, other.lost_in_rings, off.lost, off.filtered) == (3, 3, 0, 3)
    assert b"emitted: 3\nlost in data rings: 3\n" in other.stats_text()


def test_losses_at_the_end_of_a_ring_precede_the_next_record(world: World) -> None:
    recorded, producer = Recorded(world), world.producers[0]
    while producer.emit(0, number(1), 1, cpu=3):
        pass
    world.intake.take_in()
    world.intake.remove(world.rings[0])
    write(world.seen.tracepoint, number(2), ts_ns=5, cpu=3, pid=1)
    assert [n for n in recorded.told() if n != 1] == [-1, 2]


def test_constant_reports_of_losses_take_no_memory_and_no_time(world: World) -> None:
    """Each look finds a loss, and never a record before which to show it."""
    recorded, producer = Recorded(world), world.producers[0]

    def look(n: int) -> None:
        for _ in range(n):
            (before,) = struct.unpack_from("<I", producer.memory, (64 << 10) + SIZE)
            struct.pack_into("<I", producer.memory, (64 << 10) + SIZE, before + 1)
            producer.set_u64(LOST, 1)
            world.intake.take_in()

    look(1000)
    tracemalloc.start()
    look(50_000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000
    producer.emit(0, number(1), 1)
    world.intake.take_in()
    assert recorded.told() == [-51_000, 1]


def test_nothing_is_lost_without_a_listener(world: World) -> None:
    world.seen.tracepoint.detach(world.seen.probe)
    while world.producers[0].emit(0, number(1), 1):
        pass
    world.intake.take_in()
    assert world.seen.tracepoint.emitted == world.seen.tracepoint.lost_in_rings == 0


def test_numbers_that_mean_no_event_are_not_counted(world: World) -> None:
    """A producer may write anything there."""
    place = (64 << 10) + SIZE
    struct.pack_into("<4096I", world.producers[0].memory, place, *[0xFFFFFFFF] * 4096)
    world.producers[0].set_u64(LOST, -1)
    world.intake.take_in()
    assert world.seen.probe.lost == 0xFFFFFFFF
    assert world.producers[0].u64(LOST) == 0
    world.intake.take_in()
    assert world.seen.probe.lost == 0xFFFFFFFF


def claim(world: World, total: int, *by_event: int) -> None:
    """A producer's losses: their sum, and the 32 bits of each event's number."""
    producer = world.producers[0]
    for index, count in enumerate(by_event):
        struct.pack_into("<I", producer.memory, DATA + SIZE + 4 * index, count)
    producer.set_u64(LOST, total)
    world.intake.take_in()


@pytest.mark.parametrize("laps", [0, 1, 3])
@pytest.mark.parametrize("more", [5, 1 << 31, 0xFFFFFFFF])
def test_a_number_of_losses_that_has_passed_zero(world: World, laps: int, more: int) -> None:
    """As beside a daemon that is stopped for minutes: which event's it is, is unknown."""
    claim(world, (laps << 32) + more, more)
    claim(world, 0)
    assert (world.seen.probe.lost, world.rings[0].table.total_unknown) == (more, laps << 32)
    # Numbers in front of their sum, or behind it, are none that have passed zero.
    claim(world, 1, 9)
    claim(world, 8 + 6)
    claim(world, 1, 6)
    assert (world.seen.probe.lost, world.rings[0].table.total_unknown) == (more + 9 + 6, laps << 32)


def test_a_dead_producer_s_open_record_is_stepped_over(world: World) -> None:
    producer, ring = world.producers[0], world.rings[0]
    producer.emit(0, number(1), 1)
    producer.emit(0, number(2), 2, word=8)
    producer.emit(0, number(3), 3)
    producer.emit(0, number(4), 4, word=0)  # died before it wrote the length
    producer.memory[DATA + 3 * 32 : DATA + 4 * 32] = bytes(32)
    producer.emit(0, number(5), 5)
    ring.dead = True
    assert world.intake.take_in() == 3
    assert world.seen.numbers() == [1, 3, 5]
    assert not ring.corrupt


def adopt(ring: DataRing) -> DataRing:
    """As the next daemon would; the descriptors are its own."""
    return DataRing.adopt(IndexTable(), os.getpid(), os.dup(ring.fd), os.dup(ring.doorbell), 0)


class TestAdopting:
    def test_what_is_pending_is_taken_in(self) -> None:
        old = World()
        for n in range(10):
            old.producers[0].emit(0, number(n), n)
        old.intake.take_in(4)
        fd, bell = os.dup(old.rings[0].fd), os.dup(old.rings[0].doorbell)
        new = World(0)
        table = IndexTable()
        table.append(new.seen.tracepoint)
        ring = DataRing.adopt(table, os.getpid(), fd, bell, 0)
        new.intake.add(ring)
        assert new.intake.take_in() == 6
        assert new.seen.numbers() == [4, 5, 6, 7, 8, 9]
        old.producers[0].close()

    def test_what_is_no_ring_is_refused(self) -> None:
        def memfd(length: int, seals: int) -> int:
            fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, length)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            return fd

        good = DATA + SIZE + 16384
        every = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        cases: list[tuple[Callable[[], int], str]] = [
            (lambda: os.open("/dev/null", os.O_RDWR), "memfd|sealed"),
            (lambda: memfd(good, fcntl.F_SEAL_SHRINK), "sealed"),
            (lambda: memfd(good + 8, every), "length"),
            (lambda: memfd(0, every), "length"),
            (lambda: memfd(good, every), "not a data ring"),
        ]
        for make, message in cases:
            with pytest.raises(ValueError, match=message):
                DataRing.adopt(IndexTable(), os.getpid(), make(), os.eventfd(0), 0)
        ring = new_ring(IndexTable())
        with pytest.raises(ValueError, match="eventfd"):
            DataRing.adopt(IndexTable(), os.getpid(), os.dup(ring.fd), os.open("/dev/null", os.O_RDWR), 0)
        producer = Producer(ring)
        producer.set_u64(HEAD, SIZE * 2)
        with pytest.raises(ValueError, match="positions"):
            DataRing.adopt(IndexTable(), os.getpid(), os.dup(ring.fd), os.dup(ring.doorbell), 0)
        producer.close()

    @pytest.mark.parametrize("offset", [0, 4, 8, 12])
    def test_another_magic_version_or_size_is_refused(self, world: World, offset: int) -> None:
        before = world.producers[0].u64(offset)
        world.producers[0].set_u64(offset, before + 1)
        with pytest.raises(ValueError, match=r"data ring of this version|positions"):
            adopt(world.rings[0])
        world.producers[0].set_u64(offset, before)
        adopt(world.rings[0])

    def test_what_is_refused_is_closed(self) -> None:
        before = descriptors()
        with pytest.raises(ValueError):
            DataRing.adopt(IndexTable(), os.getpid(), os.open("/dev/null", os.O_RDWR), os.eventfd(0), 0)
        assert not descriptors_since(before)

    def test_it_is_the_same_memory_by_another_descriptor(self) -> None:
        world = World(2)
        first, second = world.rings
        assert adopt(first).key == first.key != second.key

    def test_what_a_daemon_counted_is_not_counted_again(self, world: World) -> None:
        """And also losses between its last look and the next daemon's first."""
        producer = world.producers[0]
        while producer.emit(0, bytes(1000), 1):
            pass
        world.intake.take_in(1)
        assert world.seen.probe.lost == 1
        while producer.emit(0, bytes(1000), 1):
            pass
        producer.emit(0, bytes(1000), 1)
        ring = adopt(world.rings[0])
        new = World(0)
        ring.table.append(new.seen.tracepoint)
        new.intake.add(ring)
        taken = new.intake.take_in()
        assert new.seen.tracepoint.emitted == taken + 2
        assert new.seen.probe.lost == 2

    def test_losses_behind_the_last_look(self, world: World) -> None:
        """A daemon that ends has written its counts down."""
        while world.producers[0].emit(0, bytes(1000), 1):
            pass
        world.intake.remove(world.rings[0])
        assert world.seen.tracepoint.emitted == 0
        ring = adopt(world.rings[0])
        new = World(0)
        ring.table.append(new.seen.tracepoint)
        new.intake.add(ring)
        assert new.intake.take_in() == new.seen.tracepoint.emitted - 1
        assert new.seen.probe.lost == 1

    def test_losses_that_were_seen_and_not_marked(self, world: World) -> None:
        """A daemon marks them in front of a record a lap later, and may be killed before that."""
        first, producer = Recorded(world), world.producers[0]
        while producer.emit(0, bytes(1000), 1):
            pass
        world.intake.take_in(1)
        assert first.probe.lost == 1
        new = World(0)
        second = Recorded(new)
        ring = adopt(world.rings[0])
        ring.table.append(new.seen.tracepoint)
        new.intake.add(ring)
        new.intake.take_in()
        assert second.probe.lost == new.seen.tracepoint.lost_in_rings == 0, "counted once"
        producer.emit(0, number(2), 2)
        new.intake.take_in()
        assert second.told()[-2:] == [-1, 2]
        third = World(0)
        ring = adopt(world.rings[0])
        ring.table.append(third.seen.tracepoint)
        third.intake.add(ring)
        third.intake.take_in()
        assert third.seen.probe.lost == 0, "marked once"

    @pytest.mark.parametrize("has_buffer", [False, True])
    def test_killed_at_each_point(self, world: World, has_buffer: bool) -> None:
        """From a loss to its mark in the ring buffer, between any two instructions: the stream of one daemon
        has it, or those of both, if the first was killed before it had noted that."""
        producer, ring = world.producers[0], world.rings[0]
        if has_buffer:
            Recorded(world)
        sink = streaming(world)
        for _ in range(2):
            while producer.emit(0, bytes(10_000), 1):
                pass
        stream = mmap.mmap(sink.memory_fd, 4096)
        told = []

        def work() -> None:
            world.intake.take_in(1)
            sink.publish()
            world.intake.remove(ring)

        def look() -> tuple[bytes, bytes, bytes]:
            memory = producer.memory
            lost, counted = DATA + SIZE, COUNTED
            return memory[lost : lost + 4], memory[counted : counted + 4], stream[192:200]

        def lost_then() -> int:
            """With one more, which the producer counts before the next daemon looks."""
            memory = bytearray(producer.memory[:])
            memory[DATA + SIZE] += 1
            return lost_in_the_next(bytes(memory))

        with stepping(work, look) as states:
            for state in states:
                if state is not None:
                    told.append((state[2][0], lost_then()))
        sink.close()
        stream.close()
        assert set(told) == {(0, 3), (2, 1), (2, 3)}


def lost_in_the_next(ring: bytes) -> int:
    """Losses that a stream of the next daemon has; it leaves none in the ring."""
    world, bell = World(0), os.eventfd(0)
    Recorded(world)
    sink = streaming(world)
    table = IndexTable()
    table.append(world.seen.tracepoint)
    adopted = DataRing.adopt(table, os.getpid(), copy_ring(ring), bell, 0)
    world.intake.add(adopted)
    world.intake.take_in()
    world.intake.remove(adopted)
    after = Producer(adopted)
    assert not any(after.memory[DATA + SIZE :]) and not any(after.memory[COUNTED:DATA])
    after.close()
    told: int = sink.lost
    sink.close()
    return told


@pytest.mark.parametrize("taken_over", [True, False])
def test_a_known_thread_id_is_looked_at_again(
    world: World, taken_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another process has it now the claim is refused; if none has it, the waiting records are its."""
    ring = world.rings[0]
    tid = 12345678
    there = {f"/proc/{os.getpid()}/task/{tid}", f"/proc/{tid}"}
    monkeypatch.setattr("os.path.exists", lambda path: path in there)
    world.producers[0].emit(0, number(1), 1, tid=tid)
    world.intake.take_in()
    assert ring.writers.threads() == [tid]
    there.clear()
    if taken_over:
        there.add(f"/proc/{tid}")
    ring.writers.check_known()
    world.producers[0].emit(0, number(2), 2, tid=tid)
    world.intake.take_in()
    world.seen.probe.flush()
    assert [record[2] for record in world.seen.records] == [tid, os.getpid() if taken_over else tid]


def test_all_rings_of_a_user_ask_for_threads_no_more_than_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has 60 new threads at once, and later 60 that may have ended."""
    world = World(rings=20)
    asked: list[str] = []

    def note(what: str) -> bool:
        asked.append(what)
        return True

    writers = AllWriters()
    for ring in world.rings:
        ring.writers = writers.of(os.getpid(), lives=lambda: Task(b"", 1) if note("process") else None)
    monkeypatch.setattr("os.path.exists", note)

    def emit() -> None:
        for producer in world.producers:
            for tid in range(1000, 1060):
                producer.emit(0, number(tid), 1, tid=tid)

    most = 0
    while not all(len(ring.writers.threads()) == 60 for ring in world.rings):
        asked.clear()
        emit()
        world.intake.take_in()
        most = max(most, len(asked))
    assert most <= 2 * (512 + 40) + 1 + 60
    checked = 0
    while checked < len(world.rings):
        asked.clear()
        emit()
        world.intake.take_in()
        assert len(asked) <= 1 + 60, "one ring, when it is due"
        checked += len(asked) == 1 + 60
    for producer in world.producers:
        producer.close()


@pytest.mark.parametrize(("events", "unknown"), [(4096, 0), (4098, 7)])
def test_what_the_last_counter_says_of_several_events_is_none_ones(
    world: World, events: int, unknown: int
) -> None:
    """It is for every write_index from it on: emitted = recorded + filtered + lost holds for each event."""
    table, last = world.tables[0], Seen(b"last u64 n")
    for _ in range(1, 4095):
        table.append(world.seen.tracepoint)
    for _ in range(4095, events):
        table.append(last.tracepoint)
    while world.producers[0].emit(0, number(1), 1):
        pass
    for _ in range(7):
        world.producers[0].emit(events - 1, number(2), 2)
    world.intake.take_in()
    assert table.total_unknown == unknown
    assert last.tracepoint.lost_in_rings == last.tracepoint.emitted == last.probe.lost == 7 - unknown
    assert world.seen.tracepoint.lost_in_rings == 1
