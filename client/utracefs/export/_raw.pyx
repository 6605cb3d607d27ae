# cython: boundscheck=False, wraparound=False
"""Records in the format of a perf.data, not decoded."""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from utracefs.recordings._output_buffer cimport Pieces
from utracefs.recordings._records cimport Raw, Records

from utracefs_protocol.pages.perf_ring import PERF_RECORD_LOST, PERF_RECORD_SAMPLE

cdef uint32_t RECORD_LOST = PERF_RECORD_LOST
cdef uint32_t RECORD_SAMPLE = PERF_RECORD_SAMPLE

cdef enum:
    MISC_USER = 2
    SAMPLE_HEAD = 60        # header to the size of the raw data, for sample_type 0x10587
    LOST_SIZE = 56          # with a trailer: tid, time, cpu, identifier
    LONGEST = 65528         # of a record: its size is a u16, and divisible by 8

cdef struct Sample:
    uint32_t type
    uint16_t misc
    uint16_t size
    uint64_t identifier
    uint64_t ip
    int32_t pid
    int32_t tid
    uint64_t time
    uint32_t cpu
    uint32_t reserved
    uint64_t period
    uint32_t raw_size

cdef struct LostRecord:
    uint32_t type
    uint16_t misc
    uint16_t size
    uint64_t id
    uint64_t number
    int32_t pid
    int32_t tid
    uint64_t time
    uint32_t cpu
    uint32_t reserved
    uint64_t identifier

assert sizeof(LostRecord) == LOST_SIZE


cdef class PerfSamples(Pieces):
    """Samples of all records, with the event's id as their identifier.

    tasks: (process, thread) to the thread's name, of writing threads. first_ns, last_ns: the earliest and the
    latest time. known: ids of events described in the file; None: all. left_out: records that a perf.data
    cannot hold, or of unknown events, at which perf would stop reading; each is a LOST record.
    """

    cdef Records _records
    cdef readonly dict tasks  #: dict[tuple[int, int], str]
    cdef readonly uint64_t first_ns
    cdef readonly uint64_t last_ns
    cdef readonly uint64_t left_out
    cdef uint8_t _known[1 << 16]
    cdef uint16_t _any_known

    def __init__(self, Records records not None, known: Iterable[int] | None = None):
        self._records = records
        self.tasks = {}
        memset(self._known, known is None, sizeof(self._known))
        for id in known or ():
            self._any_known = id
            self._known[self._any_known] = 1

    cdef int _fill(self, size_t max_bytes) except -1:
        cdef Raw raw
        cdef int32_t pid = -1, tid = -1
        cdef str comm = None, before = None
        while self._used < max_bytes:
            if self._records.next_original(&raw) is None:
                break
            while self._used + LOST_SIZE + LONGEST > self._capacity:
                self._grow()
            comm = self._records.comm(raw.tid)
            if raw.tid != tid or raw.pid != pid or comm is not before:
                self.tasks[raw.pid, raw.tid] = comm
                pid, tid, before = raw.pid, raw.tid, comm
            if raw.lost:
                self._lost(&raw, raw.lost if raw.lost > 0 else 0)
            self._sample(&raw)
            if not self.first_ns or raw.time_ns < self.first_ns:
                self.first_ns = raw.time_ns
            self.last_ns = max(self.last_ns, raw.time_ns)
        return 0

    cdef int _sample(self, const Raw *raw) except -1:
        cdef Sample head
        cdef uint16_t id
        cdef size_t padded = ((raw.size + 4 + 7) & ~<size_t>7) - 4   # what follows the u32 begins at 8n + 4
        cdef char *to = self._text + self._used
        memcpy(&id, raw.entry, 2)
        if SAMPLE_HEAD + padded > LONGEST or not self._known[id]:
            self.left_out += 1
            return self._lost(raw, 1)
        memset(&head, 0, sizeof(head))
        head.type = RECORD_SAMPLE
        head.misc = MISC_USER
        head.size = <uint16_t>(SAMPLE_HEAD + padded)
        head.identifier = id
        head.pid = raw.pid
        head.tid = raw.tid
        head.time = raw.time_ns
        head.cpu = raw.cpu
        head.period = 1
        head.raw_size = <uint32_t>padded
        memcpy(to, &head, SAMPLE_HEAD)
        memcpy(to + SAMPLE_HEAD, raw.entry, raw.size)
        memset(to + SAMPLE_HEAD + raw.size, 0, padded - raw.size)
        self._used += SAMPLE_HEAD + padded
        return 0

    cdef int _lost(self, const Raw *raw, uint64_t number) except -1:
        cdef LostRecord lost
        cdef uint16_t id
        memcpy(&id, raw.entry, 2)
        if not self._known[id]:
            id = self._any_known
        memset(&lost, 0, sizeof(lost))
        lost.type = RECORD_LOST
        lost.size = sizeof(lost)
        lost.id = lost.identifier = id
        lost.number = number
        lost.pid = raw.pid
        lost.tid = raw.tid
        lost.time = raw.time_ns
        lost.cpu = raw.cpu
        memcpy(self._text + self._used, &lost, sizeof(lost))
        self._used += sizeof(lost)
        return 0
