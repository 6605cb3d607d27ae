"""Fair scheduling: serve the user with the least recent service time first, and of that user the connection
with the least.

An ordinary program uses almost no time, so it comes first, however many connections of other users have
requests. A new connection starts with the time of its user, as if it had been served just now, so opening
many of them gains nothing.

A connection that has ended comes before others of its program: a program that has lost its connection and
makes another one sends the later records there.
"""

from collections import Counter
from collections.abc import Iterable

from utracefsd.connections.accepted_connection import AcceptedConnection
from utracefsd.machine.shares import HEAVIEST

HALF_LIFE_NS = 1_000_000_000
"""Half-life of service time: after it, earlier time counts half."""


class FairScheduler:
    """Service times of the users of one port."""

    def __init__(self) -> None:
        self._used: Counter[int] = Counter()
        self._halved_ns = 0

    def used_ns(self, share: int) -> int:
        """The user's recent service time."""
        return self._used.get(share, 0)

    def heaviest(self, now_ns: int) -> list[tuple[int, int]]:
        """(user, nanoseconds) of the users with the most recent service time, in descending order."""
        halvings = min((now_ns - self._halved_ns) // HALF_LIFE_NS, 63)
        return [
            (share, left) for share, used in self._used.most_common(HEAVIEST) if (left := used >> halvings)
        ]

    def served(self, one: AcceptedConnection, began_ns: int, now_ns: int) -> None:
        """`one` was served from `began_ns` to `now_ns`."""
        one.used_ns = _left(one, now_ns) + now_ns - began_ns
        one.served_ns = now_ns
        self.charge(one.share, began_ns, now_ns)

    def charge(self, share: int, began_ns: int, now_ns: int) -> None:
        """Charge the user for work from `began_ns` to `now_ns`."""
        self._used[share] += now_ns - began_ns
        if now_ns - self._halved_ns >= HALF_LIFE_NS:
            self._halved_ns = now_ns
            self._used = Counter({share: half for share, used in self._used.items() if (half := used // 2)})

    def in_order(self, waiting: Iterable[AcceptedConnection], now_ns: int) -> list[AcceptedConnection]:
        """Sort waiting connections in the order of service."""
        used = self._used
        left = {one: _left(one, now_ns) for one in waiting}
        of_program: dict[int, int] = {}
        """By process: the least of its connections that have not ended."""
        for one, ns in left.items():
            if one.link.is_read:
                of_program[one.link.peer.pid] = min(ns, of_program.get(one.link.peer.pid, ns))

        def order(one: AcceptedConnection) -> tuple[int, int, bool, int]:
            ns, is_read = left[one], one.link.is_read
            if not is_read:
                ns = min(ns, of_program.get(one.link.peer.pid, ns))
            return used[one.share], ns, is_read, one.served_ns

        return sorted(left, key=order)


def _left(one: AcceptedConnection, now_ns: int) -> int:
    """Its service time now, after decay."""
    for_ns = now_ns - one.served_ns  # it may have been accepted after `now_ns`
    return one.used_ns if for_ns < HALF_LIFE_NS else one.used_ns >> min(for_ns // HALF_LIFE_NS, 63)
