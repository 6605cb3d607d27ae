"""Clients of the world, written from docs/protocol.md: a program with its ring, an administrator."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from tests.simulation.parts import expect
from tests.simulation.rings import DataRing, PerfRing, Shared, StreamRing, next_descriptor

TEXT = "; __rel_loc char[] s"
WIDE = "".join(f"; u8 f{i}" for i in range(8))
NO_EVENT = "-"
"""In place of a command that was refused."""


_MOST_DESCRIPTORS = 1024
_every = select.poll()
for _number in range(_MOST_DESCRIPTORS):
    _every.register(_number, 0)


def descriptors() -> set[int]:
    """Those of this process. (A listing of /proc/self/fd takes four times as long.)"""
    assert next_descriptor() < _MOST_DESCRIPTORS
    closed = {fd for fd, event in _every.poll(0) if event & select.POLLNVAL}
    return set(range(_MOST_DESCRIPTORS)) - closed


class Answers:
    """The client's end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.msgid = 0
        self.unpacker = msgpack.Unpacker(raw=True, strict_map_key=False)
        self.fds: list[int] = []
        self.received = 0
        """Bytes."""
        self.ended = False
        self.notices: list[Any] = []
        self.on_message: Callable[[Any], object] = lambda message: None
        """Called with each message, in order."""
        self._answered: dict[int, tuple[Any, Any]] = {}
        """By request: answers that nobody has read."""

    def descriptors(self) -> set[int]:
        return {self.sock.fileno(), *self.fds}

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        try:
            if fds:
                socket.send_fds(self.sock, [data], fds)
            else:
                self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.read_all()
            self.ended = True

    def request(self, method: str, *params: Any) -> bytes:
        self.msgid += 1
        return msgpack.packb([0, self.msgid, method, list(params)])

    def read(self) -> tuple[Any, Any] | None:
        """(error, result) of the latest request; None: not answered."""
        return self.read_all().get(self.msgid)

    def read_all(self) -> dict[int, tuple[Any, Any]]:
        """The answers that have come, by request."""
        self.receive()
        answers, self._answered = self._answered, {}
        return answers

    def receive(self) -> None:
        while not self.ended:
            try:
                data, fds, _, _ = socket.recv_fds(self.sock, 1 << 20, 4)
            except BlockingIOError:
                break
            except ConnectionResetError:
                self.ended = True
                break
            self.fds += fds
            self.received += len(data)
            self.ended = not data
            self.unpacker.feed(data)
            for message in self.unpacker:
                self.on_message(message)
                if message[0] == 1:
                    self._answered[message[1]] = message[2], message[3]
                elif message[0] == 2:
                    self.notices.append(message[1:])

    def errno(self) -> int | None:
        """Why the daemon ended it."""
        return next((params[0] for method, params in self.notices if method == b"error"), None)

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
        self._answers: Answers | None = None
        self.by_proxy = False
        """Another process of root opens its connections."""
        self.commands: list[str] = []
        self.indexes: list[int] = []
        """The status bytes, by write_index."""
        self.status: Shared | None = None
        self.ring_fds: list[int] = []
        self.ring: DataRing | None = None
        self.is_early = False
        """It made its ring: that is handed over before its events are registered."""
        self.is_unknown = False
        """It has handed its ring over, and has yet to register its events."""
        self.is_new = False
        """No daemon has said that it has all of that, so the next one may not wait for this ring."""
        self.refused: dict[int, str] = {}
        """Commands of its early ring that have a write_index and no event."""
        self.damaged = False
        """Its ring contradicts itself."""
        self.words = EnableWords()
        self.tokens = Tokens()
        self.ring_size = 0
        self.indexed = self.room = 0
        """Registrations of its connection, and how many are counted for its user."""

    @property
    def answers(self) -> Answers:
        assert self._answers is not None
        return self._answers

    @answers.setter
    def answers(self, answers: Answers) -> None:
        self._answers = answers
        answers.on_message = self.tokens.hear

    @property
    def has_socket(self) -> bool:
        return self._answers is not None

    @property
    def connected(self) -> bool:
        """The daemon has not ended it, either."""
        return self.has_socket and not self.answers.ended

    def connected_by(self, answers: Answers) -> bool:
        return self._answers is answers

    def descriptors(self) -> set[int]:
        mapped = (self.status, self.ring, self.words.shared)
        own = {*self.ring_fds, self.words.fd} | {one.descriptor for one in mapped if one is not None}
        return own | self.answers.descriptors() if self.has_socket else own

    def status_of(self, index: int) -> int:
        assert self.status is not None
        return self.status.memory[self.indexes[index]]

    def map_status(self) -> None:
        if self.status is not None:
            self.status.close()
        fd = self.answers.fds.pop()
        self.status = Shared(fd, writable=False)
        os.close(fd)

    def all_commands(self) -> dict[int, str]:
        """By write_index, with refused ones."""
        return dict(sorted({**dict(enumerate(self.commands)), **self.refused}.items()))

    def command(self, number: int) -> str | None:
        """One that is registered."""
        found = [command for command in self.commands if command != NO_EVENT]
        return found[number % len(found)] if found else None

    @property
    def ring_name(self) -> str | None:
        """In the store."""
        return f"data-ring.{os.fstat(self.ring_fds[0]).st_ino}" if self.ring_fds else None

    def make_ring(self, size: int, *, early: bool) -> None:
        self.is_early = self.is_unknown = early
        self.is_new = True
        self.ring_fds = DataRing.make(size)
        self.ring = DataRing(self.ring_fds[0])

    def drop_ring(self) -> None:
        if self.ring is not None:
            self.ring.close()
        self.ring, self.is_new = None, False
        while self.ring_fds:
            os.close(self.ring_fds.pop())

    def disconnect(self) -> None:
        self.indexed = self.room = 0
        self.words.registered.clear()
        self.tokens.disconnect()
        if self._answers is not None:
            self._answers.close()
            self._answers = None

    def end(self) -> None:
        self.disconnect()
        for one in (self.ring, self.status):
            if one is not None:
                one.close()
        self.ring = self.status = None
        for fd in self.ring_fds:
            os.close(fd)
        self.ring_fds = []
        self.words.close()


class EnableWords:
    """A program's memory with enable words, of 8 bytes each; made with the first one."""

    BITS = (0, 5, 31, 63)
    NUMBER = 3

    def __init__(self) -> None:
        self.fd = -1
        self.shared: Shared | None = None
        self.wanted: dict[int, tuple[str, int]] = {}
        """By place: its event and bit. The program registers them with each daemon."""
        self.registered: set[int] = set()

    def make(self) -> None:
        if self.shared is None:
            self.fd = os.memfd_create("words", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, 4096)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            self.shared = Shared(self.fd)

    def asked(self, place: int, kind: str) -> dict[str, int]:
        """Members of a request, whose only descriptor is that of the memory."""
        members = {f"{kind}_fd": 0, f"{kind}_addr": 8 * place, f"{kind}_bit": self.wanted[place][1]}
        return members | ({"enable_size": 8} if kind == "enable" else {})

    def give_up(self, place: int) -> None:
        """It cannot be registered: what the daemon before left there is cleared."""
        assert self.shared is not None
        self.wanted.pop(place)
        self.shared.store(8 * place, 0)

    def bits(self) -> dict[int, int]:
        """The words that are not 0, by place."""
        found = {} if self.shared is None else {i: self.shared.u64(8 * i) for i in range(self.NUMBER)}
        return {place: word for place, word in found.items() if word}

    def close(self) -> None:
        if self.shared is not None:
            self.shared.close()
            os.close(self.fd)
            self.shared, self.fd = None, -1


class Tokens:
    """Enablers whose bits the program sets itself, when the daemon notifies it."""

    NUMBER = 3

    def __init__(self) -> None:
        self.wanted: dict[int, str] = {}
        """By token: the command of its event. The program registers them with each daemon."""
        self.is_slow = False
        """It reads notifications, and answers none."""
        self.disconnect()

    def disconnect(self) -> None:
        self.bits: dict[int, int] = {}
        """By token: the latest value of each registered one."""
        self.asked: dict[int, int] = {}
        """Tokens of requests, by msgid."""
        self.is_notified = self.unanswered = self.overdue = False
        """overdue: an operation has waited for its answer in vain."""
        self.seq = 0

    def hear(self, message: Any) -> None:
        """The latest of a registration's answer and notifications is valid, and none comes about a token that
        is not registered."""
        if message[0] == 2 and message[1] == b"enablers_changed":
            seq, changes = message[2]
            expect("seq while nothing is unanswered", (seq, False), (self.seq + 1, self.unanswered))
            expect("tokens of a notification", {token for token, _ in changes} - self.bits.keys(), set())
            self.seq, self.unanswered = seq, True
            self.bits.update(changes)
        elif message[0] == 1 and message[1] in self.asked:
            token, result = self.asked.pop(message[1]), message[3]
            if result is not None:
                self.bits[token] = result[b"enabled"]
            elif message[2] is None:
                del self.bits[token]

    def written(self, seq: int) -> bytes:
        return bytes(msgpack.packb([2, "enablers_written", [seq]]))


class Consumer:
    """An administrator's program with one consumer: a stream of records or of pages, a perf event that
    samples or counts, a file `event_counts`, or the plug-in, which is the daemon's own."""

    def __init__(self, kind: str, key: int, answers: Answers) -> None:
        self.kind, self.key, self.answers = kind, key, answers
        self.handle = self.lost = 0
        self.name = ""
        """Its event, or one whose records are in its pages."""
        self.ring: StreamRing | PerfRing | None = None
        self.seen: set[int] = set()
        """Numbers of records in its pages."""

    def map_ring(self) -> None:
        if self.answers.fds:
            ring = StreamRing if self.kind in ("stream", "pages") else PerfRing
            self.ring = ring(self.answers.fds[0])

    def descriptors(self) -> set[int]:
        own = self.answers.descriptors()
        return own if self.ring is None else own | {self.ring.descriptor}

    def is_told_the_end(self) -> bool:
        """A stream's doorbell: it has ended."""
        try:
            while os.read(self.answers.fds[1], 64):
                pass
        except BlockingIOError:
            return False
        return True

    def end(self) -> None:
        self.answers.close()
        if self.ring is not None:
            self.ring.close()


def fields_of(event: int, *, other: bool) -> str:
    """Every second event has a text, or has none if `other`; the last two are wide."""
    return "u64 n; u32 k" + WIDE * (event > 3) + TEXT * (event % 2 ^ other)


def sent_record(index: int, payload: bytes) -> bytes:
    """The message of a record that goes over a socket."""
    return bytes(msgpack.packb(index.to_bytes(4, "little") + payload))


def payload(command: str, n: int, k: int, *, valid: bool, text: bytes = b"ab") -> bytes:
    data = struct.pack("<QI", n, k) + bytes(command.count("; u8"))
    if TEXT in command:
        data += struct.pack("<I", len(text) + 1 << 16 | (0 if valid else 9999)) + text + b"\0"
    return data
