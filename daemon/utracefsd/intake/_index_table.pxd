from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from utracefs_protocol.pages.record cimport Record
from utracefsd.events._tracepoint cimport Tracepoint
from utracefsd.intake._writers cimport Writers

cdef class IndexTable:
    cdef list tracepoints
    cdef dict _refused
    cdef public uint64_t total_unknown  # records of a write_index without an event, refused or lost
    # The last refusals, all with the same key; not yet added to _refused.
    cdef int again_error
    cdef int64_t again_index
    cdef uint64_t again
    cdef public object make_writers  #: Callable[[], Writers] | None  # returns the Writers of its process
    cdef readonly Writers writers  #: Writers | None  # made at the first record with a thread id
    cdef void note_again(self) noexcept
    cdef int emit(self, const uint8_t *data, size_t size, Record *r) noexcept
    cdef int find_writer(self, const uint8_t *record, uint32_t size, Record *r) except -1
    cdef void refuse(self, int error, int64_t write_index) noexcept
    cdef bint has_on(self) noexcept
    cdef bint has_no_event(self, int64_t write_index) noexcept
    cdef bint count_refusal(self, uint32_t write_index, const uint8_t *why, size_t size) except -1
    cdef int lose(self, uint32_t write_index, uint32_t count, int pid, dict missing) except -1
    cdef int miss(self, uint32_t write_index, uint32_t count, dict missing) except -1
    cdef bint take_lost(
        self, uint32_t write_index, const uint8_t *payload, size_t size, const Record *r
    ) except -1
