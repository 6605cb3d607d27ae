"""The kernel's side of /dev/fuse, and the daemon's of its socket, as plain objects."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from typing import Any

import attrs

from utracefs.mount import abi
from utracefs.mount.abi import Opcode
from utracefs.mount.channel import Resume
from utracefs.mount.file_system import FileSystem
from utracefs.mount.nodes import Nodes
from utracefs_protocol.messages.params import Params

_IN_HEADER = struct.Struct("=IIQQIIIHH")


@attrs.define
class Asked:
    """A request to the daemon that has no answer yet."""

    params: Params
    resume: Resume
    bounded: bool

    def answer(self, result: Any = None, error: int = 0) -> None:
        self.resume(None if error else result, OSError(error, os.strerror(error)) if error else None)


class FakeChannel:
    """`answers` is asked first; what it leaves (None) waits in `asked`."""

    def __init__(self, answers: Callable[[Params], Any]) -> None:
        self.answers = answers
        self.asked: dict[int, Asked] = {}
        self.log: list[Params] = []
        self.closed = False
        self._msgid = 0

    def send(self, params: Params, resume: Resume, *, bounded: bool = True) -> int:
        self._msgid += 1
        self.log.append(params)
        asked = Asked(params, resume, bounded)
        try:
            result = self.answers(params)
        except OSError as error:
            asked.answer(error=error.errno or errno.EIO)
            return self._msgid
        if result is None:
            self.asked[self._msgid] = asked
        else:
            asked.answer(result)
        return self._msgid

    def cancel(self, msgid: int) -> None:
        asked = self.asked.pop(msgid, None)
        if asked is not None:
            asked.answer(error=errno.EINTR)

    def answer(self, result: Any = None, error: int = 0) -> Params:
        """To the oldest that waits; returns what it was."""
        msgid = next(iter(self.asked))
        asked = self.asked.pop(msgid)
        asked.answer(result, error)
        return asked.params

    def close(self) -> None:
        self.closed = True


class Kernel:
    """Sends requests to a FileSystem over FakeChannels and keeps its replies."""

    def __init__(self, answers: Callable[[Params], Any]) -> None:
        self.main = FakeChannel(answers)
        self.channels: list[FakeChannel] = []
        self.answers = answers
        self.replies: dict[int, tuple[int, bytes]] = {}
        self.notices: list[tuple[int, bytes]] = []
        self.gone: set[int] = set()
        """Requests that nobody waits for any more."""
        self.now = 100.0
        self.start_times: dict[int, int] = {77: 5000}
        self.nodes = Nodes(uid=10, gid=20, time_s=30)
        self._unique = 0
        self.files = FileSystem(
            self.main,  # type: ignore[arg-type]
            nodes=self.nodes,
            connect=self._connect,
            reply=self._reply,
            start_time_of=self.start_times.get,
            clock=lambda: self.now,
        )

    def _connect(self) -> Any:
        self.channels.append(FakeChannel(self.answers))
        return self.channels[-1]

    def _reply(self, message: bytes) -> bool:
        length, error, unique = abi.OUT_HEADER.unpack_from(message)
        assert length == len(message)
        body = message[abi.OUT_HEADER.size :]
        if not unique:
            self.notices.append((error, body))
        else:
            assert unique not in self.replies
            self.replies[unique] = (-error, body)
        return unique not in self.gone

    def send(self, opcode: int, node_id: int, body: bytes, *, pid: int = 77, killed: bool = False) -> int:
        self._unique += 2
        if killed:
            self.gone.add(self._unique)
        size = _IN_HEADER.size + len(body)
        header = _IN_HEADER.pack(size, opcode, self._unique, node_id, 0, 0, pid, 0, 0)
        self.files.handle(header + body)
        return self._unique

    def call(self, opcode: int, node_id: int, body: bytes = b"", **options: Any) -> bytes:
        """The reply; OSError with its errno."""
        error, reply = self.replies.pop(self.send(opcode, node_id, body, **options))
        if error:
            raise OSError(error, os.strerror(error))
        return reply

    def lookup(self, path: bytes) -> int:
        """The node of a path."""
        node = abi.ROOT_ID
        for name in path.split(b"/"):
            node = abi.ENTRY_OUT.unpack(self.call(Opcode.LOOKUP, node, name + b"\0"))[0]
        return node

    def open(self, path: bytes, flags: int = os.O_RDONLY) -> int:
        """A file handle."""
        reply = self.call(Opcode.OPEN, self.lookup(path), abi.OPEN_IN.pack(flags, 0))
        fh: int = abi.OPEN_OUT.unpack(reply)[0]
        return fh


def read_in(fh: int, offset: int, size: int, flags: int = 0) -> bytes:
    return abi.READ_IN.pack(fh, offset, size, 0, 0, flags, 0)


def write_in(fh: int, data: bytes) -> bytes:
    return abi.WRITE_IN.pack(fh, 0, len(data), 0, 0, 0, 0) + data


def poll_in(fh: int, kh: int, flags: int) -> bytes:
    return abi.POLL_IN.pack(fh, kh, flags, 1)


def release_in(fh: int, flags: int = 0) -> bytes:
    return abi.RELEASE_IN.pack(fh, flags, 0, 0)
