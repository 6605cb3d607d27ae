"""Connections that leave their answers unread, and are not listened to for that long (`Port._paused`).

Their end is seen all the same: epoll tells a hangup. It never comes when the peer's own end of the connection
lies in it unread, sent along as a descriptor (SCM_RIGHTS): nobody else has it any more, and the kernel takes
away only what nobody could receive. So it is looked now and then at what such a connection has sent, and if
there are descriptors in it that is its end, whosever they are: two connections may hold each other's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from utracefsd.connections.accepted import Accepted

__all__ = ["LOOK_NS", "Deaf"]

LOOK_NS: Final = 5_000_000_000
"""A program that was stopped for a moment with requests under way has this long."""

_LOOK_BYTES: Final = 1 << 20
"""More than the buffer of a socket holds."""


class Deaf:
    """Who they are, and when they are looked at."""

    def __init__(self) -> None:
        self._look_ns: dict[Accepted, int] = {}

    def add(self, accepted: Accepted, now_ns: int) -> None:
        """It is not listened to from now on; or still is not."""
        self._look_ns.setdefault(accepted, now_ns + LOOK_NS)

    def discard(self, accepted: Accepted) -> None:
        """It is listened to again, or gone. It need not have been here."""
        self._look_ns.pop(accepted, None)

    def next_ns(self) -> int | None:
        """When `hopeless` has something to look at."""
        # each has the same time, so the first is due first
        return next(iter(self._look_ns.values()), None)

    def hopeless(self, now_ns: int, is_deaf: Callable[[Accepted], bool]) -> list[Accepted]:
        """Those that are due and have sent descriptors; the others are looked at again later, if they still
        are what they were."""
        found = []
        for accepted in [accepted for accepted, look_ns in self._look_ns.items() if look_ns <= now_ns]:
            del self._look_ns[accepted]
            if is_deaf(accepted):
                self._look_ns[accepted] = now_ns + LOOK_NS
                if accepted.link.brings_descriptors(_LOOK_BYTES):
                    found.append(accepted)
        return found
