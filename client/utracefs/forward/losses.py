"""Records that do not arrive: by event and cause.

At the far end, records emitted = records arrived + `count` of all losses, for each host and event. A count of
None says that the number is unknown; then that equation is an inequality for the event, or for all events if
it is ANY.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import attrs

__all__ = ["ANY", "AWAY", "LIMIT", "POLICY", "REFUSED", "RING", "SAMPLE", "SPOOL", "Loss", "Losses"]

RING: Final = "ring"
"""The ring was full: the forwarder, or its disk, is too slow. Includes losses before the ring."""
SPOOL: Final = "spool"
"""The spool was full or could not be written, or a part of it was damaged."""
LIMIT: Final = "limit"
"""More than the policy's `max_records_per_s`."""
POLICY: Final = "policy"
"""The policy hides fields, and the event is one of EventHeader."""
REFUSED: Final = "refused"
"""The target does not take these records."""
SAMPLE: Final = "sample"
"""A wish of a fleet asks for one of n records."""
AWAY: Final = "away"
"""The forwarder or the daemon was away."""

ANY: Final = "*"
"""In place of an event: it is unknown which."""


@attrs.frozen
class Loss:
    """Lost records of one event."""

    event: str
    """`SYSTEM:NAME`, or ANY."""
    cause: str
    count: int | None
    """None: unknown."""


class Losses:
    """A sum of losses. Not for several threads."""

    def __init__(self, losses: Iterable[Loss] = ()) -> None:
        self._counts: dict[tuple[str, str], int | None] = {}
        self.extend(losses)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def __iter__(self) -> Iterator[Loss]:
        return (Loss(event, cause, count) for (event, cause), count in self._counts.items())

    def add(self, event: str, cause: str, count: int | None) -> None:
        """Unknown and a number are unknown."""
        if count != 0:
            before = self._counts.get((event, cause), 0)
            self._counts[event, cause] = None if count is None or before is None else before + count

    def extend(self, losses: Iterable[Loss]) -> None:
        for loss in losses:
            self.add(loss.event, loss.cause, loss.count)

    def clear(self) -> None:
        self._counts.clear()
