"""Records of any length, for format writers; see _record_writer.pyx."""

from utracefs.recordings._output_buffer cimport Pieces
from utracefs.recordings._records cimport EventDecoder, Raw, Records
from utracefs_protocol.events._line cimport Line


cdef class RecordWriter(Pieces):
    cdef Records _records

    cdef int prepare(self, EventDecoder event, const Raw *raw) except -1
    cdef int put_record(self, Line *line, EventDecoder event, const Raw *raw, bint with_fields) except -1
    cdef int _append(self, EventDecoder event, const Raw *raw) except -1
    cdef int append(self, EventDecoder event, const Raw *raw, bint with_fields) except -1
