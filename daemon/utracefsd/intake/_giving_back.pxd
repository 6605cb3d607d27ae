"""A part of a data ring whose memory is given back: Intake starts it, the ring waits for it."""

cdef class GivingBack:
    cdef void *job

    cpdef bint is_done(self) noexcept
