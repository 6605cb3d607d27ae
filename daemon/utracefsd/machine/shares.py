"""How much of the daemon one user may hold, and all together: every limit, and who holds how much now.

All that arrives on the data socket is hostile. Without these limits one user, or a few, could use up the
status page, the daemon's descriptors or its memory, and so silence all others. Administrators are counted and
not refused, but for descriptors: what is kept of those is for the tree's socket, where administrators get in.

A user is who `Peer.share` says: user ids that were given to somebody for containers (subuid(5)) are that
somebody. So an attacker is one user, and the limits in all are for a machine with many.

What is held is counted where it is made and where it ends: connections and messages by the port, events and
fields by the event table, enable words and their pages by the enablers, registrations by the connections,
data rings by `Rings`. One `Shares` for the daemon.
"""

import enum
import errno
import heapq
from collections.abc import Mapping

import attrs

from utracefs_protocol.errors import TraceError


class Resource(enum.StrEnum):
    """What is counted for each user. A str, so that hashing it is quick."""

    CONNECTIONS = "connections to the data socket"
    DESCRIPTORS = "descriptors of the daemon"
    MESSAGE_BYTES = "bytes of messages that are incomplete or not read"
    EVENTS = "events"
    FIELDS = "fields of large events"
    REGISTRATIONS = "registrations of events"
    ENABLERS = "enable words"
    ENABLER_PAGES = "pages of enable words, mapped by the daemon"
    RING_BYTES = "bytes of data rings"


@attrs.frozen
class Limit:
    """How much of a resource a user may hold, and how more is refused."""

    most: int
    """In the resource's unit."""

    in_all: int
    """How much all users may hold together."""

    errno: int
    """What asking for more answers."""

    text: str
    """Why, with `{uid}`, `{held}` and `{most}`; `{held_kib}` and `{most_kib}` are 1024 times less."""


LIMITS: Mapping[Resource, Limit] = {
    # systemd gives a service 524288 descriptors, a login session 1024; a prefork server with a process per
    # core and a session or two in each stays far below. About 8 KiB of the daemon each.
    Resource.CONNECTIONS: Limit(
        1024, 8192, errno.EMFILE, "user {uid} has {held} connections already, which is the limit; close some"
    ),
    # A connection, the two of its ring, and what came with requests that are incomplete or wait. In all:
    # what RLIMIT_NOFILE leaves when the tree's connections have theirs (`Daemon`).
    Resource.DESCRIPTORS: Limit(
        4096,
        1 << 20,
        errno.EMFILE,
        "user {uid} holds {held} descriptors of the daemon, which is the limit; close some connections",
    ),
    # The daemon holds that many bytes for a user at most: requests that are incomplete or wait for their
    # turn, and answers that are not read. A thousand times what a program that reads its answers leaves.
    Resource.MESSAGE_BYTES: Limit(
        32 << 20,
        64 << 20,
        errno.ENOBUFS,
        "{held_kib} KiB of messages of user {uid} are incomplete or not read; finish and read them",
    ),
    # Half of the default status page (4095 events), so that one user cannot take the last index from another.
    # In all: what the status page has room for (`Daemon`).
    Resource.EVENTS: Limit(
        2048,
        65535,
        errno.EMFILE,
        "user {uid} has {held} events, which is the limit for one user; declare fewer",
    ),
    # About 300 bytes each; those beyond the eighth of an event. 16 more for each event of a user; 57 is the
    # most that one can have.
    Resource.FIELDS: Limit(
        32768,
        131072,
        errno.EMFILE,
        "large events of user {uid} have {held} fields, and {most} is the limit; declare fewer",
    ),
    # About 100 bytes each: 512 events in each of 256 processes.
    Resource.REGISTRATIONS: Limit(
        131072,
        262144,
        errno.EMFILE,
        "the connections of user {uid} have {held} events registered, which is the limit; close some",
    ),
    # About 500 bytes each, and work at each toggle. 32 for each event of a user.
    Resource.ENABLERS: Limit(
        65536, 131072, errno.ENOMEM, "user {uid} has {most} enablers already; unregister some"
    ),
    # A mapping each, of the 65530 that the kernel allows a process (vm.max_map_count). 4 KiB pages, so 256
    # pages hold 131072 words of 8 bytes, or 262144 of 4.
    Resource.ENABLER_PAGES: Limit(
        256,
        8192,
        errno.ENOMEM,
        "user {uid} has {held} pages of enable words mapped already; put words side by side",
    ),
    # The default ring for 256 processes of each user, and a thousand in all.
    Resource.RING_BYTES: Limit(
        256 << 20,
        1 << 30,
        errno.ENOMEM,
        "the rings of user {uid} take {held_kib} KiB; {most_kib} KiB are the limit; ask for smaller ones",
    ),
}


HEAVIEST = 3
"""Users that the text of a resource names."""


class Shares:
    """`limits` and `in_all` replace those of LIMITS; `most` and `in_all` may be changed at any time and then
    prevent only what comes."""

    def __init__(
        self,
        limits: Mapping[Resource, int] | None = None,
        in_all: Mapping[Resource, int] | None = None,
    ) -> None:
        self.most = {resource: limit.most for resource, limit in LIMITS.items()} | dict(limits or {})
        self.in_all = {resource: limit.in_all for resource, limit in LIMITS.items()} | dict(in_all or {})
        self._held: dict[Resource, dict[int, int]] = {resource: {} for resource in LIMITS}
        self._total = dict.fromkeys(LIMITS, 0)

    def held(self, resource: Resource, uid: int) -> int:
        """How much `uid` holds now."""
        return self._held[resource].get(uid, 0)

    def total(self, resource: Resource) -> int:
        """How much all hold now."""
        return self._total[resource]

    def left(self, resource: Resource, uid: int) -> int:
        """How much more `uid` may hold."""
        in_all = self.in_all[resource] - self._total[resource]
        return max(0, min(self.own_left(resource, uid), in_all))

    def check(self, resource: Resource, uid: int, amount: int = 1, *, privileged: bool = False) -> None:
        """Raises TraceError with the limit's errno when `uid` may not hold `amount` more; counts nothing."""
        if privileged and resource is not Resource.DESCRIPTORS:
            return
        held, most = self._held[resource].get(uid, 0), self.most[resource]
        if held + amount > most and not privileged:
            limit = LIMITS[resource]
            text = limit.text.format(uid=uid, held=held, most=most, held_kib=held >> 10, most_kib=most >> 10)
            raise TraceError(limit.errno, text)
        total, in_all = self._total[resource], self.in_all[resource]
        if total + amount > in_all:
            text = f"all users hold {total} {resource.value}; {in_all} is the limit; end some programs"
            raise TraceError(LIMITS[resource].errno, text)

    def own_left(self, resource: Resource, uid: int) -> int:
        """How much more `uid` may hold, whatever all others hold."""
        return max(0, self.most[resource] - self._held[resource].get(uid, 0))

    def scarce(self, resource: Resource, uid: int) -> bool:
        """Whether more than half of what `uid` may hold, or of what all may, is held."""
        return (
            2 * self._held[resource].get(uid, 0) > self.most[resource]
            or 2 * self._total[resource] > self.in_all[resource]
        )

    def add(self, resource: Resource, uid: int, amount: int = 1) -> None:
        """`uid` holds `amount` more, whatever the limit."""
        held = self._held[resource]
        held[uid] = held.get(uid, 0) + amount
        self._total[resource] += amount

    def drop(self, resource: Resource, uid: int, amount: int = 1) -> None:
        """`uid` holds `amount` less. ValueError when it does not hold as much."""
        held = self._held[resource]
        left = held.get(uid, 0) - amount
        if left < 0:
            raise ValueError(f"user {uid} does not hold {amount} {resource.value}")
        if left:
            held[uid] = left
        else:
            held.pop(uid, None)
        self._total[resource] -= amount

    def heaviest(self, resource: Resource) -> list[tuple[int, int]]:
        """(user, how much) of those who hold most, the first of them first."""
        held = self._held[resource]
        return [(uid, held[uid]) for uid in heapq.nlargest(HEAVIEST, held, key=held.__getitem__)]

    def text(self) -> str:
        """What is held of each resource, of how much, and by whom most of it."""
        lines = []
        for resource in LIMITS:
            lines.append(f"{resource.value}: {self._total[resource]} of {self.in_all[resource]}\n")
            for uid, held in self.heaviest(resource):
                lines.append(f"  user {uid}: {held} of {self.most[resource]}\n")
        return "".join(lines)
