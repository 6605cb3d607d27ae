"""Taking in from data rings: order, bounds, losses, hostile memory. The producer is a plain Python model."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utracefs_protocol.declaration import parse
from utracefsd.consumers.plugins._batch import BatchProbe
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.intake._data_ring import DataRing
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._intake import Intake

SIZE = 64 << 10
COMMITTED = 1 << 31
HEAD, TAIL, LOST, NEED_WAKEUP = 64, 128, 192, 256


class Producer:
    """The layout of docs/protocol.md, section 5, written by struct into a mapping of the memfd."""

    def __init__(self, ring: DataRing) -> None:
        self.memory = mmap.mmap(ring.fd, os.fstat(ring.fd).st_size)
        self.size = ring.size

    def u64(self, offset: int) -> int:
        return int(struct.unpack_from("<Q", self.memory, offset)[0])

    def set_u64(self, offset: int, value: int) -> None:
        struct.pack_into("<Q", self.memory, offset, value % (1 << 64))

    def put(self, position: int, data: bytes) -> None:
        for i, byte in enumerate(data):
            self.memory[4096 + (position + i) % self.size] = byte

    def emit(
        self, index: int, payload: bytes, ts_ns: int, tid: int = 0, cpu: int = 0, word: int | None = None
    ) -> bool:
        head, tail = self.u64(HEAD), self.u64(TAIL)
        need = (24 + len(payload) + 7) // 8 * 8
        if head + need - tail > self.size:
            self.set_u64(LOST, self.u64(LOST) + 1)
            place = 4096 + self.size + 4 * min(index, 4095)
            (count,) = struct.unpack_from("<I", self.memory, place)
            struct.pack_into("<I", self.memory, place, count + 1)
            return False
        if word is None:
            word = COMMITTED | len(payload)
        self.put(head, struct.pack("<IIQIHH", word, index, ts_ns, tid, cpu, 0) + payload)
        self.set_u64(HEAD, head + need)
        return True

    def close(self) -> None:
        self.memory.close()


class Seen:
    """A tracepoint with a probe that keeps what it gets."""

    def __init__(self, command: bytes = b"seen u64 n") -> None:
        declaration = parse(command)
        self.tracepoint = Tracepoint(20, declaration.name, declaration.fields)
        self.records: list[tuple[int, int, int, int, bytes]] = []
        self.probe = BatchProbe("test", self.records.extend, 1 << 20)
        self.tracepoint.attach(self.probe)

    def numbers(self) -> list[int]:
        self.probe.flush()
        return [struct.unpack("<Q", r[4][:8])[0] for r in self.records]


class World:
    def __init__(self, rings: int = 1) -> None:
        self.intake = Intake(nr_cpus=4)
        self.seen = Seen()
        self.tables = [IndexTable() for _ in range(rings)]
        self.rings = []
        for table in self.tables:
            table.append(self.seen.tracepoint)
            ring = DataRing.create(table, os.getpid(), SIZE)
            self.rings.append(ring)
            self.intake.add(ring)
        self.producers = [Producer(ring) for ring in self.rings]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for producer in made.producers:
        producer.close()


def number(n: int) -> bytes:
    return struct.pack("<Q", n)


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


def test_an_uncommitted_record_stops_the_ring_until_it_is_committed(world: World) -> None:
    producer = world.producers[0]
    producer.emit(0, number(1), 1)
    producer.emit(0, number(2), 2, word=8)
    producer.emit(0, number(3), 3)
    assert world.intake.take_in() == 1
    struct.pack_into("<I", producer.memory, 4096 + 32, COMMITTED | 8)
    assert world.intake.take_in() == 2
    assert world.seen.numbers() == [1, 2, 3]


def test_a_dead_producer_s_open_record_is_stepped_over(world: World) -> None:
    producer, ring = world.producers[0], world.rings[0]
    producer.emit(0, number(1), 1)
    producer.emit(0, number(2), 2, word=8)
    producer.emit(0, number(3), 3)
    producer.emit(0, number(4), 4, word=0)  # died before it wrote the length: nothing behind can be found
    producer.emit(0, number(5), 5)
    ring.dead = True
    assert world.intake.take_in() == 2
    assert world.seen.numbers() == [1, 3]
    assert ring.lost_to_death == 2
    assert not ring.corrupt


def test_claims_are_checked(world: World) -> None:
    now = time.monotonic_ns()
    world.producers[0].emit(0, number(1), now + 10**12, tid=1, cpu=77)
    world.producers[0].emit(0, number(2), now, tid=os.getpid(), cpu=3)
    world.producers[0].emit(7, number(3), now)
    world.producers[0].emit(0, b"abc", now)
    world.intake.take_in()
    assert world.seen.numbers() == [1, 2]
    (ts, cpu, pid, tgid, _), (_, cpu2, pid2, _, _) = world.seen.records
    assert ts <= time.monotonic_ns()
    assert (cpu, pid, tgid) == (0, os.getpid(), os.getpid()), (
        "neither that cpu nor that thread is the producer's"
    )
    assert (cpu2, pid2) == (3, os.getpid())
    assert world.tables[0].total_refused == 2


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
    for n in range(500):
        world.producers[0].emit(0, number(n), n, tid=1000 + n)
    world.intake.take_in()
    assert len(asked) <= 40, "a round asks a bounded number of times"
    world.seen.probe.flush()
    assert {record[2] for record in world.seen.records} == {os.getpid()}


@pytest.mark.parametrize(
    ("head", "tail_moved"),
    [(-8, 0), (SIZE + 8, 0), (1 << 63, 0), (4, 0), ((1 << 64) - 8, 0), (SIZE * 3, 0)],
)
def test_invalid_positions_end_the_ring(world: World, head: int, tail_moved: int) -> None:
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


@settings(max_examples=300, deadline=None)
@given(
    junk=st.binary(max_size=400),
    head=st.integers(0, 2**64 - 1),
    fields=st.dictionaries(
        st.sampled_from([0, 4, 8, 12, TAIL, LOST, NEED_WAKEUP, 4096 + SIZE, 4096 + SIZE + 16376]),
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
    world.rings[0].clear_doorbell()
    world.rings[0].clear_doorbell()
    world.intake.want_wakeup(False)
    assert struct.unpack_from("<I", world.producers[0].memory, NEED_WAKEUP)[0] == 0


@pytest.mark.parametrize("size", [0, 1, 4096, 100_000, (64 << 10) + 1, 128 << 20])
def test_sizes(size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        DataRing.create(IndexTable(), os.getpid(), size)


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
        ring = DataRing.adopt(table, os.getpid(), fd, bell)
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

        good = 4096 + SIZE + 16384
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
                DataRing.adopt(IndexTable(), os.getpid(), make(), os.eventfd(0))
        ring = DataRing.create(IndexTable(), os.getpid(), SIZE)
        with pytest.raises(ValueError, match="eventfd"):
            DataRing.adopt(IndexTable(), os.getpid(), os.dup(ring.fd), os.open("/dev/null", os.O_RDWR))
        producer = Producer(ring)
        producer.set_u64(HEAD, SIZE * 2)
        with pytest.raises(ValueError, match="positions"):
            DataRing.adopt(IndexTable(), os.getpid(), os.dup(ring.fd), os.dup(ring.doorbell))
        producer.close()
