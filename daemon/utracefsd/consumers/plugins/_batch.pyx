# cython: boundscheck=False, wraparound=False
"""The compiled side of a plug-in: collects the records of one event and hands them to Python in batches."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_SIZE
from libc.errno cimport EFAULT

from utracefs_protocol.status_page import StatusBit

from utracefsd.events._tracepoint cimport LOST, RECORDED


cdef class BatchProbe(Probe):
    """The probe of a consumer written in Python; sets StatusBit.OTHER.

    `deliver` gets batches: lists of (ts_ns, cpu, pid, tgid, payload). Past max_pending records are lost. An
    exception out of `deliver` never reaches the record path: it is counted in `failures`, kept in
    `last_error`, and that batch counts as lost.
    """

    def __init__(self, str consumer not None, deliver, Py_ssize_t max_pending=65536):
        if max_pending < 1:
            raise ValueError(f"max_pending {max_pending}: at least 1 is needed")
        Probe.__init__(self, consumer, StatusBit.OTHER)
        self.deliver = deliver
        self.batch = []
        self.max_pending = max_pending

    @property
    def pending(self):
        return PyList_GET_SIZE(self.batch)

    cdef int take(self, Record *r) noexcept:
        if PyList_GET_SIZE(self.batch) >= self.max_pending:
            return LOST
        if not r.valid:
            return -EFAULT
        try:
            self.batch.append(
                (r.ts_ns, r.cpu, r.pid, r.tgid, PyBytes_FromStringAndSize(<const char *>r.payload, r.size))
            )
        except MemoryError:
            return LOST
        return RECORDED

    cdef int finish(self) except -1:
        self.flush()
        return 0

    def flush(self):
        """Deliver what is pending; returns how many records that was."""
        cdef list batch = self.batch
        cdef Py_ssize_t n = PyList_GET_SIZE(batch)
        if n == 0:
            return 0
        self.batch = []  # before the call: what `deliver` itself emits comes with the next batch
        try:
            self.deliver(batch)
        except Exception as error:  # a plug-in may raise anything; the record path goes on
            self.failures += 1
            self.last_error = error
            self.counts[RECORDED] -= n
            self.counts[LOST] += n
        return n
