"""The kernel's side of /dev/fuse, the daemon's of its sockets, and processes with memory, as plain
objects."""

from __future__ import annotations

import errno
import os
import sched
import struct
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from utracefs.mount import abi
from utracefs.mount.abi import Header, Opcode
from utracefs.mount.channel import ANSWER_S, Channel, Resume
from utracefs.mount.data_connections import DataConnections
from utracefs.mount.enablers import Enablers
from utracefs.mount.file_system import FileSystem
from utracefs.mount.nodes import Nodes
from utracefs.mount.operation import Wait
from utracefs.mount.processes.address_space import Enabler
from utracefs.mount.user_events_data import UserEventsData
from utracefs_protocol.connection import Notification
from utracefs_protocol.messages.data import OpenFor
from utracefs_protocol.messages.rows import Params

NIL = object()
_IN_HEADER = struct.Struct("=IIQQIIIHH")


@attrs.define
class Asked:
    """A request to the daemon that has no answer yet."""

    params: Params
    resume: Resume
    answer_s: float | None

    def answer(self, result: Any = None, error: int = 0) -> None:
        self.resume(None if error else result, OSError(error, os.strerror(error)) if error else None)


class FakeChannel:
    """`answers` is called first; a request without an answer (None) waits in `asked`; NIL answers with
    nil."""

    def __init__(
        self,
        answers: Callable[[Params], Any],
        on_notification: Callable[[Notification], None] = lambda _: None,
        on_end: Callable[[Any], None] = lambda _: None,
    ) -> None:
        self.answers = answers
        self.on_notification = on_notification
        self.on_end = on_end
        self.notified: list[Params] = []
        self.asked: dict[int, Asked] = {}
        self.log: list[Params] = []
        self.closed = False
        self._msgid = 0

    def send(self, params: Params, resume: Resume, *, answer_s: float | None = ANSWER_S) -> int:
        self._msgid += 1
        asked = Asked(params, resume, answer_s)
        if self.closed:
            asked.answer(error=errno.ENOTCONN)
            return 0
        self.log.append(params)
        try:
            result = self.answers(params)
        except OSError as error:
            asked.answer(error=error.errno or errno.EIO)
            return self._msgid
        if result is None:
            self.asked[self._msgid] = asked
        else:
            asked.answer(None if result is NIL else result)
        return self._msgid

    def notify(self, params: Params) -> None:
        self.notified.append(params)

    def finish(self, done: Callable[[], object]) -> None:
        self.closed = True
        done()

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
        while self.asked:
            self.answer(error=errno.ENOTCONN)

    def end(self) -> None:
        """The daemon goes."""
        self.close()
        self.on_end(self)

    def asked_for(self, kind: type) -> list[Any]:
        return [params for params in self.log if isinstance(params, kind)]


class FakeMemory:
    """Runs jobs at once, in place of the memory thread."""

    def run_urgent(self) -> None:
        """A fake's jobs run at once."""

    def submit(self, job: Callable[[], Any], resume: Resume, *, is_urgent: bool = False) -> None:
        try:
            result = job()
        except OSError as error:
            resume(None, error)
        else:
            resume(result, None)

    def __call__(self, job: Callable[..., Any], *args: Any) -> Wait:
        return Wait(lambda resume: self.submit(lambda: job(*args), resume))

    def post(self, call: Callable[[], object]) -> None:
        call()


PAGE = 4096


@attrs.define(eq=False)
class FakeSpace:
    """An address space of pages that are there, some of them read-only."""

    pid: int
    uid: int = 0
    gid: int = 0
    start_time: int = 5000
    pages: dict[int, bytearray] = attrs.field(factory=dict)
    read_only: set[int] = attrs.field(factory=set)
    enablers: dict[tuple[int, int], Enabler] = attrs.field(factory=dict)

    def map(self, address: int, data: bytes = b"") -> int:
        """One page; returns its address."""
        self.pages[address] = bytearray(data.ljust(PAGE, b"\0"))
        return address

    def read(self, address: int, size: int) -> bytes:
        data = bytearray()
        for at in range(address, address + size):
            page = self.pages.get(at & -PAGE)
            if page is None:
                raise OSError(errno.EFAULT, "not there")
            data.append(page[at % PAGE])
        return bytes(data)

    def read_string(self, address: int, limit: int) -> bytes:
        data = b""
        while (byte := self.read(address + len(data), 1)) != b"\0":
            data += byte
            if len(data) > limit:
                raise OSError(errno.EINVAL, "too long")
        return data

    def write(self, address: int, data: bytes) -> None:
        self.read(address, len(data))
        if address & -PAGE in self.read_only:
            raise OSError(errno.EFAULT, "read-only")
        self.pages[address & -PAGE][address % PAGE : address % PAGE + len(data)] = data

    def set_bit(self, address: int, size: int, bit: int, on: bool) -> bool:
        try:
            word = int.from_bytes(self.read(address, size), "little")
            word = word | 1 << bit if on else word & ~(1 << bit)
            self.write(address, word.to_bytes(size, "little"))
        except OSError:
            return False
        return True

    def word(self, address: int, size: int = 4) -> int:
        return int.from_bytes(self.read(address, size), "little")

    def add(self, address: int, bit: int, enabler: Enabler) -> None:
        self.enablers[address, bit] = enabler

    def remove(self, address: int, bit: int) -> Enabler:
        try:
            return self.enablers.pop((address, bit))
        except KeyError:
            raise OSError(errno.ENOENT, "none there") from None


class FakeSpaces:
    """By thread; `refresh` tells of what the test put into `born` and `gone`."""

    def __init__(self) -> None:
        self.spaces: dict[int, FakeSpace] = {}
        self.born: list[tuple[FakeSpace, FakeSpace]] = []
        self.gone: list[FakeSpace] = []
        self.on_born: Callable[[FakeSpace, FakeSpace], None] = lambda child, parent: None
        self.on_gone: Callable[[FakeSpace], None] = lambda space: None
        self.refreshes = 0
        self.closed = False

    def of_caller(self, tid: int) -> FakeSpace:
        try:
            return self.spaces[tid]
        except KeyError:
            raise OSError(errno.EPERM, f"thread {tid} is not ours to look into") from None

    def refresh(self) -> None:
        self.refreshes += 1
        while self.born:
            self.on_born(*self.born.pop())
        while self.gone:
            self.on_gone(self.gone.pop())

    def close(self) -> None:
        self.closed = True

    def __iter__(self) -> Iterator[FakeSpace]:
        return iter(self.spaces.values())

    def fork(self, parent: FakeSpace, pid: int) -> FakeSpace:
        """Found by the next `refresh`."""
        child = self.spaces[pid] = FakeSpace(
            pid,
            parent.uid,
            parent.gid,
            pages={at: bytearray(page) for at, page in parent.pages.items()},
            enablers={key: attrs.evolve(one, token=0) for key, one in parent.enablers.items()},
        )
        self.born.append((child, parent))
        return child


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
        self.killed: set[int] = set()
        """Threads."""
        self.start_times: dict[int, int] = {77: 5000}
        self.nodes = Nodes(uid=10, gid=20, time_s=30)
        self.timers = sched.scheduler(lambda: self.now)
        self.spaces = FakeSpaces()
        self.watched: dict[int, Callable[[], None]] = {}
        """By pid, what to call at its end."""
        self.data_channels: list[FakeChannel] = []
        self.silent: set[Channel] = set()
        self.refused_connections = 0
        """So many connections to the data socket find its queue full."""
        self.connections = DataConnections(
            self._connect_data,
            process_of=self._process_of,
            timers=self.timers,
            silent=self.silent,
        )
        enablers = Enablers(
            self.connections,
            FakeMemory(),  # type: ignore[arg-type]
            self.spaces,  # type: ignore[arg-type]
            watch_process=self.watch_process,
        )
        self.data = UserEventsData(enablers)
        self._unique = 0
        self.files = FileSystem(
            self.main,  # type: ignore[arg-type]
            nodes=self.nodes,
            connect=self._connect,
            reply=self._reply,
            start_time_of=self.start_times.get,
            is_killed=lambda tid: tid in self.killed,
            data=self.data,
            clock=lambda: self.now,
        )

    def _connect(self) -> Any:
        self.channels.append(FakeChannel(self.answers))
        return self.channels[-1]

    def _connect_data(
        self, on_notification: Callable[[Notification], None], on_end: Callable[[Any], None]
    ) -> Any:
        if self.refused_connections:
            self.refused_connections -= 1
            raise BlockingIOError
        self.data_channels.append(FakeChannel(self.answers, on_notification, on_end))
        return self.data_channels[-1]

    def watch_process(self, pid: int, on_end: Callable[[], None]) -> Callable[[], object]:
        self.watched[pid] = on_end
        return lambda: self.watched.pop(pid, None)

    def _process_of(self, header: Header) -> OpenFor:
        return OpenFor(header.pid, self.start_times.get(header.pid, 5000), header.uid, header.gid)

    def pass_time(self, seconds: float) -> None:
        """In small steps, with the timers that are due."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.005
            self.timers.run(blocking=False)

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

    def send(
        self,
        opcode: int,
        node_id: int,
        body: bytes,
        *,
        pid: int = 77,
        uid: int = 0,
        killed: bool = False,
    ) -> int:
        self._unique += 2
        if killed:
            self.gone.add(self._unique)
        size = _IN_HEADER.size + len(body)
        header = _IN_HEADER.pack(size, opcode, self._unique, node_id, uid, 0, pid, 0, 0)
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

    def open(self, path: bytes, flags: int = os.O_RDONLY, **options: Any) -> int:
        """A file handle."""
        reply = self.call(Opcode.OPEN, self.lookup(path), abi.OPEN_IN.pack(flags, 0), **options)
        fh: int = abi.OPEN_OUT.unpack(reply)[0]
        return fh


def read_in(fh: int, offset: int, size: int, flags: int = 0) -> bytes:
    return abi.READ_IN.pack(fh, offset, size, abi.READ_LOCKOWNER, 0, flags, 0)


def write_in(fh: int, data: bytes, offset: int = 0, flags: int = 0) -> bytes:
    return abi.WRITE_IN.pack(fh, offset, len(data), 0, 0, flags, 0) + data


def ioctl_in(fh: int, command: int, argument: int = 0, flags: int = 0) -> bytes:
    return abi.IOCTL_IN.pack(fh, flags, command, argument, 8, 8)


def poll_in(fh: int, kh: int, flags: int) -> bytes:
    return abi.POLL_IN.pack(fh, kh, flags, 1)


def release_in(fh: int, flags: int = 0) -> bytes:
    return abi.RELEASE_IN.pack(fh, flags, 0, 0)
