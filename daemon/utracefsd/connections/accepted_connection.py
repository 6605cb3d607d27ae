"""A socket that a port accepted, what stands behind it, and the rules of its port.

There are two ports, one for producers (DATA) and one for administrators (TRACEFS); `Rules` says what differs.
"""

import select
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import attrs

from utracefsd.connections.link import Link

# Beyond what the socket's own buffer holds, this much may wait to be read before requests are left alone: of
# a producer the answers to some thousand registrations, of an administrator one reply may be larger
# (read_file up to 64 MiB).
MAX_WAITING_BYTES = 128 << 10
MAX_WAITING_BYTES_OF_TREE = 1 << 20

# Every descriptor that is sent and not received counts against the daemon's user (ETOOMANYREFS, unix(7)); a
# producer maps the status page once.
MAX_DESCRIPTORS_SENT = 64

READ = select.EPOLLIN | select.EPOLLRDHUP
"""What epoll watches of a connection that is listened to."""

Message = tuple[bytes, Sequence[int]]
"""What is sent as a whole, and the descriptors that go with its first byte."""


class Connection(Protocol):
    """What stands behind a socket: bytes and descriptors in, messages out."""

    @property
    def closing(self) -> bool:
        """It has said its last words."""

    @property
    def bytes_pending(self) -> int:
        """Bytes received and not yet carried out."""

    @property
    def pending_head(self) -> int | None:
        """The first of them, which says what they are."""

    @property
    def held(self) -> bool:
        """What was received has to wait, nothing is carried out until `Port.go_on`; or, after `last_answers`,
        an answer is to come yet."""

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

    def last_answers(self) -> Iterable[Message]:
        """It is asked nothing any more: answers that were withheld and need not wait for anything."""

    def pass_over_requests(self) -> None:
        """The peer is gone and had its time."""

    def close(self, now_ns: int, /) -> None:
        """The client is gone: drop what it holds."""


@attrs.frozen
class Rules:
    """What differs between the two ports."""

    name: str
    """For the log."""

    max_waiting_bytes: int
    """While more wait to be read, requests are left alone."""

    turn_ns: int
    """How long a connection is served before others have their turn."""

    limited: bool
    """Connections and what is kept for them are counted for each user."""

    max_descriptors_sent: int | None
    """To one connection; None: no limit."""

    full: str
    """Why a connection too many is refused; `{}` is how many there are."""


DATA = Rules(
    name="user_events_data",
    max_waiting_bytes=MAX_WAITING_BYTES,
    turn_ns=4_000_000,  # each ends with a write to the state and a send, some hundredths of it
    limited=True,
    max_descriptors_sent=MAX_DESCRIPTORS_SENT,
    full="the daemon has {} connections, which is its limit",
)

TRACEFS = Rules(
    name="tracefs",
    max_waiting_bytes=MAX_WAITING_BYTES_OF_TREE,
    turn_ns=1_000_000,  # a tool sends a hundred requests at once; another client waits that much longer
    limited=False,
    max_descriptors_sent=None,
    full="{} connections to the tree are open, which is the limit",
)


@attrs.define(eq=False)
class AcceptedConnection:
    """An accepted socket together with the connection behind it."""

    link: Link
    connection: Connection

    fd: int
    """The link's, also when that is closed."""

    used_ns: int
    served_ns: int
    """For its turns (fair_scheduler.py)."""

    mask: int = READ
    """What epoll watches."""

    pumping: bool = False
    """Being pumped: an operation in it must not pump it again."""

    answers: Iterator[Message | None] | None = None
    """The rest of the answers to what was received, to be carried out; None when there is no rest."""

    descriptors_sent: int = 0

    descriptors_kept: int = 0
    """That came with what `answers` answers: its user's DESCRIPTORS until there is no rest."""

    held_bytes: int = 0
    """What is counted as its user's MESSAGE_BYTES."""

    gone_ns: int | None = None
    """When it was seen first that the peer is gone altogether; None: it is there."""

    ending_ns: int | None = None
    """ENDING: closed at this time at the latest; None while OPEN."""

    @property
    def share(self) -> int:
        """The user in whose share it is counted."""
        return self.link.peer.share

    @property
    def open(self) -> bool:
        """Whether it is listened to."""
        return self.ending_ns is None and not self.link.closed
