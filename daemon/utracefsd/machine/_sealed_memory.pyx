"""Memory that a client maps, writable, and cannot take away: for rings that a client reads.

All of it is allocated at once and sealed: neither lack of memory nor a client that holds the descriptor can
make our stores fault later.
"""

import fcntl
import os

from libc.errno cimport errno as c_errno
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap
from posix.unistd cimport close as close_fd


cdef class SealedMemory:
    """A memfd of `size` bytes, mapped here. `name` is what /proc shows.

    fd: sealed against resizing and more seals, owned by this; -1 once it is closed. OSError: no memory.
    """

    def __cinit__(self, *args, **kwargs):
        self.fd = -1
        self.map = NULL

    def __init__(self, str name not None, size_t size):
        cdef void *map
        if self.map != NULL:
            raise RuntimeError("made already")
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            os.posix_fallocate(fd, 0, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
            if map == MAP_FAILED:
                raise OSError(c_errno, os.strerror(c_errno), name)
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd
        self.size = size
        self.map = <uint8_t *>map

    def close(self):
        """Unmap it and close the memfd; clients keep what they mapped. Twice is harmless."""
        if self.map != NULL:
            munmap(self.map, self.size)
            self.map = NULL
            os.close(self.fd)
            self.fd = -1

    def __dealloc__(self):
        # Not os.close: at the interpreter's end the module may be gone before its objects.
        if self.map != NULL:
            munmap(self.map, self.size)
            close_fd(self.fd)
