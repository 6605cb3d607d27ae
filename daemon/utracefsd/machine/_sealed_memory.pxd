"""Writable memory that a client maps and cannot take away; see _sealed_memory.pyx."""

from libc.stdint cimport uint8_t

cdef class SealedMemory:
    cdef readonly int fd
    cdef readonly size_t size
    cdef readonly size_t has
    cdef uint8_t *map           # NULL once it is closed

    cdef int hurry(self) except -1
    cdef bint take(self, size_t upto) noexcept
