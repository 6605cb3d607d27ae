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
_ours = False


def take_over() -> None:
    """From now on `look` decides, for the whole process. What is there now is not looked at again: the
    modules, whose 60,000 objects are here to stay."""
    global _ours
    _ours = True
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)


def give_back() -> None:
    """Python decides again."""
    global _ours
    if _ours:
        _ours = False
        gc.unfreeze()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, 10)


def look(*, idle: bool) -> bool:
    """Collect if it is time for that; whether it was. Cheap otherwise."""
    if not _ours or gc.get_count()[2] < (IDLE_AFTER if idle else BUSY_AFTER):
        return False
    gc.collect()
    return True
