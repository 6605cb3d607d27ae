"""Decides when the garbage collector runs a full collection: while no client waits.

A full collection visits every object, which takes 30 ms with a thousand connections, and ten times as long on
a shared cpu. Python starts one inside any allocation, for example during an operation of an administrator or
while a flood of connections is accepted. Clients cause no garbage that only a full collection finds
(connections are in no reference cycle), so it can wait. Young generations are collected as always; a full
collection runs only when the daemon is idle, or after very many new objects.
"""

import gc

IDLE_AFTER = 10
"""Collections of the middle generation (7,000 new objects each) after which an idle daemon runs a full
one."""

BUSY_AFTER = 1_000
"""The same for a daemon that is never idle."""

_NEVER = 1 << 30
_before: tuple[int, int, int] | None = None
"""The thresholds before `take_over`; None: not taken over."""
_frozen = False
"""Whether `take_over` has excluded objects from collection (gc.freeze)."""


def take_over() -> None:
    """From now on `look` decides, for the whole process; a second call changes nothing. Objects that exist
    now are never visited again: the modules' 60,000 objects stay anyway. A program that has frozen its own
    keeps them so."""
    global _before, _frozen
    if _before is None:
        _before = gc.get_threshold()
        _frozen = not gc.get_freeze_count()
        if _frozen:
            gc.freeze()
        gc.set_threshold(*_before[:2], _NEVER)


def give_back() -> None:
    """Restore the previous thresholds; a second call is harmless."""
    global _before
    if _before is not None:
        if _frozen:
            gc.unfreeze()
        gc.set_threshold(*_before)
        _before = None


def look(*, idle: bool) -> bool:
    """Run a full collection if it is time; returns whether it ran one. Cheap otherwise."""
    if _before is None or gc.get_count()[2] < (IDLE_AFTER if idle else BUSY_AFTER):
        return False
    gc.collect()
    return True
