"""The data socket of the daemon: accepting, pumping and ending the connections of producers.

All of them hang on one epoll(7) instance, which answers in one system call, however many producers are connected, the
question that stands at the start of every operation on the tree: has anybody sent anything that was not taken in?
`take_in_all` takes exactly that, including connections that nobody accepted yet and including the end of those that
are gone. An edge (server.py) waits for the epoll descriptor and calls `ready` and `pump`, which are fair: a connection
gets a bounded share of a turn. Nothing here waits and nothing here reads a clock: `now_ns` is given.

    accept ──> OPEN ──────── end of file, reset ────────────────> closed: references dropped at once
                 └── over a limit, broken framing ──> ENDING ───> closed: the last words are sent, or were too slow

A producer that does not read its responses is ENDING, too, once too many wait.

Data connections are the daemon's largest number of descriptors. When accept(2) fails for the want of one (EMFILE, ENFILE),
a reserve is given up to take the connection from the queue and close it, so that its client learns at once; when the
kernel has no memory (ENOMEM, ENOBUFS) listening pauses. Neither ends the daemon; these are the errors that trio's
serve_listeners survives, and the pause is as long as there.
"""

import contextlib
import errno
import logging
import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
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

# What one connection may have taken in before others have their turn: about what a Unix socket's buffer holds.
TURN_BYTES = 256 << 10

# New connections in one turn; take_in_all wants all that stand in the queue, which somaxconn (4096) bounds.
TURN_ACCEPTS = 64
ALL_ACCEPTS = 4096

# Responses beyond what the socket's own buffer holds. Registering thousands of events in one round trip is welcome;
# never reading is not. Both limits have to be broken.
MAX_WAITING_BYTES = 1 << 20

# Every descriptor that is sent and not received counts against the daemon's user (ETOOMANYREFS, unix(7)); a client maps
# the status page once.
MAX_DESCRIPTORS_SENT = 64

# A connection that ends has this long to read its last words.
LAST_WORDS_NS = 1_000_000_000

ACCEPT_PAUSE_NS = 100_000_000
_CAPACITY_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}

_READ = select.EPOLLIN | select.EPOLLRDHUP
_HUNG_UP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class OpenFile(Protocol):
    """What a connection is behind its socket: a DataConnection, one open file of user_events_data."""

    @property
    def closing(self) -> bool: ...
    def receive(
        self, data: bytes, fds: Sequence[int], now_ns: int, /
    ) -> Sequence[tuple[bytes, Sequence[int]]]: ...
    def next_timer_ns(self) -> int | None: ...
    def handle_timer(self, now_ns: int, /) -> Sequence[tuple[bytes, Sequence[int]]]: ...
    def close(self, now_ns: int, /) -> None: ...


@attrs.define(eq=False)
class DataLink:
    """A producer's socket together with its open file of user_events_data."""

    link: Link
    connection: OpenFile
    mask: int = _READ
    """What epoll watches."""

    pumping: bool = False
    """Being pumped: an operation in it must not pump it again."""

    descriptors_sent: int = 0

    ending_ns: int | None = None
    """ENDING: closed at this time at the latest; None while OPEN."""


class DataPort:
    """`new_connection` makes the open file of user_events_data for a peer. `close` closes every socket.

    `shares` counts the connections of each user; `max_connections` bounds all of them, administrators' too, so that
    descriptors are left for everything else. `closed` is told who left.
    """

    def __init__(
        self,
        new_connection: Callable[[Peer], OpenFile],
        *,
        now_ns: Callable[[], int],
        owner_uid: int | None = None,
        shares: Shares | None = None,
        max_connections: int = 1 << 20,
        closed: Callable[[Peer], None] | None = None,
    ) -> None:
        self._new_connection = new_connection
        self._now_ns = now_ns
        self._owner_uid = os.geteuid() if owner_uid is None else owner_uid
        self._shares = Shares() if shares is None else shares
        self._max_connections = max_connections
        self._closed = closed
        self._epoll = select.epoll()
        self._listener: socket.socket | None = None
        self._listen_again_ns: int | None = None
        self._links: dict[int, DataLink] = {}
        self._ending: set[DataLink] = set()
        self._telling: set[DataLink] = set()
        self._taking_in = False
        self._reserve: int | None = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Readable when there is something for `ready`."""
        return self._epoll.fileno()

    def __len__(self) -> int:
        """Connections, those that are ending included."""
        return len(self._links)

    def listen(self, sock: socket.socket) -> None:
        """Accept from `sock`, which listens already and stays the caller's to close, after this port."""
        sock.setblocking(False)
        self._listener = sock
        self._epoll.register(sock, select.EPOLLIN)

    def add(self, sock: socket.socket) -> DataLink | None:
        """A new connection; None, and `sock` is told EMFILE and closed, when there are too many."""
        peer = peer_of(sock, owner_uid=self._owner_uid)
        link = Link(sock, peer)
        try:
            if len(self._links) >= self._max_connections:
                raise TraceError(
                    errno.EMFILE, f"the daemon has {len(self._links)} connections, which is its limit"
                )
            self._shares.check(Resource.CONNECTIONS, peer.uid, privileged=peer.privileged)
        except TraceError as refusal:
            link.queue(encode_notification("error", [refusal.errno, refusal.text]))
            link.flush()
            link.finish()
            return None
        self._shares.add(Resource.CONNECTIONS, peer.uid)
        data_link = DataLink(link, self._new_connection(peer))
        self._links[link.fileno()] = data_link
        self._epoll.register(link.fileno(), data_link.mask)
        return data_link

    def ready(self) -> Iterator[DataLink]:
        """The connections that have something now, new ones among them. Closed in between: `pump` does nothing."""
        for fd, events in self._poll(TURN_ACCEPTS):
            data_link = self._links.get(fd)
            if data_link is None:
                continue
            if events & select.EPOLLOUT:
                self._flush(data_link)
            if events & ~select.EPOLLOUT:
                yield data_link

    def pump(self, data_link: DataLink, budget_bytes: int = TURN_BYTES) -> bool:
        """Take in what has arrived, at most `budget_bytes`; closes the connection when its end is read.

        True when only the budget stopped it and more may be there.
        """
        if data_link.pumping:
            return False
        if data_link.ending_ns is not None:
            self._close(data_link)  # nobody listens to it; it is only reported here when the peer hung up
            return False
        data_link.pumping = True
        try:
            while budget_bytes > 0 and not data_link.link.closed and data_link.ending_ns is None:
                piece = data_link.link.receive(min(budget_bytes, PIECE_BYTES))
                if piece is None:
                    return False
                data, fds = piece
                if not data:
                    self._end_of_file(data_link)
                    return False
                budget_bytes -= len(data)
                self._take(data_link, data, fds)
            return not data_link.link.closed and data_link.ending_ns is None
        finally:
            data_link.pumping = False

    def take_in_all(self) -> None:
        """Take in everything that had been sent, and see every end that had come, before this call.

        What arrives meanwhile waits for the next turn, so a flooding producer cannot hold up the caller. An operation on
        a data connection may call this: that connection itself is left alone, it is being pumped.
        """
        if self._taking_in:
            return
        self._taking_in = True
        try:
            for fd, events in self._poll(ALL_ACCEPTS):
                if (data_link := self._links.get(fd)) is None:
                    continue
                if events & _HUNG_UP:
                    # nothing can be added any more, so this comes to an end, and it is the connection's own
                    while self.pump(data_link):
                        pass
                elif events & select.EPOLLIN:
                    self.pump(data_link, data_link.link.bytes_readable())
        finally:
            self._taking_in = False

    def end_failed(self) -> None:
        """End connections that failed outside of a pump: their data ring made no sense."""
        for data_link in list(self._links.values()):
            if not data_link.connection.closing or data_link.ending_ns is not None or data_link.pumping:
                continue
            self.send(data_link, data_link.connection.handle_timer(self._now_ns()))
            self._end(data_link, None)

    def next_deadline_ns(self) -> int | None:
        """When `on_time` has something to do; None while nothing has a deadline."""
        deadlines = [data_link.ending_ns for data_link in self._ending]
        deadlines += [data_link.connection.next_timer_ns() for data_link in self._telling]
        deadlines.append(self._listen_again_ns)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def on_time(self, now_ns: int) -> None:
        """Close those that had time to read their last words, send the notifications that are due, listen again."""
        for data_link in list(self._ending):
            if data_link.ending_ns is not None and data_link.ending_ns <= now_ns:
                self._close(data_link)
        for data_link in list(self._telling):
            due_ns = data_link.connection.next_timer_ns()
            if due_ns is not None and due_ns <= now_ns:
                self.send(data_link, data_link.connection.handle_timer(now_ns))
            if data_link.connection.next_timer_ns() is None:
                self._telling.discard(data_link)
        if self._listen_again_ns is not None and self._listen_again_ns <= now_ns:
            self._listen_again_ns = None
            if self._listener is not None:
                self._epoll.modify(self._listener, select.EPOLLIN)

    def send(self, data_link: DataLink, outgoing: Sequence[tuple[bytes, Sequence[int]]]) -> None:
        """Queue what a connection has to say, send what can be sent, and end it when too much waits."""
        for data, fds in outgoing:
            data_link.link.queue(data, fds)
            data_link.descriptors_sent += len(fds)
        self._flush(data_link)
        link = data_link.link
        if link.closed or data_link.ending_ns is not None:
            return
        if link.waiting_messages > MAX_UNANSWERED and link.waiting_bytes > MAX_WAITING_BYTES:
            self._end(
                data_link,
                TraceError(
                    errno.EMSGSIZE,
                    f"{link.waiting_messages} responses wait to be read; read them, or ask for less",
                ),
            )
        elif data_link.descriptors_sent > MAX_DESCRIPTORS_SENT:
            self._end(data_link, TraceError(errno.EMSGSIZE, "asked for too many descriptors; once is enough"))

    def close(self) -> None:
        """Close every connection and the epoll instance; their references drop."""
        for data_link in list(self._links.values()):
            self._flush(data_link)
            self._close(data_link)
        self._epoll.close()
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None

    def _poll(self, max_accepts: int) -> list[tuple[int, int]]:
        """(descriptor, events) of every connection with something to do; accepts what waits before that."""
        # one more than there are connections: the listener; so one call tells all
        found = self._epoll.poll(0, len(self._links) + 1)
        if self._listener is not None and any(fd == self._listener.fileno() for fd, _ in found):
            self._accept(self._listener, max_accepts)
            found = self._epoll.poll(0, len(self._links) + 1)
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
        """There is no room for a connection: close it at once, or pause. True when the next one may be tried."""
        if error.errno in (errno.EMFILE, errno.ENFILE) and self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
            with contextlib.suppress(OSError):
                listener.accept()[0].close()
            with contextlib.suppress(OSError):
                self._reserve = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            if self._reserve is not None:
                logger.error("a connection was turned away: %s (raise LimitNOFILE=)", error.strerror)
                return True
        logger.error("accepting pauses: %s", error.strerror)
        self._listen_again_ns = self._now_ns() + ACCEPT_PAUSE_NS
        self._epoll.modify(listener, 0)
        return False

    def _take(self, data_link: DataLink, data: bytes, fds: list[int]) -> None:
        now_ns = self._now_ns()
        try:
            outgoing = data_link.connection.receive(data, fds, now_ns)
        except Exception:
            logger.exception(
                "taking in from pid %d failed; its connection is closed", data_link.link.peer.pid
            )
            self._end(data_link, TraceError(errno.EIO, "internal error; the daemon's log tells more"))
            return
        self.send(data_link, outgoing)
        if data_link.connection.closing:
            self._end(data_link, None)
        elif data_link.connection.next_timer_ns() is not None:
            self._telling.add(data_link)

    def _end_of_file(self, data_link: DataLink) -> None:
        """The peer sends no more. It may still read (shutdown(2)), so responses that wait get a moment."""
        if data_link.link.flush():
            self._close(data_link)
        else:
            self._end(data_link, None)

    def _end(self, data_link: DataLink, reason: TraceError | None) -> None:
        """Stop listening to it, drop its references, and close once the last words are out."""
        if data_link.link.closed or data_link.ending_ns is not None:
            return
        if reason is not None:
            data_link.link.queue(encode_notification("error", [reason.errno, reason.text]))
        now_ns = self._now_ns()
        data_link.connection.close(now_ns)
        data_link.link.stop_receiving()
        data_link.ending_ns = now_ns + LAST_WORDS_NS
        self._ending.add(data_link)
        self._flush(data_link)

    def _flush(self, data_link: DataLink) -> None:
        link = data_link.link
        if link.closed:
            return
        done = link.flush()
        if done and data_link.ending_ns is not None:
            self._close(data_link)
            return
        mask = (0 if data_link.ending_ns is not None else _READ) | (0 if done else select.EPOLLOUT)
        if mask != data_link.mask:
            data_link.mask = mask
            self._epoll.modify(link.fileno(), mask)

    def _close(self, data_link: DataLink) -> None:
        if data_link.link.closed:
            return
        fd = data_link.link.fileno()
        del self._links[fd]
        self._epoll.unregister(fd)
        self._ending.discard(data_link)
        self._telling.discard(data_link)
        if data_link.ending_ns is None:
            data_link.connection.close(self._now_ns())
        data_link.link.finish()
        self._shares.drop(Resource.CONNECTIONS, data_link.link.peer.uid)
        if self._closed is not None:
            self._closed(data_link.link.peer)
