"""Which process it is, and whose child: /proc/PID/stat. What it may do is in /proc/PID/status (access.py)."""

import os

import attrs

__all__ = ["Stat", "start_time_of", "stat_of"]


@attrs.frozen
class Stat:
    """What /proc/PID/stat says of a process."""

    pid: int
    ppid: int
    start_time: int
    """Field 22, clock ticks since boot. With the pid it names a process for good."""
    start_stack: int
    """Where the stack began at the last exec; a forked child has its parent's. 0: we may not know."""


def stat_of(pid: int) -> Stat | None:
    """Also of one thread. None: there is none. One that has ended and waits for its parent has no
    `start_stack`. OSError: we may not look."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):  # it may end while it is looked up
        return None
    try:
        text = os.read(fd, 1024)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    # The name may have any characters, so fields are counted from behind it: the first is field 3.
    fields = text[text.rfind(b")") + 2 :].split(maxsplit=26)
    if len(fields) < 26:
        return None
    return Stat(pid, int(fields[1]), int(fields[19]), int(fields[25]))


def start_time_of(pid: int) -> int | None:
    """As in Stat. None: there is no such process, or we may not look."""
    try:
        stat = stat_of(pid)
    except OSError:
        return None
    return None if stat is None else stat.start_time
