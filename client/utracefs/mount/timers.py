"""Calls at a later time, for a loop that waits no longer than until the next of them."""

import heapq
import itertools
import time
from collections.abc import Callable

from utracefs.mount.channel import Resume

__all__ = ["Pause", "Timers"]


class Timers:
    """The owner of the loop calls `run` when `next_deadline`, on `clock` in seconds, has passed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        heapq.heappush(self._due, (self._clock() + seconds, next(self._numbers), call))

    def next_deadline(self) -> float | None:
        return self._due[0][0] if self._due else None

    def run(self) -> None:
        """What is due by now, in its order; what that puts in comes with the next call."""
        now = self._clock()
        due = []
        while self._due and self._due[0][0] <= now:
            due.append(heapq.heappop(self._due)[2])
        for call in due:
            call()


class Pause:
    """Steps (see operation) go on after that many seconds; an interrupt changes nothing."""

    def __init__(self, timers: Timers, seconds: float) -> None:
        self._timers = timers
        self._seconds = seconds

    def start(self, resume: Resume) -> None:
        self._timers.later(self._seconds, lambda: resume(None, None))

    def interrupt(self) -> None:
        """It is short."""
