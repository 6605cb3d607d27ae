"""Timers for an event loop."""

import heapq
import itertools
import time
from collections.abc import Callable

from utracefs.mount.channel import Resume
from utracefs.mount.operation import Wait


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
        """Run the due calls, in order; calls that they add run the next time."""
        now = self._clock()
        due = []
        while self._due and self._due[0][0] <= now:
            due.append(heapq.heappop(self._due)[2])
        for call in due:
            call()


class Pause(Wait):
    """Steps (see operation) continue after that many seconds; an interrupt has no effect."""

    def __init__(self, timers: Timers, seconds: float) -> None:
        self._timers = timers
        self._seconds = seconds

    def start(self, resume: Resume) -> None:
        self._timers.later(self._seconds, lambda: resume(None, None))
