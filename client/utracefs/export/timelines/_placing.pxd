"""Choosing the track of a slice; see _placing.pyx."""

from libc.stdint cimport int32_t, uint64_t

cdef enum TrackKind:
    PROCESS_TRACK
    THREAD_TRACK
    LANE_TRACK
    COUNTER_TRACK
    LOST_TRACK

cdef enum:
    MOST_LANES = 64       # of a thread; a slice that fits on none of them gets its own track
    MOST_TOPS = 64        # of a lane: outermost slices that are kept separately

cdef struct Span:
    uint64_t begin
    uint64_t end

cdef struct Lane:
    int count
    Span tops[MOST_TOPS + 1]


cdef class Open


cdef class Track:
    cdef readonly TrackKind kind
    cdef readonly uint64_t number
    cdef readonly Track parent  #: Track | None
    cdef readonly int32_t pid
    cdef readonly int32_t tid
    cdef public str name
    cdef public Open top  #: Open | None  # the innermost open span on it


cdef class Open:
    cdef readonly object key
    cdef readonly str name
    cdef readonly str system
    cdef readonly int32_t pid
    cdef readonly int32_t tid
    cdef public uint64_t begin_ns
    cdef readonly Track owner
    cdef public Track track
    cdef public Open under  #: Open | None  # the span that it is in, on the same track
    cdef uint64_t number


cdef class OpenSlices:
    cdef Py_ssize_t _max_open
    cdef Py_ssize_t _max_same_key
    cdef object _open             # OrderedDict: number to Open
    cdef dict _by_key             # key to the Open with it, the oldest first
    cdef dict _free               # (name, number of owner) to a heap of (number, since when, Track)
    cdef uint64_t _begun
    cdef uint64_t _forgotten

    cpdef Track free_lane(self, Open one)
    cdef Open with_key(self, key)
    cpdef begin(self, Open one, Track track)
    cpdef Open end(self, key, int32_t pid, int32_t tid, uint64_t end_ns)
    cdef int _give_back(self, Open best, uint64_t end_ns) except -1
    cdef int _remove(self, Open one) except -1


cdef class Nesting:
    cdef Lane *_lanes[MOST_LANES]
    cdef int _count

    cpdef int lane(self, uint64_t begin_ns, uint64_t end_ns) except? -1
    cdef int _add(self, uint64_t begin_ns, uint64_t end_ns) except -1
