from libc.stdint cimport uint32_t, uint64_t

from utracefs._descriptors cimport Descriptor, ut_bell, ut_descriptor
from utracefs_protocol.data_ring cimport data_ring, dr_record


cdef extern from "producer.h" nogil:
    uint64_t ut_now_ns()
    void ut_forget_tid()
    dr_record *ut_reserve(data_ring *r, uint32_t write_index, uint32_t payload, int *half)
    void ut_put(unsigned char *at, uint64_t value, unsigned size)
    uint32_t ut_get_le32(const unsigned char *at)
    void ut_ring_bell(int fd)
    unsigned BIN_MAX_HEADER
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


cdef class RingOutlet(Outlet):
    cdef data_ring ring
    cdef Fifo fifo
    cdef Descriptor doorbell
    cdef dr_record *reserved
    cdef uint32_t reserved_size
    cdef int half

    cdef void ring_doorbell(self) noexcept


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

    cdef unsigned char *next_record(self, uint64_t *position, unsigned *header, size_t *size) noexcept
    cdef void begin_with(self, unsigned char *memory, uint64_t filled) noexcept
    cdef void wake_if_half_full(self, uint64_t head) noexcept
    cdef void want(self) noexcept nogil
    cdef int pump_held(self, const ut_descriptor *sock, int timeout_ms) noexcept nogil
    cdef int pump_until(self, const ut_descriptor *sock, int timeout_ms) noexcept nogil
    cdef int send_until(self, const ut_descriptor *sock, int quiet_ms) noexcept nogil
    cdef int send_some(self, const ut_descriptor *sock) noexcept nogil
    cdef void follow_boundary(self) noexcept nogil
