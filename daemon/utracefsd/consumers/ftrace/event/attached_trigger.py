"""A trigger that is attached to an event in an instance: what its event file and a successor know of it."""

from collections.abc import Callable
from typing import Any

import attrs

from utracefsd.consumers.ftrace.event._trigger import UNLIMITED, Trigger

__all__ = ["AttachedTrigger", "SavedTrigger", "count_text"]


@attrs.frozen
class SavedTrigger:
    """A trigger as one daemon hands it to the next; a line of the state's log (state/log.py)."""

    command: bytes
    """What makes it when it is written to the file `trigger`."""

    cells: tuple[tuple[int, int], ...]
    """Index and key: first of its own cell, then of the one that it switches, if any (_trigger_cells)."""

    extra: Any = None
    """What else its kind wants to know, as plain values."""


@attrs.frozen(eq=False)
class AttachedTrigger:
    """One trigger of one event in one instance."""

    trigger: Trigger
    """What fires."""

    slot: tuple[Any, ...]
    """An event has one trigger of each slot; the next is EEXIST."""

    text: Callable[[], bytes]
    """Its line in the file `trigger`, without the newline."""

    saved: Callable[[], SavedTrigger]
    """What a successor gets."""

    let_go: Callable[[], None] = lambda: None
    """Called once when it is not attached any more, before its own cell is taken back."""

    comes_last: bool = False
    """Listed and fired behind all others, in the order of attaching; the others are newest first."""


def count_text(count: int) -> bytes:
    """`:unlimited` or `:count=N`; the kernel prints its unsigned long with `%ld`."""
    if count == UNLIMITED:
        return b":unlimited"
    return b":count=%d" % (count - (1 << 64) if count >> 63 else count)
