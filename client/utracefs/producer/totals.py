"""Statistics of a process's records."""

from __future__ import annotations

from utracefs_protocol.frozen import Frozen

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from utracefs_protocol.errors import TraceError


class EventStats(Frozen):
    """Statistics of one event's records, in this process."""

    emitted: int
    """Calls of `emit` while the event was on, including lost and refused ones."""
    lost: int
    """Lost: no room for the record, or for the report of a refused value; or no daemon any more."""
    refused: dict[str, int]
    """Reason to number. "usec was float" and the like: a value did not fit its field, and no record was made.
    An errno name: the daemon refused the record; EBADF: the event was disabled meanwhile, or no consumer was
    back yet after the end of the daemon."""
    error: TraceError | None
    """Why the daemon refused the registration."""


class Stats(Frozen):
    """Statistics of this process's records."""

    connected: bool
    emitted: int
    """sent + pending + lost: calls of `emit` while their event was on, including refused ones."""
    sent: int
    """Passed to the daemon: records, accepted or refused by it, and reports of refused values."""
    pending: int
    """Waiting to be sent; without a daemon also records in the data ring, which the next one may take in."""
    lost: int
    refused: int
    events: dict[str, EventStats]
    """By declaration."""
