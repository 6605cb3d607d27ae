"""What a process emitted and what became of it, in numbers."""

from __future__ import annotations

import attrs

from utracefs_protocol.errors import TraceError

__all__ = ["EventStats", "Stats"]


@attrs.frozen
class EventStats:
    """What became of one event's records, in this process."""

    emitted: int
    """Written while the event was on; the lost ones are among them."""
    lost: int
    """No room, or no daemon to send them to any more."""
    refused: dict[str, int]
    """Sent, but not taken by the daemon: errno name to count. EBADF: the event was disabled meanwhile."""
    error: TraceError | None
    """Why the daemon refused the registration."""


@attrs.frozen
class Stats:
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
