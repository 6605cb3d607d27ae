"""On which track a slice is drawn. A track holds slices that are beside or within each other, nothing else:
viewers pair each end with the last begin, so that two that overlap would both be drawn wrong.

    process ─┬─ thread      points, and slices of durations, on lane 0
             │    └─ lane   what would overlap there
             ├─ lane        slices from one event to another: at any time one on a lane
             └─ counter

A lane is a track like any other; viewers show those of one name and parent as one. Which one is free is known
here, and so is what began and has not ended: at most MAX_OPEN slices, of which the oldest is forgotten.
What has no end stays open, and an end without a begin is a point: nothing is invented, and both are counted.
"""

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from utracefs.export.tracks import Slice

__all__ = ["Nesting", "Open", "OpenSlices", "Track"]

MAX_OPEN: Final = 1 << 16
_MAX_SAME_KEY: Final = 1 << 10
"""Of them with one key: each end looks at all of these."""
_MAX_LANES: Final = 64
"""Of a thread; a slice that fits on none of them gets a track of its own."""
_MAX_TOPS: Final = 64
"""Of a lane: slices that are not within another one, and are told apart."""


class Track:
    """A line of the picture. number: from 1 on, in the order in which they are made."""

    __slots__ = ("kind", "name", "number", "parent", "pid", "tid")

    PROCESS: Final = 1
    THREAD: Final = 2
    LANE: Final = 3
    COUNTER: Final = 4
    LOST: Final = 5

    def __init__(
        self, number: int, kind: int, name: str, parent: "Track | None" = None, pid: int = 0, tid: int = 0
    ) -> None:
        self.number: Final = number
        self.kind: Final = kind
        self.name = name
        self.parent: Final = parent
        self.pid: Final = pid
        self.tid: Final = tid


class Open:
    """A slice that has begun. system: of the event that began it."""

    __slots__ = ("begin_ns", "definition", "key", "name", "pid", "system", "tid", "track")

    def __init__(
        self, definition: Slice, key: Hashable, name: str, system: str, pid: int, tid: int, begin_ns: int
    ) -> None:
        self.definition: Final = definition
        self.key: Final = key
        self.name: Final = name
        self.system: Final = system
        self.pid: Final = pid
        self.tid: Final = tid
        self.begin_ns: Final = begin_ns
        self.track: Track | None = None


class OpenSlices:
    """What began and has not ended, and the lanes that are free."""

    def __init__(self, max_open: int = MAX_OPEN) -> None:
        self._max_open = max_open
        self._open: OrderedDict[int, Open] = OrderedDict()
        self._by_key: dict[tuple[Slice, Hashable], list[int]] = {}
        self._free: dict[tuple[str, int], list[tuple[int, int, Track]]] = {}
        self._begun = 0
        self._forgotten = 0
        self.ends_without_begin = 0

    @property
    def begins_without_end(self) -> int:
        return len(self._open) + self._forgotten

    def begin(self, one: Open) -> Track | None:
        """The lane that it takes; None: all are taken, and the caller sets `one.track` to a new one."""
        free = self._free.get((one.name, one.pid))
        if free and free[0][1] <= one.begin_ns:
            one.track = heapq.heappop(free)[2]
        self._begun += 1
        self._open[self._begun] = one
        numbers = self._by_key.setdefault((one.definition, one.key), [])
        numbers.append(self._begun)
        if len(numbers) > _MAX_SAME_KEY:
            self._forget(numbers[0])
        elif len(self._open) > self._max_open:
            self._forget(next(iter(self._open)))
        return one.track

    def end(self, definition: Slice, key: Hashable, pid: int, tid: int, end_ns: int) -> Open | None:
        """The one that ends: where several have the key, the newest of the thread, else of the process, else
        of all. None: none is open, or it would end before it began."""
        numbers = self._by_key.get((definition, key), ())
        best: tuple[bool, bool, int] | None = None
        for number in numbers:
            one = self._open[number]
            rank = (one.tid == tid and one.pid == pid, one.pid == pid, number)
            if one.begin_ns <= end_ns and (best is None or rank > best):
                best = rank
        if best is None:
            return None
        one = self._open[best[2]]
        self._remove(best[2], one)
        assert one.track is not None
        free = self._free.setdefault((one.name, one.pid), [])
        heapq.heappush(free, (one.track.number, end_ns, one.track))
        return one

    def forget_lanes(self) -> None:
        """They will not be taken again."""
        self._free.clear()

    def _forget(self, number: int) -> None:
        self._remove(number, self._open[number])
        self._forgotten += 1

    def _remove(self, number: int, one: Open) -> None:
        del self._open[number]
        numbers = self._by_key[one.definition, one.key]
        numbers.remove(number)
        if not numbers:
            del self._by_key[one.definition, one.key]


class Nesting:
    """Slices of a thread that come when they end. They go on the first lane on which they are beside or
    around all that is there. One that begins with another one, and ends later, is not: it comes after it in
    the file, and readers would take it for the inner one.

    floor_ns: what is before that on lane 0 is not known.
    """

    def __init__(self, floor_ns: int = 0) -> None:
        self._lanes: list[list[tuple[int, int]]] = [[(0, floor_ns)] if floor_ns else []]

    def lane(self, begin_ns: int, end_ns: int) -> int | None:
        """Its number, 0 for the thread's own track; None: a track that nothing else will be on."""
        for number, tops in enumerate(self._lanes):
            if _fits(tops, begin_ns, end_ns):
                return number
        if len(self._lanes) > _MAX_LANES:
            return None
        self._lanes.append([(begin_ns, end_ns)])
        return len(self._lanes) - 1


def _fits(tops: list[tuple[int, int]], begin_ns: int, end_ns: int) -> bool:
    """tops: begin and end of those that are not within others, in the order of time."""
    if tops and tops[-1][1] > end_ns:
        return False
    left = len(tops)
    while left and tops[left - 1][0] > begin_ns:
        left -= 1
    if left and tops[left - 1][1] > begin_ns:
        return False
    tops[left:] = [(begin_ns, end_ns)]
    if len(tops) > _MAX_TOPS:
        tops[:2] = [(tops[0][0], tops[1][1])]
    return True
