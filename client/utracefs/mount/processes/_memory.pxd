from libc.stdint cimport int64_t

cdef extern from "deed.h":
    struct deed

cdef class Memory:
    cdef int mem
    cdef int maps
    cdef deed *hanging
    cdef readonly bytes fingerprint
    cdef void end(self) noexcept
    cdef int perform(self, deed *d) except -1
    cdef int use(self, deed *d) except -1
