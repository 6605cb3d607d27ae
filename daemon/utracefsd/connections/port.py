"""A listening socket of the daemon: accepting, pumping and ending the connections to it.

There are two, one for producers (DATA) and one for administrators (TRACEFS). What they do alike is here;
`Rules` says what differs. What a connection talks about is the matter of its DataConnection or
TracefsConnection.

All connections of a port hang on one epoll(7) instance. So one system call answers, however many producers
there are, the question at the start of every operation on the tree: has anything been sent that was not taken
in? `take_in_all` takes exactly that, including connections that were not accepted yet and including the end
of those that are gone.

The edge (server/serve.py) waits for the epoll descriptor, unless `has_more`, and calls `ready` and `pump`,
which are fair: a connection gets a bounded share of a turn. Nothing here waits and nothing here reads a
clock: `now_ns` is given.

    accept ──> OPEN ──────── end of file, reset ────────────────> closed: references dropped at once
                 └── over a limit, broken framing ──> ENDING ───> closed: last words sent, or not read in time

Slow readers: a producer is ENDING once too many responses wait for it. An administrator may ask for large
files, so its further requests are left alone until it has read what waits.

When accept(2) fails for the want of a descriptor (EMFILE, ENFILE), a reserve is given up to take the
connection from the queue and close it, so that its client learns at once; when the kernel has no memory
(ENOMEM, ENOBUFS) listening pauses. Neither ends the daemon; these are the errors that trio's serve_listeners
survives, and the pause is as long as there.
"""

import contextlib
import errno
import logging
import os
import select
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import attrs

from utracefs_protocol.connection import encode_notification
from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import MAX_UNANSWERED
from utracefsd.connections.link import Link, peer_of
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource, Shares

logger = logging.getLogger("utracefsd")

# One recvmsg(2): what malloc hands out without asking the kernel.
PIECE_BYTES = 64 << 10

# What one connection may have taken in before others have their turn: about what a Unix socket's buffer
# holds.
TURN_BYTES = 256 << 10

# And how long it may be answered before that, where it lets others have their turn: an operation on the tree
# takes some 30 us, and a tool sends a hundred at once. Another client waits that much longer.
TURN_NS = 1_000_000

# New connections in one turn; take_in_all wants all that stand in the queue, which somaxconn (4096) bounds.
TURN_ACCEPTS = 64
ALL_ACCEPTS = 4096

# Beyond what the socket's own buffer holds, this much may wait to be read before a port's rule for slow
# readers applies. For producers MAX_UNANSWERED responses have to wait, too: registering thousands of events
# in one round trip is welcome, never reading is not. For administrators one reply may be larger (read_file up
# to 64 MiB).
MAX_WAITING_BYTES = 1 << 20

# Every descriptor that is sent and not received counts against the daemon's user (ETOOMANYREFS, unix(7)); a
# producer maps the status page once.
MAX_DESCRIPTORS_SENT = 64

# A connection that ends has this long to read its last words.
LAST_WORDS_NS = 1_000_000_000

ACCEPT_PAUSE_NS = 100_000_000
_CAPACITY_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}

_READ = select.EPOLLIN | select.EPOLLRDHUP
_HUNG_UP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR

Message = tuple[bytes, Sequence[int]]
"""What is sent as a whole, and the descriptors that go with its first byte."""


class Connection(Protocol):
    """What stands behind a socket: bytes and descriptors in, messages out."""

    @property
    def closing(self) -> bool:
        """It has said its last words."""

    @property
    def waiting(self) -> bool:
        """A request waits for something to happen: `speak` may answer it after any step."""

    def receive(self, data: bytes, fds: Sequence[int], now_ns: int, /) -> Iterable[Message | None]:
        """What to send in answer, and None where others may have their turn before it goes on. The
        descriptors are its own from now on."""

    def next_timer_ns(self) -> int | None:
        """When `speak` has something to say without being asked."""

    def speak(self, now_ns: int, /) -> Iterable[Message]:
        """What there is to say without being asked."""

    def close(self, now_ns: int, /) -> None:
        """The client is gone: drop what it holds."""


@attrs.frozen
class Rules:
    """What differs between the two ports."""

    name: str
    """For the log."""

    slow_readers_wait: bool
    """While many bytes wait to be read, requests are left alone. Else a client that does not read is
    ended."""

    resource: Resource | None
    """What a connection counts as; None: they are not counted for each user."""

    max_descriptors_sent: int | None
    """To one connection; None: no limit."""

    full: str
    """Why a connection too many is refused; `{}` is how many there are."""


DATA = Rules(
    name="user_events_data",
    slow_readers_wait=False,
    resource=Resource.CONNECTIONS,
    max_descriptors_sent=MAX_DESCRIPTORS_SENT,
    full="the daemon has {} connections, which is its limit",
)

TRACEFS = Rules(
    name="tracefs",
    slow_readers_wait=True,
    resource=None,
    max_descriptors_sent=None,
    full="{} connections to the tree are open, which is the limit",
)


@attrs.define(eq=False)
class Accepted:
    """An accepted socket together with the connection behind it."""

    link: Link
    connection: Connection
    mask: int = _READ
    """What epoll watches."""

    pumping: bool = False
    """Being pumped: an operation in it must not pump it again."""

    answers: Iterator[Message | None] | None = None
    """The rest of the answers to what was received, to be carried out; None when there is no rest."""

    descriptors_sent: int = 0

    ending_ns: int | None = None
    """ENDING: closed at this time at the latest; None while OPEN."""

    @property
    def open(self) -> bool:
        """Whether it is listened to."""
        return self.ending_ns is None and not self.link.closed


class Port:
    """`new_connection` makes the connection behind a socket. `close` closes every socket.

    `shares` counts the connections of each user; `max_connections` bounds all of them, administrators' too,
    so that descriptors are left for everything else. `before_sending` is called before anything is sent.
    `closed` is told who left.
    """

    def __init__(
        self,
        rules: Rules,
        new_connection: Callable[[Peer], Connection],
        *,
        now_ns: Callable[[], int],
        owner_uid: int | None = None,
        shares: Shares | None = None,
        max_connections: int = 1 << 20,
        before_sending: Callable[[], None] | None = None,
        closed: Callable[[Peer], None] | None = None,
    ) -> None:
        self.max_connections = max_connections
        self._rules = rules
        self._new_connection = new_connection
        self._now_ns = now_ns
        self._owner_uid = os.geteuid() if owner_uid is None else owner_uid
        self._shares = Shares() if shares is None else shares
        self._before_sending = before_sending
        self._closed = closed
        self._epoll = select.epoll()
        self._listener: socket.socket | None = None
        self._listen_again_ns: int | None = None
        self._accepted: dict[int, Accepted] = {}
        self._ending: set[Accepted] = set()
        self._unfinished: dict[Accepted, None] = {}
        """Those with `answers`, in the order in which they have their turns."""
        self._speaking: set[Accepted] = set()
        """Those that wait for something to happen, or for a time."""
        self._taking_in = False
        self._reserve: int | None = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Readable when there is something for `ready`."""
        return self._epoll.fileno()

    @property
    def has_more(self) -> bool:
        """There is something for `ready` though the descriptor may not be readable."""
        return any(not self._paused(accepted) for accepted in self._unfinished)

    def __len__(self) -> int:
        """Connections, those that are ending included."""
        return len(self._accepted)

    def __iter__(self) -> Iterator[Accepted]:
        return iter(list(self._accepted.values()))

    def listen(self, sock: socket.socket) -> None:
        """Accept from `sock`, which listens already and stays the caller's to close, after this port."""
        sock.setblocking(False)
        self._listener = sock
        self._epoll.register(sock, select.EPOLLIN)

    def add(self, sock: socket.socket) -> Accepted | None:
        """A new connection; None, and `sock` is told EMFILE and closed, when there are too many."""
        peer = peer_of(sock, owner_uid=self._owner_uid)
        link = Link(sock, peer)
        resource = self._rules.resource
        try:
            if len(self._accepted) >= self.max_connections:
                raise TraceError(errno.EMFILE, self._rules.full.format(len(self._accepted)))
            if resource is not None:
                self._shares.check(resource, peer.uid, privileged=peer.privileged)
        except TraceError as refusal:
            link.queue(encode_notification("error", [refusal.errno, refusal.text]))
            link.flush()
            link.finish()
            return None
        if resource is not None:
            self._shares.add(resource, peer.uid)
        accepted = Accepted(link, self._new_connection(peer))
        self._accepted[link.fileno()] = accepted
        self._epoll.register(link.fileno(), accepted.mask)
        return accepted

    def ready(self) -> list[Accepted]:
        """The connections to pump now, new ones among them. Closed in between: `pump` does nothing."""
        found = dict.fromkeys(self._unfinished)
        for fd, events in self._poll(TURN_ACCEPTS):
            accepted = self._accepted.get(fd)
            if accepted is None:
                continue
            if events & select.EPOLLOUT or self._paused(accepted):
                self._flush(accepted)
            if events & ~select.EPOLLOUT:
                found[accepted] = None
        return [accepted for accepted in found if not self._paused(accepted)]

    def pump(self, accepted: Accepted, budget_bytes: int = TURN_BYTES) -> bool:
        """Take in what has arrived, at most `budget_bytes`; closes the connection when its end is read.

        Stops where its connection lets others have their turn. True when more may be there.
        """
        if accepted.pumping:
            return False
        if accepted.ending_ns is not None:
            self._close(accepted)  # it is only reported here when the peer hung up
            return False
        accepted.pumping = True
        try:
            while budget_bytes > 0 and accepted.open and not self._paused(accepted):
                if accepted.answers is None:
                    piece = accepted.link.receive(min(budget_bytes, PIECE_BYTES))
                    if piece is None:
                        return False
                    data, fds = piece
                    if not data:
                        self._end_of_file(accepted)
                        return False
                    budget_bytes -= len(data)
                    self._carry_out(accepted, data, fds)
                else:
                    self._carry_out(accepted)
                if accepted.answers is not None:
                    break
            return accepted.open
        finally:
            accepted.pumping = False

    def take_in_all(self) -> None:
        """Take in everything that had been sent, and see every end that had come, before this call.

        What arrives meanwhile waits for the next turn, so a flooding producer does not hold up the caller. An
        operation on a data connection may call this: that connection itself is left alone, it is being
        pumped.
        """
        if self._taking_in:
            return
        self._taking_in = True
        try:
            for fd, events in self._poll(ALL_ACCEPTS):
                if (accepted := self._accepted.get(fd)) is None:
                    continue
                if events & _HUNG_UP:
                    # nothing can be added any more, so this comes to an end, and it is the connection's own
                    while self.pump(accepted):
                        pass
                elif events & select.EPOLLIN:
                    self.pump(accepted, accepted.link.bytes_readable())
        finally:
            self._taking_in = False

    def take_in_ended(self) -> None:
        """Take in what connections had sent that are gone by now, and their end with it.

        An operation of another client may call this: what a client held is free once it is gone. Connections
        that are being pumped are left alone.
        """
        if self._taking_in or self._epoll.closed:
            return
        self._taking_in = True
        try:
            for fd, events in self._epoll.poll(0, len(self._accepted) + 1):
                accepted = self._accepted.get(fd)
                if accepted is not None and events & _HUNG_UP:
                    while not self._paused(accepted) and self.pump(accepted):
                        pass
        finally:
            self._taking_in = False

    def answer_waiting(self) -> None:
        """After a step: answer the requests for which something has come meanwhile."""
        for accepted in [accepted for accepted in self._speaking if accepted.connection.waiting]:
            self._speak(accepted)

    def end_failed(self) -> None:
        """End connections that failed outside of a pump: their data ring is invalid."""
        for accepted in self:
            if accepted.connection.closing and accepted.open and not accepted.pumping:
                self._speak(accepted)
                self._end(accepted, None)

    def next_deadline_ns(self) -> int | None:
        """When `on_time` has something to do; None while nothing has a deadline."""
        if not self._ending and not self._speaking:
            return self._listen_again_ns  # asked after every step
        deadlines = [accepted.ending_ns for accepted in self._ending]
        deadlines += [accepted.connection.next_timer_ns() for accepted in self._speaking]
        deadlines.append(self._listen_again_ns)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def on_time(self, now_ns: int) -> None:
        """Do what is due."""
        for accepted in list(self._ending):
            if accepted.ending_ns is not None and accepted.ending_ns <= now_ns:
                self._close(accepted)
        for accepted in list(self._speaking):
            due_ns = accepted.connection.next_timer_ns()
            if due_ns is not None and due_ns <= now_ns:
                self._speak(accepted)
        if self._listen_again_ns is not None and self._listen_again_ns <= now_ns:
            self._listen_again_ns = None
            if self._listener is not None:
                self._epoll.modify(self._listener, select.EPOLLIN)

    def close(self) -> None:
        """Close every connection and the epoll instance; their references drop."""
        for accepted in self:
            self._flush(accepted)
            self._close(accepted)
        self._epoll.close()
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None

    # Accepting

    def _poll(self, max_accepts: int) -> list[tuple[int, int]]:
        """(descriptor, events) of every connection with something to do; accepts what waits before that."""
        # one more than there are connections: the listener; so one call tells all
        found = self._epoll.poll(0, len(self._accepted) + 1)
        if self._listener is not None and any(fd == self._listener.fileno() for fd, _ in found):
            self._accept(self._listener, max_accepts)
            found = self._epoll.poll(0, len(self._accepted) + 1)
        return found

    def _accept(self, listener: socket.socket, max_accepts: int) -> None:
        for _ in range(max_accepts):
            try:
                sock, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _CAPACITY_ERRNOS:
                    raise
                if not self._turn_away(listener, error):
                    return
            else:
                self.add(sock)

    def _turn_away(self, listener: socket.socket, error: OSError) -> bool:
        """There is no room for a connection: close it at once, or pause. True when the next one may be
        tried."""
        name = self._rules.name
        if error.errno in (errno.EMFILE, errno.ENFILE) and self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
            with contextlib.suppress(OSError):
                listener.accept()[0].close()
            with contextlib.suppress(OSError):
                self._reserve = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            if self._reserve is not None:
                logger.error(
                    "%s: a connection was turned away: %s (raise LimitNOFILE=)", name, error.strerror
                )
                return True
        logger.error("%s: accepting pauses: %s", name, error.strerror)
        self._listen_again_ns = self._now_ns() + ACCEPT_PAUSE_NS
        self._epoll.modify(listener, 0)
        return False

    # Carrying out and answering

    def _carry_out(self, accepted: Accepted, data: bytes = b"", fds: Sequence[int] = ()) -> None:
        """What was received, up to where others may have their turn and it has had its own."""
        connection = accepted.connection
        try:
            if accepted.answers is None:
                accepted.answers = iter(connection.receive(data, fds, self._now_ns()))
                self._unfinished[accepted] = None
            until_ns = self._now_ns() + TURN_NS
            for message in accepted.answers:
                if message is not None:
                    self._queue(accepted, message)
                elif self._now_ns() >= until_ns or accepted.link.waiting_bytes > MAX_WAITING_BYTES:
                    break
            else:
                self._finished(accepted)
        except Exception:
            logger.exception(
                "a request of pid %d failed by a mistake of ours; its connection ends", accepted.link.peer.pid
            )
            self._end(accepted, TraceError(errno.EIO, "internal error; the daemon's log tells more"))
            return
        self._send(accepted)
        if connection.closing:
            self._end(accepted, None)
        elif connection.waiting or connection.next_timer_ns() is not None:
            self._speaking.add(accepted)

    def _finished(self, accepted: Accepted) -> None:
        accepted.answers = None
        self._unfinished.pop(accepted, None)

    def _speak(self, accepted: Accepted) -> None:
        connection = accepted.connection
        if accepted.open and not self._paused(accepted):
            for message in connection.speak(self._now_ns()):
                self._queue(accepted, message)
                self._send(accepted)
                if not accepted.open or self._paused(accepted):
                    break
        if not connection.waiting and connection.next_timer_ns() is None:
            self._speaking.discard(accepted)

    def _paused(self, accepted: Accepted) -> bool:
        """It has to read before it is listened to again."""
        return self._rules.slow_readers_wait and accepted.link.waiting_bytes > MAX_WAITING_BYTES

    def _queue(self, accepted: Accepted, message: Message) -> None:
        data, fds = message
        accepted.link.queue(data, fds)
        accepted.descriptors_sent += len(fds)

    def _send(self, accepted: Accepted) -> None:
        """Send what can be sent of what is queued, and end the connection when too much waits."""
        link, most = accepted.link, self._rules.max_descriptors_sent
        if link.waiting_messages and self._before_sending is not None:
            self._before_sending()
        self._flush(accepted)
        if not accepted.open:
            return
        if (
            not self._rules.slow_readers_wait
            and link.waiting_messages > MAX_UNANSWERED
            and link.waiting_bytes > MAX_WAITING_BYTES
        ):
            text = f"{link.waiting_messages} responses wait to be read; read them, or ask for less"
            self._end(accepted, TraceError(errno.EMSGSIZE, text))
        elif most is not None and accepted.descriptors_sent > most:
            self._end(accepted, TraceError(errno.EMSGSIZE, "asked for too many descriptors; once is enough"))

    def _flush(self, accepted: Accepted) -> None:
        link = accepted.link
        if link.closed:
            return
        done = link.flush()
        if done and accepted.ending_ns is not None:
            self._close(accepted)
            return
        # A client that is not listened to is not watched either: epoll would report it again and again.
        mask = _READ if accepted.open and not self._paused(accepted) else 0
        mask |= 0 if done else select.EPOLLOUT
        if mask != accepted.mask:
            accepted.mask = mask
            self._epoll.modify(link.fileno(), mask)

    # Ending

    def _end_of_file(self, accepted: Accepted) -> None:
        """The peer sends no more. It may still read (shutdown(2)), so responses that wait get a moment."""
        if accepted.link.flush():
            self._close(accepted)
        else:
            self._end(accepted, None)

    def _end(self, accepted: Accepted, reason: TraceError | None) -> None:
        """Stop listening to it, drop its references, and close once the last words are out."""
        if not accepted.open:
            return
        if reason is not None:
            accepted.link.queue(encode_notification("error", [reason.errno, reason.text]))
        now_ns = self._now_ns()
        accepted.connection.close(now_ns)
        accepted.link.stop_receiving()
        accepted.ending_ns = now_ns + LAST_WORDS_NS
        self._ending.add(accepted)
        self._finished(accepted)
        self._speaking.discard(accepted)
        self._flush(accepted)

    def _close(self, accepted: Accepted) -> None:
        if accepted.link.closed:
            return
        fd, peer = accepted.link.fileno(), accepted.link.peer
        del self._accepted[fd]
        self._epoll.unregister(fd)
        self._finished(accepted)
        self._speaking.discard(accepted)
        if accepted.ending_ns is None:
            accepted.connection.close(self._now_ns())
        self._ending.discard(accepted)
        accepted.link.finish()
        if self._rules.resource is not None:
            self._shares.drop(self._rules.resource, peer.uid)
        if self._closed is not None:
            self._closed(peer)
