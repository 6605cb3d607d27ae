from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from utracefs.recordings._records cimport Raw, Records
from utracefs_protocol.pages.stream_ring cimport ss_header

cdef class RingWriter:
    cdef Records records
    cdef dict ids
    cdef dict described
    cdef dict comms           # thread id to the name that the reader knows
    cdef uint8_t[::1] memory
    cdef ss_header *header
    cdef uint8_t *area
    cdef uint64_t size
    cdef uint64_t head
    cdef uint64_t lost
    cdef Raw raw              # the record at hand
    cdef bint is_pending      # it is not written yet
    cdef uint32_t key         # its event, and that one's id
    cdef uint16_t id
    cdef int32_t tid          # whose name is `comm`
    cdef str comm
    cdef readonly int fd

    cdef bint write_rest(self) except -1
    cdef bint write_pending(self) except -1
    cdef bint write_lost(self, int64_t count) except -1
    cdef bint put(self, uint16_t kind, uint16_t id, int32_t tid, const uint8_t *data, size_t length) noexcept
