"""A listening port with clients: real sockets, fake connections, a clock that is set."""

import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack

from utracefsd.connections.accepted_connection import DATA, AcceptedConnection, Rules
from utracefsd.connections.port import Port
from utracefsd.machine.faults import Faults
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Shares


class FakeConnection:
    """Keeps its input; `answer` makes responses from it."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.data = bytearray()
        self.fds: list[int] = []
        self.closing = False
        self.waiting = False
        self.is_blocked = False
        self.nr_descriptors = 0
        self.stream: Any = SimpleNamespace(bytes_pending=0)
        self.closed_ns: list[int] = []
        self.timer_ns: int | None = None
        self.last: list[tuple[bytes, Sequence[int]]] = []
        self.said: list[tuple[bytes, Sequence[int]]] = [(b"due", [])]
        self.answer: Callable[[bytes], Iterable[tuple[bytes, Sequence[int]] | None]] = lambda data: []

    def receive(
        self, data: bytes, fds: Sequence[int], now_ns: int
    ) -> Iterable[tuple[bytes, Sequence[int]] | None]:
        self.data += data
        self.fds += fds
        self.nr_descriptors = len(fds)
        yield from self.answer(data)
        self.nr_descriptors = 0

    def last_answers(self) -> Iterable[tuple[bytes, Sequence[int]]]:
        last, self.last = self.last, []
        return last

    def next_timer_ns(self) -> int | None:
        return self.timer_ns

    def speak(self, now_ns: int) -> Iterable[tuple[bytes, Sequence[int]]]:
        self.timer_ns = None
        said, self.said = self.said, []
        return said

    def close(self, now_ns: int) -> None:
        self.closed_ns.append(now_ns)
        while self.fds:
            os.close(self.fds.pop())


class Around:
    """A listening port, its clients, and a clock that is set."""

    def __init__(self, path: Path, rules: Rules = DATA, **options: Any) -> None:
        self.now_ns = 1_000
        self.look_ns = 0
        """Time that passes with each look at the clock."""
        self.opening: Callable[[], object] = lambda: None
        """Called when a connection is made."""
        self.made: list[FakeConnection] = []
        self.clients: list[socket.socket] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(1024)
        self.path = str(path)
        self.faults = Faults()
        unasked = Shares() if rules is DATA else Shares.without_limits()
        self.shares: Shares = options.setdefault("shares", unasked)
        self.port = Port(
            rules,
            self._open,
            now_ns=self._look,
            before_sending=lambda: None,
            faults=self.faults,
            **options,
        )
        self.port.acceptor.listen(self.listener)

    def _look(self) -> int:
        self.now_ns += self.look_ns
        return self.now_ns

    def _open(self, peer: Peer) -> FakeConnection:
        self.opening()
        self.made.append(FakeConnection(peer))
        return self.made[-1]

    def connect(self) -> socket.socket:
        """A client; not accepted yet."""
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(60)
        client.connect(self.path)
        self.clients.append(client)
        return client

    def connected(self) -> tuple[socket.socket, FakeConnection]:
        """A client that was accepted, and its connection."""
        client = self.connect()
        self.turn()
        return client, self.made[-1]

    def turn(self) -> list[AcceptedConnection]:
        """One turn of the loop, which these tests do not have."""
        ready = []
        for accepted in self.port.ready():
            ready.append(accepted)
            self.port.pump(accepted)
        return ready

    def idle(self) -> bool:
        return not self.port.has_more and not select.select([self.port.fileno()], [], [], 0)[0]

    def close(self) -> None:
        self.port.close()
        self.listener.close()
        for client in self.clients:
            client.close()


def read_all(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(1 << 16), b""))


def error_in(data: bytes) -> tuple[int, str]:
    kind, method, [number, text] = msgpack.unpackb(data)
    assert (kind, method) == (2, "error")
    return number, text


def fill(client: socket.socket) -> int:
    """Send until the socket takes no more."""
    client.setblocking(False)
    total = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            total += client.send(bytes(1 << 16))
    client.settimeout(60)
    return total
