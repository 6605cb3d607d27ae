"""A program without a socket, for the tests of the data connection."""

import errno
import fcntl
import mmap
import os
import struct
import tempfile
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from tests.daemon.record_path import Collecting
from tests.simulation.rings import DataRing as MadeRing
from utracefs_protocol.connection import (
    Connection,
    Notification,
    Response,
    encode_request,
)
from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages.data import OpenFor
from utracefsd.connections.data_connection import DataConnection
from utracefsd.events.event_table import EventTable
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._journal import Journal
from utracefsd.intake._writers import AllWriters
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Shares
from utracefsd.server.fd_store import FdStore
from utracefsd.server.sd_notify import Notifier

SECOND_NS = 1_000_000_000
PAGE = mmap.PAGESIZE
ROOT = Peer(100, 0, 0, privileged=True)
PLAIN = Peer(200, 1000, 1000, privileged=False)


NO_STORE = FdStore(Notifier(None, None))


with tempfile.TemporaryDirectory() as _folder:
    JOURNAL = Journal(os.path.join(_folder, "journal"))
    """One for all tests: its descriptor is none that a test leaks."""


class FakeRingServices:
    """The parts of a daemon that its rings use, unless a test replaces them (see `RingServices`)."""

    def __init__(self, **parts: Any) -> None:
        self.shares, self.all_writers = Shares(), AllWriters()
        self.comms: Any = self
        self.__dict__.update(parts)

    def save(self) -> None:
        pass

    def is_running(self, pid: int, start_time: int) -> bool:
        return False

    def wait_us(self, uid: int) -> int:
        return 0

    def end_failed(self) -> None:
        pass

    def acquire_events(self, event_ids: Sequence[int]) -> IndexTable | None:
        return None

    def release_events(self, event_ids: Sequence[int]) -> None:
        pass

    def ring_gone(self, event_ids: Sequence[int], number: int) -> None:
        pass

    def wrote(self, tid: int, pid: int) -> None:
        pass


class FakeServices(FakeRingServices):
    """The same for a connection (see `Services`)."""

    def __init__(self, table: EventTable, **parts: Any) -> None:
        self.table = table
        self.rings: Any = SimpleNamespace(ended=lambda table: None)
        super().__init__(**parts)

    def take_in_all(self) -> None:
        pass

    def hand_over(self) -> None:
        pass

    def time_of_records(self) -> int | None:
        return 0

    def speak_up(self, connection: DataConnection) -> None:
        pass

    def open_for(self, connection: DataConnection, process: OpenFor) -> Peer:
        raise NotImplementedError

    def comm(self, pid: int) -> bytes:
        return b"program"

    def meet(self, tid: int) -> tuple[int | None, int | None]:
        return None, None


class Client:
    """A program: sends to a DataConnection, reads its output."""

    def __init__(self, table: EventTable, peer: Peer = ROOT, **options: Any) -> None:
        """options: parts of its FakeServices."""
        self.connection = DataConnection(FakeServices(table, **options), peer)
        self.now_ns = 0
        self.fds: list[int] = []
        self.notifications: list[Notification] = []
        self._reader = Connection(max_object=None)
        self._msgid = 0

    def send(self, data: bytes, *fds: int) -> list[Response]:
        """Bytes, and descriptors as the kernel would pass them: duplicates."""
        return self.take(self.connection.receive(data, [os.dup(fd) for fd in fds], self.now_ns))

    def take(self, outgoing: Iterable[tuple[bytes, list[int]] | None]) -> list[Response]:
        responses = []
        for sent in outgoing:
            if sent is None:
                continue
            data, fds = sent
            self.fds += fds
            for message in self._reader.receive(data):
                if isinstance(message, Response):
                    responses.append(message)
                else:
                    assert isinstance(message, Notification)
                    self.notifications.append(message)
        return responses

    def request(self, method: str, *params: Any) -> bytes:
        self._msgid += 1
        return encode_request(self._msgid, method, list(params))

    def call(self, method: str, *params: Any, fds: tuple[int, ...] = ()) -> Any:
        """The result; TraceError for an error."""
        (response,) = self.send(self.request(method, *params), *fds)
        assert response.msgid == self._msgid
        if response.error is not None:
            raise TraceError(*response.error)
        return response.result

    def hand_over_ring(self, *fds: int, **members: Any) -> None:
        """A new one, unless its descriptors are given."""
        made = fds or MadeRing.make(65536)
        self.fds += made
        self.call("adopt_ring", members, fds=(made[0], made[1]))

    def reg(self, name_args: str | bytes, *fds: int, **members: Any) -> dict[str, int]:
        result: dict[str, int] = self.call("DIAG_IOCSREG", {"name_args": name_args, **members}, fds=fds)
        return result

    def fails(self, method: str, *params: Any, fds: tuple[int, ...] = ()) -> str:
        """The errno's name of a call that must fail; the connection must continue."""
        with pytest.raises(TraceError) as caught:
            self.call(method, *params, fds=fds)
        assert caught.value.text
        assert not self.connection.closing
        return errno.errorcode[caught.value.errno]

    def reg_fails(self, reg: Any, *fds: int) -> str:
        return self.fails("DIAG_IOCSREG", reg, fds=fds)

    def dead(self) -> str:
        """The errno's name of the error that ended the connection."""
        assert self.connection.closing
        last = self.notifications[-1]
        assert last.method == "error"
        assert last.params[1]
        return errno.errorcode[last.params[0]]


def make_memory() -> int:
    fd = os.memfd_create("words", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, PAGE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def word(fd: int, offset: int = 0) -> int:
    return int.from_bytes(os.pread(fd, 4, offset), "little")


def listen(table: EventTable, name: bytes) -> list[bytes]:
    """Attach to the event; the payloads it gets, after `flush`."""
    payloads: list[bytes] = []
    event = table.get(b"user_events", name)
    assert event is not None
    probe = Collecting("test", lambda batch: payloads.extend(record[4] for record in batch))
    table.attach(event, probe)
    return payloads


def flush(table: EventTable) -> None:
    for event in table.events():
        for probe in event.tracepoint.probes:
            assert isinstance(probe, Collecting)
            probe.flush()


def record(write_index: int, payload: bytes = b"") -> bytes:
    return msgpack.packb(struct.pack("<i", write_index) + payload)


def enabler(addr: int = 0, bit: int = 0, fd: int = 0) -> dict[str, int]:
    return {"enable_fd": fd, "enable_addr": addr, "enable_bit": bit, "enable_size": 4}
