"""Accepts connections from a listening socket, fairly: a flood of them does not keep others out.

The kernel's queue is first come, first served, and a process that connects and leaves again fills it with
thousands. Setting up a connection takes some 100 us. So there are two steps: all waiting sockets are taken
off the queue, some 10 us each, and then connections are set up for the user with the least service time first
(fair_scheduler.py).

    kernel's queue ── take ──> arrived, by user ── next ──> Port.add
                        └── too many of one user ──> `refuse`

When accept(2) fails for lack of a descriptor (EMFILE, ENFILE), a reserve is closed to take the connection
from the queue and close it, so that its client gets an end of file at once; when the kernel has no memory
(ENOMEM, ENOBUFS) accepting pauses. Neither ends the daemon; these are the errors that trio's serve_listeners
survives, and the pause has the same length.
"""

import contextlib
import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable

import attrs

from utracefsd.connections.accepted_connection import Rules
from utracefsd.connections.fair_scheduler import FairScheduler
from utracefsd.connections.link import Link
from utracefsd.daemon_log import daemon_log
from utracefsd.machine import closing
from utracefsd.machine.peer import stranger
from utracefsd.machine.shares import Resource, Shares

# Sockets of a user that were taken off the queue and wait for a connection: the user's limit, so that all of
# his programs can come back at once after a restart.
MAX_ARRIVED = 1024

# Of all users, twice as many. Beyond it, sockets of a user are refused who has at least half of all that
# wait. They are descriptors that no user is charged for yet, from RESERVED_DESCRIPTORS of server/serve.py.
MAX_ARRIVED_IN_ALL = 2 * MAX_ARRIVED

# From this part of them on, forked children of the user's programs do not connect (`behind`), until they are
# half as many. The kernel's queue (BACKLOG of server/listeners.py) has room behind it.
BEHIND_PART = 2

# Largest part of all descriptors for producers that they may be; a small limit means a small reserve.
ARRIVED_PART = 4

# How long taking off the queue may last in a turn: long enough for all of it (BACKLOG of server/listeners.py)
# when the daemon gets a cpu.
TAKE_NS = 10_000_000
_LOOK_EVERY = 16

# Part of all descriptors for producers that may wait to be closed (machine/closing.py): unread connections of
# a user whose sockets linger (SO_LINGER), as many as he makes. Beyond it one thread closes all of them;
# without a thread accepting pauses.
CLOSING_PART = 4

ACCEPT_PAUSE_NS = 100_000_000
_CAPACITY_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}


@attrs.define(eq=False)
class Acceptor:
    """The listening side of one port."""

    _rules: Rules
    _epoll: select.epoll
    """The port's, which watches the listening socket."""
    _scheduler: FairScheduler
    _shares: Shares
    _refuse: Callable[[socket.socket, int], None]
    """Called with a socket that exceeds a limit; closes it."""
    on_behind: Callable[[int, bool], None] = lambda share, is_behind: None
    """Called with a user whose waiting sockets become many, and when they are few again."""
    _behind: set[int] = attrs.Factory(set)
    """Users for whom it was called."""
    _listener: socket.socket | None = None
    fd: int = -1
    """The listening socket's."""
    _arrived: dict[int, deque[socket.socket]] = attrs.Factory(dict)
    """By the user charged for them; no queue is empty."""
    _number: int = 0
    refused: int = 0
    """Connections that were closed at once, also by the port, for a limit. Their programs try again."""
    again_ns: int | None = None
    """End of a pause; None: there is no pause."""
    _reserve: int | None = attrs.Factory(lambda: os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))

    def listen(self, sock: socket.socket) -> None:
        """Accept from `sock`, which already listens; the caller closes it after the port."""
        sock.setblocking(False)
        self._listener = sock
        self.fd = sock.fileno()
        self._epoll.register(sock, select.EPOLLIN)

    def __len__(self) -> int:
        """Sockets that wait for a connection."""
        return self._number

    def take(self, now_ns: Callable[[], int], for_ns: int = TAKE_NS) -> None:
        """Take waiting sockets off the kernel's queue."""
        listener = self._listener
        if listener is None or self.again_ns is not None:
            return
        until_ns = now_ns() + for_ns
        most_closing = self._shares.in_all[Resource.DESCRIPTORS] // CLOSING_PART
        for number in range(1, 1 << 16):
            if closing.waiting() > most_closing and not closing.close_most():
                self._pause(listener, "too many descriptors wait to be closed", now_ns())
                return
            try:
                sock, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _CAPACITY_ERRNOS:
                    raise
                if not self._turn_away(listener, error, now_ns()):
                    return
            else:
                self._keep(sock)
            if number % _LOOK_EVERY == 0 and now_ns() >= until_ns:
                return

    def _keep(self, sock: socket.socket) -> None:
        try:
            share = stranger(sock).share
        except OSError:
            sock.close()
            return
        arrived = self._arrived.get(share)
        if arrived is None:
            arrived = self._arrived[share] = deque()
        most = self._most
        if len(arrived) >= most or (
            self._number >= min(MAX_ARRIVED_IN_ALL, 2 * most)
            and len(arrived) * len(self._arrived) >= self._number
        ):
            self._refuse(sock, len(arrived))
            return
        arrived.append(sock)
        self._number += 1
        if len(arrived) * BEHIND_PART >= most and share not in self._behind:
            self._behind.add(share)
            self.on_behind(share, True)

    @property
    def _most(self) -> int:
        """Sockets of one user that may wait."""
        return min(MAX_ARRIVED, max(1, self._shares.in_all[Resource.DESCRIPTORS] // ARRIVED_PART))

    def next(self) -> tuple[int, socket.socket] | None:
        """The next socket to set up, and the user charged for it; None: none waits."""
        if not self._arrived:
            return None
        share = min(self._arrived, key=self._scheduler.used_ns)
        arrived = self._arrived[share]
        sock = arrived.popleft()
        self._number -= 1
        if not arrived:
            del self._arrived[share]
        if share in self._behind and 2 * len(arrived) * BEHIND_PART < self._most:
            self._behind.discard(share)
            self.on_behind(share, False)
        return share, sock

    def on_time(self, now_ns: int) -> None:
        """End a pause that is over."""
        if self.again_ns is not None and self.again_ns <= now_ns:
            self.again_ns = None
            self._take_reserve()
            if self._listener is not None:
                self._epoll.modify(self._listener, select.EPOLLIN)

    def close(self) -> None:
        """Close sockets without a connection."""
        while found := self.next():
            with contextlib.suppress(OSError):
                Link(found[1], stranger(found[1])).abandon()
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None

    def _turn_away(self, listener: socket.socket, error: OSError, now_ns: int) -> bool:
        """No connection is possible: close it at once, or pause. Returns True if the next one may be
        tried."""
        name = self._rules.name
        if error.errno in (errno.EMFILE, errno.ENFILE) and self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
            with contextlib.suppress(OSError):
                refused = listener.accept()[0]
                Link(refused, stranger(refused)).abandon()
            self.refused += 1
            self._take_reserve()
            if self._reserve is not None:
                daemon_log("connection-turned-away", socket=name, reason=error.strerror)
                return True
        self._pause(listener, error.strerror, now_ns)
        return False

    def _take_reserve(self) -> None:
        if self._reserve is None:
            with contextlib.suppress(OSError):
                self._reserve = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def _pause(self, listener: socket.socket, why: str | None, now_ns: int) -> None:
        daemon_log("accepting-pauses", socket=self._rules.name, reason=why)
        self.again_ns = now_ns + ACCEPT_PAUSE_NS
        self._epoll.modify(listener, 0)
