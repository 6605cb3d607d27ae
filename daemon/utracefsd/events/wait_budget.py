"""A budget per user for the time that operations on the tree wait for the user's programs.

An operation waits at most ACKNOWLEDGE_NS for each program that sets enable bits itself (notifier.py).
A user could register an event on many connections, acknowledge nothing, and so slow down every operation on
that event. So the waits are added up per user: MOST_NS at once, and the budget refills at 1/10 of elapsed
time. A user without budget is notified like others, but no operation waits. Operations always wait for
administrators' programs. One stopped program costs one wait: no operation waits again for an overdue
connection.

Waits up to FREE_NS are free: a program that waits for a cpu takes that long. Simultaneous waits of several
operations count once.
"""

import attrs

from utracefsd.daemon_log import daemon_log
from utracefsd.machine.peer import Peer

FREE_NS = 100_000_000
"""The longest delay of every operation on an event that a user's programs can cause."""

MOST_NS = 2_000_000_000
"""Two of the longest waits. A wait may begin while any budget is left, so one user's stopped programs delay
administrators by up to three seconds at once."""

REFILL_DIVISOR = 10
"""The budget refills by one nanosecond in this many."""


@attrs.define
class _Waited:
    until_ns: int
    """Waits before this time are counted."""
    full_ns: int
    """When the budget is full again."""
    is_logged: bool = False
    """The log says that operations no longer wait."""


class WaitBudget:
    """The budgets of all users but administrators."""

    def __init__(self) -> None:
        self._waited: dict[int, _Waited] = {}

    def __len__(self) -> int:
        """Users whose budget was not full at the last counted wait."""
        return len(self._waited)

    def is_left(self, peer: Peer, now_ns: int) -> bool:
        """Whether an operation waits for this peer's program."""
        waited = self._waited.get(peer.share)
        return waited is None or peer.privileged or waited.full_ns - now_ns < MOST_NS * REFILL_DIVISOR

    def waited(self, peer: Peer, from_ns: int, until_ns: int) -> None:
        """An operation waited for this peer's program from `from_ns` to `until_ns`."""
        if until_ns - from_ns <= FREE_NS or peer.privileged:
            return
        self._waited = {share: one for share, one in self._waited.items() if one.full_ns > from_ns}
        waited = self._waited.setdefault(peer.share, _Waited(from_ns, from_ns))
        counted_ns = max(0, until_ns - max(from_ns, waited.until_ns))
        waited.until_ns = max(waited.until_ns, until_ns)
        waited.full_ns = max(waited.full_ns, until_ns) + counted_ns * REFILL_DIVISOR
        if not waited.is_logged and not self.is_left(peer, until_ns):
            waited.is_logged = True
            daemon_log.warning(
                "enable-bits-slow",
                "enable bits of user %(uid)d took %(took_ms)d ms of what operations have to wait; for a while"
                " none waits for that user's programs",
                uid=peer.share,
                took_ms=MOST_NS // 1_000_000,
            )
