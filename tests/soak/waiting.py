"""Programs that measure their emits: the memory of their results, and the program in Python.

    python -m tests.soak.waiting FD NAME PER_SECOND FORKS

It does what waiting.c does, whose head explains the measurement, with one thread.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import resource
import signal
import sys
import time

import utracefs
from tests.soak.honest import FIELDS

FEW = 5
FIRST_CHILD = 1000
KINDS = ("steady", "first of a program", "first of a child", "sleeps beside them")
STEADY, FIRST_OF_PROGRAM, FIRST_OF_CHILD, SLEEP = range(4)

# Places in a program's results, which are u64; the same as in waiting.c.
STOP, CROWD, ENDED, CHILDREN, EXCESS_NS, NR_WORST = range(6)
OWN, OF_CHILDREN = 8, 12
TAKEN, DOUBTFUL, LOST, REFUSED = range(4)
NEXT = 16
FIGURES, FIGURES_EACH = 32, 66
EMITS, WAITED, TIMES, BLOCKED = 0, 1, 2, 34
WORST, WORST_EACH, MOST_WORST = FIGURES + FIGURES_EACH * len(KINDS), 6, 64
NUMBERS = WORST + WORST_EACH * MOST_WORST

_NOTED_NS = 250_000
_PR_SET_PDEATHSIG = 1


class Results:
    """In memory that a program and its children share."""

    def __init__(self, fd: int) -> None:
        self.numbers = memoryview(mmap.mmap(fd, 8 * NUMBERS)).cast("Q")

    def note(self, kind: int, who: int, n: int, took_ns: int, blocked_ns: int, switches: int) -> None:
        """A measured emit."""
        at = FIGURES + kind * FIGURES_EACH
        self.numbers[at + EMITS] += 1
        self.numbers[at + TIMES + _logarithm(took_ns)] += 1
        if not switches:
            return
        self.numbers[at + WAITED] += 1
        self.numbers[at + BLOCKED + _logarithm(blocked_ns)] += 1
        if blocked_ns < _NOTED_NS:
            return
        place = self.numbers[NR_WORST]
        self.numbers[NR_WORST] += 1
        if place < MOST_WORST:
            for i, number in enumerate((kind, who, n, took_ns, blocked_ns, switches)):
                self.numbers[WORST + place * WORST_EACH + i] = number


def _logarithm(value: int) -> int:
    return min(max(value.bit_length() - 1, 0), 31)


class _Program:
    def __init__(self, results: Results, name: str) -> None:
        self._results = results
        self._event = utracefs.event(f"{name} {FIELDS}")
        self._schedstat = -1

    def begin(self) -> None:
        """In this process."""
        if self._schedstat >= 0:
            os.close(self._schedstat)
        self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def _ready_ns(self) -> int:
        return int(os.pread(self._schedstat, 96, 0).split()[1])

    def emit(self, kind: int, who: int, n: int) -> None:
        ready_ns = self._ready_ns()
        switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        running_ns = time.thread_time_ns()
        begin_ns = time.monotonic_ns()
        if n % 2 or self._event:
            self._event.emit(who, n)
        took_ns = time.monotonic_ns() - begin_ns
        running_ns = time.thread_time_ns() - running_ns
        switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - switches
        ready_ns = self._ready_ns() - ready_ns
        self._results.note(kind, who, n, took_ns, max(took_ns - running_ns - ready_ns, 0), switches)

    def add_counts(self, at: int) -> None:
        counts = utracefs.stats().events[self._event.declaration]
        self._results.numbers[at + TAKEN] += counts.emitted
        self._results.numbers[at + LOST] += counts.lost
        self._results.numbers[at + REFUSED] += sum(counts.refused.values())

    def fork(self) -> None:
        """A child that emits and ends at once."""
        if pid := os.fork():
            os.waitpid(pid, 0)
            return
        self.begin()
        who = FIRST_CHILD + self._results.numbers[CHILDREN]
        self._results.numbers[CHILDREN] += 1
        for n in range(FEW):
            self.emit(STEADY if n else FIRST_OF_CHILD, who, n)
        self.add_counts(OF_CHILDREN)
        os._exit(0)


def main(fd: str, name: str, per_second: str, forks: str) -> None:
    """Until the results say stop."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    results = Results(int(fd))
    numbers = results.numbers
    program = _Program(results, name)
    program.begin()
    while not numbers[STOP]:
        burst = random.choice([1, 1, 10, 100, 1000])
        for _ in range(burst):
            n = numbers[NEXT]
            numbers[NEXT] += 1
            program.emit(STEADY if n else FIRST_OF_PROGRAM, 0, n)
        if int(forks):
            program.fork()
        time.sleep(burst / int(per_second))
    if not utracefs.flush(40):  # a connection that was lost meanwhile
        utracefs.flush(40)
    program.add_counts(OWN)
    numbers[ENDED] = 1


if __name__ == "__main__":
    main(*sys.argv[1:])
