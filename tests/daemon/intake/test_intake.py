"""The intake from all data rings: order, bounds, and the claims of a record that are checked."""

from __future__ import annotations

import errno
import mmap
import platform
import struct
import time

import pytest

from tests.daemon.intake.producing import (
    CLOCK,
    DATA,
    HEAD,
    LOST,
    SIZE,
    TAIL,
    TSC,
    TSC_RATE,
    Producer,
    Seen,
    World,
    new_ring,
    number,
)
from utracefsd.events._tracepoint import Probe
from utracefsd.intake._data_ring import DataRing


def test_records_arrive_in_order_and_space_is_given_back(world: World) -> None:
    producer = world.producers[0]
    expected = []
    for n in range(10_000):
        if not producer.emit(0, number(n), n + 1):
            assert world.intake.take_in() > 0
            assert producer.emit(0, number(n), n + 1)
        expected.append(n)
    world.intake.take_in()
    # An emit that did not fit at first was repeated: its number must not arrive twice.
    assert world.seen.numbers() == expected
    assert producer.u64(TAIL) == producer.u64(HEAD)
    assert not any(producer.memory[DATA : DATA + SIZE]), "consumed space is zero again"


def test_several_rings_are_merged_by_time() -> None:
    world = World(3)
    for n in range(300):
        world.producers[n * 7 % 3].emit(0, number(n), n + 1)
    assert world.intake.take_in() == 300
    assert world.seen.numbers() == list(range(300))


def test_losses_of_an_event_that_is_not_registered_wait_for_that() -> None:
    """They are looked for when the table grows, or with the next loss, not in every round."""
    world = World(1)
    ring, producer = world.rings[0], world.producers[0]
    world.intake.take_in()  # first of all it looks for losses that an earlier daemon had counted
    ring.is_early = True

    def lose(index: int, number: int) -> None:
        struct.pack_into("<I", producer.memory, DATA + producer.size + 4 * index, number)

    lose(0, 2)
    lose(3, 5)
    producer.set_u64(LOST, 7)
    world.intake.take_in()
    assert world.seen.tracepoint.emitted == 2
    lose(0, 4)
    world.intake.take_in()
    assert world.seen.tracepoint.emitted == 2, "not told yet"
    producer.set_u64(LOST, 4)
    world.intake.take_in()
    assert world.seen.tracepoint.emitted == 6
    other = Seen(b"other u64 n").tracepoint
    world.tables[0].append(other, 3)
    world.intake.take_in()
    assert other.emitted == 5


def test_records_and_losses_wait_for_their_registration(world: World) -> None:
    """In a ring that came before the registrations. An index between others has no event."""
    (ring,), (producer,) = world.rings, world.producers
    world.intake.take_in()  # first of all it looks for losses that an earlier daemon had counted
    ring.is_early = True
    for n, index in enumerate((0, 2, 0)):
        producer.emit(index, number(n), n + 1)
    struct.pack_into("<I", producer.memory, DATA + SIZE + 4 * 2, 5)
    struct.pack_into("<I", producer.memory, DATA + SIZE, 7)
    producer.set_u64(LOST, 5 + 7)
    assert world.intake.take_in() == 1
    assert world.seen.tracepoint.emitted == 1 + 7, "those of a known event are not kept back by others"
    assert world.tables[0].append(world.seen.tracepoint, 2) == 2
    assert world.tables[0].event_ids() == [20, 0, 20]
    assert world.intake.take_in() == 2
    assert world.seen.numbers() == [0, 1, 2]
    assert world.seen.tracepoint.emitted == 3 + 7 + 5
    producer.emit(1, number(3), 4)
    producer.emit(9, number(4), 5)
    for index, lost in ((1, 11), (9, 13)):
        struct.pack_into("<I", producer.memory, DATA + SIZE + 4 * index, lost)
    producer.set_u64(LOST, 11 + 13)
    ring.close()
    ring.is_early = False  # no registration comes any more
    assert world.intake.take_in() == 2
    assert world.tables[0].refused == {(errno.ENOENT, 1): 1, (errno.ENOENT, 9): 1}
    assert world.tables[0].total_unknown == 1 + 1 + 11 + 13


def test_the_budget_bounds_a_round(world: World) -> None:
    for n in range(100):
        world.producers[0].emit(0, number(n), n)
    assert world.intake.take_in(30) == 30
    assert world.intake.take_in(30) == 30
    assert world.intake.take_in() == 40
    assert world.seen.numbers() == list(range(100))


def test_claims_are_checked(world: World) -> None:
    now = time.monotonic_ns()
    world.producers[0].emit(0, number(1), now + 10**12, cpu=77)
    world.producers[0].emit(0, number(2), now, cpu=3)
    world.producers[0].emit(7, number(3), now)
    world.producers[0].emit(1 << 31, number(3), now)
    world.producers[0].emit(0, b"abc", now)
    world.intake.take_in()
    assert world.seen.numbers() == [1, 2]
    (ts, cpu, *_), (ts2, cpu2, *_) = world.seen.records
    assert now <= ts <= time.monotonic_ns()
    assert cpu == 0, "there is no cpu 77"
    assert (ts2, cpu2) == (now, 3)
    assert sum(world.tables[0].refused.values()) == 3
    assert world.rings[0].taken == 5, "those refused included"


class TestTimeStampCounter:
    """Records with TSC carry a count; the daemon converts it."""

    def test_producers_learn_whether_they_may(self) -> None:
        world = World(2)
        clocks = [struct.unpack_from("<I", producer.memory, CLOCK) for producer in world.producers]
        assert clocks == [(0,), (0,)]
        world.intake.tsc = True
        assert all(struct.unpack_from("<I", p.memory, CLOCK) == (1,) for p in world.producers)
        ring = new_ring(world.tables[0])
        world.intake.add(ring)
        with mmap.mmap(ring.fd, 4096) as memory:
            assert struct.unpack_from("<I", memory, CLOCK) == (1,)
            world.intake.tsc = False
            assert struct.unpack_from("<I", memory, CLOCK) == (0,)

    @pytest.mark.skipif(platform.machine() != "x86_64", reason="no TSC")
    def test_producers_learn_its_rate(self) -> None:
        world = World(1)
        world.intake.tsc = True
        producer = world.producers[0]
        begin = time.monotonic_ns()
        while not producer.u64(TSC_RATE):
            world.intake.take_in()
            assert time.monotonic_ns() < begin + 10**10
        rate = producer.u64(TSC_RATE)
        assert 1 / 10 < rate / 2**32 < 10, "nanoseconds per tick"
        later = new_ring(world.tables[0])
        world.intake.add(later)
        with mmap.mmap(later.fd, 4096) as memory:
            assert abs(struct.unpack_from("<Q", memory, TSC_RATE)[0] - rate) < rate / 1000
        world.intake.tsc = False
        assert producer.u64(TSC_RATE) == 0

    @pytest.mark.parametrize("claim", [0, 1, 1 << 40, 1 << 63, (1 << 64) - 1])
    @pytest.mark.parametrize("flags", [1, 0xFFFF])
    def test_any_claim_is_between_nought_and_now(self, claim: int, flags: int) -> None:
        world = World()
        for n in range(3):
            world.producers[0].emit(0, number(n), claim, flags=flags)
            world.intake.take_in()
        assert world.seen.numbers() == [0, 1, 2]
        now = time.monotonic_ns()
        assert all(0 <= ts <= now for ts, *_ in world.seen.records)

    def test_other_flags_change_nothing(self, world: World) -> None:
        world.producers[0].emit(0, number(1), 12345, flags=0xFFFE)
        world.intake.take_in()
        assert world.seen.numbers() == [1]
        assert world.seen.records[0][0] == 12345

    def test_a_record_of_the_future_is_of_now(self, world: World) -> None:
        before = time.monotonic_ns()
        world.producers[0].emit(0, number(1), (1 << 64) - 1, flags=TSC)
        world.intake.take_in()
        assert world.seen.numbers() == [1]
        assert before <= world.seen.records[0][0] <= time.monotonic_ns()


def test_each_ring_has_its_own_numbers_of_events() -> None:
    """A write_index counts in the table of the ring's own connection."""
    world = World(2)
    world.tables[0].append(world.seen.tracepoint)
    for producer in world.producers:
        producer.emit(1, number(1), 1)
    assert world.intake.take_in() == 2
    assert world.seen.numbers() == [1]
    assert [sum(table.refused.values()) for table in world.tables] == [0, 1]


def test_a_corrupt_ring_stops_no_other() -> None:
    world = World(3)
    for n, producer in enumerate(world.producers):
        producer.emit(0, number(n), n + 1)
    world.producers[1].set_u64(HEAD, SIZE + 8)
    assert world.intake.take_in() == 2
    assert world.seen.numbers() == [0, 2]
    assert [ring.corrupt for ring in world.rings] == [False, True, False]


def test_a_ring_that_was_removed_is_left_alone() -> None:
    world = World(2)
    for n, producer in enumerate(world.producers):
        producer.emit(0, number(n), n + 1)
    world.intake.remove(world.rings[0])
    assert world.intake.rings == [world.rings[1]]
    assert world.intake.take_in() == 1
    assert world.seen.numbers() == [1]
    with pytest.raises(ValueError):
        world.intake.remove(world.rings[0])


def test_a_full_ring_needs_the_next_round_at_once(world: World) -> None:
    """Its doorbell rings when it gets half full, and it stays fuller than that. But a record that is never
    committed does not keep the daemon busy."""
    (producer,) = world.producers
    while producer.emit(0, bytes(1000), 1):
        pass
    world.intake.take_in()
    assert world.intake.is_behind
    world.intake.take_in()
    assert not world.intake.is_behind
    producer.emit(0, bytes(SIZE // 3), 1)
    world.intake.take_in()
    assert not world.intake.is_behind
    producer.emit(0, bytes(SIZE // 4 * 3), 1, word=SIZE // 4 * 3)
    assert world.intake.take_in() == 0
    assert not world.intake.is_behind


def narrow(world: World) -> tuple[DataRing, Producer, int]:
    """A narrow ring of 32 MiB, which is full, and how many records it had."""
    world.seen.tracepoint.attach(Probe("all", 0))
    world.seen.tracepoint.detach(world.seen.probe)
    ring = new_ring(world.tables[0], 32 << 20)
    world.intake.add(ring)
    producer = Producer(ring)
    emitted = 0
    until = time.monotonic() + 10
    while not world.intake.nr_narrow and time.monotonic() < until:
        emitted += fill(producer)
        world.intake.take_in(10)
    for _ in range(2):  # the first one takes in what had room before
        emitted += fill(producer)
        world.intake.take_in()
    return ring, producer, emitted + fill(producer)


def fill(producer: Producer) -> int:
    return sum(iter(lambda: producer.emit(0, bytes(65000), time.monotonic_ns()), False))


@pytest.mark.parametrize("beside", ["nothing", "a record that is never committed"])
def test_a_program_that_the_daemon_keeps_up_with_gets_its_whole_ring_though_it_loses(beside: str) -> None:
    """When the machine is busy, the daemon gets no cpu for a moment, and a narrow ring is full sooner. The
    daemon has no work with records that wait for their program in another ring."""
    world = World()
    ring, producer, _ = narrow(world)
    if beside != "nothing":
        stuck = new_ring(world.tables[0], 4 << 20)
        world.intake.add(stuck)
        other = Producer(stuck)
        while other.emit(0, bytes(65000), 1, word=0):
            pass
    until = time.monotonic() + 10
    while world.intake.nr_narrow and time.monotonic() < until:
        producer.set_u64(LOST, 1)
        world.intake.take_in()
    fill(producer)
    assert ring.pending_bytes > 31 << 20


@pytest.mark.parametrize("end", ["none", "removed", "asleep"])
def test_a_program_that_is_too_fast_gets_less_of_its_ring(end: str) -> None:
    """So a request, which waits for all that is in the rings, waits for little of it. No record is lost by
    that, no other ring is affected, and a program that is slower again has its whole ring."""
    world = World()
    ring, producer, emitted = narrow(world)
    assert 3 << 20 < ring.pending_bytes <= 4 << 20
    if end != "none":  # the program and the next daemon find in the memory how far it is consumed
        world.intake.take_in()
        assert producer.u64(TAIL) < producer.u64(HEAD)
        if end == "removed":
            world.intake.remove(ring)
        else:
            world.intake.want_wakeup(True)
        assert producer.u64(TAIL) == producer.u64(HEAD)
        return
    assert world.producers[0].emit(0, bytes(SIZE - 100), time.monotonic_ns())
    until = time.monotonic() + 10
    while world.intake.nr_narrow and time.monotonic() < until:
        world.intake.take_in()
    emitted += fill(producer)
    assert ring.pending_bytes > 31 << 20
    world.intake.take_in()
    assert ring.taken == emitted
    assert producer.u64(HEAD) == producer.u64(TAIL)
