from libc.stdint cimport uint64_t

from utracefs_protocol.record cimport Record
from utracefsd.events._tracepoint cimport Probe

cdef class BatchProbe(Probe):
    cdef object deliver
    cdef list batch
    cdef readonly Py_ssize_t max_pending
    cdef readonly uint64_t failures
    cdef readonly object last_error
