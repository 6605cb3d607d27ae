"""One page of a client's memory, and the atomic change of one bit in it.

An enabler (user_event_enabler_write() in kernel/trace/trace_events_user.c; docs/protocol.md, section 3.1) is
a bit in a word that a program shares with the daemon. Other tracers may own the neighbouring bits and flip
them at the same moment, so a change must be one atomic read-modify-write; Python's `mmap` has none.

Why not a Python `mmap` with an atomic function over its buffer: `mmap.mmap` keeps a duplicate of the
descriptor as long as the mapping lives (always before Python 3.13), and one descriptor for each page of each
client would use up the daemon's descriptor limit. Here only the mapping stays.

The caller (enablers.py) has checked that the descriptor is a memfd sealed with F_SEAL_SHRINK, that the page
begins below the end of the file, and that the word is an aligned one. So touching the page raises no SIGBUS,
whatever the client does.
"""

import mmap as python_mmap

cimport cython
from libc.errno cimport errno
from libc.stdint cimport uint8_t
from libc.string cimport strerror
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap

cdef extern from * nogil:
    """
    /* The order does not matter to a reader of the bit, which is advisory. But programs may publish other
       data together with bits of their own: sequential consistency is safe for all of them, and it costs
       nothing here, where a change happens once per enable. */
    #define UT_CHANGE_BITS(byte, bits, on) ((void)((on) \\
        ? __atomic_fetch_or(byte, bits, __ATOMIC_SEQ_CST) \\
        : __atomic_fetch_and(byte, (uint8_t)~(bits), __ATOMIC_SEQ_CST)))
    """
    void UT_CHANGE_BITS(uint8_t *byte, uint8_t bits, bint on)

PAGE_SIZE = python_mmap.PAGESIZE  #: int


@cython.final
cdef class WordPage:
    """One page of a memory object, mapped shared and writable until `close` (or until it is collected).

    `page` is the index of the page in the file behind `fd`; the descriptor stays the caller's and may be
    closed at once. Raises OSError with mmap(2)'s errno: EACCES for a descriptor opened for reading, EPERM for
    one sealed against writing, ENOMEM when there are too many mappings.
    """

    cdef uint8_t *_address

    def __cinit__(self, int fd, long long page):
        cdef size_t size = PAGE_SIZE
        cdef void *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, page * <long long>size)
        if address == MAP_FAILED:
            raise OSError(errno, strerror(errno).decode("ascii", "replace"))
        self._address = <uint8_t *>address

    def change_bit(self, size_t offset, int bit, bint value) -> None:
        """Set or clear one bit of the little-endian word at byte `offset` of this page; 0 is the lowest.
        Atomic: only the byte that has the bit is changed, and no other bit of it."""
        UT_CHANGE_BITS(self._address + offset + bit // 8, <uint8_t>(1 << bit % 8), value)

    def close(self) -> None:
        """Unmap. May be called twice."""
        if self._address != NULL:
            munmap(self._address, PAGE_SIZE)
            self._address = NULL

    def __dealloc__(self):
        self.close()
