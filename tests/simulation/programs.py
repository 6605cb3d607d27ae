"""Clients of the world, written from docs/protocol.md: a program with its ring, an administrator."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

import msgpack

COMMITTED = 1 << 31
HEAD, TAIL, LOST, DATA = 64, 128, 192, 65536
RING = 64 << 10
TEXT = "; __rel_loc char[] s"


def descriptors() -> set[int]:
    """Those of this process."""
    return {fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_open(fd)}


def _is_open(fd: int) -> bool:
    """Not that of the listing itself."""
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return False
    return True


class Answers:
    """The client's end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.msgid = 0
        self.unpacker = msgpack.Unpacker(raw=True, strict_map_key=False)
        self.fds: list[int] = []
        self.ended = False
        self.notices: list[Any] = []

    def descriptors(self) -> set[int]:
        return {self.sock.fileno(), *self.fds}

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        try:
            if fds:
                socket.send_fds(self.sock, [data], fds)
            else:
                self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.ended = True

    def request(self, method: str, *params: Any) -> bytes:
        self.msgid += 1
        return msgpack.packb([0, self.msgid, method, list(params)])

    def read(self) -> tuple[Any, Any] | None:
        """(error, result) of the latest request; None: not answered."""
        return self.read_all().get(self.msgid)

    def read_all(self) -> dict[int, tuple[Any, Any]]:
        """The answers that have come, by request."""
        answers = {}
        while not self.ended:
            try:
                data, fds, _, _ = socket.recv_fds(self.sock, 1 << 20, 4)
            except BlockingIOError:
                break
            except ConnectionResetError:
                self.ended = True
                break
            self.fds += fds
            self.ended = not data
            self.unpacker.feed(data)
            for message in self.unpacker:
                if message[0] == 1:
                    answers[message[1]] = message[2], message[3]
                elif message[0] == 2:
                    self.notices.append(message[1:])
        return answers

    def close(self) -> None:
        self.sock.close()
        for fd in self.fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self.fds.clear()


class Program:
    """A process that emits. Its ring outlives its connections."""

    def __init__(self, pid: int, uid: int) -> None:
        self.pid, self.uid = pid, uid
        self.answers: Answers | None = None
        self.commands: list[str] = []
        self.indexes: list[int] = []
        """The status bytes, by write_index."""
        self.status: mmap.mmap | None = None
        self.ring_fds: list[int] = []
        self.ring: mmap.mmap | None = None
        self.maps: dict[mmap.mmap | None, set[int]] = {}

    def descriptors(self) -> set[int]:
        own = {*self.ring_fds}.union(self.maps.get(self.status, ()), self.maps.get(self.ring, ()))
        if self.answers is not None:
            own |= self.answers.descriptors()
        return own

    def status_of(self, index: int) -> int:
        assert self.status is not None
        return self.status[self.indexes[index]]

    def map_status(self) -> None:
        assert self.answers is not None
        if self.status is not None:
            self.status.close()
        fd = self.answers.fds.pop()
        self.status = self._map(fd, mmap.PROT_READ)
        os.close(fd)

    def _map(self, fd: int, prot: int) -> mmap.mmap:
        """A mapping keeps a descriptor of its own."""
        before = descriptors()
        memory = mmap.mmap(fd, os.fstat(fd).st_size, prot=prot)
        self.maps[memory] = descriptors() - before
        return memory

    def map_ring(self) -> None:
        assert self.answers is not None
        self.ring_fds, self.answers.fds = self.answers.fds, []
        self.ring = self._map(self.ring_fds[0], mmap.PROT_READ | mmap.PROT_WRITE)

    def u64(self, at: int) -> int:
        assert self.ring is not None
        return int(struct.unpack_from("<Q", self.ring, at)[0])

    def write_ring(self, index: int, payload: bytes, time_ns: int, cpu: int) -> bool:
        assert self.ring is not None
        head, size = self.u64(HEAD), (24 + len(payload) + 7) // 8 * 8
        if head + size - self.u64(TAIL) > RING:
            return False
        word = COMMITTED | len(payload)
        data = struct.pack("<IIQIHH", word, index, time_ns, self.pid, cpu, 0) + payload
        at = head % RING
        room = min(len(data), RING - at)
        self.ring[DATA + at : DATA + at + room] = data[:room]
        self.ring[DATA : DATA + len(data) - room] = data[room:]
        struct.pack_into("<Q", self.ring, HEAD, head + size)
        return True

    def disconnect(self) -> None:
        if self.answers is not None:
            self.answers.close()
            self.answers = None

    def drop_ring(self) -> None:
        if self.ring is not None:
            self.ring.close()
            self.ring = None
        for fd in self.ring_fds:
            os.close(fd)
        self.ring_fds = []

    def end(self) -> None:
        self.disconnect()
        self.drop_ring()
        if self.status is not None:
            self.status.close()
            self.status = None


def payload(command: str, n: int, k: int, *, valid: bool) -> bytes:
    data = struct.pack("<QI", n, k)
    if TEXT in command:
        data += struct.pack("<I", 3 << 16 | (0 if valid else 99)) + b"ab\0"
    return data
