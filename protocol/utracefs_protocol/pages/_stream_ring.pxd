"""The reader's end of a stream ring; see _stream_ring.pyx."""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t

from utracefs_protocol.pages.stream_ring cimport ss_header, ss_record

cdef class StreamRing:
    cdef ss_header *header      # NULL once it is closed
    cdef uint8_t *area
    cdef uint64_t size
    cdef size_t map_size
    cdef uint64_t begin         # of the present batch
    cdef uint64_t end
    cdef readonly uint64_t generation
    cdef readonly uint64_t reported_lost
    cdef readonly Py_ssize_t records
    cdef public bint is_over
    cdef readonly dict comms  #: dict[int, str]
    cdef readonly dict described  #: dict[int, bytes]
    cdef dict lost              # by event id, of the present batch
    cdef uint32_t *counted      # records of the present batch by event id
    cdef uint16_t *ids          # the ids whose count is not 0
    cdef Py_ssize_t nr_ids
    cdef int64_t gap            # lost in front of the first record
    cdef Py_ssize_t views       # memoryviews that are not released

    cdef ss_record *record_at(self, uint64_t at) except NULL
    cdef void release(self, uint64_t tail) noexcept
    cdef int scan(self, uint64_t head, uint64_t most) except -1
