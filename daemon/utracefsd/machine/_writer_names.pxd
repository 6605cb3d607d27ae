"""Names of the threads that write, for filters on COMM. Needs the GIL."""

from libc.stdint cimport int32_t, uint64_t

from utracefs_protocol.filter._program cimport Names
from utracefs_protocol.pages.record cimport COMM_SIZE, Record

cdef enum:
    SLOTS = 256

ctypedef struct Slot:
    int32_t pid
    uint64_t until_ns       # a record that is not older than this wants the name looked up again
    char name[COMM_SIZE]

cdef class WriterNames(Names):
    cdef object _read
    cdef object _last
    cdef dict _known            # thread id -> (name, until_ns), the one that was learned first in front
    cdef dict _asked            # process -> how often, since _asked_since_ns
    cdef int _asked_in_all
    cdef uint64_t _asked_since_ns
    cdef Slot _slots[SLOTS]
    cdef readonly uint64_t lookups
    cdef readonly uint64_t faults

    cdef int fill(self, Slot *slot, const Record *r) except -1
    cdef bint may_ask(self, int32_t tgid, uint64_t now) except -1
