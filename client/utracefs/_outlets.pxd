from libc.stdint cimport uint16_t, uint32_t, uint64_t

from utracefs._descriptors cimport Descriptor, ut_bell, ut_descriptor
from utracefs_protocol.data_ring cimport data_ring, dr_record


cdef extern from "producer.h" nogil:
    uint64_t ut_now_ns()
    void ut_forget_tid()
    uint32_t ut_tid()
    uint32_t ut_tid_said(uint32_t names, int *has_said)
    uint16_t ut_cpu()
    void ut_say_name(unsigned char *at, uint32_t names)
    dr_record *ut_reserve(data_ring *r, uint32_t write_index, uint32_t payload, int *half)
    void ut_put(unsigned char *at, uint64_t value, unsigned size)
    uint32_t ut_get_le32(const unsigned char *at)
    void ut_ring_bell(int fd)
    unsigned BIN_MAX_HEADER, BIN_SIGNATURE, BIN_MAX_OBJECT
    unsigned bin_index_at(const unsigned char *record, uint32_t size)
    ctypedef struct bin_record "struct bin_record":
        const unsigned char *payload
        const unsigned char *comm
        uint32_t size, tid
        uint16_t cpu
    bin_record bin_take_apart(const unsigned char *record, uint32_t size)
    dr_record *ut_reserve_for(
        data_ring *r, uint32_t write_index, uint32_t payload, int *half, uint32_t tid, uint16_t cpu,
        const unsigned char *comm
    )
    unsigned bin_put_signature(
        unsigned char *at, uint32_t write_index, uint32_t tid, uint16_t cpu, uint16_t flags
    )
    unsigned bin_header_size(uint32_t size)
    unsigned bin_put_header(unsigned char *at, uint32_t size)
    unsigned bin_get_header(const unsigned char *at, size_t length, uint32_t *size)


cdef class Counts:
    cdef readonly uint64_t records_in
    cdef readonly uint64_t lost
    cdef readonly uint64_t dropped


cdef class Outlet:
    cdef readonly Counts counts

    cdef unsigned char *reserve(self, uint32_t write_index, size_t size) noexcept
    cdef void commit(self) noexcept
    cdef bint take_over(self, uint32_t write_index, const unsigned char *record, uint32_t size) noexcept


cdef class RingOutlet(Outlet):
    cdef data_ring ring
    cdef Fifo fifo
    cdef Descriptor doorbell
    cdef dr_record *reserved
    cdef uint32_t reserved_size
    cdef int half

    cdef void ring_doorbell(self) noexcept


cdef class LostOutlet(Outlet):
    cdef RingOutlet parents


cdef class Fifo(Outlet):
    cdef unsigned char *memory
    cdef readonly size_t capacity
    cdef uint64_t head
    cdef uint64_t wrap_at
    cdef uint64_t boundary
    cdef uint64_t tail
    cdef uint64_t reserved_end
    cdef uint64_t half_woken_at
    cdef bint need_wakeup
    cdef uint32_t wanted
    cdef ut_bell bell
    cdef object control
    cdef const char *control_at
    cdef size_t control_left
    cdef uint64_t control_after
    cdef bint held
    cdef uint32_t names         # asks for them, as in a data ring; 0: records do not say who wrote them

    cdef unsigned char *next_record(self, uint64_t *position, unsigned *header, size_t *size) noexcept
    cdef void begin_with(self, unsigned char *memory, uint64_t filled) noexcept
    cdef unsigned char *sign_record(self, unsigned char *record, size_t size, bint named) noexcept
    cdef void wake_if_half_full(self, uint64_t head) noexcept
    cdef void want(self) noexcept nogil
    cdef int pump_held(self, const ut_descriptor *sock, int timeout_ms) noexcept nogil
    cdef int pump_until(self, const ut_descriptor *sock, int timeout_ms) noexcept nogil
    cdef int send_until(self, const ut_descriptor *sock, int quiet_ms, bint until_signal) noexcept nogil
    cdef int send_some(self, const ut_descriptor *sock) noexcept nogil
    cdef void follow_boundary(self) noexcept nogil
