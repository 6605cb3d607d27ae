"""Reads /proc and /sys: names of threads, cpus, memory, clocks."""

import contextlib
import itertools
import os
import platform
import re
import resource
import sys
from pathlib import Path

from utracefsd.machine.comms import CommTable, Task

_START_TIME = 19
"""Position of starttime in /proc/PID/stat, counted from the field behind the name (number 22 in
proc_pid_stat(5))."""

_PROCESSOR = 36
"""Position of processor (number 39)."""

_FLAGS = 6
"""Position of flags (number 9)."""

_NUM_THREADS = 17
"""Position of num_threads (number 20)."""

_STATUS_BYTES = 1 << 16
"""Bytes read of /proc/PID/status. It lists the groups: a field behind some 9,000 of them counts as hidden."""

_PF_EXITING = 0x4
"""include/linux/sched.h: set before a thread that ends closes its files."""

_MOST_THREADS = 64
"""So many threads of a process are looked at until one is found that does not end."""


def _read(path: str, most: int = 4096) -> bytes:
    """Read a file that is not longer than `most`, which the kernel gives in one piece. Each connection reads
    three, and open() needs twelve system calls per file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, most)
    finally:
        os.close(fd)


def read_task(pid: int) -> Task | None:
    """Name and start time from /proc/PID/stat; None: no such thread, or it is hidden from us."""
    try:
        text = _read(f"/proc/{pid}/stat")
        # The name may hold anything, parentheses and blanks included.
        comm, _, rest = text[text.index(b"(") + 1 :].rpartition(b") ")
        if b"\\" in comm:
            # Some kernels escape newlines and backslashes in this file, others do not; the other file never
            # does.
            comm = _read(f"/proc/{pid}/comm").removesuffix(b"\n")
    except OSError:
        return None
    values = rest.split()
    return Task(comm[:15], int(values[_START_TIME]), cpu=int(values[_PROCESSOR]))


def is_running(pid: int, start_time: int) -> bool:
    """Whether the process with this id and start time (`Task.start_time`) exists, and one of its threads is
    neither exiting nor a zombie: the first one may have ended long before (pthread_exit(3))."""
    first = _read_stat(f"/proc/{pid}")
    if first is None or int(first[_START_TIME]) != start_time:
        return False
    if not _ends(first):
        return True
    if int(first[_NUM_THREADS]) == 1:
        return False
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as threads:
        return not all(_ends(_read_stat(one.path)) for one in itertools.islice(threads, _MOST_THREADS))
    return False


def _read_stat(folder: str) -> list[bytes] | None:
    """The fields behind the name; None: no such thread, or it is hidden from us."""
    try:
        return _read(f"{folder}/stat").rpartition(b") ")[2].split()
    except OSError:
        return None


def _ends(stat: list[bytes] | None) -> bool:
    return stat is None or stat[0] in (b"Z", b"X") or bool(int(stat[_FLAGS]) & _PF_EXITING)


def read_tgid(pid: int) -> int | None:
    """The process that a thread belongs to; None as `read_task`."""
    return _read_status(pid, b"Tgid")


def read_parent(pid: int) -> int | None:
    """The parent process of a thread's process; 0 for a process without one, None as `read_task`."""
    return _read_status(pid, b"PPid")


def _read_status(pid: int, name: bytes) -> int | None:
    try:
        rest = _read(f"/proc/{pid}/status", _STATUS_BYTES).partition(b"\n%s:" % name)[2]
    except OSError:
        return None
    line, end, _ = rest.partition(b"\n")
    return int(line.split()[-1]) if end else None


def is_in_our_namespace(pid: int) -> bool:
    """Whether the process has this number in its own pid namespace, too, so that its namespace is ours. False
    where that is hidden, or it has ended."""
    return _read_status(pid, b"NSpid") == pid


def make_comm_table() -> CommTable:
    """A CommTable that asks /proc."""
    return CommTable(read_task, read_tgid, read_parent, kernel_release=os.uname().release.encode())


def possible_cpus() -> int:
    """One more than the highest possible cpu number: the number of per-cpu buffers that tools expect."""
    try:
        with open("/sys/devices/system/cpu/possible") as file:
            return int(re.split("[,-]", file.read().strip())[-1]) + 1
    except (OSError, ValueError):
        return os.cpu_count() or 1


def free_memory_kb() -> int:
    """MemAvailable: the kernel's estimate of memory available without swapping."""
    try:
        with open("/proc/meminfo") as file:
            found = re.search(r"^MemAvailable:\s*(\d+) kB", file.read(), re.MULTILINE)
    except OSError:
        found = None
    return int(found[1]) if found else sys.maxsize


def resident_bytes() -> int:
    """Resident memory of this process, with shared memory; 0 if the system does not say."""
    try:
        return int(_read("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def cpu_time_ms() -> int:
    """Time that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int(1000 * (used.ru_utime + used.ru_stime))


_CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_CPUINFO = Path("/proc/cpuinfo")

_STEADY = {"constant_tsc", "nonstop_tsc"}
"""The counter has a constant rate at any cpu frequency, and counts while the cpu sleeps."""


def tsc_is_trusted(clocksource: Path = _CLOCKSOURCE, cpuinfo: Path = _CPUINFO) -> bool:
    """Whether the time stamp counter may replace the clock: where the kernel itself takes the time from it,
    until its watchdog finds the counters of two cpus apart."""
    if platform.machine() != "x86_64":
        return False
    try:
        if clocksource.read_text().strip() != "tsc":
            return False
        with cpuinfo.open() as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return False
    return set(flags.split()) >= _STEADY
