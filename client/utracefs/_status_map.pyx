"""The daemon's status file in this process's memory: one byte per event, 0 while no consumer is attached."""

from libc.errno cimport errno
from libc.string cimport strerror
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, mmap, munmap


cdef class StatusMap:
    """The status file, mapped shared and read-only.

    fd: of the status file, stays the caller's. size: bytes, as `mmap_status` answered. OSError when it cannot
    be mapped.

    Mapped here and not with the mmap module, which keeps a duplicate of the descriptor for its whole life.
    Every Event whose pointer leads into the map holds a reference to it, so it is unmapped when the last
    pointer has left.
    """

    def __cinit__(self, int fd, size_t size):
        cdef void *at = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0)
        if at == MAP_FAILED:
            raise OSError(errno, strerror(errno).decode())
        self.bytes = <const unsigned char *>at
        self.size = size

    def __dealloc__(self):
        if self.bytes != NULL:
            munmap(<void *>self.bytes, self.size)

    def __reduce__(self):
        raise TypeError("a status map belongs to one process")
