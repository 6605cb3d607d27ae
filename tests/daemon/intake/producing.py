"""A producer in plain Python, and an intake with rings and a probe that keeps its records."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable

from tests.daemon.record_path import Collecting
from tests.simulation.rings import DataRing as MadeRing
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import parse
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.intake._data_ring import DataRing
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._intake import Intake
from utracefsd.intake.rings import Rings
from utracefsd.machine.peer import Peer

SIZE = 64 << 10
COMMITTED = 1 << 31
HEAD, TAIL, LOST, NEED_WAKEUP, CLOCK, NAMES, TSC_RATE, DATA = 64, 128, 192, 256, 260, 264, 272, 65536
COUNTED = 32768
TSC, NAMED = 1, 2


def number(n: int) -> bytes:
    return struct.pack("<Q", n)


def copies(fd: int, doorbell: int) -> tuple[int, int]:
    """Descriptors for an `adopt`, whose they are from then on."""
    return os.dup(fd), os.dup(doorbell)


def new_ring(table: IndexTable, size: int = SIZE, pid: int | None = None) -> DataRing:
    """A new ring of a program."""
    fd, doorbell = MadeRing.make(size)
    return DataRing.adopt(table, os.getpid() if pid is None else pid, fd, doorbell, os.getuid())


def adopt_new(
    rings: Rings, table: IndexTable, peer: Peer, size: int, failed: Callable[[TraceError], None]
) -> DataRing:
    fd, doorbell = MadeRing.make(size)
    return rings.adopt(table, peer, fd, doorbell, failed)


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
        at = position % self.size
        room = min(len(data), self.size - at)
        self.memory[DATA + at : DATA + at + room] = data[:room]
        self.memory[DATA : DATA + len(data) - room] = data[room:]

    def emit(
        self,
        index: int,
        payload: bytes,
        ts_ns: int,
        tid: int = 0,
        cpu: int = 0,
        word: int | None = None,
        flags: int = 0,
    ) -> bool:
        head, tail = self.u64(HEAD), self.u64(TAIL)
        need = (24 + len(payload) + 7) // 8 * 8
        if head + need - tail > self.size:
            self.set_u64(LOST, self.u64(LOST) + 1)
            place = DATA + self.size + 4 * min(index, 4095)
            (count,) = struct.unpack_from("<I", self.memory, place)
            struct.pack_into("<I", self.memory, place, count + 1)
            return False
        if word is None:
            word = COMMITTED | len(payload)
        self.put(head, struct.pack("<IIQIHH", word, index, ts_ns, tid, cpu, flags) + payload)
        self.set_u64(HEAD, head + need)
        return True

    def close(self) -> None:
        self.memory.close()


class Seen:
    """A tracepoint with a probe that keeps its records."""

    def __init__(self, command: bytes = b"seen u64 n") -> None:
        declaration = parse(command)
        self.tracepoint = Tracepoint(20, declaration.name, declaration.fields)
        self.records: list[tuple[int, int, int, int, bytes]] = []
        self.probe = Collecting("test", self.records.extend, 4 << 20)
        self.tracepoint.attach(self.probe)

    def numbers(self) -> list[int]:
        self.probe.flush()
        return [struct.unpack("<Q", r[4][:8])[0] for r in self.records]


class World:
    """An intake of four cpus, data rings of this process, and a producer for each."""

    def __init__(self, rings: int = 1) -> None:
        self.intake = Intake(nr_cpus=4)
        self.seen = Seen()
        self.tables = [IndexTable() for _ in range(rings)]
        self.rings = []
        for table in self.tables:
            table.append(self.seen.tracepoint)
            ring = new_ring(table)
            self.rings.append(ring)
            self.intake.add(ring)
        self.producers = [Producer(ring) for ring in self.rings]
