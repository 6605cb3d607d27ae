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


def take_over() -> None:
    """From now on `look` decides, until this process ends. Objects that exist now are never visited again:
    the modules' 60,000 objects stay anyway."""
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], _NEVER)


def look(*, idle: bool) -> bool:
    """Run a full collection if it is time; returns whether it ran one. Cheap otherwise."""
    if gc.get_threshold()[2] != _NEVER or gc.get_count()[2] < (IDLE_AFTER if idle else BUSY_AFTER):
        return False
    gc.collect()
    return True
