"""Identity and parent of a process: /proc/PID/stat. Its rights are in /proc/PID/status (access.py)."""

import contextlib
import os
from collections.abc import Iterator

import attrs


@attrs.frozen
class Stat:
    """Content of /proc/PID/stat."""

    pid: int
    ppid: int
    start_time: int
    """Field 22, clock ticks since boot. With the pid it identifies a process permanently."""
    start_stack: int
    """Start of the stack at the last exec; a forked child has its parent's. 0: not permitted."""


def stat_of(pid: int) -> Stat | None:
    """Also for a thread. None: there is none. A zombie has no `start_stack`. OSError: not permitted."""
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
    # The name may have any characters, so fields are counted from its end: the first is field 3.
    fields = text[text.rfind(b")") + 2 :].split(maxsplit=26)
    if len(fields) < 26:
        return None
    return Stat(pid, int(fields[1]), int(fields[19]), int(fields[25]))


def with_start_stack(start_stack: int) -> Iterator[int]:
    """Pids of the processes whose stack begins there: relatives by fork of one exec, and few others. Reads
    all processes of the machine, some 10 us each."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        stat = None
        with contextlib.suppress(OSError):
            stat = stat_of(pid)
        if stat is not None and stat.start_stack == start_stack:
            yield pid


def start_time_of(pid: int) -> int | None:
    """As in Stat. None: no such process, or not permitted."""
    try:
        stat = stat_of(pid)
    except OSError:
        return None
    return None if stat is None else stat.start_time
