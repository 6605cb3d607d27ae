"""What the state says of a data ring, so that a successor knows which there were.

The journal says how far a ring was consumed. This says whose it is, and what its records mean: the events of
its write_index table. With that a successor waits for the rings that may come back before it merges any
(`Rings.gathering`), and reads one whose program ended meanwhile, where the service manager kept it.
"""

from collections.abc import Callable

import attrs

__all__ = ["Key", "KnownRing"]

Key = tuple[int, int]
"""st_dev and st_ino of a ring's memory."""


@attrs.frozen
class KnownRing:
    """A data ring."""

    pid: int
    """Its process; 0 when that lives in a namespace that we do not see."""

    start_time: int
    """When that began, in clock ticks since boot; 0 if that could not be seen."""

    uid: int
    """Whose memory it counts as."""

    event_ids: list[int]
    """Trace event ids by write_index."""

    def may_come_back(self, is_running: Callable[[int, int], bool]) -> bool:
        """Whether its process is there to bring it; one that cannot be seen may be."""
        return not self.pid or not self.start_time or is_running(self.pid, self.start_time)
