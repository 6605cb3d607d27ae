from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from utracefs_protocol.record cimport Record
from utracefsd.events._tracepoint cimport Tracepoint

cdef class IndexTable:
    cdef list tracepoints
    cdef dict _refused
    cdef readonly uint64_t total_refused
    # Refused for the same reason one after the other, and not in _refused yet.
    cdef int again_error
    cdef int64_t again_index
    cdef uint64_t again
    cdef void note_again(self) noexcept
    cdef int emit(self, const uint8_t *data, size_t size, Record *r) noexcept
    cdef void refuse(self, int error, int64_t write_index) noexcept
