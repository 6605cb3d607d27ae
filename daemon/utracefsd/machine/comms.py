"""Names of threads by thread id, for `trace` and saved_cmdlines.

A record carries a number. The daemon asks /proc for the name when it prints, while the task lives, and keeps
the last known one. Thread ids are reused, so a name is renewed only from a task with the same start time.
`remember` takes the present name without that check; its callers know that it is the same task.

As in the kernel, the thread group (`saved_tgids`, the option record-tgid) is stored only for tasks that write
while the option is on.
"""

import errno
from collections.abc import Callable, Iterator, Mapping

import attrs

from utracefs_protocol.errors import TraceError

UNKNOWN = b"<...>"

_MAX_GENERATIONS = 64
"""Ancestors of a thread to look at: /proc may change during the walk."""

_MAX_CAPACITY = 32768
"""PID_MAX_DEFAULT, the largest number that saved_cmdlines_size takes."""

_PART_OF_THE_ENDED = 2
"""One user's threads whose names only his own process tells may take 1/2 of the table."""

_PAGE = 4096
_TABLE_HEAD = 131096
_ELEMENT = 20
"""The kernel rounds its table up to a power of two of pages and shows how many names fit
(kernel/trace/trace_sched_switch.c, `allocate_cmdlines_buffer`): a head with a slot for each of 32769 pids,
then a name of 16 bytes and a pid each."""


@attrs.frozen
class Task:
    """A thread, by /proc."""

    comm: bytes
    """Its name, at most 15 bytes."""
    start_time: int
    """When it began, in clock ticks since boot; 0: it had ended before the daemon knew it."""
    process: int = 0
    """The process of the thread; 0: unknown."""
    cpu: int = attrs.field(default=0, eq=False)
    """Its present cpu, or the last one before it slept."""


class CommTable:
    """Names and thread groups by thread id."""

    def __init__(
        self,
        read_task: Callable[[int], Task | None],
        read_tgid: Callable[[int], int | None],
        read_parent: Callable[[int], int | None] = lambda pid: None,
        *,
        kernel_release: bytes = b"",
    ) -> None:
        """The first three ask /proc (`procfs`). kernel_release: shown by latency-format."""
        self.kernel_release = kernel_release
        self.record_tgid = False
        """Some instance has the option record-tgid on."""
        self._tgids_wanted_by: set[object] = set()
        self.capacity = _rounded_capacity(128)
        self._read_task = read_task
        self._read_tgid = read_tgid
        self._read_parent = read_parent
        self.record_cmd = True
        """The option record-cmd: names are learned. While it is off only known names are shown."""
        self._tasks: dict[int, Task] = {}
        self._ended: dict[int, dict[int, Task]] = {}
        """By user: threads that had ended, and whose names only their own process claimed."""
        self._tgids: dict[int, int] = {}
        self.on_kept: Callable[[int, Task], None] = lambda pid, task: None
        """Called for every new name."""
        self.on_ended: Callable[[], None] = lambda: None
        """Called, after `on_kept`, for each name of an ended thread, which /proc cannot repeat."""

    def __len__(self) -> int:
        return len(self._tasks)

    def tasks(self) -> list[tuple[int, Task]]:
        """Known tasks, oldest first."""
        return list(self._tasks.items())

    def restore(self, tasks: Mapping[int, Task]) -> None:
        """Restore the tasks that the previous daemon knew, after the instances and their options."""
        self._tasks.update(tasks)
        if self.record_tgid:
            self._tgids.update((pid, task.process) for pid, task in tasks.items() if task.process)
        self._forget_oldest()

    def remember(self, pid: int, process: int = 0, comm: bytes = b"", task: Task | None = None) -> None:
        """Learn the name of a task that exists in that process. comm: its name if it has ended since. task:
        as it has just been read."""
        if self.record_cmd and pid > 0:
            task = task or self._read_task(pid)
            if task is not None or comm:
                self._keep(pid, Task(comm, 0) if task is None else task, process)

    def last_comm(self, pid: int) -> bytes | None:
        """The last known name; None: unknown."""
        known = self._tasks.get(pid)
        return None if known is None else known.comm

    def has_ended(self, tid: int, process: int, start_time: int, share: int, comm: bytes) -> bool:
        """Whether `tid`, which no thread has now, was a thread of that process: it is known as one, or the
        record carries its name (comm) and it is not known as another process's. start_time: the process's.
        share: the user charged for the kept name."""
        known = self._tasks.get(tid)
        if known is None:
            if not comm:
                return False
        elif known.process != process or (tid == process and known.start_time != start_time):
            return False
        if comm and self.record_cmd:
            ended = self._ended.setdefault(share, {})
            ended.pop(tid, None)
            self._keep(tid, Task(comm, start_time if tid == process else 0), process)
            ended[tid] = self._tasks[tid]
            if len(ended) > self.capacity // _PART_OF_THE_ENDED:
                oldest = next(iter(ended))
                if ended.pop(oldest) is self._tasks.get(oldest):  # else another thread has the number now
                    del self._tasks[oldest]
            self.on_ended()
        return True

    def wrote(self, pid: int, tgid: int | None = None) -> None:
        """Records of this thread have been taken in. tgid: its process, if known."""
        if self.record_tgid and pid not in self._tgids and pid > 0:
            if tgid is None:
                tgid = self._read_tgid(pid)
            if tgid is not None:
                self._tgids[pid] = tgid
                if pid in self._tasks:  # for the next daemon
                    self._keep(pid, self._tasks[pid], tgid)
                if len(self._tgids) > _MAX_CAPACITY:
                    del self._tgids[next(iter(self._tgids))]

    def want_tgids(self, who: object, wanted: bool) -> None:
        """The option record-tgid of one instance; thread groups are learned while any has it on."""
        if wanted:
            self._tgids_wanted_by.add(who)
        else:
            self._tgids_wanted_by.discard(who)
        self.record_tgid = bool(self._tgids_wanted_by)

    def comm(self, pid: int) -> bytes:
        """The present name, or the last known one; `<...>` for an unknown thread that has ended."""
        known = self._tasks.get(pid)
        present = self._read_task(pid) if self.record_cmd else None
        if present is not None and (known is None or present.start_time == known.start_time):
            if known is None or present.comm != known.comm:
                self._keep(pid, present)
            return present.comm
        return UNKNOWN if known is None else known.comm

    def tgid(self, pid: int) -> int:
        """The thread group, 0 if not recorded."""
        return self._tgids.get(pid, 0)

    def meet(self, tid: int) -> tuple[int | None, int | None]:
        """Learn the name of a thread that writes and sleeps until the response; returns its process and cpu,
        None where they are hidden."""
        task = self._read_task(tid)
        if task is None:
            return None, None
        known = self._tasks.get(tid)
        if known is not None and known.process and known.start_time == task.start_time:
            process: int | None = known.process
        else:
            process = self._read_tgid(tid)
        if self.record_cmd:
            self._keep(tid, task, process or 0)
        return process, task.cpu

    def lives(self, pid: int) -> bool:
        """Whether such a thread exists."""
        return self._read_task(pid) is not None

    def ancestors(self, pid: int) -> Iterator[int]:
        """The process of a thread, which may have ended, its parent process, and so on; as far as those still
        live."""
        process = self._read_tgid(pid)
        if process is None and pid in self._tasks:
            process = self._tasks[pid].process
        for _ in range(_MAX_GENERATIONS):
            if not process:
                return
            yield process
            process = self._read_parent(process)

    def saved_cmdlines_text(self) -> bytes:
        """pid and name, one a line."""
        return b"".join(b"%d %s\n" % (pid, self.comm(pid)) for pid in list(self._tasks))

    def saved_tgids_text(self) -> bytes:
        """pid and tgid, ascending by pid."""
        return b"".join(b"%d %d\n" % pair for pair in sorted(self._tgids.items()))

    def set_capacity(self, number: int) -> None:
        """How many names to keep; rounded up as the kernel does. EINVAL: 0, or more than 32768."""
        if not 0 < number <= _MAX_CAPACITY:
            raise TraceError(errno.EINVAL, f"between 1 and {_MAX_CAPACITY} names can be kept")
        self.capacity = _rounded_capacity(number)
        self._forget_oldest()

    def _keep(self, pid: int, task: Task, process: int = 0) -> None:
        before = self._tasks.pop(pid, None)
        if not process and before is not None and before.start_time == task.start_time:
            process = before.process
        process = process or self._tgids.get(pid, 0)
        if process:
            task = Task(task.comm, task.start_time, process, task.cpu)
        self._tasks[pid] = task
        if task != before:
            self.on_kept(pid, task)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._tasks) > self.capacity:
            oldest = next(iter(self._tasks))
            del self._tasks[oldest]
            self._tgids.pop(oldest, None)


def _rounded_capacity(number: int) -> int:
    pages = -(-(_TABLE_HEAD + number * _ELEMENT) // _PAGE)
    return ((_PAGE << (pages - 1).bit_length()) - _TABLE_HEAD) // _ELEMENT
