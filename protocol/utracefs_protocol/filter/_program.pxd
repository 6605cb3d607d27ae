"""Filters for other compiled modules. All functions need the GIL."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from utracefs_protocol.pages.record cimport Record

ctypedef struct Step:
    # One predicate, and the next step for each result.
    uint32_t next[2]        # if false, if true: the index of a later step, or REJECT, or ACCEPT
    uint8_t subject         # Subject
    uint8_t how             # How
    uint8_t load            # Load, where the subject is a number
    bint negated            # of a text: the result is negated
    uint64_t offset         # in the payload; of a common field in those 8 bytes
    uint64_t size           # of the fixed part
    uint64_t flip           # sign bit of a signed number: flipped, the order is that of unsigned
    uint64_t value          # right side, flipped likewise
    const uint8_t *data     # a pattern, or a bit for each cpu; borrowed from Filter._kept
    uint32_t length         # of the pattern in bytes, of the bits in bits

cdef class Names:
    # COMM_SIZE bytes, the last of them NUL; good until the next call. May run Python.
    cdef const char *name_of(self, const Record *r) noexcept


cdef class Filter:
    cdef readonly bytes text
    cdef readonly Names names
    # common_flags and common_preempt_count of the record at hand: 0 but for records of a kernel.
    cdef uint16_t flags
    cdef Step *_steps
    cdef uint32_t _count
    cdef list _kept

    # Whether a record passes. The caller must hold a reference: looking up a name may run Python.
    cdef bint matches(self, const Record *r) noexcept
    cdef bint holds(self, const Step *step, const Record *r) noexcept
    cdef bint text_holds(self, const Step *step, const Record *r) noexcept
    cdef int set_step(self, Step *step, predicate) except -1
