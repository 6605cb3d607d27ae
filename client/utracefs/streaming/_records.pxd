from libc.stdint cimport uint64_t

from utracefs.recordings._records cimport RecordSource
from utracefs_protocol.pages._stream_ring cimport StreamRing

cdef class RingRecords(RecordSource):
    cdef StreamRing _ring
    cdef uint64_t _at
    cdef uint64_t _released
    cdef uint64_t _generation
    cdef bint _release
