from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from utracefs_protocol.filter._program cimport Filter
from utracefs_protocol.pages.record cimport Record
from utracefsd.events._tracepoint cimport Probe
from utracefsd.machine._sealed_memory cimport SealedMemory

cdef class PerfSink:
    cdef readonly uint64_t id               # identifier in samples, nonzero
    cdef readonly uint64_t count
    cdef readonly uint64_t lost
    cdef readonly uint64_t sample_type
    cdef public uint64_t sample_freq
    cdef uint64_t _period
    cdef uint64_t left                      # records until the next sample
    cdef uint64_t last_sample_ns
    cdef readonly int pid
    cdef readonly int cpu
    cdef public bint enabled
    cdef public Filter filter
    cdef readonly bint sample_id_all
    cdef readonly int data_pages
    cdef SealedMemory memory                # of the ring; None without one
    cdef uint8_t *map                       # NULL without a ring
    cdef uint64_t head                      # private; the copy in the mapping is for the reader
    cdef uint64_t size                      # bytes of the data area, 0 without ring
    cdef uint64_t pending_lost              # samples lost since the last PERF_RECORD_LOST

    cdef int take(self, Record *r) noexcept # as Probe.take
    cdef bint wants(self, Record *r) noexcept
    cdef bint passes(self, Record *r) noexcept
    cdef bint sample(self, Record *r, uint64_t period) noexcept
    cdef bint reserve(self, uint64_t need, Record *r) noexcept
    cdef uint64_t trailer_size(self) noexcept
    cdef void adapt(self, uint64_t now_ns) noexcept
    cdef int make_ring(self, int data_pages) except -1
    cdef void put(self, const void *data, size_t size) noexcept
    cdef void put_trailer(self, Record *r) noexcept
    cdef void put_who_and_when(self, Record *r) noexcept

cdef class PerfProbe(Probe):
    cdef readonly PerfSink sink
