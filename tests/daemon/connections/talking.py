"""A client of a TracefsConnection without sockets, and a fake daemon behind it."""

import errno
import itertools
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import attrs
import msgpack
import pytest

from utracefs_protocol.connection import encode_request
from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages.tracefs import PerfAttr, Stat
from utracefsd.connections.tracefs_connection import Reply, TracefsConnection
from utracefsd.consumers.perf.events import PerfEvent
from utracefsd.machine.faults import Faults
from utracefsd.machine.peer import Peer
from utracefsd.tree.nodes import OpenFile

PEER = Peer(pid=77, uid=0, gid=0, privileged=True)


class FakeFile(OpenFile):
    """A pipe: `content` is what a read gets, None the end, nothing EAGAIN."""

    def __init__(self, tree: "FakeTree", blocking: bool) -> None:
        self.tree = tree
        self.blocking = blocking
        self.sizes: list[int] = []
        self.written = b""
        self.pids: list[int] = []
        self.cpus: list[int | None] = []
        self.closed = False

    def read(self, size: int) -> bytes:
        self.sizes.append(size)
        if self.tree.broken:
            raise RuntimeError("a mistake")
        if not self.tree.content:
            raise TraceError(errno.EAGAIN, "nothing yet")
        piece = self.tree.content.pop(0)
        return b"" if piece is None else piece

    def write(self, data: bytes) -> int:
        self.written += data
        return len(data) - 1

    def written_by(self, pid: int, cpu: int | None) -> None:
        self.pids.append(pid)
        self.cpus.append(cpu)

    def seek(self, offset: int) -> int:
        self.tree.calls.append(("seek", offset))
        return offset

    def ready(self) -> bool:
        return bool(self.tree.content)

    def close(self) -> None:
        self.closed = True


class FakeTree:
    """Remembers its calls; b"gone" does not exist."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.content: list[bytes | None] = []
        self.broken = False
        self.files: list[FakeFile] = []

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if call[1] == b"gone":
            raise TraceError(errno.ENOENT, "gone: no such file or directory")
        if self.broken:
            raise RuntimeError("a mistake")

    def open(self, path: bytes, flags: int, *, peer: Peer) -> FakeFile:
        self._called("open", path, flags, peer)
        self.files.append(FakeFile(self, not flags & os.O_NONBLOCK))
        return self.files[-1]

    def read_pieces(self, path: bytes, peer: Peer) -> Iterator[bytes | None]:
        self._called("read_pieces", path, peer)
        yield from [b"x" * 40_000, None, b"y" * 40_000] if path == b"large" else [b"con", b"tent"]
        if path == b"endless":
            yield None
            raise TraceError(errno.EFBIG, "too much")

    def write_file(self, path: bytes, data: bytes, truncate: bool, peer: Peer) -> int:
        self._called("write_file", path, data, truncate, peer)
        return len(data)

    def list_dir(self, path: bytes) -> list[tuple[bytes, str]]:
        self._called("list_dir", path)
        return [(b"events", "d"), (b"odd\xff", "f")]

    def list_modes(self, path: bytes) -> list[tuple[bytes, str, int]]:
        self._called("list_modes", path)
        return [(b"events", "d", 0o755), (b"odd\xff", "f", 0o640)]

    def stat(self, path: bytes) -> Stat:
        self._called("stat", path)
        return Stat("f", 0o640)

    def mkdir(self, path: bytes) -> None:
        self._called("mkdir", path)

    def rmdir(self, path: bytes) -> None:
        self._called("rmdir", path)


class FakePerfEvent(PerfEvent):
    def __init__(self, attr: PerfAttr, handle: int) -> None:
        self.attr = attr
        self.handle = handle
        self.closed = False
        self.filled = False

    def descriptor(self) -> int:
        return os.open("/dev/null", os.O_RDONLY) if self.attr.data_pages else -1

    def read(self) -> bytes:
        return (5).to_bytes(8, "little")

    def ready(self) -> bool:
        if not self.attr.data_pages:
            raise TraceError(errno.EINVAL, "it only counts")
        return self.filled

    def ioctl(self, name: str, arg: Any = None) -> Any:
        if name != "ID":
            raise TraceError(errno.ENOTTY, f"no perf ioctl {name}")
        return 99

    def close(self) -> None:
        self.closed = True


class FakePerf:
    def __init__(self) -> None:
        self.events: list[FakePerfEvent] = []

    def open(self, attr: PerfAttr, *, handle: int) -> FakePerfEvent:
        self.events.append(FakePerfEvent(attr, handle))
        return self.events[-1]


class FakeServices:
    """A daemon, as a connection uses it. steps: the calls that belong to an operation."""

    def __init__(self, tree: FakeTree, perf: FakePerf, streams: Any = None) -> None:
        self.tree: Any = tree
        self.perf: Any = perf
        self.streams = streams
        self.comms: Any = self
        self.table: Any = SimpleNamespace(enablers=self)
        self.notifiers = self
        self.faults = Faults()
        self.steps: list[str] = []
        self.next_changes: list[Any] = []
        self.closed: list[Peer] = []
        self.new_handle = itertools.count(1).__next__
        self.now_ns = lambda: 0

    def take_in_all(self) -> None:
        self.steps.append("take in")

    def hold(self, peer: Peer) -> None:
        pass

    def begin(self) -> None:
        self.steps.append("begin")

    def take(self, now_ns: int) -> Any:
        self.steps.append("take")
        return self.next_changes.pop(0) if self.next_changes else None

    def take_in_acknowledgements(self) -> None:
        self.steps.append("take in acknowledgements")

    def drop(self, peer: Peer) -> None:
        self.closed.append(peer)

    def meet(self, tid: int) -> tuple[int | None, int | None]:
        return None, 3 if tid == os.getpid() else None


class Talk:
    """A client of a TracefsConnection without sockets."""

    def __init__(self, *, speaks_for_others: bool = True, streams: Any = None) -> None:
        self.tree = FakeTree()
        self.perf = FakePerf()
        self.msgid = itertools.count(1)
        self.services = FakeServices(self.tree, self.perf, streams)
        self.connection = TracefsConnection(self.services, attrs.evolve(PEER, privileged=speaks_for_others))

    def replies(self, data: bytes) -> list[Reply]:
        return [reply for reply in self.connection.receive(data, (), 0) if reply is not None]

    def send(self, data: bytes) -> list[Any]:
        replies = self.replies(data)
        for reply in replies:
            for fd in reply.fds:
                os.close(fd)
        return [msgpack.unpackb(reply.data) for reply in replies]

    def ask(self, method: str, *params: Any) -> list[Any]:
        return self.send(encode_request(next(self.msgid), method, list(params)))

    def call(self, method: str, *params: Any) -> Any:
        [[kind, _msgid, error, result]] = self.ask(method, *params)
        assert kind == 1
        if error is not None:
            assert result is None
            raise TraceError(*error)
        return result

    def spoken(self) -> list[Any]:
        """Its messages without a request."""
        return [msgpack.unpackb(reply.data) for reply in self.connection.speak(0)]

    def fails(self, number: int, method: str, *params: Any) -> str:
        with pytest.raises(TraceError) as caught:
            self.call(method, *params)
        assert caught.value.errno_name == errno.errorcode[number], caught.value
        return caught.value.text
