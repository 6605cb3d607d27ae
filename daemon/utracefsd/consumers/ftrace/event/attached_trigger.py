"""A trigger attached to an event in an instance, as its event file and the daemon's state have it."""

from collections.abc import Callable
from typing import Any

import attrs

from utracefsd.consumers.ftrace.event._trigger import UNLIMITED, Trigger


@attrs.frozen
class SavedTrigger:
    """A trigger in the daemon's state; a line of the log (state/log.py)."""

    command: bytes
    """The command that makes it when written to the file `trigger`."""
    cells: tuple[tuple[int, int], ...]
    """Index and key: first of its own cell, then of the one that it switches, if any (_trigger_cells)."""
    extra: Any = None
    """Further data of its kind, as plain values."""


@attrs.frozen(eq=False)
class AttachedTrigger:
    trigger: Trigger
    """The compiled part, which fires."""
    slot: tuple[Any, ...]
    """An event has at most one trigger of each slot; another one is EEXIST."""
    text: Callable[[], bytes]
    """Its line in the file `trigger`, without the newline."""
    saved: Callable[[], SavedTrigger]
    """Its entry in the state."""
    let_go: Callable[[], None] = lambda: None
    """Called once after it was detached, before its own cell is freed."""
    comes_last: bool = False
    """Listed and fired after all others, in the order of attaching; the others are newest first."""


def count_text(count: int) -> bytes:
    """`:unlimited` or `:count=N`; the kernel prints its unsigned long with `%ld`."""
    if count == UNLIMITED:
        return b":unlimited"
    return b":count=%d" % (count - (1 << 64) if count >> 63 else count)
