"""A stream's ring as docs/protocol.md describes it, written without the daemon."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct

from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import format_text

SIZE = 256 << 10
RECORD, LOST, FORMAT, COMM, PAD = range(5)


class PlainWriter:
    """`fd` is the ring's; entries are visible after `publish`."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.fd = os.memfd_create("plain", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, 4096 + size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.mapping = mmap.mmap(self.fd, 0)
        struct.pack_into("<IIII", self.mapping, 0, 0x53525455, 1, 4096, size)
        self.head = 0

    @property
    def tail(self) -> int:
        return int(struct.unpack_from("<Q", self.mapping, 128)[0])

    def put(self, kind: int, entry: bytes, *, time_ns: int = 1, cpu: int = 0, pid: int = 7) -> None:
        size = (24 + len(entry) + 7) & ~7
        left = self.size - self.head % self.size
        if size > left:
            self.put_raw(struct.pack("<IHH", left, PAD, 0) + bytes(left - 8))
        data = struct.pack("<IHHQiI", size, kind, cpu, time_ns, pid, len(entry)) + entry
        self.put_raw(data + bytes(size - len(data)))

    def put_raw(self, data: bytes) -> None:
        at = 4096 + self.head % self.size
        self.mapping[at : at + len(data)] = data
        self.head += len(data)

    def record(self, event_id: int, payload: bytes, *, tid: int = 8, time_ns: int = 1, cpu: int = 0) -> None:
        self.put(RECORD, struct.pack("<HHi", event_id, 0, tid) + payload, time_ns=time_ns, cpu=cpu)

    def lost(self, event_id: int, count: int) -> None:
        self.put(LOST, struct.pack("<HHiQ", event_id, 0, 0, count))

    def comm(self, tid: int, name: bytes) -> None:
        self.put(COMM, struct.pack("<HHi16s", 0, 0, tid, name))

    def describe(self, event_id: int, command: bytes, system: bytes = b"user_events") -> None:
        declaration = parse(command)
        text = format_text(declaration.name, event_id, declaration.fields)
        self.put(FORMAT, struct.pack("<HHi", event_id, 0, 0) + system + b"\0" + text)

    def end(self) -> None:
        """As a daemon that is killed before it publishes."""
        struct.pack_into("<Q", self.mapping, 256, self.head)

    def publish(self, lost: int | None = None) -> None:
        if lost is not None:
            struct.pack_into("<Q", self.mapping, 192, lost)
        struct.pack_into("<Q", self.mapping, 64, self.head)

    def close(self) -> None:
        self.mapping.close()
        os.close(self.fd)
