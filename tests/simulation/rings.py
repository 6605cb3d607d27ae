"""The memory that the world's clients share with the daemon, written from docs/protocol.md, sections 5 and 6.

Nothing else here knows these layouts.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct

DATA_RINGS = (64 << 10, 2 << 20)
"""Sizes: the larger one skips."""
STREAM_RING = 256 << 10

_COMMITTED = 1 << 31
_PAGE = 4096
_COMMON = 8
"""Bytes of common fields in front of a payload."""


def next_descriptor() -> int:
    """The lowest free number."""
    fd = os.dup(0)
    os.close(fd)
    return fd


class Shared:
    """A mapping, which keeps a descriptor of its own."""

    def __init__(self, fd: int, *, writable: bool = True) -> None:
        self.descriptor = next_descriptor()
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.memory = mmap.mmap(fd, os.fstat(fd).st_size, prot=prot)

    def u64(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self.memory, at)[0])

    def store(self, at: int, value: int) -> None:
        struct.pack_into("<Q", self.memory, at, value % (1 << 64))

    def close(self) -> None:
        self.memory.close()


class DataRing(Shared):
    """A producer's end."""

    _HEAD, _TAIL, LOST, _DATA = 64, 128, 192, 65536
    COUNTED, COUNTERS = 32768, 16384
    """The daemon's counters, and the size of all of them and of the program's."""
    _REFUSED = 1 << 30

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.size = struct.unpack_from("<I", self.memory, 8)[0]
        self._stopped: tuple[int, int] | None = None
        """A record that a thread has reserved and not committed: its place, its length word."""

    @staticmethod
    def make(size: int) -> list[int]:
        """Its memory and its doorbell."""
        memory = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, DataRing._DATA + size + 16384)
        os.pwrite(memory, struct.pack("<IIII", 0x52525455, 2, size, 24), 0)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return [memory, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)]

    @staticmethod
    def counted(size: int) -> int:
        """Bytes in its user's share."""
        return max(size // 16, DATA_RINGS[0])

    @staticmethod
    def counters_at(size: int) -> int:
        """Where a ring of that size has the numbers of lost records, by write_index."""
        return DataRing._DATA + size

    @property
    def has_skipped(self) -> bool:
        """Head is where the daemon has put it."""
        head = self.u64(self._HEAD)
        return head > 0 and head % self.size == 0

    def refuse(self, index: int, length: int) -> None:
        """Report a value that does not fit its field: no record."""
        self.write(self._REFUSED | index, bytes(length), 0, 0, 0)

    def fill(self, index: int, left: int) -> None:
        """With such reports, until about so many bytes are free."""
        while (free := self.u64(self._TAIL) + self.size - self.u64(self._HEAD)) >= left + 32:
            self.refuse(index, min(free - left - 24, 60_000) // 8 * 8)

    def lose(self, index: int) -> None:
        """Count a record that finds no room."""
        at = self.counters_at(self.size) + 4 * index
        struct.pack_into("<I", self.memory, at, struct.unpack_from("<I", self.memory, at)[0] + 1)
        self.store(self.LOST, self.u64(self.LOST) + 1)

    def write(self, index: int, payload: bytes, time_ns: int, pid: int, cpu: int, *, stops: int = 0) -> bool:
        """False: there is no room. stops: 1, before it is committed; 2, before its length is stored."""
        size = (24 + len(payload) + 7) // 8 * 8
        if self.u64(self._HEAD) + size - self.u64(self._TAIL) > self.size:
            return False
        word = (_COMMITTED | len(payload), len(payload), 0)[stops]
        if stops:
            self._stopped = self.u64(self._HEAD) % self.size, _COMMITTED | len(payload)
        self._put(struct.pack("<IIQIHH", word, index, time_ns, pid, cpu, 0) + payload, size)
        return True

    def commit(self) -> None:
        """The thread that stopped continues."""
        if self._stopped is not None:
            struct.pack_into("<I", self.memory, self._DATA + self._stopped[0], self._stopped[1])
            self._stopped = None

    def _put(self, data: bytes, size: int) -> None:
        head = self.u64(self._HEAD)
        at = head % self.size
        room = min(len(data), self.size - at)
        self.memory[self._DATA + at : self._DATA + at + room] = data[:room]
        self.memory[self._DATA : self._DATA + len(data) - room] = data[room:]
        self.store(self._HEAD, head + size)

    DAMAGES = ("head behind tail", "head too far", "record past head", "record too long", "noise")

    def damage(self, what: str, noise: int) -> bool:
        """Whether the daemon must end the connection, or may."""
        match what:
            case "head behind tail":
                self.store(self._HEAD, self.u64(self._TAIL) - 8)
            case "head too far":
                # (a daemon gives less than the whole ring to programs that are too fast)
                self.store(self._HEAD, self.u64(self._TAIL) + 2 * self.size + 8)
            case "record past head":
                self._put(struct.pack("<IIQIHH", _COMMITTED | 100, 0, 0, 0, 0, 0), 32)
            case "record too long":
                self._put(struct.pack("<IIQIHH", _COMMITTED | 0xFFFFFF, 0, 0, 0, 0, 0), 32)
            case _:  # of no event, so it is refused if it looks like a record
                word = noise * 0x9E3779B97F4A7C15 % (1 << 64)
                index = 0x10000 + noise
                self._put(struct.pack("<IIQQ", word >> 32, index, word, word), 24 + word % 9 * 8)
                return False
        return True


class StreamRing(Shared):
    """A reader's end: records of one event, or the pages of an instance."""

    def read(self, *, ended: bool) -> tuple[list[int], int, bool]:
        """The numbers of the records; how many were lost since the beginning; whether it was full. ended: the
        daemon is dead, and what it had not published is there, too."""
        found = []
        tail, end = self.u64(128), self.u64(64)
        if ended:
            end = max(end, self.u64(256))
        is_full = end - tail > STREAM_RING - 2 * _PAGE
        while tail < end:
            at = _PAGE + tail % STREAM_RING
            size, kind = struct.unpack_from("<IH", self.memory, at)
            if kind == 0:
                found.append(self.u64(at + 24 + _COMMON))
            elif kind == 5:
                found += _numbers_of(self.memory[at + 24 : at + size])
            tail += size
        self.store(128, tail)
        return found, self.u64(192), is_full


def _numbers_of(page: bytes) -> list[int]:
    """The numbers of the records in a sub-buffer, which has the layout of the kernel's."""
    found = []
    at, end = 16, 16 + struct.unpack_from("<I", page, 8)[0] % (1 << 20)
    while at < end:
        word, length = struct.unpack_from("<II", page, at)
        kind = word % 32
        if kind <= 28:
            found.append(struct.unpack_from("<Q", page, at + (4 if kind else 8) + _COMMON)[0])
        size = {0: length, 29: length, 30: 4, 31: 4}.get(kind, 4 * kind)
        at += 4 + size
    return found


class PerfRing(Shared):
    """A reader's end, of one data page."""

    _HEAD, _TAIL = 1024, 1032

    def read(self) -> tuple[list[int], bool]:
        """The numbers of the samples; whether it was full."""
        found = []
        tail, end = self.u64(self._TAIL), self.u64(self._HEAD)
        is_full = end - tail > _PAGE - 3700  # a flood has records of 3600 bytes
        data = self.memory[_PAGE : 2 * _PAGE] * 2
        while tail < end:
            at = tail % _PAGE
            kind, _, size = struct.unpack_from("<IHH", data, at)
            if kind == 9:  # ids, ip, pid and tid, time, cpu, period, size of the entry
                found.append(struct.unpack_from("<Q", data, at + 8 + 6 * 8 + 4 + _COMMON)[0])
            tail += size
        self.store(self._TAIL, tail)
        return found, is_full
