"""Gives the memory of a part of a data ring back; include/giving_back.h has the threads that do."""

import os

cimport cython
from libc.stdint cimport uint32_t, uint64_t

cdef extern from "giving_back.h" nogil:
    ctypedef struct gb_job "struct gb_job":
        int is_done
    gb_job *gb_make(int fd, uint32_t size, uint64_t position, uint32_t bytes)
    void gb_run(gb_job *job)
    void gb_drop(gb_job *job)
    int gb_begin()
    int gb_start(gb_job *job)


def begin() -> None:
    """Call it before there are descriptors of others. `start` does if there is no thread."""
    gb_begin()


@cython.final
cdef class GivingBack:
    """`nr_bytes` at `position` of the ring of `size` bytes in memfd `fd`: zero, and the daemon's until it
    `is_done`. MemoryError."""

    def __init__(self, int fd, uint32_t size, uint64_t position, uint32_t nr_bytes):
        self.job = gb_make(fd, size, position, nr_bytes)
        if self.job == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.job != NULL:
            gb_drop(<gb_job *>self.job)

    cpdef bint is_done(self) noexcept:
        """Its memory is given back, or stays."""
        return (<gb_job *>self.job).is_done

    def run(self) -> None:
        """Here; may hang."""
        with nogil:
            gb_run(<gb_job *>self.job)

    def start(self) -> None:
        """In a thread. OSError: there is none."""
        error = gb_start(<gb_job *>self.job)
        if error:
            raise OSError(error, os.strerror(error))
