"""The journal: a daemon killed at any instruction loses and doubles no record, in no instance.

The judge beside the plain cases runs a round of the intake in a child, one machine instruction at a time
(ptrace), and reads the shared memory after each: the state that a SIGKILL would leave. Each different state
is adopted and compared with the plain list of emitted records.
"""

from __future__ import annotations

import os
import shutil
import struct
import time
from pathlib import Path

import pytest

from tests.daemon.intake.dying import (
    DATA,
    HEAD,
    SIZE,
    SLOT,
    TAIL,
    Producer,
    copy_ring,
    mapped,
    record,
)
from tests.daemon.intake.producing import new_ring
from tests.daemon.stepping import stepping
from utracefs_protocol.events.declaration import parse
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.event._sink import FtraceProbe, FtraceSink
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.intake._data_ring import DataRing
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._intake import Intake
from utracefsd.intake._journal import Journal

ID, LAST_ID, OTHER_ID = 20, 21, 7


class World:
    """A daemon's part: `instances` ring buffers and the journal in `folder`, and `count` data rings.

    Made anew, or taken over. Every instance has the event of write_index 0 enabled, and only the last one
    that of write_index 1.
    """

    def __init__(
        self,
        folder: Path,
        rings: list[tuple[int, int]] | None = None,
        size_kb: int = 16,
        count: int = 1,
        instances: int = 1,
        spare: bool = False,
        ring_size: int = SIZE,
    ) -> None:
        """spare: the buffers have one, and a snapshot may swap it at any moment."""
        self.folder = folder
        folders = [folder / str(number) for number in range(instances)]
        if rings is None:
            for one in folders:
                one.mkdir()
            self.buffers = [RingBuffer(1, size_kb, folder=str(one)) for one in folders]
            for buffer in self.buffers:
                buffer.overwrite = False
                if spare:
                    buffer.add_spare()
            self.journal = Journal(folder / "journal")
        else:
            self.buffers = [RingBuffer.adopt(str(one)) for one in folders]
            self.journal = Journal(folder / "journal", dict(enumerate(self.buffers)))
        declaration = parse(b"seen u64 n")
        self.tracepoint = Tracepoint(ID, declaration.name, declaration.fields)
        self.last_only = Tracepoint(LAST_ID, b"last", declaration.fields)
        for number, buffer in enumerate(self.buffers):
            sink = FtraceSink(buffer, number)
            self.tracepoint.attach(FtraceProbe(sink))
        self.last_only.attach(FtraceProbe(sink))
        self.intake = Intake(4)
        self.rings: list[DataRing] = []
        for i in range(count):
            table = IndexTable()
            table.append(self.tracepoint)
            table.append(self.last_only)
            if rings is None:
                ring = new_ring(table, ring_size)
                self.journal.resume(ring)
            else:
                ring = DataRing.adopt(table, os.getpid(), os.dup(rings[i][0]), os.dup(rings[i][1]), 0)
                self.journal.resume(ring)
            self.rings.append(ring)
            self.intake.add(ring)

    def fds(self) -> list[tuple[int, int]]:
        return [(ring.fd, ring.doorbell) for ring in self.rings]

    def numbers(self, instance: int = 0, event: int = ID) -> list[int]:
        """The records of an event in an instance's ring buffer, in order; with a spare, of both."""
        buffer = self.buffers[instance]
        numbers = [
            int(struct.unpack_from("<Q", data, 8)[0])
            for snapshot in (False, True)
            for _, _, data, _ in buffer.cursor(snapshot=snapshot)
            if struct.unpack_from("<H", data)[0] == event
        ]
        return numbers if buffer.spare is None else sorted(numbers)

    def take_in_and_swap(self) -> None:
        """Take a snapshot in every instance after each record."""
        while self.intake.take_in(1):
            for buffer in self.buffers:
                buffer.swap()

    def check(self, count: int) -> None:
        """All records below `count` are in each instance, and every second one of LAST_ID in the last."""
        for instance in range(len(self.buffers)):
            assert self.numbers(instance) == list(range(count)), instance
        last = len(self.buffers) - 1
        assert self.numbers(last, LAST_ID) == list(range(1, count, 2))


# One instruction at a time


@pytest.mark.parametrize(
    ("extra", "count", "instances", "spare"),
    [(0, 3, 1, False), (1400, 7, 1, False), (0, 3, 3, False), (0, 3, 2, True)],
    ids=["small", "across sub-buffers", "three instances", "with snapshots"],
)
def test_killed_at_any_instruction(folder: Path, extra: int, count: int, instances: int, spare: bool) -> None:
    before = folder / "before"
    before.mkdir()
    world = World(before, size_kb=12, instances=instances, spare=spare)
    producer = Producer(world.rings[0].fd)
    producer.emit(record(0, extra))
    world.intake.take_in()
    for n in range(1, count):
        producer.emit(record(n, extra) + (record(n, index=1) if n % 2 else b""))
    producer.emit(record(99, index=5))  # refused: nothing is recorded, but it is consumed
    parts = ("cpu0", "cpu0.b", "spare") if spare else ("cpu0",)
    names = [*(f"{number}/{part}" for number in range(instances) for part in parts), "journal"]
    files = [mapped(before / name) for name in names]
    in_use = DATA + producer.u64(HEAD) + 64
    judged = 0

    def look() -> list[bytes]:
        # Between its first page and its data the ring has counters of losses, of which there are none.
        return [producer.memory[:4096], producer.memory[DATA:in_use], *(memory[:] for memory in files)]

    with stepping(world.take_in_and_swap if spare else world.intake.take_in, look) as states:
        for state in states:
            if state is None:
                continue
            judged += 1
            contents = dict(zip(names, state[2:], strict=True))
            judge(folder / "after", producer.memory[:], contents, count, instances, spare)
    assert judged > 5 * count, "the states of the way were not seen"


def judge(
    folder: Path, ring: bytes, files: dict[str, bytes], count: int, instances: int, spare: bool
) -> None:
    """Adopt the state of a daemon killed now: the next one, and the one after it, must have every record.

    With a spare also if a snapshot was taken just now, in the middle of a record.
    """
    copy = copy_ring(ring)
    try:
        st = os.fstat(copy)
        journal = bytearray(files["journal"])
        journal[SLOT + 8 : SLOT + 24] = struct.pack("<QQ", st.st_dev, st.st_ino)
        deaths = ("none", "at once", "after recording", "after adopting", *("swapped",) * spare)
        for second_death in deaths:
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            (folder / "journal").write_bytes(journal)
            if second_death == "swapped":
                for number in range(instances):
                    RingBuffer.adopt(str(folder / str(number))).swap()
            memory = copy if second_death == "none" else copy_ring(ring)
            if memory != copy:
                st2 = os.fstat(memory)
                (folder / "journal").write_bytes(
                    journal[: SLOT + 8] + struct.pack("<QQ", st2.st_dev, st2.st_ino) + journal[SLOT + 24 :]
                )
            bell = os.eventfd(0)
            try:
                if second_death not in ("none", "swapped"):
                    between = World(
                        folder,
                        [(memory, bell)] if second_death == "after adopting" else [],
                        count=int(second_death == "after adopting"),
                        instances=instances,
                    )
                    if second_death == "after recording":
                        for buffer in between.buffers:
                            buffer.append(0, 1, struct.pack("<HBBi", OTHER_ID, 0, 0, 0) + b"1234")
                    del between
                world = World(folder, [(memory, bell)], instances=instances)
                world.intake.take_in()
                world.check(count)
                assert world.rings[0].pending_bytes == 0
                producer = Producer(memory)
                assert producer.u64(TAIL) == producer.u64(HEAD)
                assert not any(producer.memory[DATA : DATA + SIZE]), "consumed space is zero"
                producer.memory.close()
            finally:
                os.close(bell)
                if memory != copy:
                    os.close(memory)
                shutil.rmtree(folder)
    finally:
        os.close(copy)


# The file


def test_a_ring_that_is_given_up_leaves_its_slot(folder: Path) -> None:
    journal = Journal(folder / "journal")
    rings = [new_ring(IndexTable(), pid=1) for _ in range(100)]
    for ring in rings:
        journal.resume(ring)
    assert len(journal) == 100
    for ring in rings[:50]:
        journal.end(ring)
        journal.end(ring)
    assert len(journal) == 50
    for ring in rings[:50]:
        journal.resume(ring)
    assert (folder / "journal").stat().st_size == SLOT + 128 * SLOT
    assert (folder / "journal").stat().st_mode & 0o777 == 0o600


def test_what_is_not_adopted_waits_through_further_daemons(folder: Path) -> None:
    world = World(folder)
    producer = Producer(os.dup(world.rings[0].fd))
    producer.emit(record(0) + record(1) + record(2))
    world.intake.take_in(2)
    fds = [(os.dup(a), os.dup(b)) for a, b in world.fds()]
    del world
    for _ in range(3):
        between = World(folder, [], count=0)
        assert len(between.journal) == 1
        ring = new_ring(IndexTable(), pid=1)
        between.journal.resume(ring)
        between.journal.end(ring)
        del between
    last = World(folder, fds)
    assert last.intake.take_in() == 1
    assert last.numbers() == [0, 1, 2]
    for pair in [*fds, (producer.fd,)]:
        for fd in pair:
            os.close(fd)


def test_a_head_that_changes_after_it_was_looked_at_bounds_nothing(folder: Path) -> None:
    """The producer chooses the shared tail, and moves head between two reads of it: the bytes between them
    must not be cleared."""
    world = World(folder)
    fds = [(os.dup(a), os.dup(b)) for a, b in world.fds()]
    producer = Producer(fds[0][0])
    producer.emit(record(0))
    world.intake.take_in()
    del world
    far = 1 << 31
    tail = producer.u64(HEAD)
    struct.pack_into("<QQ", producer.memory, HEAD, (tail - far) % (1 << 64), 0)
    struct.pack_into("<Q", producer.memory, TAIL, (tail - far) % (1 << 64))
    journal = Journal(folder / "journal", {0: RingBuffer.adopt(str(folder / "0"))})
    ring = DataRing.adopt(IndexTable(), os.getpid(), os.dup(fds[0][0]), os.dup(fds[0][1]), 0)
    struct.pack_into("<Q", producer.memory, HEAD, tail)
    journal.resume(ring)
    assert producer.u64(TAIL) == (tail - far) % (1 << 64)
    for fd in fds[0]:
        os.close(fd)


@pytest.mark.parametrize("tail", [-8, 4, SIZE, 1 << 60])
def test_an_invalid_position_is_not_believed(folder: Path, tail: int) -> None:
    world = World(folder)
    fds = [(os.dup(a), os.dup(b)) for a, b in world.fds()]
    producer = Producer(fds[0][0])
    producer.emit(record(0))
    del world
    with open(folder / "journal", "r+b") as file:
        file.seek(SLOT + 24)
        file.write(struct.pack("<Q", tail % (1 << 64)))
    last = World(folder, fds)
    assert last.intake.take_in() == 1
    for fd in fds[0]:
        os.close(fd)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        bytes(64),
        bytes(4096),
        b"UTRTJRNL" + bytes(SLOT - 8),
        b"UTRTJRNL\1\0\0\0\x80" + bytes(SLOT - 13),
    ],
)
def test_what_is_no_journal_is_replaced(folder: Path, content: bytes) -> None:
    (folder / "journal").write_bytes(content)
    journal = Journal(folder / "journal")
    assert journal.refused
    assert len(journal) == 0
    del journal
    assert Journal(folder / "journal").refused is None


def test_a_link_is_not_followed(folder: Path) -> None:
    (folder / "journal").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic"):
        Journal(folder / "journal")


def test_an_instance_that_is_removed_leaves_its_answer_to_no_other(folder: Path) -> None:
    """A record that instance 3 had when the daemon was killed is new to the next instance of that number."""
    slot = struct.pack("<5Q11Q", 1, 5, 6, 64 | 1, 7, 0b11000, *[0] * 10)
    Journal(folder / "journal")
    with open(folder / "journal", "ab") as file:
        file.write(slot)
    journal = Journal(folder / "journal")
    assert len(journal) == 1
    for number in (3, -1, 1 << 30):
        journal.forget_buffer(number)
    assert struct.unpack_from("<Q", (folder / "journal").read_bytes(), SLOT + 40) == (0b10000,)


CLOCK_FIRST, CLOCK_LAST, CLOCK_AT = 16, 32, 64


def clock_of(path: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(first, last): TSC and nanoseconds of each, as the header has them."""
    data = path.read_bytes()
    (at,) = struct.unpack_from("<Q", data, CLOCK_AT)
    return struct.unpack_from("<QQ", data, CLOCK_FIRST), struct.unpack_from("<QQ", data, CLOCK_LAST + 16 * at)


def test_a_successor_continues_the_clock(folder: Path) -> None:
    """The rate is measured over the time of all daemons."""
    first = None
    for _ in range(3):
        journal = Journal(folder / "journal")
        assert journal.refused is None
        intake = Intake(4, False, journal)
        for _ in range(3):
            intake.take_in()
            began, last = clock_of(folder / "journal")
            assert last[1] == intake.looked_ns
        first = first or began
        assert began == first


@pytest.mark.parametrize("header", [bytes(48), b"\xff" * 48, struct.pack("<6Q", 9, 9, 5, 5, 5, 5)])
@pytest.mark.parametrize("at", [0, 1, 2, (1 << 64) - 1])
def test_any_clock_in_the_header_is_survived(folder: Path, header: bytes, at: int) -> None:
    Journal(folder / "journal")
    with open(folder / "journal", "r+b") as file:
        file.seek(CLOCK_FIRST)
        file.write(header + struct.pack("<Q", at))
    before = time.monotonic_ns()
    intake = Intake(4, False, Journal(folder / "journal"))
    intake.take_in()
    assert before <= intake.looked_ns <= time.monotonic_ns()
