"""Filters for other compiled modules. All functions need the GIL."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from utracefs_protocol.pages.record cimport Record

cpdef enum Subject:
    # The left side of a comparison.
    NOTHING                 # the predicate is false for every record
    COMMON                  # a number in the common fields
    NUMBER                  # a number in the payload
    CPU                     # of the record
    ARRAY                   # text in a field of fixed size
    DATA_LOC                # text at a location word's offset from the beginning of the entry
    REL_LOC                 # ... from the end of the word
    COMM                    # name of the thread that wrote it

cpdef enum How:
    EQUAL
    UNEQUAL
    LESS
    LESS_OR_EQUAL
    GREATER
    GREATER_OR_EQUAL
    COMMON_BITS
    IN_CPUS                 # the number's bit is set
    # Of texts: a pattern without wildcards, `abc*`, `*abc`, `*abc*`, any other pattern.
    FULL
    FRONT
    END
    MIDDLE
    GLOB

ctypedef struct Step:
    # One predicate, and the next step for each result.
    uint32_t next[2]        # if false, if true: the index of a later step, or REJECT, or ACCEPT
    uint8_t subject         # Subject
    uint8_t how             # How
    uint8_t kind            # ValueKind, where the subject is a number
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
    cdef readonly Names names  #: Names | None
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
