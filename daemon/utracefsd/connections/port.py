"""A listening socket of the daemon: accepting, pumping and ending the connections to it.

There are two, one for producers (DATA) and one for administrators (TRACEFS), with different `Rules`. The
protocol of a connection is in DataConnection or TracefsConnection.

All connections of a port are in one epoll(7) instance. So at the start of every operation on the tree one
system call finds the producers, of any number, that have sent something not yet taken in.

The edge (server/serve.py) waits for the epoll descriptor, unless `has_more`, and calls `ready` and `pump`. A
connection gets a bounded share of bytes and of time, in an order that is fair to users (fair_scheduler.py).
Nothing here waits or reads a clock: `now_ns` is given.

**`take_in_all`** takes in what was sent before the call: unaccepted connections, records, requests, ends. It
takes in all of that if TAKE_IN_NS are enough. They are, unless a client floods the daemon; then users with
the least service time come first, and the flood is taken in later, in its own turn. The requests of a
connection are always carried out in order.

    accept ──> OPEN ──────── end of file, reset ────────────────> closed: references dropped at once
                 └── over a limit, broken framing ──> ENDING ───> closed: last message sent, or timeout

Slow readers: while a connection has many unread responses, its further requests are left in its socket, whose
buffer fills, so that the peer blocks. The bytes held for a user are bounded (`Resource.MESSAGE_BYTES`).

Bugs of the daemon: an unexpected exception ends the connection in whose handling it was raised, and is
counted and logged (machine/faults.py).

acceptor.py accepts connections and handles too many of them.
"""

import contextlib
import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from utracefs_protocol.connection import encode_notification
from utracefs_protocol.errors import TraceError
from utracefsd.connections.accepted_connection import (
    OF_A_CONNECTION,
    READ,
    AcceptedConnection,
    Connection,
    Message,
    Rules,
)
from utracefsd.connections.acceptor import TAKE_NS, Acceptor
from utracefsd.connections.fair_scheduler import FairScheduler
from utracefsd.connections.link import Link
from utracefsd.machine import closing
from utracefsd.machine.faults import Faults
from utracefsd.machine.peer import Peer, peer_of, stranger
from utracefsd.machine.shares import Resource, Shares

# Size of one recvmsg(2), and of one when the user's messages take much memory, or when only records are
# wanted.
PIECE_BYTES = 64 << 10
SMALL_PIECE_BYTES = 4 << 10

# Bytes taken in from one connection before others are served: about the size of a Unix socket's buffer.
TURN_BYTES = 256 << 10

# How long connections may delay an operation on the tree.
TAKE_IN_NS = 20_000_000

# And how long one of them before others.
SLICE_NS = 1_000_000

# When the daemon does not get a cpu, time passes without work. So this many are served (and accepted)
# whatever the clock says: one or two programs that do not flood are not passed over.
FEW = 8

# Connections set up in one turn. take_in_all wants all that wait, but for no longer than this: each takes
# some 100 us. (They are taken off the kernel's queue before that, see acceptor.py.)
TURN_ACCEPTS = 64
ALL_ACCEPTS = 4096
ACCEPT_NS = 3_000_000

# While more connections than this have input, only a few are set up.
MOST_TO_SERVE = 128

# How long the daemon, when it ends, takes in what has arrived. A socket holds some milliseconds' work.
LAST_RECORDS_NS = 1_000_000_000

# How long a connection that ends may take to read its last message.
LAST_WORDS_NS = 1_000_000_000

# Interval of the looks at connections that are not read; long enough for a program that was stopped shortly
# after sending requests. And how much of their data: more than a socket's buffer holds.
LOOK_NS = 5_000_000_000
_LOOK_BYTES = 1 << 20

# More bytes than a socket can hold.
_TO_THE_END = 1 << 62

_GONE = select.EPOLLHUP | select.EPOLLERR
_HUNG_UP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class Port:
    """`new_connection` makes the connection behind a socket. `close` closes every socket.

    `shares` limits what each user holds, `max_connections` all connections. `before_sending` is called before
    anything is sent. `faults` counts unexpected exceptions.
    """

    def __init__(
        self,
        rules: Rules,
        new_connection: Callable[[Peer], Connection],
        *,
        now_ns: Callable[[], int],
        owner_uid: int | None = None,
        shares: Shares,
        max_connections: int = 1 << 20,
        before_sending: Callable[[], None],
        faults: Faults,
    ) -> None:
        self.max_connections = max_connections
        self._rules = rules
        self._new_connection = new_connection
        self._now_ns = now_ns
        self.owner_uid = os.geteuid() if owner_uid is None else owner_uid
        self._shares = shares
        self._before_sending = before_sending
        self._faults = faults
        self._scheduler = FairScheduler()
        self._epoll = select.epoll()
        self.acceptor = Acceptor(rules, self._epoll, self._scheduler, shares, self._refuse_arrived)
        self._accepted: dict[int, AcceptedConnection] = {}
        self._by_connection: dict[Connection, AcceptedConnection] = {}
        self._ending: set[AcceptedConnection] = set()
        self._stalled: dict[AcceptedConnection, int] = {}
        """Connections that are not read, and when to look at each; all have the same interval, so the first
        is due first."""
        self._unfinished: dict[AcceptedConnection, None] = {}
        """Connections with `answers`, in the order in which they are served."""
        self._speaking: set[AcceptedConnection] = set()
        """Connections that wait for an event, or for a time."""
        self._due_ns: int | None = None
        """Earliest time at which one of them may have a message."""
        self._taking_in = False

    def fileno(self) -> int:
        """Readable when `ready` has connections."""
        return self._epoll.fileno()

    @property
    def has_more(self) -> bool:
        """`ready` has connections though the descriptor may not be readable."""
        return len(self.acceptor) > 0 or any(not self._paused(accepted) for accepted in self._unfinished)

    def __len__(self) -> int:
        """Connections, also ending ones."""
        return len(self._accepted)

    def __iter__(self) -> Iterator[AcceptedConnection]:
        return iter(list(self._accepted.values()))

    def heaviest(self) -> list[tuple[int, int]]:
        """(user, nanoseconds) of the users with the most recent service time."""
        return self._scheduler.heaviest(self._now_ns())

    def add(self, sock: socket.socket) -> AcceptedConnection | None:
        """A new connection; None, after sending EMFILE and closing `sock`, when there are too many."""
        try:
            peer = peer_of(sock, owner_uid=self.owner_uid)
        except OSError:
            sock.close()
            return None
        link, connection, accepted = Link(sock, peer), None, None
        try:
            if len(self._accepted) >= self.max_connections:
                raise TraceError(errno.EMFILE, self._rules.full.format(len(self._accepted)))
            for resource in OF_A_CONNECTION:
                self._shares.check(resource, peer.share, privileged=peer.privileged)
            connection = self._new_connection(peer)
            now_ns = self._now_ns()
            accepted = AcceptedConnection(link, connection, link.fileno(), SLICE_NS, now_ns, self._shares)
            self._epoll.register(link.fileno(), accepted.mask)
            for resource in OF_A_CONNECTION:
                accepted.hold(resource, 1)
        except TraceError as refusal:
            self._refuse(link, refusal)
            return None
        except Exception as error:  # noqa: BLE001 - counted and logged
            self._faults.note(error, f"a connection of pid {peer.pid} was not taken")
            if accepted is not None:
                accepted.hold_nothing()
            if connection is not None:
                self._close_connection(connection)
            link.abandon()
            return None
        self._accepted[link.fileno()] = self._by_connection[connection] = accepted
        return accepted

    def ready(self) -> list[AcceptedConnection]:
        """The connections to pump now, also new ones. `pump` ignores one that is closed in between."""
        found = dict.fromkeys(self._unfinished)
        for fd, events in self._poll(TURN_ACCEPTS, TAKE_NS).items():
            accepted = self._accepted.get(fd)
            if accepted is None:
                continue
            if events & select.EPOLLOUT or self._paused(accepted):
                with _AtItsCost(self, accepted):
                    self._flush(accepted)
            if events & _GONE:
                accepted.link.peer_is_gone()
            if events & ~select.EPOLLOUT:
                found[accepted] = None
        ready = [accepted for accepted in found if not self._paused(accepted)]
        return self._scheduler.in_order(ready, self._now_ns()) if len(ready) > 1 else ready

    def pump(
        self, accepted: AcceptedConnection, budget_bytes: int = TURN_BYTES, until_ns: int | None = None
    ) -> int:
        """Serve it: take in what has arrived, at most `budget_bytes` and until then, else for its time;
        closes the connection when its end is read. Returns how many bytes are left for lack of time."""
        if accepted.pumping:
            return 0
        began_ns, left = self._now_ns(), 0
        accepted.pumping = True
        with _AtItsCost(self, accepted):
            left = self._serve(accepted, budget_bytes, until_ns or began_ns + self._rules.turn_ns)
            self._count(accepted)
        accepted.pumping = False
        self._scheduler.served(accepted, began_ns, self._now_ns())
        return left

    def _serve(self, accepted: AcceptedConnection, budget_bytes: int, until_ns: int) -> int:
        if accepted.ending_ns is not None:
            self._close(accepted)  # it is reported only when the peer hung up
        is_first = True
        while accepted.open and not self._paused(accepted):
            if accepted.answers is not None:
                self._carry_out(accepted, until_ns)
            elif budget_bytes <= 0:
                break
            elif not is_first and self._now_ns() >= until_ns:
                return budget_bytes
            else:  # once whatever the time: it may be over between two looks at the clock, at each turn
                budget_bytes -= self._receive(accepted, min(budget_bytes, self._piece(accepted)), until_ns)
            is_first = False
            if accepted.answers is not None:
                return max(budget_bytes, 1)
        return 0

    def _receive(self, accepted: AcceptedConnection, size: int, until_ns: int) -> int:
        """Receive once and carry out the requests; returns the number of bytes, or `size` when nothing was
        there."""
        if closing.is_behind(accepted.share) and accepted.link.brings_descriptors(size):
            self._end(accepted, TraceError(errno.EMFILE, "descriptors of this user wait to be closed"))
            self._close(accepted)
            return 0
        piece = accepted.link.receive(size)
        if piece is None:
            return _TO_THE_END
        data, fds = piece
        if data:
            self._carry_out(accepted, until_ns, data, fds)
            return len(data)
        self._end_of_file(accepted)
        return 0

    def _piece(self, accepted: AcceptedConnection) -> int:
        is_scarce = self._shares.scarce(Resource.MESSAGE_BYTES, accepted.share)
        return SMALL_PIECE_BYTES if is_scarce else PIECE_BYTES

    def take_in_all(self) -> None:
        """Take in what was sent before this call, and see earlier ends: see the head of the file.

        Later input waits for the next turn, so a flooding producer does not delay the caller. An
        operation on a data connection may call this: that connection itself is skipped, since it is being
        pumped.
        """
        if self._taking_in:
            return
        self._taking_in = True
        try:
            until_ns = self._now_ns() + TAKE_IN_NS
            found = self._poll(ALL_ACCEPTS, ACCEPT_NS)
            if not found and not self._unfinished:
                return
            left = dict.fromkeys(self._unfinished, 0)
            for fd, events in found.items():
                if (accepted := self._accepted.get(fd)) is None:
                    continue
                with _AtItsCost(self, accepted):
                    if self._paused(accepted):
                        self._flush(accepted)
                    if events & _GONE:
                        accepted.link.peer_is_gone()
                    if events & _HUNG_UP:
                        # nothing more can arrive, so this ends, and it is the connection's own
                        left[accepted] = _TO_THE_END
                    elif events & select.EPOLLIN:
                        left[accepted] = accepted.link.bytes_readable()
            self._serve_in_slices(left, until_ns)
        finally:
            self._taking_in = False

    def take_in_last(self) -> None:
        """Before `close`: take in what has arrived, for LAST_RECORDS_NS. No more can: peers keep it for the
        next daemon. Only the bytes are read, not the end, which would drop a connection's events. Programs
        that have ended keep nothing, so connections that wait to be set up are, too."""
        self._taking_in = True
        self._admit(ALL_ACCEPTS, self._now_ns() + LAST_RECORDS_NS)
        for accepted in self:
            accepted.link.stop_receiving()
        left = dict.fromkeys(self._unfinished, 0)
        left |= {one: size for one in self if one.open and (size := one.link.bytes_readable())}
        self._serve_in_slices(left, self._now_ns() + LAST_RECORDS_NS)

    def take_in_ended(self) -> None:
        """Take in what closed connections had sent, and their end, for TAKE_IN_NS.

        An operation of another client may call this: it frees what closed clients held. Connections that are
        being pumped are skipped. The operations in their last requests do not call it again.
        """
        if self._epoll.closed:
            return
        until_ns = self._now_ns() + TAKE_IN_NS
        left: dict[AcceptedConnection, int] = {}
        for fd, events in self._epoll.poll(0, len(self._accepted) + 1):
            accepted = self._accepted.get(fd)
            if accepted is not None and events & _HUNG_UP and not self._paused(accepted):
                left[accepted] = _TO_THE_END
        self._serve_in_slices(left, until_ns)

    def _serve_in_slices(self, left: dict[AcceptedConnection, int], until_ns: int) -> None:
        """Serve connections in fair order until the time, and FEW in any case; `left`: the bytes of each."""
        waiting = deque(self._scheduler.in_order(left, self._now_ns()))
        slices = 0
        while waiting and ((now_ns := self._now_ns()) < until_ns or slices < FEW):
            slices += 1
            accepted = waiting.popleft()
            slice_ends_ns = now_ns + SLICE_NS
            if slices > FEW:
                slice_ends_ns = min(slice_ends_ns, until_ns)
            left[accepted] = self.pump(accepted, left[accepted], slice_ends_ns)
            if left[accepted]:
                waiting.append(accepted)

    def go_on(self) -> None:
        """Release blocked connections: `ready` returns those with unprocessed input."""
        for accepted in self._unfinished:
            if accepted.open and not self._paused(accepted):
                # A writable socket makes the epoll descriptor readable, whether or not input has come.
                self._watch(accepted, READ | select.EPOLLOUT)

    def speak_up(self, connection: Connection) -> None:
        """Send the connection's message, which answers no request, after this step (`answer_waiting`)."""
        if (accepted := self._by_connection.get(connection)) is not None and accepted.open:
            self._speaking.add(accepted)

    def belongs_to(self, connection: Connection, peer: Peer) -> None:
        """Charge the connection to this process from now on. TraceError(EMFILE): that user has too many
        connections."""
        self._by_connection[connection].belongs_to(peer)

    def answer_waiting(self) -> None:
        """After a step: send responses that are ready now, and messages without a request."""
        for accepted in list(self._speaking):
            with _AtItsCost(self, accepted):
                if accepted.connection.waiting and not self._paused(accepted):
                    self._speak(accepted)

    def end_failed(self) -> None:
        """End connections that failed outside of a pump: their data ring is invalid."""
        for accepted in self:
            if accepted.connection.closing and accepted.open and not accepted.pumping:
                with _AtItsCost(self, accepted):
                    self._speak(accepted)
                    self._end(accepted, None)

    def next_deadline_ns(self) -> int | None:
        """When `on_time` has work; None while nothing has a deadline."""
        deadlines = [accepted.ending_ns for accepted in self._ending]
        deadlines += [self.acceptor.again_ns, next(iter(self._stalled.values()), None)]
        if self._speaking:
            deadlines.append(self._due_ns)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def on_time(self, now_ns: int) -> None:
        """Handle deadlines that have passed."""
        for accepted in list(self._ending):
            if accepted.ending_ns is not None and accepted.ending_ns <= now_ns:
                with _AtItsCost(self, accepted):
                    self._close(accepted)
        self._due_ns = None
        for accepted in list(self._speaking):
            with _AtItsCost(self, accepted):
                due_ns = accepted.connection.next_timer_ns()
                if due_ns is not None and due_ns <= now_ns:
                    self._speak(accepted)
                self._note_timer(accepted)
        self._look_at_stalled(now_ns)
        self.acceptor.on_time(now_ns)

    def _look_at_stalled(self, now_ns: int) -> None:
        """End connections that are not read if descriptors are in the data that they have sent.

        epoll reports their hangup all the same. It never comes when the only descriptor of the peer's end is
        in a message (SCM_RIGHTS) that lies unread in the connection itself: nobody else has that end, and the
        kernel frees only messages that nobody can receive. Two connections may hold each other's ends, so it
        does not matter what a descriptor refers to.
        """
        for accepted in [one for one, look_ns in self._stalled.items() if look_ns <= now_ns]:
            del self._stalled[accepted]
            if self._paused(accepted):
                self._stalled[accepted] = now_ns + LOOK_NS
                if accepted.link.brings_descriptors(_LOOK_BYTES):
                    text = "descriptors behind answers that nobody reads"
                    with _AtItsCost(self, accepted):
                        self._end(accepted, TraceError(errno.EPROTO, text))

    def close(self) -> None:
        """Close every connection and the epoll instance; their references drop."""
        for accepted in self:
            with _AtItsCost(self, accepted):
                self._send_last_answers(accepted)
                self._flush(accepted)
                self._close(accepted)
        self.acceptor.close()
        self._epoll.close()

    # Accepting

    def _poll(self, most: int, take_ns: int) -> dict[int, int]:
        """The events of every connection with work, by descriptor; first accepts waiting connections, at most
        so many."""
        # one more than the connections, for the listener; so one call is enough
        found = dict(self._epoll.poll(0, len(self._accepted) + 1))
        if self.acceptor.fd in found:
            self.acceptor.take(self._now_ns, take_ns)
        if len(self.acceptor):
            # Connections with input are served first, or their number would grow without limit.
            self._admit(FEW if len(found) > MOST_TO_SERVE else most, self._now_ns() + ACCEPT_NS)
            found = dict(self._epoll.poll(0, len(self._accepted) + 1))
        return found

    def _admit(self, most: int, until_ns: int) -> None:
        """Set up connections for sockets taken off the kernel's queue."""
        for admitted in range(most):
            began_ns = self._now_ns()
            if admitted >= FEW and began_ns >= until_ns:
                return
            found = self.acceptor.next()
            if found is None:
                return
            share, sock = found
            self.add(sock)
            self._scheduler.charge(share, began_ns, self._now_ns())

    def _refuse_arrived(self, sock: socket.socket, waiting: int) -> None:
        began_ns, peer = self._now_ns(), stranger(sock)
        text = f"{waiting} connections of user {peer.uid} wait to be accepted already; connect again later"
        self._refuse(Link(sock, peer), TraceError(errno.EMFILE, text))
        self._scheduler.charge(peer.share, began_ns, self._now_ns())

    def _refuse(self, link: Link, refusal: TraceError) -> None:
        self.acceptor.refused += 1
        link.queue(encode_notification("error", [refusal.errno, refusal.text]))
        link.flush()
        link.finish()

    # Carrying out and answering

    def _carry_out(
        self, accepted: AcceptedConnection, until_ns: int, data: bytes = b"", fds: Sequence[int] = ()
    ) -> None:
        """Carry out received requests, until other connections may be served and its own time is over."""
        connection, link, most = accepted.connection, accepted.link, self._rules.max_waiting_bytes
        if accepted.answers is None:
            accepted.answers = iter(connection.receive(data, fds, self._now_ns()))
            self._unfinished[accepted] = None
        for message in accepted.answers:
            if message is not None:
                self._queue(accepted, message)
            elif self._now_ns() >= until_ns or link.waiting_bytes > most or connection.is_blocked:
                break
        else:
            self._finished(accepted)
        self._send(accepted)
        if connection.closing:
            self._end(accepted, None)
        elif connection.waiting or connection.next_timer_ns() is not None:
            self._speaking.add(accepted)
            self._note_timer(accepted)

    def _finished(self, accepted: AcceptedConnection) -> None:
        accepted.answers = None
        self._unfinished.pop(accepted, None)

    def _note_timer(self, accepted: AcceptedConnection) -> None:
        due_ns = accepted.connection.next_timer_ns()
        if due_ns is not None and (self._due_ns is None or due_ns < self._due_ns):
            self._due_ns = due_ns

    def _speak(self, accepted: AcceptedConnection) -> None:
        connection = accepted.connection
        if accepted.open:
            for message in connection.speak(self._now_ns()):
                self._queue(accepted, message)
                self._send(accepted)
                if not accepted.open or self._paused(accepted):
                    break
            if connection.closing:
                self._end(accepted, None)
        if not connection.waiting and connection.next_timer_ns() is None:
            self._speaking.discard(accepted)

    def _paused(self, accepted: AcceptedConnection) -> bool:
        """It must read its responses before its requests are read again, or it is held."""
        if accepted.mask == READ:  # by `_flush`, which is called whenever one of these has changed
            return False
        return accepted.link.waiting_bytes > self._rules.max_waiting_bytes or accepted.connection.is_blocked

    def _queue(self, accepted: AcceptedConnection, message: Message) -> None:
        data, fds = message
        accepted.link.queue(data, fds)
        accepted.descriptors_sent += len(fds)

    def _send(self, accepted: AcceptedConnection) -> None:
        """Send the part of the queue that the socket takes."""
        link, most = accepted.link, self._rules.max_descriptors_sent
        if link.waiting_bytes:
            self._before_sending()
        self._flush(accepted)
        if accepted.open and most is not None and accepted.descriptors_sent > most:
            self._end(accepted, TraceError(errno.EMSGSIZE, "asked for too many descriptors; once is enough"))

    def _count(self, accepted: AcceptedConnection) -> None:
        """Count the bytes and descriptors held for it, and end it if they are too many."""
        nr_bytes, nr_descriptors = accepted.link.waiting_bytes, 1
        if accepted.ending_ns is None:
            nr_bytes += accepted.connection.stream.bytes_pending
            nr_descriptors += accepted.connection.nr_descriptors
        refusal = accepted.hold(Resource.MESSAGE_BYTES, nr_bytes)
        if (refusal := accepted.hold(Resource.DESCRIPTORS, nr_descriptors) or refusal) is not None:
            self._end(accepted, refusal)

    def _flush(self, accepted: AcceptedConnection) -> None:
        link = accepted.link
        if link.closed:
            return
        done = link.flush()
        if done and accepted.ending_ns is not None:
            self._close(accepted)
            return
        # epoll does not watch a client that is not read, since it would report it again and again; nor the
        # end of a blocked one.
        mask = 0 if done else select.EPOLLOUT
        is_blocked = accepted.open and accepted.connection.is_blocked
        if is_blocked:
            mask |= select.EPOLLET
        if accepted.open and (is_blocked or link.waiting_bytes > self._rules.max_waiting_bytes):
            self._stalled.setdefault(accepted, self._now_ns() + LOOK_NS)
        else:
            self._stalled.pop(accepted, None)
            mask |= READ if accepted.open else 0
        self._watch(accepted, mask)
        if not accepted.pumping:
            self._count(accepted)

    def _watch(self, accepted: AcceptedConnection, mask: int) -> None:
        if mask != accepted.mask:
            accepted.mask = mask
            self._epoll.modify(accepted.fd, mask)

    # Ending

    def _end_of_file(self, accepted: AcceptedConnection) -> None:
        """The peer sends no more. It may still read (shutdown(2)), so waiting responses get a moment."""
        self._send_last_answers(accepted)
        if accepted.link.flush():
            self._close(accepted)
        else:
            self._end(accepted, None)

    def _send_last_answers(self, accepted: AcceptedConnection) -> None:
        if accepted.open:
            for message in accepted.connection.last_answers():
                self._queue(accepted, message)
            self._send(accepted)

    def _end(self, accepted: AcceptedConnection, reason: TraceError | None) -> None:
        """Stop reading it, release its references, and close it once its last message is sent."""
        if not accepted.open:
            return
        if reason is not None:
            accepted.link.queue(encode_notification("error", [reason.errno, reason.text]))
        accepted.ending_ns = self._now_ns() + LAST_WORDS_NS
        self._close_connection(accepted.connection)
        accepted.link.stop_receiving()
        self._ending.add(accepted)
        self._finished(accepted)
        self._speaking.discard(accepted)
        self._flush(accepted)

    def _close(self, accepted: AcceptedConnection) -> None:
        if accepted.link.closed:
            return
        self._epoll.unregister(accepted.link.fileno())
        if accepted.ending_ns is None:
            accepted.ending_ns = self._now_ns()
            self._close_connection(accepted.connection)
        accepted.link.finish()
        self._discard(accepted)

    def _close_connection(self, connection: Connection) -> None:
        try:
            connection.close(self._now_ns())
        except Exception as error:  # noqa: BLE001 - counted and logged
            self._faults.note(error, "the end of a connection may have left something behind")

    def _end_faulty(self, accepted: AcceptedConnection, error: Exception) -> None:
        """End it after an unexpected exception while it was handled; all others continue."""
        self._faults.note(error, f"a connection of pid {accepted.link.peer.pid} ends")
        try:
            if accepted.ending_ns is not None:
                self._discard(accepted)
            self._end(accepted, TraceError(errno.EIO, "internal error; see the daemon's log"))
        except Exception as again:  # noqa: BLE001 - counted and logged
            self._faults.note(again, "a connection could not be ended in good order")
            self._discard(accepted)

    def _discard(self, accepted: AcceptedConnection) -> None:
        """`_close` of a connection in an unknown state: nothing here fails."""
        self._finished(accepted)
        self._speaking.discard(accepted)
        self._stalled.pop(accepted, None)
        self._ending.discard(accepted)
        self._by_connection.pop(accepted.connection, None)
        self._accepted.pop(accepted.fd, None)
        if not accepted.link.closed:
            with contextlib.suppress(OSError):
                self._epoll.unregister(accepted.link.fileno())
            accepted.link.abandon()
        accepted.hold_nothing()


class _AtItsCost:
    """An unexpected exception inside ends this connection. (contextlib's takes five times as long.)"""

    __slots__ = ("_accepted", "_port")

    def __init__(self, port: Port, accepted: AcceptedConnection) -> None:
        self._port = port
        self._accepted = accepted

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._port._end_faulty(self._accepted, error)
        return True
