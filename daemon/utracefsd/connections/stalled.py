"""Connections whose receive buffer is full: we stop reading from them until they drain it (`Port._paused`).

epoll reports a hangup all the same. It never comes when the only descriptor of the peer's end is in a message
(SCM_RIGHTS) that lies unread in the connection itself: nobody else has that end, and the kernel frees only
messages that nobody can receive. So we look from time to time at the data that such a connection has sent.
If descriptors are in it, we close the connection, whatever they refer to: two connections may hold each
other's ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from utracefsd.connections.accepted_connection import AcceptedConnection

LOOK_NS: Final = 5_000_000_000
"""Interval of the checks; long enough for a program that was stopped shortly after sending requests."""

_LOOK_BYTES: Final = 1 << 20
"""More than a socket's buffer holds."""


class StalledConnections:
    """Connections that are not read, each with the time of its next check."""

    def __init__(self) -> None:
        self._look_ns: dict[AcceptedConnection, int] = {}

    def add(self, accepted: AcceptedConnection, now_ns: int) -> None:
        """Note that reading from a connection stops; it may have stopped before."""
        self._look_ns.setdefault(accepted, now_ns + LOOK_NS)

    def discard(self, accepted: AcceptedConnection) -> None:
        """Forget a connection that is read again or closed; it need not be noted."""
        self._look_ns.pop(accepted, None)

    def next_ns(self) -> int | None:
        """Time of the next check."""
        # all have the same interval, so the first is due first
        return next(iter(self._look_ns.values()), None)

    def ended(self, now_ns: int, is_paused: Callable[[AcceptedConnection], bool]) -> list[AcceptedConnection]:
        """The due connections that have sent descriptors. The others are checked again later if they are
        still paused."""
        found = []
        for accepted in [accepted for accepted, look_ns in self._look_ns.items() if look_ns <= now_ns]:
            del self._look_ns[accepted]
            if is_paused(accepted):
                self._look_ns[accepted] = now_ns + LOOK_NS
                if accepted.link.brings_descriptors(_LOOK_BYTES):
                    found.append(accepted)
        return found
