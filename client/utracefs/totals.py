"""What a process emitted and what became of it, in numbers."""

from __future__ import annotations

from utracefs_protocol.frozen import Frozen

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from utracefs_protocol.errors import TraceError

__all__ = ["EventStats", "Stats"]


class EventStats(Frozen):
    """What became of one event's records, in this process."""

    emitted: int
    """Calls of `emit` while the event was on; the lost and the refused ones are among them."""
    lost: int
    """No room, or no daemon to send them to any more."""
    refused: dict[str, int]
    """Reason to count. "usec was float" and the like: a value did not fit its field, and no record was made.
    An errno name: the daemon did not take the record; EBADF: the event was disabled meanwhile."""
    error: TraceError | None
    """Why the daemon refused the registration."""


class Stats(Frozen):
    """What this process emitted, and what became of it."""

    connected: bool
    emitted: int
    """sent + pending + lost."""
    sent: int
    """Handed to the socket; the refused ones are among them."""
    pending: int
    """Waiting to be sent."""
    lost: int
    refused: int
    events: dict[str, EventStats]
    """By declaration."""
