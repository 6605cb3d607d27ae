"""Large rings that take little memory: short bursts use the same part again and again, floods give theirs
back ("Memory" in data_ring.h). A daemon that is killed meanwhile loses and doubles no record."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.daemon.intake import dying
from tests.daemon.intake.dying import SLOT, copy_ring, mapped
from tests.daemon.intake.producing import DATA, HEAD, TAIL, Producer, World, new_ring, number
from tests.daemon.intake.test_journal import World as JournalWorld
from tests.daemon.stepping import stepping
from utracefsd.intake._data_ring import DataRing
from utracefsd.intake._giving_back import GivingBack
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._intake import Intake
from utracefsd.intake._writers import AllWriters
from utracefsd.machine import _machine

MIB = 1 << 20
LOW, END = MIB, 512 << 10
QUIET_NS = 1_000_000_000


@pytest.fixture
def now() -> Iterator[int]:
    """The daemon's clock, which a test moves."""
    yield 10 * QUIET_NS
    _machine.simulate(0)


def large(now: int, size: int = 16 * MIB) -> tuple[World, DataRing, Producer]:
    _machine.simulate(now)
    world = World(0)
    world.tables.append(IndexTable())
    world.tables[0].append(world.seen.tracepoint)
    ring = new_ring(world.tables[0], size)
    world.rings.append(ring)
    world.intake.add(ring)
    world.producers.append(Producer(ring))
    return world, ring, world.producers[0]


def memory_of(ring: DataRing) -> int:
    return os.fstat(ring.fd).st_blocks * 512


def place_of(ring: DataRing, producer: Producer) -> int:
    return producer.u64(HEAD) % ring.size


def flood(producer: Producer, begin: int, step: int = 60_000) -> int:
    """Fill the ring with large records; how many."""
    count = 0
    while producer.emit(0, number(begin + count) + bytes(step), 1):
        count += 1
    return count


def take_in(world: World) -> int:
    """All there is, in parts that the probe can keep."""
    taken = 0
    while done := world.intake.take_in(60):
        taken += done
        world.seen.probe.flush()
    return taken


def test_short_bursts_use_the_same_memory(now: int) -> None:
    world, ring, producer = large(now)
    for n in range(100_000):
        assert producer.emit(0, number(n), 1)
        if n % 1000 == 999:
            world.intake.take_in()
    assert world.seen.numbers() == list(range(100_000))
    assert memory_of(ring) < 2 * MIB
    assert producer.u64(HEAD) > 2 * ring.size, "in several laps"
    assert not world.intake.has_large


def test_a_flood_gives_its_memory_back(now: int) -> None:
    world, ring, producer = large(now)
    emitted = 0
    for _ in range(3):
        for _ in range(2):
            emitted += flood(producer, emitted)
            take_in(world)
        assert memory_of(ring) > 15 * MIB
        assert world.intake.has_large
        for _ in range(2):  # it lost records, and is no longer narrow then
            _machine.simulate(now := now + QUIET_NS // 5)
            world.intake.take_in()
        assert memory_of(ring) > 15 * MIB, "not quiet for so long yet"
        _machine.simulate(now := now + QUIET_NS)
        for _ in range(2):
            assert world.intake.has_large
            world.intake.take_in()
        assert memory_of(ring) < MIB
        assert not world.intake.has_large
        assert producer.u64(HEAD) == producer.u64(TAIL)
        for n in range(emitted, emitted + 40_000):
            assert producer.emit(0, number(n), 1)
            if n % 1000 == 999:
                take_in(world)
        take_in(world)
        emitted += 40_000
        assert memory_of(ring) < 2 * MIB
    assert world.seen.numbers() == list(range(emitted))
    assert not any(producer.memory[DATA : DATA + ring.size])


def test_a_ring_without_an_event_that_is_on_gives_all_back(now: int) -> None:
    """Wherever its head is, also what short bursts have used, and what comes after it."""
    world, ring, producer = large(now, 4 * MIB)
    emitted = 0
    for burst in 300, 9_000, 70_000, 10:
        for _ in range(burst):
            assert producer.emit(0, number(emitted), 1)
            emitted += 1
        take_in(world)
        world.intake.has_off = True
        take_in(world)
        assert not world.intake.has_large, "on"
        before = memory_of(ring)
        world.seen.tracepoint.detach(world.seen.probe)
        world.intake.has_off = True
        take_in(world)
        assert world.intake.has_large == (before > 128 << 10)
        assert producer.emit(0, number(0), 1), "by a thread that saw it on; refused"
        take_in(world)
        _machine.simulate(now := now + QUIET_NS)
        while world.intake.has_large:
            take_in(world)
        assert memory_of(ring) <= 128 << 10
        world.seen.tracepoint.attach(world.seen.probe)
    assert world.seen.numbers() == list(range(emitted))
    assert producer.u64(HEAD) == producer.u64(TAIL)
    assert not any(producer.memory[DATA : DATA + ring.size])


@pytest.mark.parametrize(("each", "gives_back"), [(4, True), (400, False)])
def test_a_flood_that_ends_in_few_records(now: int, each: int, gives_back: bool) -> None:
    """There need not be a second without a record."""
    world, ring, producer = large(now)
    emitted = flood(producer, 0)
    take_in(world)
    for _ in range(30):
        _machine.simulate(now := now + QUIET_NS // 10)
        for _ in range(each):
            assert producer.emit(0, number(emitted) + bytes(1000), 1)
            emitted += 1
        take_in(world)
    assert (memory_of(ring) < 2 * MIB) == (not world.intake.has_large) == gives_back
    assert world.seen.numbers() == list(range(emitted))


def test_a_program_that_holds_the_lock_of_its_memory_delays_only_itself(now: int) -> None:
    """By a write from memory that its own file system does not deliver; punching a hole waits for that."""
    _machine.simulate(now)
    hanging: list[GivingBack] = []
    world = World(0)
    world.intake = Intake(1, give_back=hanging.append)
    table, of_one_user = IndexTable(), AllWriters()
    table.append(world.seen.tracepoint)
    rings = [new_ring(table, 4 * MIB) for _ in range(3)]
    producers = [Producer(ring) for ring in rings]
    for ring in rings[:2]:
        ring.writers = of_one_user.of(os.getpid())
    for ring, producer in zip(rings, producers, strict=True):
        world.intake.add(ring)
        producer.emit(0, number(0) + bytes(60_000), 1)
        flood(producer, 0)
        take_in(world)
    _machine.simulate(now := now + QUIET_NS // 5)
    world.intake.take_in()
    _machine.simulate(now + 2 * QUIET_NS)
    taken = [ring.taken for ring in rings]
    for _ in range(3):
        world.intake.take_in()
    assert len(hanging) == 2, "one of each user"
    for ring, producer, before in zip(rings, producers, taken, strict=True):
        assert (producer.u64(HEAD) > producer.u64(TAIL)) == (ring is not rings[1])
        for n in range(9):
            assert producer.emit(0, number(n) + bytes(60_000), 1)
        take_in(world)
        assert ring.taken == before + 9
    while hanging:
        assert world.intake.has_large
        hanging.pop(0).run()
        world.intake.take_in()
        _machine.simulate(now := now + 3 * QUIET_NS)
        world.intake.take_in()
    assert not world.intake.has_large
    assert [producer.u64(HEAD) - producer.u64(TAIL) for producer in producers] == [0, 0, 0]
    assert not any(any(producer.memory[DATA : DATA + 4 * MIB]) for producer in producers)
    for producer in producers:
        producer.close()


def test_a_ring_that_ends_meanwhile_keeps_no_descriptor(now: int) -> None:
    """The thread was the last that had it, and closed its copies."""
    before = len(os.listdir("/proc/self/fd"))
    hanging: list[GivingBack] = []
    world, ring, producer = large(now, 4 * MIB)
    world.intake = Intake(1, give_back=hanging.append)
    world.intake.add(ring)
    flood(producer, 0)
    take_in(world)
    _machine.simulate(now + 2 * QUIET_NS)
    take_in(world)
    producer.close()
    assert len(hanging) == 1
    world.intake.remove(ring)
    del ring, world
    assert len(os.listdir("/proc/self/fd")) == before
    hanging[0].run()


def test_without_threads_the_memory_stays(now: int) -> None:
    world, ring, producer = large(now, 4 * MIB)
    world.intake = Intake(1, give_back=Mock(side_effect=OSError))
    world.intake.add(ring)
    flood(producer, 0)
    take_in(world)
    _machine.simulate(now + 2 * QUIET_NS)
    while world.intake.has_large:
        world.intake.take_in()
    assert memory_of(ring) > 3 * MIB
    assert producer.u64(HEAD) == producer.u64(TAIL)


def test_a_ring_that_is_in_use_is_left_alone(now: int) -> None:
    world, ring, producer = large(now)
    for n in range(20):
        producer.emit(0, number(n) + bytes(60_000), 1)
    place = place_of(ring, producer)
    assert LOW < place < ring.size - END
    assert world.intake.take_in(19) == 19, "one is left"
    assert place_of(ring, producer) == place
    ring.close()
    world.intake.take_in()
    assert place_of(ring, producer) == place, "closed"
    world.intake.take_in()
    assert place_of(ring, producer) == place
    assert world.seen.numbers() == list(range(20))


def test_a_record_that_is_not_committed_yet(now: int) -> None:
    world, ring, producer = large(now)
    for n in range(20):
        producer.emit(0, number(n) + bytes(60_000), 1)
    at = place_of(ring, producer)
    producer.emit(0, number(20), 1, word=0)
    world.intake.take_in()
    _machine.simulate(now + 3 * QUIET_NS)
    world.intake.take_in()
    assert producer.u64(HEAD) == at + 32
    struct.pack_into("<I", producer.memory, DATA + at, dying.COMMITTED | 8)
    world.intake.take_in()
    assert world.seen.numbers() == list(range(21))
    assert place_of(ring, producer) == 0


@pytest.mark.parametrize("size", [64 << 10, MIB])
def test_a_small_ring_never_skips(now: int, size: int) -> None:
    world, ring, producer = large(now, size)
    count = 0
    for _ in range(9):
        count += flood(producer, count, 9_000)
        world.intake.take_in()
    _machine.simulate(now + 2 * QUIET_NS)
    world.intake.take_in()
    assert (ring.taken, world.intake.has_large) == (count, False)
    assert producer.u64(HEAD) == count * 9_032


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["emit", "take", "take", "wait", "next"]),
            st.integers(0, 40),
            st.sampled_from([0, 1000, 60_000]),
        ),
        max_size=60,
    )
)
def test_every_record_once_and_in_order(steps: list[tuple[str, int, int]]) -> None:
    """Against a plain list, over daemons that end in order."""
    now = 10 * QUIET_NS
    world, ring, producer = large(now, 2 * MIB)
    emitted: list[int] = []
    lost = taken = 0
    try:
        for what, count, extra in steps:
            if what == "emit":
                for _ in range(count):
                    if producer.emit(0, number(len(emitted) + lost) + bytes(extra), 1):
                        emitted.append(len(emitted) + lost)
                    else:
                        lost += 1
            elif what == "take":
                taken += world.intake.take_in(count * 3)
                world.seen.probe.flush()
            elif what == "wait":
                world.intake.take_in(0)
                _machine.simulate(now := now + count * QUIET_NS // 10)
            else:
                world.intake.remove(ring)
                ring = DataRing.adopt(world.tables[0], os.getpid(), os.dup(ring.fd), os.dup(ring.doorbell), 0)
                world.intake.add(ring)
            assert 0 <= producer.u64(HEAD) - producer.u64(TAIL) <= ring.size
        taken += take_in(world)
        assert world.seen.numbers() == emitted
        assert taken == len(emitted)
        assert world.seen.tracepoint.emitted == taken + lost
        assert not any(producer.memory[DATA : DATA + ring.size])
    finally:
        _machine.simulate(0)
        producer.close()


# ---- kills


SIZE = 2 * MIB
REFUSED = 5
"""Records of this index are consumed and kept nowhere."""


def filling(size: int) -> bytes:
    """Records of so many bytes together, of 64 KiB but for the last ones."""
    data = b""
    while len(data) < size:
        data += dying.record(0, max(0, min(65_000, size - len(data) - 32)), REFUSED)
    assert len(data) == size
    return data


def empty_at(world: JournalWorld, producer: dying.Producer, place: int) -> None:
    """Bring the ring there, in parts that leave room."""
    while missing := (place - producer.u64(HEAD)) % SIZE:
        producer.emit(filling(min(missing, SIZE // 4)))
        world.intake.take_in()


@pytest.mark.parametrize("gives_back", [False, True])
def test_killed_at_any_instruction_of_a_skip(folder: Path, now: int, gives_back: bool) -> None:
    before = folder / "before"
    before.mkdir()
    _machine.simulate(now)
    world = JournalWorld(before, size_kb=12, ring_size=SIZE)
    producer = dying.Producer(world.rings[0].fd)
    producer.emit(dying.record(0))
    world.intake.take_in()
    if gives_back:
        producer.emit(filling(SIZE - END // 2))
        world.intake.take_in()
        empty_at(world, producer, END)
        assert world.intake.has_large
        producer.emit(dying.record(1) + dying.record(2))
        world.intake.take_in()
        _machine.simulate(now + QUIET_NS)
    else:
        empty_at(world, producer, LOW - 32)
        producer.emit(dying.record(1) + dying.record(2))
    files = [mapped(before / name) for name in ("0/cpu0", "journal")]
    start = producer.u64(HEAD)
    bytes_ = SIZE // 2 if gives_back else SIZE - start % SIZE
    found = set()

    def look() -> list[bytes]:
        return [producer.memory[:512], *(memory[:] for memory in files)]

    with stepping(world.intake.take_in, look) as states:
        for state in states:
            if state is None:
                continue
            at, tail = producer.u64(HEAD), producer.u64(TAIL)
            (noted,) = struct.unpack_from("<Q", state[2], SLOT + 24)
            found.add((at - start, tail == at, noted & 2))
            for after in ("adopted", "full", "stopped", "twice"):
                judge(folder / "after", producer.memory[:], {"0/cpu0": state[1], "journal": state[2]}, after)
    assert found >= {(0, True, 2), (bytes_, False, 2), (bytes_, True, 0)}


def judge(folder: Path, ring: bytes, files: dict[str, bytes], after: str) -> None:
    """adopted: at once. full: producers continue meanwhile. stopped: and the first of them has not stored its
    length yet. twice: the next daemon is killed, too."""
    memory = copy_ring(ring)
    bell = os.eventfd(0)
    producer = dying.Producer(memory)
    try:
        found = os.fstat(memory)
        journal = bytearray(files["journal"])
        journal[SLOT + 8 : SLOT + 24] = struct.pack("<QQ", found.st_dev, found.st_ino)
        for name, content in (files | {"journal": bytes(journal)}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        place = DATA + producer.u64(HEAD) % SIZE
        if after in ("full", "stopped"):
            room = SIZE - producer.u64(HEAD) + producer.u64(TAIL)
            producer.emit(dying.record(3) + filling(room - 64) + dying.record(4))
        if after == "stopped":
            word = producer.memory[place : place + 4]
            producer.memory[place : place + 4] = bytes(4)
        if after == "twice":
            JournalWorld(folder, [(memory, bell)])
        world = JournalWorld(folder, [(memory, bell)])
        world.intake.take_in()
        if after == "stopped":
            assert world.numbers() == [0, 1, 2]
            producer.memory[place : place + 4] = word
            world.intake.take_in()
        if after in ("adopted", "twice"):
            producer.emit(dying.record(3))
            world.intake.take_in()
            producer.emit(dying.record(4))
            world.intake.take_in()
        assert world.numbers() == [0, 1, 2, 3, 4]
        assert producer.u64(TAIL) == producer.u64(HEAD)
        assert not any(producer.memory[DATA : DATA + SIZE])
    finally:
        producer.memory.close()
        os.close(bell)
        os.close(memory)
        shutil.rmtree(folder)
