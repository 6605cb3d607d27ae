from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from utracefsd.events._tracepoint cimport Record, Tracepoint

cdef class IndexTable:
    cdef list tracepoints
    cdef dict _refused
    cdef readonly uint64_t total_refused
    cdef int emit(self, const uint8_t *data, size_t size, Record *r) noexcept
    cdef void refuse(self, int error, int64_t write_index) noexcept
