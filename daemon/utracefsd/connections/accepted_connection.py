"""A socket that a port accepted, the connection behind it, and the rules of its port.

There are two ports, one for producers (DATA) and one for administrators (TRACEFS), with different `Rules`.
"""

import select
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import attrs

from utracefs_protocol import connection as protocol
from utracefs_protocol.errors import TraceError
from utracefsd.connections.link import Link
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource, Shares

# Bytes that may wait to be read, beyond the socket's own buffer, before reading requests stops: of a producer
# the responses to some thousand registrations, of an administrator one response may be larger (read_file up
# to 64 MiB).
MAX_WAITING_BYTES = 128 << 10
MAX_WAITING_BYTES_OF_TREE = 1 << 20

# Every descriptor that is sent and not received counts for the daemon's user (ETOOMANYREFS, unix(7)); a
# producer maps the status page once.
MAX_DESCRIPTORS_SENT = 64

READ = select.EPOLLIN | select.EPOLLRDHUP
"""Events that epoll watches while the connection is read."""

Message = tuple[bytes, Sequence[int]]
"""One message, and the descriptors sent with its first byte."""


class Connection(Protocol):
    """The protocol behind a socket: bytes and descriptors in, messages out."""

    closing: bool
    """The connection must end: its last message is sent."""
    stream: protocol.Connection
    """Decodes what was received."""

    @property
    def is_blocked(self) -> bool:
        """Received requests have to wait, nothing is carried out until `Port.go_on`."""

    @property
    def nr_descriptors(self) -> int:
        """Received ones that it has not closed."""

    @property
    def waiting(self) -> bool:
        """A request waits for an event: `speak` may have its response after any step."""

    def receive(self, data: bytes, fds: Sequence[int], now_ns: int, /) -> Iterable[Message | None]:
        """The responses, and None where other connections may be served in between. The connection owns the
        descriptors from now on."""

    def next_timer_ns(self) -> int | None:
        """When `speak` has a message without a request."""

    def speak(self, now_ns: int, /) -> Iterable[Message]:
        """Messages without a request."""

    def last_answers(self) -> Iterable[Message]:
        """No more requests will come: the delayed responses that can be given at once."""

    def close(self, now_ns: int, /) -> None:
        """The client is gone: release all that it holds."""


@attrs.frozen
class Rules:
    """Differences between the two ports."""

    name: str
    """For the log."""
    max_waiting_bytes: int
    """Limit of responses that wait to be read; beyond it no requests are read."""
    turn_ns: int
    """Time for which a connection is served before the next one."""
    max_descriptors_sent: int | None
    """To one connection; None: no limit."""
    full: str
    """Error when there are too many connections; `{}` is their number."""


DATA = Rules(
    name="user_events_data",
    max_waiting_bytes=MAX_WAITING_BYTES,
    turn_ns=4_000_000,  # each ends with a write to the state and a send, some hundredths of it
    max_descriptors_sent=MAX_DESCRIPTORS_SENT,
    full="the daemon has {} connections, which is its limit",
)

TRACEFS = Rules(
    name="tracefs",
    max_waiting_bytes=MAX_WAITING_BYTES_OF_TREE,
    turn_ns=1_000_000,  # a tool sends a hundred requests at once; another client waits that much longer
    max_descriptors_sent=None,
    full="{} connections to the tree are open, which is the limit",
)


OF_A_CONNECTION = (Resource.CONNECTIONS, Resource.DESCRIPTORS)
"""A connection takes one of each from its user."""


@attrs.define(eq=False)
class AcceptedConnection:
    link: Link
    connection: Connection
    fd: int
    """The link's descriptor, also after closing."""
    used_ns: int
    served_ns: int
    """Service time (fair_scheduler.py)."""
    _shares: Shares
    mask: int = READ
    """Events that epoll watches."""
    pumping: bool = False
    """`pump` is running: an operation in it must not pump it again."""
    answers: Iterator[Message | None] | None = None
    """The remaining responses to received requests, still to be carried out; None when there are none."""
    descriptors_sent: int = 0
    held: dict[Resource, int] = attrs.field(factory=dict)
    """Amounts counted for its user."""
    ending_ns: int | None = None
    """ENDING: closed at this time at the latest; None while OPEN."""

    @property
    def share(self) -> int:
        """The user charged for it."""
        return self.link.peer.share

    @property
    def open(self) -> bool:
        """Whether it is read."""
        return self.ending_ns is None and not self.link.closed

    def hold(self, resource: Resource, amount: int) -> TraceError | None:
        """It holds so much now. Returns the error if that is too much; it is counted all the same."""
        if self.link.closed:
            return None
        peer, more = self.link.peer, amount - self.held.get(resource, 0)
        refusal = None
        if more > 0:
            try:
                self._shares.check(resource, peer.share, more, privileged=peer.privileged)
            except TraceError as error:
                refusal = error
            self._shares.add(resource, peer.share, more)
        else:
            self._shares.drop(resource, peer.share, -more)
        self.held[resource] = amount
        return refusal

    def hold_nothing(self) -> None:
        for resource, amount in self.held.items():
            self._shares.drop(resource, self.share, amount)
        self.held.clear()

    def belongs_to(self, peer: Peer) -> None:
        """A proxy opened it on behalf of this process of another user: charge it, with all that it holds, to
        this process from now on. TraceError(EMFILE): that user has too many connections; nothing changed."""
        before = self.link.peer
        if before.share != peer.share:
            for resource in OF_A_CONNECTION:
                self._shares.check(resource, peer.share, privileged=peer.privileged)
            for resource, amount in self.held.items():
                self._shares.drop(resource, before.share, amount)
                self._shares.add(resource, peer.share, amount)
        self.link.peer = peer
