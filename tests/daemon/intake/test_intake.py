"""Taking in from all data rings: order, bounds, and the claims of a record that are checked."""

from __future__ import annotations

import time

import pytest

from tests.daemon.intake.producing import HEAD, SIZE, TAIL, World, number


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
    assert not any(producer.memory[4096 : 4096 + SIZE]), "consumed space is zero again"


def test_several_rings_are_merged_by_time() -> None:
    world = World(3)
    for n in range(300):
        world.producers[n * 7 % 3].emit(0, number(n), n + 1)
    assert world.intake.take_in() == 300
    assert world.seen.numbers() == list(range(300))


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
    assert world.tables[0].total_refused == 3
    assert world.rings[0].taken == 5, "those refused included"


def test_each_ring_has_its_own_numbers_of_events() -> None:
    """A write_index counts in the table of the ring's own connection."""
    world = World(2)
    world.tables[1].clear()
    for producer in world.producers:
        producer.emit(0, number(1), 1)
    assert world.intake.take_in() == 2
    assert world.seen.numbers() == [1]
    assert [table.total_refused for table in world.tables] == [0, 1]


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
