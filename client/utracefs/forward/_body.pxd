"""Raw records of a batch; see _body.pyx."""

from libc.stdint cimport uint8_t, uint16_t

from utracefs.recordings._records cimport RecordSource

cdef class Cutter:
    cdef object _allows
    cdef Py_ssize_t _max_records
    cdef Py_ssize_t _max_bytes
    cdef uint8_t *_judged      # by event id: 0 unknown, 1 kept, 2 left out

    cdef bint keeps(self, uint16_t id) except -1


cdef class BodyRecords(RecordSource):
    cdef bytes _body
    cdef Py_ssize_t _at
    cdef bint _gap
