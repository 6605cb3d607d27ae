"""A record as compiled modules pass it, and its common fields."""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef enum:
    COMM_SIZE = 16              # TASK_COMM_LEN: a name, filled up with NUL
    COMMON_SIZE = 8             # u16 common_type, u8 common_flags, u8 common_preempt_count, i32 common_pid

ctypedef struct Record:
    uint64_t ts_ns              # CLOCK_MONOTONIC
    int32_t cpu
    int32_t pid                 # common_pid: the writing thread
    int32_t tgid                # its process; pid where that is not known
    uint16_t id                 # the event's id
    uint32_t size               # bytes of payload
    const uint8_t *payload      # borrowed for the duration of the call
    # Set by the daemon only: the dynamic fields are valid.
    bint valid
    # Number of its data ring in the journal; 0: it came over the socket, or there is no journal.
    uint64_t origin
    uint64_t origin_at          # its position in that data ring


cdef inline void common_fields(Record *r, uint8_t *to) noexcept:
    """The COMMON_SIZE bytes of common fields, flags and preempt count 0."""
    memset(to, 0, 4)
    memcpy(to, &r.id, 2)
    memcpy(to + 4, &r.pid, 4)


cdef inline uint64_t common_word(uint16_t id, int32_t pid) noexcept nogil:
    """The same as one little-endian word."""
    return id | <uint64_t><uint32_t>pid << 32
