"""How much of the daemon one user may hold: every limit per user, and who holds how much now.

All that arrives on the data socket is hostile. Without these limits one user could use up the status page,
the daemon's descriptors or its memory, and so silence all others. Administrators are counted and never
refused.

What is held is counted where it is made and where it ends: connections by the port, events by the event
table, enable words and their pages by the enablers, data rings by `Rings`. One `Shares` for the daemon.
"""

import enum
import errno
from collections import Counter
from collections.abc import Mapping

import attrs

from utracefs_protocol.errors import TraceError


class Resource(enum.StrEnum):
    """What is counted for each user. A str, so that hashing it is quick."""

    CONNECTIONS = "connections to the data socket"
    EVENTS = "events"
    ENABLERS = "enable words"
    ENABLER_PAGES = "pages of enable words, mapped by the daemon"
    RING_BYTES = "bytes of data rings"


@attrs.frozen
class Limit:
    """How much of a resource a user may hold, and how more is refused."""

    most: int
    """In the resource's unit."""

    errno: int
    """What asking for more answers."""

    text: str
    """Why, with `{uid}`, `{held}` and `{most}`; `{held_kib}` and `{most_kib}` are 1024 times less."""


LIMITS: Mapping[Resource, Limit] = {
    # One descriptor of the daemon each. systemd gives a service 524288, a login session 1024; a prefork
    # server with a process per core and a session or two in each stays far below.
    Resource.CONNECTIONS: Limit(
        1024, errno.EMFILE, "user {uid} has {held} connections already, which is the limit; close some"
    ),
    # Half of the default status page (4095 events), so that one user cannot take the last index from another.
    Resource.EVENTS: Limit(
        2048, errno.EMFILE, "user {uid} has {most} events, which is the limit for one user"
    ),
    # Enablers are daemon memory (about 200 bytes each) and work at each toggle. 32 for each event of a user.
    Resource.ENABLERS: Limit(65536, errno.ENOMEM, "user {uid} has {most} enablers already"),
    # A mapping each, of the 65530 that the kernel allows a process (vm.max_map_count). 4 KiB pages, so 256
    # pages hold 131072 words of 8 bytes, or 262144 of 4.
    Resource.ENABLER_PAGES: Limit(
        256, errno.ENOMEM, "user {uid} has {held} pages of enable words mapped already"
    ),
    # The default ring for 256 processes.
    Resource.RING_BYTES: Limit(
        256 << 20,
        errno.ENOMEM,
        "the rings of user {uid} take {held_kib} KiB; {most_kib} KiB are the limit",
    ),
}


class Shares:
    """`limits` replace those of LIMITS; `most` may be changed at any time and then prevents only what
    comes."""

    def __init__(self, limits: Mapping[Resource, int] | None = None) -> None:
        self.most = {resource: limit.most for resource, limit in LIMITS.items()} | dict(limits or {})
        self._held: Counter[tuple[Resource, int]] = Counter()

    def held(self, resource: Resource, uid: int) -> int:
        """How much `uid` holds now."""
        return self._held[resource, uid]

    def left(self, resource: Resource, uid: int) -> int:
        """How much more `uid` may hold."""
        return max(0, self.most[resource] - self._held[resource, uid])

    def check(self, resource: Resource, uid: int, amount: int = 1, *, privileged: bool = False) -> None:
        """Raises TraceError with the limit's errno when `uid` may not hold `amount` more; counts nothing."""
        held, most = self._held[resource, uid], self.most[resource]
        if held + amount > most and not privileged:
            limit = LIMITS[resource]
            text = limit.text.format(uid=uid, held=held, most=most, held_kib=held >> 10, most_kib=most >> 10)
            raise TraceError(limit.errno, text)

    def add(self, resource: Resource, uid: int, amount: int = 1) -> None:
        """`uid` holds `amount` more, whatever the limit."""
        self._held[resource, uid] += amount

    def drop(self, resource: Resource, uid: int, amount: int = 1) -> None:
        """`uid` holds `amount` less. ValueError when it does not hold as much."""
        left = self._held[resource, uid] - amount
        if left < 0:
            raise ValueError(f"user {uid} does not hold {amount} {resource.value}")
        if left:
            self._held[resource, uid] = left
        else:
            del self._held[resource, uid]
