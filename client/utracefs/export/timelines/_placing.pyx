# cython: boundscheck=False, wraparound=False
"""Chooses the track of a slice. Slices on one track must be disjoint or nested: viewers pair each end with
the last begin, so two that overlap would both be drawn wrong.

    process ─┬─ thread      points, and slices of durations, on lane 0
             │    └─ lane   slices that would overlap there
             ├─ lane        slices from one event to another, one at a time on a lane; those without a key
             │              are on lanes of the thread
             └─ counter

A span (`utracefs.span`) is drawn in its parent if that is open on the same thread with no other span in it.
If the parent ends first, the span is cut there, and continued on a lane of its own.

A lane is a normal track; viewers show those of one name and parent as one. This module keeps the free lanes
and the open slices: at most MAX_OPEN, then the oldest is dropped. A slice without an end stays open, an end
without a begin is a point; both are counted.
"""

import heapq
from collections import OrderedDict

from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove

MAX_OPEN = 1 << 16  #: int
MAX_SAME_KEY = 1 << 10  #: int  # open slices with one key: each end compares with all of these


cdef class Track:
    """A track of the display. number: from 1 on, in the order of creation."""

    def __init__(
        self, TrackKind kind, uint64_t number, str name, Track parent=None, int32_t pid=0, int32_t tid=0
    ):
        self.kind = kind
        self.number = number
        self.name = name
        self.parent = parent
        self.pid = pid
        self.tid = tid


cdef class Open:
    """An open slice. key: which ends may end it. system: of the event that began it. owner: the process or
    thread of its lane."""

    def __init__(
        self, key: object, str name, str system, Track owner, int32_t pid, int32_t tid, uint64_t begin_ns
    ):
        self.key = key
        self.owner = owner
        self.name = name
        self.system = system
        self.pid = pid
        self.tid = tid
        self.begin_ns = begin_ns


cdef class OpenSlices:
    """The open slices and the free lanes."""

    def __init__(self, max_open: int = MAX_OPEN, max_same_key: int = MAX_SAME_KEY):
        self._max_open = max_open
        self._max_same_key = max_same_key
        self._open = OrderedDict()
        self._by_key = {}
        self._free = {}

    @property
    def begins_without_end(self) -> int:
        return len(self._open) + self._forgotten

    cpdef Track free_lane(self, Open one):  #: Track | None
        """Take a free one; None: there was none when it began."""
        cdef list lanes = self._free.get((one.name, one.owner.number))
        if not lanes or lanes[0][1] > one.begin_ns:
            return None
        return heapq.heappop(lanes)[2]

    cdef Open with_key(self, key):
        """The newest with this key; None: none is open."""
        cdef list same = self._by_key.get(key)
        return None if same is None else same[len(same) - 1]

    cpdef begin(self, Open one, Track track):  #: None
        """Begin a slice on a free or a new lane."""
        cdef list same
        one.track = track
        self._begun += 1
        one.number = self._begun
        self._open[one.number] = one
        same = self._by_key.get(one.key)
        if same is None:
            self._by_key[one.key] = [one]
        else:
            same.append(one)
            if len(same) > self._max_same_key:
                self._forgotten += 1
                self._remove(same[0])
        if len(self._open) > self._max_open:
            self._forgotten += 1
            self._remove(next(iter(self._open.values())))

    cpdef Open end(self, key: object, int32_t pid, int32_t tid, uint64_t end_ns):  #: Open | None
        """The slice that ends: of several with the key the newest of the thread, else of the process, else of
        all. None: none is open, or it would end before it began."""
        cdef list same = self._by_key.get(key)
        cdef Open one, best = None
        cdef int rank, best_rank = -1
        if same is None:
            return None
        for one in same:
            rank = (one.pid == pid) + (one.pid == pid and one.tid == tid)
            if one.begin_ns <= end_ns and rank >= best_rank:
                best = one
                best_rank = rank
        if best is None:
            return None
        self._remove(best)
        if best.under is None:
            self._give_back(best, end_ns)
        return best

    cdef int _give_back(self, Open best, uint64_t end_ns) except -1:
        """Its lane is free from then on."""
        lanes = self._free.get((best.name, best.owner.number))
        if lanes is None:
            lanes = self._free[best.name, best.owner.number] = []
        heapq.heappush(lanes, (best.track.number, end_ns, best.track))
        return 0

    def forget_lanes(self) -> None:
        self._free.clear()

    cdef int _remove(self, Open one) except -1:
        cdef list same = self._by_key[one.key]
        del self._open[one.number]
        if len(same) == 1:
            del self._by_key[one.key]
        else:
            same.remove(one)
        return 0


cdef class Nesting:
    """Slices of a thread that are known at their end. They are placed on the first lane on which they are
    disjoint from or around all others. One that begins with another one, and ends later, is not: it follows
    that in the file, and readers would take it for the inner one.

    floor_ns: slices on lane 0 before that are unknown.
    """

    def __cinit__(self, uint64_t floor_ns=0):
        self._add(0, floor_ns)
        if not floor_ns:
            self._lanes[0].count = 0

    def __dealloc__(self):
        cdef int i
        for i in range(self._count):
            free(self._lanes[i])

    cpdef int lane(self, uint64_t begin_ns, uint64_t end_ns) except? -1:
        """The number of the lane, 0 for the thread's own track; -1: a track of its own."""
        cdef int i
        for i in range(self._count):
            if fits(self._lanes[i], begin_ns, end_ns):
                return i
        if self._count == MOST_LANES:
            return -1
        return self._add(begin_ns, end_ns)

    cdef int _add(self, uint64_t begin_ns, uint64_t end_ns) except -1:
        cdef Lane *lane = <Lane *>malloc(sizeof(Lane))
        if lane == NULL:
            raise MemoryError
        lane.count = 1
        lane.tops[0] = Span(begin_ns, end_ns)
        self._lanes[self._count] = lane
        self._count += 1
        return self._count - 1


cdef bint fits(Lane *lane, uint64_t begin_ns, uint64_t end_ns) noexcept nogil:
    """tops: the outermost slices, in the order of time. If there are too many the oldest two are merged: a
    slice that begins between them will not fit, which is safe."""
    cdef Span *tops = lane.tops
    cdef int left = lane.count
    if left and tops[left - 1].end > end_ns:
        return False
    while left and tops[left - 1].begin > begin_ns:
        left -= 1
    if left and tops[left - 1].end > begin_ns:
        return False
    tops[left] = Span(begin_ns, end_ns)
    lane.count = left + 1
    if lane.count > MOST_TOPS:
        tops[1].begin = tops[0].begin
        memmove(tops, tops + 1, MOST_TOPS * sizeof(Span))
        lane.count = MOST_TOPS
    return True
