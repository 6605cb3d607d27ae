"""Raw records of a batch; see _body.pyx."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t

from utracefs.recordings._records cimport RecordSource
from utracefs_protocol.events._fields cimport Place
from utracefs_protocol.pages.stream_ring cimport ss_record

cdef class Edit:
    cdef Place place
    cdef bint is_text
    cdef object digest


cdef class Cutter:
    cdef object _allows
    cdef dict _edits           # by event id: a tuple of Edit
    cdef Py_ssize_t _max_records
    cdef Py_ssize_t _max_bytes
    cdef object _sample
    cdef dict _seen            # event id to number of records since the last one of the sample
    cdef readonly dict sampled
    cdef uint8_t *_judged      # by event id: 0 unknown, 1 kept, 2 left out, 3 edited
    cdef uint32_t *_counted    # records of the present body, by event id
    cdef uint16_t *_ids        # those whose count is not 0
    cdef Py_ssize_t _nr_ids
    cdef uint8_t *_data        # the body's records before the run, if any; its memory is kept
    cdef Py_ssize_t _size
    cdef Py_ssize_t _capacity
    cdef uint8_t *_run         # records side by side in the ring
    cdef Py_ssize_t _run_size

    cdef uint8_t judge(self, uint16_t id) except 0
    cdef int edit(self, uint16_t id, ss_record *record) except -1
    cdef bint leaves_out(self, uint16_t id, dict every) except -1
    cdef int copy_run(self) except -1
    cdef bytes body(self)
    cdef dict counts(self)


cdef class BodyRecords(RecordSource):
    cdef bytes _body
    cdef Py_ssize_t _at
    cdef bint _gap
