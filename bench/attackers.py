"""Hostile connections for `bench.attack`: a function for each kind of attack, run in processes of its own.

A job makes its share of the connections and keeps them busy without ever waiting for one of them: bytes that
the daemon does not take now are sent later, a closed connection is made again. All of them send prepared
bytes, so that an attacker costs the machine as little as possible and the daemon as much as possible.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import msgpack

from tests.soak.attacks.descriptors import Descriptors
from tests.soak.crew import Notes
from tests.soak.plain import COMMITTED, HEADER_BYTES, PlainConnection

LOOK_S = 0.05
"""How often a job checks whether to end, when the daemon gives it nothing to do."""

PAUSE_S = 0.01
"""Pause after a refused connection: most kinds do not attack by connecting."""

_READ = 1 << 16
_LARGEST_PAYLOAD = 65529
_PROCESS_EVENTS = 400


@attrs.frozen
class Where:
    """The arguments of a job."""

    directory: str
    """The daemon's sockets."""

    number: int
    """This attacker's number; each has names of its own."""

    connections: int
    """Its connections at a time."""

    fuse: str | None
    """A folder with files whose last close hangs; None: mounting is not permitted."""


Job = Callable[[Where, Notes], Counter[str]]
Said = tuple[bytes, Sequence[int]]


def request(method: str, *params: Any, msgid: int = 1) -> bytes:
    data: bytes = msgpack.packb([0, msgid, method, list(params)])
    return data


def registration(name_args: str, **more: Any) -> bytes:
    return request("DIAG_IOCSREG", {"name_args": name_args, **more})


class _Talk:
    """One connection that sends `first` and then `again` for ever; a packet with descriptors is sent in one
    piece."""

    def __init__(self, path: str, first: bytes, again: bytes, fds: Sequence[int], rounds: int | None) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.fds = fds
        self.again = again
        self.rounds = rounds
        self.rest = memoryview(first + again)
        self.sent_fds = not fds
        try:
            self.sock.setblocking(False)
            self.sock.connect(path)
        except OSError:
            self.sock.close()
            raise

    def say(self) -> bool:
        """Send what the socket takes. False: the connection has ended."""
        while True:
            if not self.rest:
                if self.rounds is not None:
                    self.rounds -= 1
                    if self.rounds <= 0:
                        return False
                if not self.again:
                    return True
                self.rest, self.sent_fds = memoryview(self.again), not self.fds
            try:
                if self.sent_fds:
                    sent = self.sock.send(self.rest)
                else:
                    sent = socket.send_fds(self.sock, [self.rest], self.fds)
                    self.sent_fds = True
            except BlockingIOError:
                return True
            except OSError:
                return False
            self.rest = self.rest[sent:]


def talking(
    where: Where,
    notes: Notes,
    make: Callable[[int], tuple[bytes, bytes]],
    *,
    socket_name: str = "user_events_data",
    fds: Sequence[int] = (),
    reads: bool = True,
    rounds: int | None = None,
) -> Counter[str]:
    """Connections that send the result of `make(number)`: once, and again and again.

    reads: they read their responses. rounds: after this many a connection is closed and made again.
    """
    counts: Counter[str] = Counter()
    path = os.path.join(where.directory, socket_name)
    poll = select.epoll()
    talks: dict[int, tuple[int, _Talk]] = {}
    missing = list(range(where.connections))
    while not notes.stopped:
        refused = False
        while missing and not refused:
            number = missing.pop()
            try:
                talk = _Talk(path, *make(number), fds, rounds)
            except OSError:  # the queue of the listening socket is full, or there is no descriptor left
                missing.append(number)
                refused = True
                continue
            counts["connections"] += 1
            talks[talk.sock.fileno()] = number, talk
            poll.register(talk.sock, (select.EPOLLIN if reads else 0) | select.EPOLLOUT | select.EPOLLRDHUP)
            if len(missing) % 16 == 0:
                break
        for fd, events in poll.poll(PAUSE_S if refused else 0 if missing else LOOK_S, 16):
            number, talk = talks[fd]
            goes_on = True
            if events & select.EPOLLIN and reads:
                with contextlib.suppress(BlockingIOError):
                    try:
                        goes_on = bool(talk.sock.recv(_READ))
                    except ConnectionError:
                        goes_on = False
            if goes_on and events & select.EPOLLOUT:
                goes_on = talk.say()
                if goes_on and not talk.rest and not talk.again:
                    poll.modify(fd, (select.EPOLLIN if reads else 0) | select.EPOLLRDHUP)
            if not goes_on or events & (select.EPOLLHUP | select.EPOLLERR):
                poll.unregister(fd)
                talk.sock.close()
                del talks[fd]
                missing.append(number)
    for _, talk in talks.values():
        talk.sock.close()
    poll.close()
    return counts


def _bin(payload: bytes) -> bytes:
    data: bytes = msgpack.packb(payload)
    return data


def small_records(where: Where, notes: Notes) -> Counter[str]:
    name = registration(f"attack_small_{where.number}")
    return talking(where, notes, lambda n: (name, _bin(bytes(4)) * 8000))


def refused_records(where: Where, notes: Notes) -> Counter[str]:
    return talking(where, notes, lambda n: (b"", b"\xc4\x00" * 30_000))


def huge_records(where: Where, notes: Notes) -> Counter[str]:
    name = registration(f"attack_huge_{where.number}")
    return talking(where, notes, lambda n: (name, _bin(bytes(4 + _LARGEST_PAYLOAD))))


def requests_before_records(where: Where, notes: Notes) -> Counter[str]:
    name = registration(f"attack_mixed_{where.number}")
    again = (request("sync") + _bin(bytes(4)) * 50) * 100
    return talking(where, notes, lambda n: (name, again))


def registrations(where: Where, notes: Notes) -> Counter[str]:
    def make(number: int) -> tuple[bytes, bytes]:
        numbers = range(_PROCESS_EVENTS)
        return b"", b"".join(
            registration(
                f"attack_{where.number}_{(i + number) % _PROCESS_EVENTS} u32 a; u64 b; __rel_loc char[] c"
            )
            for i in numbers
        )

    return talking(where, notes, make)


def events_that_come_and_go(where: Where, notes: Notes) -> Counter[str]:
    def make(number: int) -> tuple[bytes, bytes]:
        lines = (f"attack_{where.number}_{number}_{i} u32 a; char[16] b" for i in range(8))
        return b"", b"".join(map(registration, lines))

    return talking(where, notes, make, rounds=1)


def formats(where: Where, notes: Notes) -> Counter[str]:
    fields = "; ".join(f"u8 f{i}" for i in range(50))
    again = b"".join(
        registration(f"attack_{where.number} {fields}; u{8 << i % 4} g{i}", flags=2) for i in range(200)
    )
    return talking(where, notes, lambda n: (b"", again))


def syncs(where: Where, notes: Notes) -> Counter[str]:
    return talking(where, notes, lambda n: (b"", request("sync") * 2000))


def status_maps(where: Where, notes: Notes) -> Counter[str]:
    return talking(where, notes, lambda n: (b"", request("mmap_status") * 10))


def reading_nothing(where: Where, notes: Notes) -> Counter[str]:
    again = request("sync") * 2000
    return talking(where, notes, lambda n: (b"", again), reads=False)


def connecting(where: Where, notes: Notes) -> Counter[str]:
    return talking(where, notes, lambda n: (request("sync"), b""), rounds=1)


def halves(where: Where, notes: Notes) -> Counter[str]:
    """A message that stays incomplete, with the maximum of descriptors."""
    fds = [os.memfd_create("attack") for _ in range(2)]
    return talking(where, notes, lambda n: (registration("attack_half u32 a")[:-3], b""), fds=fds)


def drops(where: Where, notes: Notes) -> Counter[str]:
    """Objects of 64 KiB that come in pieces of some bytes."""
    head = b"\xc5\xff\xf0" + bytes(4)
    data = head + bytes(0xFFF0 - 4)
    counts: Counter[str] = Counter()
    socks: list[socket.socket] = []
    for _ in range(where.connections):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(1)
        with contextlib.suppress(OSError):
            sock.connect(os.path.join(where.directory, "user_events_data"))
            sock.setblocking(False)
            socks.append(sock)
    counts["connections"] = len(socks)
    place = 0
    while not notes.stopped:
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.send(data[place : place + 40])
        place = (place + 40) % len(data)
    for sock in socks:
        sock.close()
    return counts


def descriptors(where: Where, notes: Notes) -> Counter[str]:
    """The maximum of descriptors in a packet, which no request uses."""
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(16)]
    return talking(where, notes, lambda n: (b"", request("sync") * 4), fds=fds)


def too_many_descriptors(where: Where, notes: Notes) -> Counter[str]:
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(253)]
    return talking(where, notes, lambda n: (b"", request("sync")), fds=fds)


def hanging_descriptors(where: Where, notes: Notes) -> Counter[str]:
    """Files of a FUSE server that does not answer when the daemon closes them."""
    held = Descriptors(where.directory, where.fuse)
    fds = [held.make("fuse hangs") for _ in range(8)]
    return talking(where, notes, lambda n: (b"", request("sync")), fds=fds)


def unread_descriptors(where: Where, notes: Notes) -> Counter[str]:
    """Connections closed with descriptors in them before the daemon read them."""
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(253)]
    return talking(where, notes, lambda n: (b"\xc1", request("sync") * 8), fds=fds, rounds=1)


def rings_adopted(where: Where, notes: Notes) -> Counter[str]:
    """Imitations of a ring of an earlier daemon: each connection adopts it, and leaves it to the next."""
    held = Descriptors(where.directory, None)
    fds = [held.make("like a ring"), os.eventfd(0, os.EFD_NONBLOCK)]
    return talking(where, notes, lambda n: (b"", request("adopt_ring", {}) * 20), fds=fds, rounds=2)


def enable_words(where: Where, notes: Notes) -> Counter[str]:
    memory = Descriptors(where.directory, None).make("memfd sealed")

    def make(number: int) -> tuple[bytes, bytes]:
        word = {"enable_fd": 0, "enable_size": 4, "enable_addr": 4 * (number * 4 % 2000)}
        return b"", b"".join(
            registration(f"attack_word_{where.number}", **word, enable_bit=bit) for bit in range(16)
        )

    return talking(where, notes, make, fds=[memory], rounds=2)


def enable_tokens(where: Where, notes: Notes) -> Counter[str]:
    """Enablers that come and go, of events that many programs use; their changes are never acknowledged."""
    first = request("notify_enablers", {}) + b"".join(
        registration(f"attack_token_{n}", enable_token=n) for n in range(16)
    )
    again = b"".join(
        registration("attack_token_0", enable_token=n) + request("DIAG_IOCSUNREG", {"disable_token": n})
        for n in range(16, 32)
    )
    return talking(where, notes, lambda n: (first, again), rounds=50)


def ring_records(where: Where, notes: Notes) -> Counter[str]:
    """Data rings of the default size, always full of the smallest records."""
    return _filled_rings(where, notes, 1 << 20)


def small_ring_records(where: Where, notes: Notes) -> Counter[str]:
    return _filled_rings(where, notes, 1 << 16)


def _filled_rings(where: Where, notes: Notes, size: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    rings: list[tuple[PlainConnection, mmap.mmap, memoryview, int]] = []
    for _ in range(where.connections):
        with contextlib.suppress(OSError):
            connection = PlainConnection(where.directory)
            connection.register(f"attack_ring_{where.number}")
            fd, bell = connection.make_ring(size)
            memory = mmap.mmap(fd, os.fstat(fd).st_size)
            rings.append((connection, memory, memoryview(memory).cast("Q"), bell))
            os.close(fd)
    counts["connections"] = len(rings)
    count = size // 24
    while not notes.stopped:
        stamp = time.monotonic_ns()
        block = struct.pack("<IIQIHH", COMMITTED, 0, stamp, os.getpid(), 0, 0) * count
        filled = False
        for _, memory, words, bell in rings:
            head, tail = words[8], words[16]
            room = (size - (head - tail)) // 24 * 24
            if room < size // 4:
                continue
            filled = True
            place = head % size
            first = min(room, size - place)
            memory[HEADER_BYTES + place : HEADER_BYTES + place + first] = block[:first]
            memory[HEADER_BYTES : HEADER_BYTES + room - first] = block[first:room]
            words[8] = head + room
            counts["records"] += room // 24
            if memory[256]:
                memory[256] = 0
                os.eventfd_write(bell, 1)
        if not filled:
            time.sleep(0.0005)
    for connection, _, words, _ in rings:
        words.release()
        connection.close()
    return counts


def listings(where: Where, notes: Notes) -> Counter[str]:
    """An administrator that lists and reads large files and directories, without a pause."""
    if where.number:
        return registrations(where, notes)
    again = request("list_dir", "events/user_events") + request("read_file", "user_events_status")
    again += request("read_file", "available_events") + request("list_dir", "events/user_events/nothing")
    one = attrs.evolve(where, connections=1)
    return talking(one, notes, lambda n: (b"", again * 20), socket_name="tracefs")


def mixed(where: Where, notes: Notes) -> Counter[str]:
    """Each process runs another kind."""
    kinds = (small_records, registrations, connecting, syncs)
    return kinds[where.number % len(kinds)](where, notes)


KINDS: dict[str, Job] = {
    "small records": small_records,
    "refused records": refused_records,
    "huge records": huge_records,
    "requests between records": requests_before_records,
    "registrations": registrations,
    "events that come and go": events_that_come_and_go,
    "many formats of a name": formats,
    "enable words": enable_words,
    "enable tokens": enable_tokens,
    "syncs": syncs,
    "status maps": status_maps,
    "reading nothing": reading_nothing,
    "connecting": connecting,
    "half messages": halves,
    "drops of bytes": drops,
    "descriptors": descriptors,
    "too many descriptors": too_many_descriptors,
    "hanging descriptors": hanging_descriptors,
    "unread descriptors": unread_descriptors,
    "rings adopted": rings_adopted,
    "full rings of 64 KiB": small_ring_records,
    "full rings of 1 MiB": ring_records,
    "listings": listings,
    "mixed": mixed,
}
OF_AN_ADMINISTRATOR = frozenset({"listings"})
"""Kinds whose first attacker is one."""

WITH_FUSE = frozenset({"hanging descriptors"})
"""Kinds that need files whose close hangs."""
