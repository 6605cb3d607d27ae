"""Limits per user and for all users together: every limit, and how much each user holds now.

All input on the data socket is hostile. Without these limits one user, or a few, could use up the status
page, the daemon's descriptors or its memory, and so silence all others. Administrators are counted and not
refused, with two exceptions: descriptors, of which some are reserved for connections of administrators to the
tree's socket, and places in the service manager's store, whose number is fixed.

The total may be small (a small RLIMIT_NOFILE, `--user-events-max 100`). So a user may hold `most`, and never
more than **half of what the others leave**: the first may take a half, a second one a quarter, a third one an
eighth, and the next one always finds as much as the last one has.

Users are those of `Peer.share`: a user id that was given to a user for containers (subuid(5)) counts as that
user. Each resource is counted where it is made and freed. There is one `Shares` per daemon.
"""

import enum
import errno
import heapq
from collections.abc import Mapping

import attrs

from utracefs_protocol.errors import TraceError
from utracefsd.daemon_log import daemon_log


class Resource(enum.StrEnum):
    """A resource that is counted for each user. A str, so that hashing it is quick."""

    CONNECTIONS = "connections to the data socket"
    DESCRIPTORS = "descriptors of the daemon"
    MESSAGE_BYTES = "bytes of messages that are incomplete or not read"
    EVENTS = "events"
    FIELDS = "fields of large events"
    OLD_IDS = "ids of removed events with records"
    REGISTRATIONS = "registrations of events"
    ENABLERS = "enable words"
    ENABLER_PAGES = "pages of enable words, mapped by the daemon"
    RING_BYTES = "bytes of data rings"
    STORED_RINGS = "data rings that the service manager keeps"


@attrs.frozen
class Limit:
    """How much of a resource a user may hold, and the error beyond that."""

    most: int
    """Per user, in the resource's unit."""
    in_all: int
    """All users together; one user may hold half of what the others leave of it."""
    errno: int
    text: str
    """The error's text, with `{uid}`, `{held}` and `{most}`; `{held_kib}` and `{most_kib}` are 1024 times
    less."""


LIMITS: Mapping[Resource, Limit] = {
    # systemd gives a service 524288 descriptors, a login session 1024; a prefork server with a process per
    # core and a session or two in each needs far fewer. Each connection takes about 8 KiB of the daemon.
    Resource.CONNECTIONS: Limit(
        1024, 8192, errno.EMFILE, "user {uid} has {held} connections already, which is the limit; close some"
    ),
    # A connection, the two of its ring, and descriptors of requests that are incomplete or wait. In all:
    # RLIMIT_NOFILE less those reserved for the tree's connections (`Daemon`).
    Resource.DESCRIPTORS: Limit(
        4096,
        1 << 20,
        errno.EMFILE,
        "user {uid} holds {held} descriptors of the daemon, which is the limit; close some connections",
    ),
    # The daemon holds at most this many bytes per user: requests that are incomplete or wait for their
    # turn, and responses not yet read. A program that reads its responses has a thousandth of it.
    Resource.MESSAGE_BYTES: Limit(
        32 << 20,
        64 << 20,
        errno.ENOBUFS,
        "{held_kib} KiB of messages of user {uid} are incomplete or not read; finish and read them",
    ),
    # In all: the places of the status page (`Daemon`), 3840 by default, of which a user may have 1920.
    Resource.EVENTS: Limit(
        2048,
        65535,
        errno.EMFILE,
        "user {uid} has {held} events, which is the limit for one user; declare fewer",
    ),
    # About 300 bytes each; counted from the ninth field of an event on, 57 at most. So 16 for each event of
    # a user.
    Resource.FIELDS: Limit(
        32768,
        131072,
        errno.EMFILE,
        "large events of user {uid} have {held} fields, and {most} is the limit; declare fewer",
    ),
    # Out of 32768 ids; an id is held as long as a ring buffer has records of its removed event. Four times
    # the events of a user, so that his next events have ids even when others use up theirs.
    Resource.OLD_IDS: Limit(
        8192,
        32768,
        errno.EMFILE,
        "ring buffers hold records of {held} removed events of user {uid}, which is the limit; clear them",
    ),
    # About 100 bytes each: 512 events in each of 256 processes.
    Resource.REGISTRATIONS: Limit(
        131072,
        262144,
        errno.EMFILE,
        "the connections of user {uid} have {held} events registered, which is the limit; close some",
    ),
    # About 500 bytes each, and work at each enable or disable. 32 for each event of a user.
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
    # The default ring for 256 processes of each user, and a thousand in all: a sixteenth counts (`Rings`).
    Resource.RING_BYTES: Limit(
        256 << 20,
        1 << 30,
        errno.ENOMEM,
        "the rings of user {uid} count as {held_kib} KiB; {most_kib} KiB are the limit; ask for smaller ones",
    ),
    # In all: the places of the manager's store (`Daemon`). Only the log shows a refusal: the ring works, and
    # gets the next free place (`Rings`).
    Resource.STORED_RINGS: Limit(
        1 << 20,
        1 << 21,
        errno.EMFILE,
        "the service manager keeps {held} data rings of user {uid}, and {most} is the limit; what another"
        " ring holds is lost if its program ends while there is no daemon; raise FileDescriptorStoreMax=",
    ),
}

_OF_ALL = {Resource.DESCRIPTORS, Resource.STORED_RINGS}
"""Resources whose total also limits administrators."""

HEAVIEST = 3
"""Users that the text of a resource names."""


class Shares:
    """`limits` and `in_all` replace those of LIMITS; `most` and `in_all` may be changed at any time and then
    only prevent new holdings."""

    def __init__(
        self,
        limits: Mapping[Resource, int] | None = None,
        in_all: Mapping[Resource, int] | None = None,
    ) -> None:
        self.most = {resource: limit.most for resource, limit in LIMITS.items()} | dict(limits or {})
        self.in_all = {resource: limit.in_all for resource, limit in LIMITS.items()} | dict(in_all or {})
        self._held: dict[Resource, dict[int, int]] = {resource: {} for resource in LIMITS}
        self._total = dict.fromkeys(LIMITS, 0)
        self._refused: dict[Resource, dict[int, int]] = {resource: {} for resource in LIMITS}

    @classmethod
    def without_limits(cls) -> "Shares":
        most = dict.fromkeys(LIMITS, 1 << 62)
        return cls(most, most)

    def held(self, resource: Resource, uid: int) -> int:
        """How much `uid` holds now."""
        return self._held[resource].get(uid, 0)

    def total(self, resource: Resource) -> int:
        """How much all users hold now."""
        return self._total[resource]

    def most_of(self, resource: Resource, uid: int) -> int:
        """How much `uid` may hold while the others hold what they hold now."""
        others = self._total[resource] - self.held(resource, uid)
        return max(0, min(self.most[resource], (self.in_all[resource] - others + 1) // 2))

    def own_left(self, resource: Resource, uid: int) -> int:
        """How much more `uid` may hold if no other user holds anything."""
        most = min(self.most[resource], (self.in_all[resource] + 1) // 2)
        return max(0, most - self.held(resource, uid))

    def refusal(
        self, resource: Resource, uid: int, amount: int = 1, *, privileged: bool = False
    ) -> str | None:
        """Why `uid` may not hold `amount` more, None if it may; counts nothing."""
        held, total, in_all = self.held(resource, uid), self._total[resource], self.in_all[resource]
        if held + amount <= self.most[resource] and 2 * (total + amount) <= in_all:
            return None  # the most frequent case: so much is left in any case
        most = self.most_of(resource, uid)
        full = total + amount > in_all
        if not (full and resource in _OF_ALL if privileged else held + amount > most):
            return None
        if privileged or (full and held + amount <= self.most[resource]):
            return f"all users hold {total} {resource.value}; {in_all} is the limit; end some programs"
        return LIMITS[resource].text.format(
            uid=uid, held=held, most=most, held_kib=held >> 10, most_kib=most >> 10
        )

    def check(self, resource: Resource, uid: int, amount: int = 1, *, privileged: bool = False) -> None:
        """Raise TraceError with the limit's errno, and count the refusal, when `uid` may not hold so much
        more; does not count the amount itself."""
        refused = self.refusal(resource, uid, amount, privileged=privileged)
        if refused is not None:
            self.note_refusal(resource, uid, refused)
            raise TraceError(LIMITS[resource].errno, refused)

    def note_refusal(self, resource: Resource, uid: int, text: str) -> None:
        """Count a refusal, and log the first, the tenth, the hundredth of this user."""
        counts = self._refused[resource]
        counts[uid] = count = counts.get(uid, 0) + 1
        if str(count).strip("0") == "1":
            daemon_log("user-refused", uid=uid, count=count, reason=text)

    def scarce(self, resource: Resource, uid: int) -> bool:
        """Whether more than half is held of the user's limit, or of the limit in all."""
        held = self.held(resource, uid)
        return 2 * self._total[resource] > self.in_all[resource] or (
            held > 0 and 2 * held > self.most_of(resource, uid)
        )

    def add(self, resource: Resource, uid: int, amount: int = 1) -> None:
        """Count `amount` more for `uid`, whatever the limit."""
        held = self._held[resource]
        held[uid] = held.get(uid, 0) + amount
        self._total[resource] += amount

    def drop(self, resource: Resource, uid: int, amount: int = 1) -> None:
        """Count `amount` less for `uid`. ValueError when it does not hold as much."""
        held = self._held[resource]
        left = held.get(uid, 0) - amount
        if left < 0:
            raise ValueError(f"user {uid} does not hold {amount} {resource.value}")
        if left:
            held[uid] = left
        else:
            held.pop(uid, None)
        self._total[resource] -= amount

    def text(self) -> str:
        """Per resource: how much is held, the limit, the heaviest users, and the refusals of each user."""
        lines = []
        for resource in LIMITS:
            lines.append(f"{resource.value}: {self._total[resource]} of {self.in_all[resource]}\n")
            for uid, held in _heaviest(self._held[resource]):
                lines.append(f"  user {uid}: {held} of {self.most_of(resource, uid)}\n")
            if refused := self._refused[resource]:
                lines.append(f"  refused: {sum(refused.values())}\n")
            for uid, count in _heaviest(refused):
                lines.append(f"  refused to user {uid}: {count}\n")
        return "".join(lines)


def _heaviest(amounts: Mapping[int, int]) -> list[tuple[int, int]]:
    """(user, amount) of the users with most, in descending order."""
    return [(uid, amounts[uid]) for uid in heapq.nlargest(HEAVIEST, amounts, key=amounts.__getitem__)]
