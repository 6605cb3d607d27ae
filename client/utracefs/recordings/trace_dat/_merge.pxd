"""The records of a trace.dat in the order of time, for compiled readers; see _merge.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from utracefs.recordings._heap cimport Entry
from utracefs.recordings._records cimport RecordSource
from utracefs_protocol.pages._subbuf cimport PageCursor

cdef struct Stream:
    PageCursor page           # its ts, data and length are those of the present record
    uint64_t next_page        # offset in the file
    uint64_t end              # of the extent
    uint64_t page_size
    int64_t lost              # records lost before the present one; -1 if unknown
    uint32_t cpu
    uint32_t buffer


cdef class MergedPages(RecordSource):
    cdef Py_buffer _file
    cdef Stream *_streams
    cdef Entry *_heap         # numbers of the streams that have a record at hand; the first is the earliest
    cdef Py_ssize_t _count
    cdef bint _begun
    cdef bint _recover
    cdef uint64_t _offset
    cdef dict _tgids
    cdef int32_t _last_tid
    cdef int32_t _last_pid
    cdef readonly uint64_t size_bytes
    cdef readonly uint64_t read_bytes

    cdef Stream *_next(self) except? NULL
    cdef int _begin(self) except -1
    cdef bint _advance(self, Stream *stream) except -1
