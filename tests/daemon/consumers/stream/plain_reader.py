"""A reader of a stream's ring, from docs/protocol.md alone: the judge of the compiled sides."""

import mmap
import os
import struct
from typing import NamedTuple


class Taken(NamedTuple):
    """A record, as the ring has it."""

    time_ns: int
    cpu: int
    pid: int
    tid: int
    id: int
    payload: bytes


class Lost(NamedTuple):
    id: int
    number: int


class Format(NamedTuple):
    id: int
    text: bytes


class Comm(NamedTuple):
    tid: int
    name: bytes


class Page(NamedTuple):
    cpu: int
    data: bytes


Item = Taken | Lost | Format | Comm | Page


class PlainReader:
    """descriptors: of the ring and the doorbell, this one's to close."""

    def __init__(self, memory_fd: int, bell_fd: int) -> None:
        self.bell_fd = bell_fd
        self.mapping = mmap.mmap(memory_fd, 0)
        os.close(memory_fd)
        magic, version, self.offset, self.size = struct.unpack_from("<IIII", self.mapping)
        assert (magic, version, self.offset) == (0x53525455, 1, 4096)
        assert len(self.mapping) == self.offset + self.size

    def word(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self.mapping, at)[0])

    @property
    def head(self) -> int:
        return self.word(64)

    @property
    def tail(self) -> int:
        return self.word(128)

    @tail.setter
    def tail(self, value: int) -> None:
        struct.pack_into("<Q", self.mapping, 128, value)

    @property
    def lost(self) -> int:
        return self.word(192)

    def rings(self) -> int:
        """How often the doorbell rang; -1: it is gone."""
        try:
            data = os.read(self.bell_fd, 1 << 16)
        except BlockingIOError:
            return 0
        return len(data) or -1

    def take(self, most: int = 1 << 30) -> list[Item]:
        """Available entries, at most so many; frees their space."""
        found: list[Item] = []
        head, tail = self.head, self.tail
        while tail < head and len(found) < most:
            at = self.offset + tail % self.size
            size, kind = struct.unpack_from("<IH", self.mapping, at)
            assert size % 8 == 0 and 0 < size <= head - tail and tail % self.size + size <= self.size
            if kind == 5:
                cpu, length = struct.unpack_from("<H12xI", self.mapping, at + 6)
                found.append(Page(cpu, self.mapping[at + 24 : at + 24 + length]))
            elif kind != 4:
                cpu, time_ns, pid, length, id_, flags, tid = struct.unpack_from(
                    "<HQiIHHi", self.mapping, at + 6
                )
                data = self.mapping[at + 32 : at + 24 + length]
                assert flags == 0 and size == (24 + length + 7) & ~7
                assert not any(self.mapping[at + 24 + length : at + size])
                if kind == 0:
                    found.append(Taken(time_ns, cpu, pid, tid, id_, data))
                elif kind == 1:
                    found.append(Lost(id_, *struct.unpack("<Q", data)))
                elif kind == 2:
                    found.append(Format(id_, data))
                else:
                    assert (kind, len(data)) == (3, 16)
                    found.append(Comm(tid, data.rstrip(b"\0")))
            tail += size
        self.tail = tail
        return found

    def close(self) -> None:
        self.mapping.close()
        os.close(self.bell_fd)
