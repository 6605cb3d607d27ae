"""Allocates numbers, the lowest free one first; freed numbers are used again.

Like ida_alloc_range(), which the kernel uses for trace event ids (kernel/trace/trace_output.c). Numbers above
the highest one ever allocated cost nothing.
"""

import heapq
from collections.abc import Iterable


class LowestFree:
    """Numbers from `first` to `last`, both included."""

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self._next = first
        """No number from here on is allocated; of those below, only `_freed` are free."""
        self._freed: list[int] = []  # a heap
        self._is_freed: set[int] = set()  # the same numbers

    def __contains__(self, number: int) -> bool:
        """Whether `number` is allocated."""
        return self.first <= number < self._next and number not in self._is_freed

    @property
    def full(self) -> bool:
        """Every number is allocated."""
        return not self._freed and self._next > self.last

    def allocate(self) -> int | None:
        """Allocate the lowest free number; None when there is none."""
        if self._freed:
            number = heapq.heappop(self._freed)
            self._is_freed.remove(number)
            return number
        if self.full:
            return None
        self._next += 1
        return self._next - 1

    def free(self, number: int) -> None:
        """Free `number`. ValueError when it is not allocated."""
        if number not in self:
            raise ValueError(f"{number} was not given out")
        heapq.heappush(self._freed, number)
        self._is_freed.add(number)

    def reserve(self, numbers: Iterable[int]) -> bool:
        """Allocate exactly `numbers` initially; False, and nothing is allocated, when one occurs twice or is
        not from `first` to `last`, or any was allocated before."""
        asked = list(numbers)
        taken = set(asked)
        if self._next != self.first or len(taken) != len(asked):
            return False
        if not all(self.first <= number <= self.last for number in taken):
            return False
        self._next = max(taken, default=self.first - 1) + 1
        self._freed = [number for number in range(self.first, self._next) if number not in taken]
        self._is_freed = set(self._freed)
        return True
