"""Tracepoints and probes, for other compiled modules. All of it needs the GIL."""

from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from utracefs_protocol.pages.record cimport Record

cdef extern from "Python.h":
    ctypedef struct PyTupleObject:
        PyObject *ob_item[1]

cdef enum:
    # Outcome of a record at a probe; the index into Probe.counts.
    RECORDED
    FILTERED
    LOST
    OUTCOMES
    # No outcome yet: the probe did not check the invalid record, and takes it again once it is emitted.
    UNDECIDED

# Records that were caused by other records, to be emitted after those.
cdef int nr_deferred
cdef int defer(
    Tracepoint tracepoint, const Record *r, bytes payload, object owner, uint64_t *pending
) except -1
cdef void emit_deferred() noexcept

ctypedef struct LocCheck:
    uint32_t offset             # of the loc word in the payload
    bint relative               # __rel_loc: counts from the end of the word, else from the start of the entry
    bint is_string              # type text contains "char": must end in NUL

cdef class Probe:
    cdef readonly str consumer
    cdef readonly int status_bit
    cdef uint64_t counts[OUTCOMES]
    cdef int outcome            # the result of take() for a record that is not counted yet: see emit_invalid
    # Take one record: RECORDED, FILTERED or LOST, which the tracepoint counts. An invalid record: -EFAULT if
    # it would be recorded, else UNDECIDED; neither is counted here.
    cdef int take(self, Record *r) noexcept
    # Count n lost records, of which only the event is known. True: the probe's ring buffer misses them.
    cdef bint lose(self, uint64_t n) noexcept
    # The same for a known process.
    cdef bint lose_of(self, uint64_t n, int32_t pid) noexcept

cdef class Tracepoint:
    cdef readonly uint16_t id
    cdef readonly bytes name
    cdef readonly uint32_t min_size
    cdef readonly uint64_t emitted
    cdef readonly uint64_t missed
    cdef readonly uint64_t payload_bytes
    cdef readonly uint64_t lost_in_rings
    cdef public int rings_gone
    cdef readonly dict refused  #: dict[bytes, int]
    cdef readonly int status
    cdef readonly list past  #: list[tuple[str, int, int, int]]
    cdef tuple _probes
    # the array of _probes, borrowed: invalid once Python code has run
    cdef PyObject **probe_array
    cdef int nr_probes
    cdef LocCheck *locs
    cdef int nr_locs

    cdef int emit(self, Record *r) noexcept     # 0 or -errno
    cdef int emit_invalid(self, Record *r) noexcept
    cdef int count_refusal(self, const uint8_t *why, size_t size) except -1
    cdef bint locs_are_valid(self, Record *r) noexcept
    cdef int set_probes(self, tuple probes) except -1
