"""Output of writers, in pieces; see _output_buffer.pyx."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from utracefs.recordings._records cimport EventDecoder, Raw, Records
from utracefs_protocol.events._line cimport Line, put


cdef class Pieces:
    cdef char *_text
    cdef size_t _capacity
    cdef size_t _used
    cdef object _error        # what the records raised, for the next `read`

    cdef int _fill(self, size_t max_bytes) except -1
    cdef int _grow(self) except -1


cdef class RecordWriter(Pieces):
    cdef Records _records

    cdef int prepare(self, EventDecoder event, const Raw *raw) except -1
    cdef int put_record(self, Line *line, EventDecoder event, const Raw *raw, bint with_fields) except -1
    cdef int _append(self, EventDecoder event, const Raw *raw) except -1
    cdef int append(self, EventDecoder event, const Raw *raw, bint with_fields) except -1


cdef inline void put_bytes(Line *line, bytes text) noexcept:
    put(line, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
