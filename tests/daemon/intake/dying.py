"""Daemons that are killed during the intake, between any two instructions."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.daemon.intake.producing import new_ring
from tests.daemon.stepping import stepping
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.event._trigger_cells import Cells
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.intake._data_ring import DataRing
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._intake import Intake
from utracefsd.intake._journal import Journal

SIZE = 64 << 10
SLOT = 128
"""Bytes of a slot; the first is the file's header. (st_dev, st_ino) are at 8 in it, the tail at 24."""
COMMITTED = 1 << 31
HEAD, TAIL, DATA = 64, 128, 65536
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


Kept = dict[str, tuple[int, int]]
"""Cells by name, as in a daemon's log of the state."""


def mapped(path: Path) -> mmap.mmap:
    """A file, to be read while a daemon writes it."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def record(n: int, extra: int = 0, index: int = 0) -> bytes:
    """One committed record of the data ring (docs/protocol.md, section 5)."""
    payload = struct.pack("<Q", n) + bytes(extra)
    head = struct.pack("<IIQIHH", COMMITTED | len(payload), index, n + 1, os.getpid(), 0, 0)
    return (head + payload).ljust((24 + len(payload) + 7) // 8 * 8, b"\0")


class Producer:
    """Writes whole records into the ring's memory; it outlives every daemon."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.memory = mmap.mmap(fd, os.fstat(fd).st_size)
        self.size = len(self.memory) - DATA - 16384

    def u64(self, offset: int) -> int:
        return int(struct.unpack_from("<Q", self.memory, offset)[0])

    def emit(self, records: bytes) -> None:
        head = self.u64(HEAD)
        assert head + len(records) - self.u64(TAIL) <= self.size
        first = self.size - head % self.size
        place = DATA + head % self.size
        self.memory[place : place + len(records[:first])] = records[:first]
        self.memory[DATA : DATA + len(records[first:])] = records[first:]
        struct.pack_into("<Q", self.memory, HEAD, head + len(records))


class World(Protocol):
    """The visible state of a daemon; made anew it is the next one of its folder."""

    kept: Kept
    journal: Journal
    intake: Intake
    ring: DataRing | None

    def result(self) -> dict[str, Any]: ...


Successor = Callable[[Path, Kept, "tuple[int, int] | None", "dict[Any, Any] | None"], World]
"""(folder, kept, descriptors of the data ring or None: it is not back, `fired` of the journal before)."""


def copy_ring(memory: bytes) -> int:
    fd = os.memfd_create("copy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, memory)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


def open_buffers(
    folder: Path, count: int, cells: Cells, new: bool, fired: dict[Any, Any] | None
) -> tuple[list[RingBuffer], Journal]:
    """The ring buffers of so many instances and the journal: new ones, or those of the previous daemon in
    `folder`."""
    folders = [folder / str(number) for number in range(count)]
    if new:
        for one in folders:
            one.mkdir()
        return [RingBuffer(1, 16, folder=str(one)) for one in folders], Journal(
            folder / "journal", cells=cells
        )
    buffers = [RingBuffer.adopt(str(one)) for one in folders]
    return buffers, Journal(folder / "journal", dict(enumerate(buffers)), cells, fired or {})


def open_ring(
    tracepoints: Sequence[Tracepoint],
    journal: Journal,
    intake: Intake,
    new: bool,
    fds: tuple[int, int] | None,
) -> DataRing | None:
    """A data ring whose records are of these events, taken in by `intake`: a new one, or the one with these
    descriptors, from the previous daemon; None: it has not come back."""
    table = IndexTable()
    for tracepoint in tracepoints:
        table.append(tracepoint)
    if new:
        ring = new_ring(table)
        journal.resume(ring)
    elif fds is not None:
        ring = DataRing.adopt(table, os.getpid(), os.dup(fds[0]), os.dup(fds[1]), 0)
        journal.resume(ring)
    else:
        return None
    intake.add(ring)
    return ring


def judge(
    make: Successor, folder: Path, ring: bytes, files: dict[str, bytes], kept: Kept, second_death: bool
) -> dict[str, Any]:
    """The results of the next daemons after a kill now. second_death: the first of them had no ring."""
    memory = copy_ring(ring)
    bell = os.eventfd(0)
    try:
        st = os.fstat(memory)
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        with open(folder / "journal", "r+b") as journal:
            journal.seek(SLOT + 8)
            journal.write(struct.pack("<QQ", st.st_dev, st.st_ino))
        fired = None
        if second_death:
            between = make(folder, kept, None, None)
            fired = between.journal.fired
            del between
        world = make(folder, kept, (memory, bell), fired)
        world.intake.take_in()
        assert world.ring is not None
        assert world.ring.pending_bytes == 0
        assert world.journal.fired == {}
        return world.result()
    finally:
        os.close(bell)
        os.close(memory)
        shutil.rmtree(folder)


def stepped_through(
    make: Successor, world: World, folder: Path, names: Sequence[str], after: Path, want: dict[str, Any]
) -> int:
    """Take in all that waits in the ring, an instruction at a time; each new state of the files `names` in
    `folder` must lead to `want`, with one death and with two. How many states that were."""
    assert world.ring is not None
    producer = Producer(world.ring.fd)
    files = [mapped(folder / name) for name in names]
    judged = 0
    # The data ring itself is tested in test_journal.py.
    with stepping(world.intake.take_in, lambda: [memory[:] for memory in files]) as states:
        for state in states:
            if state is None:
                continue
            judged += 1
            contents = dict(zip(names, state, strict=True))
            for second_death in (False, True):
                found = judge(make, after, producer.memory[:], contents, world.kept, second_death)
                assert found == want, f"{judged}, {second_death}"
    (tail,) = struct.unpack_from("<Q", contents["journal"], SLOT + 24)
    assert tail == producer.u64(HEAD)
    return judged
