"""A data ring as the state describes it for the next daemon.

The journal has how far a ring was consumed. This has its process, and the meaning of its records: the events
of its write_index table. With it the next daemon waits for rings that may come back before it merges any
(`Rings.gathering`), and reads a ring that the service manager kept after its program had ended.
"""

from collections.abc import Callable

import attrs

Key = tuple[int, int]
"""st_dev and st_ino of a ring's memory."""


@attrs.frozen
class KnownRing:
    pid: int
    """Its process; 0 when that process's pid namespace is not visible."""
    start_time: int
    """When that process began, in clock ticks since boot; 0 if unknown."""
    uid: int
    """The user charged for its memory."""
    event_ids: list[int]
    """Trace event ids by write_index."""

    def is_registered_in(self, nr_events: int) -> bool:
        """Whether so many write indexes are all those of its events."""
        return not any(self.event_ids[nr_events:])

    def may_come_back(self, is_running: Callable[[int, int], bool]) -> bool:
        """Whether its process still runs and can bring the ring back; assumed of a process that is not
        visible."""
        return not self.pid or not self.start_time or is_running(self.pid, self.start_time)
