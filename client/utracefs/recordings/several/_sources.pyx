# cython: boundscheck=False, wraparound=False, cdivision=True
"""Merges the records of several recordings by time: a heap of RecordSources.

The next record of a source is read only after the present one was used, because that invalidates it. Each
source's own records keep their order. Equal times are in the order of the sources.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free

from utracefs.recordings._heap cimport Entry, order, sift_down
from utracefs.recordings._records cimport Raw, RecordSource
from utracefs_protocol.memory cimport zeroed
#: from utracefs.recordings.several.timeline import Timeline

cdef struct Member:
    void *source              # borrowed from MergedSources._sources
    uint32_t number
    uint32_t first_buffer
    uint64_t shift            # the fields of a Timeline
    uint64_t begin
    uint64_t span
    uint64_t offset
    int64_t step
    Raw raw                   # the record at hand, its time already that of all recordings


cdef inline uint64_t placed(const Member *m, uint64_t time) noexcept nogil:
    """Timeline.place. A double keeps the order: the step is at most a tenth of the span."""
    cdef uint64_t ns = time + m.shift
    cdef uint64_t passed = 0 if <int64_t>(ns - m.begin) < 0 else ns - m.begin
    if m.span and m.step:
        ns += <uint64_t><int64_t>(<double>m.step * (<double>min(passed, m.span) / <double>m.span))
    return ns + m.offset


cdef class MergedSources(RecordSource):
    """members: (source, timeline, number of the first buffer) of each recording.

    A source with invalid data ends there, the others are read to their ends. Then ValueError is raised, with
    the number of the first such source in `broken`; -1: none.
    """

    cdef list _sources
    cdef Member *_members
    cdef Entry *_heap         # of the members that have a record; the first is the earliest
    cdef Py_ssize_t _count
    cdef bint _begun
    cdef object _error
    cdef readonly Py_ssize_t broken

    def __cinit__(self, members: Iterable[tuple[RecordSource, Timeline, int]]):
        cdef Py_ssize_t i
        cdef Member *m
        cdef uint64_t mask = <uint64_t>-1
        members = list(members)
        self._sources = [source for source, _, _ in members]
        self._members = <Member *>zeroed(len(members) + 1, sizeof(Member))
        self._heap = <Entry *>zeroed(len(members) + 1, sizeof(Entry))
        self.broken = -1
        self._count = len(members)
        for i, (source, timeline, first_buffer) in enumerate(members):
            m = &self._members[i]
            m.source = <void *><RecordSource?>source
            m.number = i
            m.first_buffer = first_buffer
            m.shift = timeline.shift_ns & mask
            m.begin = timeline.begin_ns & mask
            m.span = timeline.span_ns
            m.offset = timeline.offset_ns & mask
            m.step = timeline.step_ns

    def __dealloc__(self):
        free(self._members)
        free(self._heap)

    cdef bint next(self, Raw *raw) except -1:
        cdef Member *m
        cdef Py_ssize_t i, count = 0
        if not self._begun:
            self._begun = True
            for i in range(self._count):
                if self._advance(&self._members[i]):
                    self._heap[count].time = self._members[i].raw.time_ns
                    self._heap[count].number = i
                    count += 1
            self._count = count
            order(self._heap, count)
        elif self._count:
            m = &self._members[self._heap[0].number]
            if self._advance(m):
                self._heap[0].time = m.raw.time_ns
            else:
                self._count -= 1
                self._heap[0] = self._heap[self._count]
            sift_down(self._heap, self._count, 0)
        if not self._count:
            error, self._error = self._error, None
            if error is not None:
                raise error
            return False
        m = &self._members[self._heap[0].number]
        raw[0] = m.raw
        self.comms = (<RecordSource>m.source).comms
        return True

    cdef int original(self, Raw *raw) except -1:
        if self._count:
            (<RecordSource>self._members[self._heap[0].number].source).original(raw)
        return 0

    cdef bint _advance(self, Member *m) except -1:
        cdef RecordSource source = <RecordSource>m.source
        try:
            if source.next(&m.raw):
                m.raw.time_ns = placed(m, m.raw.time_ns)
                m.raw.buffer += m.first_buffer
                m.raw.recording = m.number
                return True
        except ValueError as error:
            if self._error is None:
                self._error = error
                self.broken = m.number
        if source.lost_behind < 0 or self.lost_behind < 0:
            self.lost_behind = -1
        else:
            self.lost_behind += source.lost_behind
        source.lost_behind = 0
        return False
