"""When the garbage collector looks at everything: while nobody waits.

A full collection looks at each object there is, which takes 30 ms with a thousand connections, and ten
times as long where the cpu is shared. Python begins one in the middle of whatever happens to allocate, an
operation of an administrator or the accepting of a flood. Nothing that clients do leaves garbage that
only a full collection finds (connections know themselves in no circle), so it can wait: what is new is
looked at as always, everything only when there is nothing else to do, or very much was made since the
last time.
"""

import gc

IDLE_AFTER = 10
"""Collections of the middle generation, 7,000 new objects each, after which an idle daemon looks at
everything."""

BUSY_AFTER = 1_000
"""And one that does not come to rest."""

_NEVER = 1 << 30
_before: tuple[int, int, int] | None = None
"""Thresholds of who decided before; None: we do not decide."""


def take_over() -> None:
    """From now on `look` decides, for the whole process; once more changes nothing. What is there now is not
    looked at again: the modules, whose 60,000 objects are here to stay."""
    global _before
    if _before is None:
        _before = gc.get_threshold()
        gc.freeze()
        gc.set_threshold(*_before[:2], _NEVER)


def give_back() -> None:
    """As it was before; twice is harmless."""
    global _before
    if _before is not None:
        gc.unfreeze()
        gc.set_threshold(*_before)
        _before = None


def look(*, idle: bool) -> bool:
    """Collect if it is time for that; whether it was. Cheap otherwise."""
    if _before is None or gc.get_count()[2] < (IDLE_AFTER if idle else BUSY_AFTER):
        return False
    gc.collect()
    return True
