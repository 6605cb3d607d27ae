"""Writable memory that a client maps and cannot take away: for rings that a client reads.

It is allocated before the first store and sealed: neither lack of memory nor a client that holds the
descriptor can make our stores fault later.
"""

import _thread
import contextlib
import fcntl
import os

from libc.errno cimport errno as c_errno
cdef extern from "<sys/mman.h>" nogil:
    int madvise(void *, size_t, int)

cdef enum:
    MADV_POPULATE_WRITE = 23    # asm-generic/mman-common.h, Linux 5.14

from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap
from posix.unistd cimport close as close_fd

from utracefsd.machine import disk

cdef enum:
    # 128 MiB take 37 ms to allocate, and as long to unmap; programs would lose records meanwhile. So memory
    # is allocated in steps of a quarter of a millisecond, and much of it by threads, which also unmap it.
    STEP = 1 << 20
    MUCH = 16 << 20


def allocate(int fd, size_t size) -> None:
    """Allocate all of it and close this descriptor. Without memory, `take` fails where it is needed."""
    with contextlib.suppress(OSError):
        disk.posix_fallocate(fd, 0, size)
    os.close(fd)


def give_back(size_t map, size_t size, int fd) -> None:
    """Unmap it and close its descriptor, if that is not -1."""
    with nogil:
        munmap(<void *>map, size)
        if fd >= 0:
            close_fd(fd)


cdef class SealedMemory:
    """A memfd of `size` bytes, mapped here. `name` is shown in /proc.

    first: bytes to allocate now, the rest by `take`; 0: all now.
    fd: sealed against resizing and more seals, owned by this object; -1 once it is closed or taken.
    has: So many bytes are allocated. OSError: no memory.
    """

    def __cinit__(self, *args, **kwargs):
        self.fd = -1
        self.map = NULL

    def __init__(self, str name not None, size_t size, size_t first=0):
        cdef void *map
        fd = disk.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            disk.ftruncate(fd, size)
            disk.posix_fallocate(fd, 0, first or size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
            if map == MAP_FAILED:
                raise OSError(c_errno, os.strerror(c_errno), name)
            self.size = size
            self.map = <uint8_t *>map
            self.has = first or size
            if first and madvise(map, first, MADV_POPULATE_WRITE) < 0:  # an older kernel
                disk.posix_fallocate(fd, 0, size)
                self.has = size
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd

    cdef int hurry(self) except -1:
        """All of it will be needed soon."""
        if self.size > MUCH:
            fd = os.dup(self.fd)
            try:
                _thread.start_new_thread(allocate, (fd, self.size))
            except RuntimeError:  # no more threads
                os.close(fd)
        return 0

    cdef bint take(self, size_t upto) noexcept:
        """Allocate the first `upto` bytes before they are written to. False: no memory."""
        if min(upto, self.size) > self.has:
            upto = min((upto + STEP - 1) // STEP * STEP, self.size)
            if madvise(self.map + self.has, upto - self.has, MADV_POPULATE_WRITE) < 0:
                return False
            self.has = upto
        return True

    def take_fd(self) -> int:
        """The descriptor, the caller's to close from now on; the mapping stays."""
        fd, self.fd = self.fd, -1
        return fd

    def close(self) -> None:
        """Unmap it and close the memfd; mappings of clients stay. A second call is harmless."""
        if self.map == NULL:
            return
        what = <size_t>self.map, self.size, self.take_fd()
        self.map = NULL
        try:
            if self.size > MUCH:
                _thread.start_new_thread(give_back, what)
                return
        except RuntimeError:  # no more threads
            pass
        give_back(*what)

    def __dealloc__(self):
        # Not os.close: at interpreter exit the module may be gone before its objects.
        if self.map != NULL:
            munmap(self.map, self.size)
        if self.fd >= 0:
            close_fd(self.fd)
