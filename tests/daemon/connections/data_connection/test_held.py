"""Everything that clients hold is counted, and nothing is left of it when all have left, whatever they did
and whatever failed in the daemon meanwhile.

Garbage collection is off: an idle daemon makes none.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import select
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.daemon.connections.program import JOURNAL, NO_STORE, FakeRingServices, FakeServices
from tests.daemon.intake.producing import new_ring
from tests.daemon.status_files import nameless_status
from utracefs_protocol.messages.data import OpenFor
from utracefsd.connections import data_connection
from utracefsd.connections.accepted_connection import DATA, AcceptedConnection
from utracefsd.connections.data_connection import HALF_MESSAGE_NS, DataConnection
from utracefsd.connections.link import Link
from utracefsd.connections.port import LAST_WORDS_NS, Port
from utracefsd.events.enablers import EnablerTable
from utracefsd.events.event_table import EventTable
from utracefsd.events.notifier import Change, Notifier
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake.rings import Rings
from utracefsd.machine import closing
from utracefsd.machine.faults import Faults
from utracefsd.machine.peer import Peer
from utracefsd.machine.procfs import read_task
from utracefsd.machine.shares import Resource, Shares

CLIENTS = 4
SECONDS_NS = 10**9


pytestmark = pytest.mark.usefixtures("no_collection")


class Counting(Faults):
    """Logs nothing: log records are kept, with all that their frames hold."""

    def note(self, error: BaseException, text: str) -> None:
        self.count += 1


class Broken:
    """A function that fails at its nth call."""

    def __init__(self, owner: Any, name: str, nth: int, error: Exception) -> None:
        self.owner, self.name, self.error = owner, name, error
        self.left = nth
        self.real: Callable[..., Any] = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: self.call(*args, **kwargs))

    def call(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise self.error
        return self.real(*args, **kwargs)

    def mend(self) -> None:
        setattr(self.owner, self.name, self.real)
        self.error.__traceback__ = None  # it would hold what the frames held


BREAKABLE: list[tuple[Any, str]] = [
    (os, "dup"),
    (EventTable, "register"),
    (EnablerTable, "add"),
    (EnablerTable, "remove"),
    (EnablerTable, "hold"),
    (EnablerTable, "forget_leaving"),
    (EnablerTable, "add_notified"),
    (EnablerTable, "remove_notified"),
    (EnablerTable, "close_notifier"),
    (EnablerTable, "check_token"),
    (Notifier, "next_message"),
    (Notifier, "written"),
    (Notifier, "note"),
    (AcceptedConnection, "belongs_to"),
    (AcceptedConnection, "hold"),
    (Peer, "of_process"),
    (EnablerTable, "check"),
    (Rings, "take_in"),
    (Rings, "grown"),
    (Rings, "_watch"),
    (Shares, "check"),
    (data_connection, "encode_response"),
    (data_connection, "encode_error"),
    (DataConnection, "_request"),
    (DataConnection, "_message_done"),
    (DataConnection, "_tell_refused"),
    (DataConnection, "next_timer_ns"),
    (DataConnection, "speak"),
    (Link, "flush"),
    (Link, "receive"),
]
"""For EnablerTable.drop only its call of `forget_leaving`: the rest counts a process down and
frees nothing, and `reap` repeats `forget_leaving`."""


def memory(size: int, seals: int) -> int:
    fd = os.memfd_create("held", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


class Place:
    """A port with real connections, their programs, and a clock that is set."""

    def __init__(self, path: Path) -> None:
        self.now_ns = SECONDS_NS
        self.shares, self.faults = Shares(), Counting()
        self.status = nameless_status()
        self.table = EventTable(self.status, shares=self.shares)
        services = FakeRingServices(shares=self.shares, end_failed=self.end_failed)
        self.rings = Rings(2, services, NO_STORE, JOURNAL)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.fspath(path))
        self.listener.listen(64)
        self.path = os.fspath(path)
        self.port = Port(
            DATA,
            self.open,
            now_ns=lambda: self.now_ns,
            shares=self.shares,
            before_sending=lambda: None,
            faults=self.faults,
        )
        self.port.acceptor.listen(self.listener)
        self.clients: dict[int, socket.socket] = {}
        self.got: list[int] = []
        self.changes: list[Change] = []
        task = read_task(os.getpid())
        assert task is not None
        self.start_time = task.start_time
        self.page = memory(mmap.PAGESIZE, fcntl.F_SEAL_SHRINK)

    def end_failed(self) -> None:
        self.port.end_failed()

    def open(self, peer: Peer) -> DataConnection:
        services = FakeServices(
            self.table,
            take_in_all=self.port.take_in_all,
            rings=self.rings,
            speak_up=self.port.speak_up,
            open_for=self.open_for_process,
        )
        return DataConnection(services, peer)

    def open_for_process(self, connection: DataConnection, process: OpenFor) -> Peer:
        peer = Peer.of_process(process.pid, process.start_time, process.uid, process.gid, owner_uid=0)
        self.port.belongs_to(connection, peer)
        return peer

    def client(self, n: int) -> socket.socket:
        if n not in self.clients:
            sock = self.clients[n] = socket.socket(socket.AF_UNIX)
            sock.settimeout(60)
            sock.connect(self.path)
        return self.clients[n]

    def send(self, n: int, data: bytes, *fds: int) -> None:
        try:
            socket.send_fds(self.client(n), [data], fds)
        except OSError:  # the daemon has ended it
            self.clients.pop(n).close()

    def call(self, n: int, method: str, *params: Any, fds: tuple[int, ...] = ()) -> None:
        self.send(n, msgpack.packb([0, 1, method, list(params)]), *fds)

    # Actions of programs

    def register(self, n: int) -> None:
        self.call(n, "DIAG_IOCSREG", {"name_args": f"held{n} u64 a"})

    def enabler(self, n: int) -> None:
        place = {"enable_fd": 0, "enable_addr": 8 * n, "enable_bit": 3, "enable_size": 4}
        self.call(n, "DIAG_IOCSREG", {"name_args": f"on{n} u64 a", **place}, fds=(self.page,))

    def unregister(self, n: int) -> None:
        place = {"disable_fd": 0, "disable_addr": 8 * n, "disable_bit": 3}
        self.call(n, "DIAG_IOCSUNREG", place, fds=(self.page,))

    def notify(self, n: int) -> None:
        self.call(n, "notify_enablers", {})

    def token(self, n: int) -> None:
        for name in ("told", f"told{n}"):
            self.call(n, "DIAG_IOCSREG", {"name_args": f"{name} u64 a", "enable_token": len(name)})

    def remove_token(self, n: int) -> None:
        self.call(n, "DIAG_IOCSUNREG", {"disable_token": 4})

    def switch(self, n: int) -> None:
        """An operation that changes it for all notified connections; the wait is given up later."""
        for event in self.table.events():
            if event.name.startswith(b"told"):
                self.table.enablers.notifiers.begin()
                self.table.enablers.write_state(event, n % 2 == 0)
                change = self.table.enablers.notifiers.take(self.now_ns)
                if change is not None:
                    self.changes.append(change)

    def written(self, n: int) -> None:
        self.send(n, msgpack.packb([2, "enablers_written", [1 + n // 2]]))

    def on_behalf(self, n: int) -> None:
        uid = 20_000 + n % 2
        process = {"pid": os.getpid(), "start_time": self.start_time, "uid": uid, "gid": 0}
        self.call(n, "open_for", process)

    def adopt(self, n: int) -> None:
        made = new_ring(IndexTable())
        self.call(n, "adopt_ring", {}, fds=(made.fd, made.doorbell))

    def adopt_nonsense(self, n: int) -> None:
        self.call(n, "adopt_ring", {}, fds=(0, 0))

    def half(self, n: int) -> None:
        self.send(n, b"\x94\x00", self.page, self.client(n).fileno())

    def record(self, n: int) -> None:
        self.send(n, b"\xc4\x04\x07\0\0\0")

    def status_page(self, n: int) -> None:
        self.call(n, "mmap_status")

    def nonsense(self, n: int) -> None:
        self.send(n, b"\xc1", self.page)

    def leave(self, n: int) -> None:
        if n in self.clients:
            self.clients.pop(n).close()

    def time(self, n: int) -> None:
        self.now_ns += n * SECONDS_NS
        self.turn()
        self.port.on_time(self.now_ns)

    def read(self, n: int) -> None:
        if n in self.clients and select.select([self.clients[n]], [], [], 0)[0]:
            try:
                _, fds, _, _ = socket.recv_fds(self.clients[n], 1 << 16, 8)
            except OSError:
                fds = []
            self.close_all(fds)

    def close_all(self, fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)

    def turn(self) -> None:
        for accepted in self.port.ready():
            self.port.pump(accepted)
        self.port.answer_waiting()
        self.rings.round()
        if len(self.changes) > 2:
            self.changes.pop(0).give_up(self.now_ns)

    # The end

    def all_leave(self) -> None:
        for n in list(self.clients):
            self.leave(n)
        for change in self.changes:
            change.forget()
        for _ in range(3):
            while self.port.ready():
                self.turn()
            self.now_ns += HALF_MESSAGE_NS + LAST_WORDS_NS
            self.port.on_time(self.now_ns)
            deadline = time.monotonic() + 60
            while closing.waiting():
                assert time.monotonic() < deadline
        self.table.reap()

    def close(self) -> None:
        self.port.close()
        self.rings.close()
        self.listener.close()
        self.table.enablers.close()
        self.status.close()
        os.close(self.page)


STEPS = [
    *("register", "enabler", "unregister", "adopt", "adopt_nonsense", "half", "record"),
    *("status_page", "nonsense", "leave", "time", "read"),
    *("notify", "token", "token", "remove_token", "switch", "written", "on_behalf"),
]


@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, CLIENTS - 1)), max_size=20),
    broken=st.none() | st.tuples(st.sampled_from(BREAKABLE), st.integers(1, 4), st.booleans()),
)
@example(steps=[("enabler", 0), ("nonsense", 0)], broken=((EnablerTable, "forget_leaving"), 1, True))
@example(
    steps=[("enabler", 0), ("on_behalf", 1), ("leave", 0)],
    broken=((EnablerTable, "forget_leaving"), 1, True),
)
@example(
    steps=[("adopt", 0), ("half", 0), ("enabler", 0)], broken=((EnablerTable, "forget_leaving"), 1, False)
)
@example(steps=[("notify", 0), ("token", 0)], broken=((EnablerTable, "add_notified"), 1, False))
@example(steps=[("status_page", 0)], broken=((data_connection, "encode_response"), 1, False))
@example(steps=[("register", 0)], broken=((Shares, "check"), 3, False))
@settings(deadline=None, max_examples=50)
def test_nothing_is_left_when_all_have_left(
    steps: list[tuple[str, int]], broken: tuple[tuple[Any, str], int, bool] | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        before = set(os.listdir("/proc/self/fd"))
        place = Place(Path(folder) / "data")
        made = set(os.listdir("/proc/self/fd"))
        fault = None
        if broken is not None:
            (owner, name), nth, ours = broken
            error = (
                RuntimeError("a mistake") if ours and owner is not os else OSError(errno.ENOMEM, "no memory")
            )
            fault = Broken(owner, name, nth, error)
        try:
            for name, n in steps:
                try:
                    getattr(place, name)(n)
                    place.turn()
                except (RuntimeError, OSError) as caught:  # as a step of the edge would note it
                    assert fault is not None
                    assert caught is fault.error
        finally:
            if fault is not None:
                fault.mend()
        place.all_leave()
        assert len(place.table.enablers) == 0
        held = {resource: place.shares.total(resource) for resource in Resource}
        assert not any(held.values()), held
        assert len(place.port) == len(place.rings) == 0
        gc.collect()  # an ExitStack keeps an error that it passes on in a cycle with the frames of a ring
        assert set(os.listdir("/proc/self/fd")) == made
        place.close()
        assert set(os.listdir("/proc/self/fd")) == before
