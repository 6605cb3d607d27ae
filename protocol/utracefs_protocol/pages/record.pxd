"""A record as compiled modules pass it, and its common fields."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

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


cdef inline uint64_t common_word(uint16_t id, int32_t pid) noexcept nogil:
    """The COMMON_SIZE bytes of common fields as one little-endian word, flags and preempt count 0."""
    return id | <uint64_t><uint32_t>pid << 32


cdef inline void set_record(
    Record *r, uint64_t ts_ns, int32_t cpu, int32_t pid, int32_t tgid, uint16_t id, bytes payload
) noexcept:
    """A record that is in no data ring. It borrows `payload`."""
    r.ts_ns, r.cpu, r.pid, r.tgid, r.id = ts_ns, cpu, pid, tgid, id
    r.payload = <const uint8_t *>PyBytes_AS_STRING(payload)
    r.size = <uint32_t>min(PyBytes_GET_SIZE(payload), 0xffffffff)
    r.valid = True
    r.origin = r.origin_at = 0
