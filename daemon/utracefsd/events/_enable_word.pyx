"""One page of a client's memory, and the atomic change of one bit in it.

An enabler (user_event_enabler_write() in kernel/trace/trace_events_user.c; docs/protocol.md, section 3.1) is
a bit in a word that a program shares with the daemon. Other tracers may own the neighbouring bits and flip
them at the same moment, so a change must be one atomic read-modify-write; Python's `mmap` has none.

Why not a Python `mmap` with an atomic function over its buffer: `mmap.mmap` keeps a duplicate of the
descriptor as long as the mapping lives (always before Python 3.13), and one descriptor for each page of each
client would use up the daemon's descriptor limit. Here only the mapping stays.

The caller (enablers.py) has checked that the descriptor is a memfd sealed with F_SEAL_SHRINK and that the
page begins below the end of the file. So touching the page raises no SIGBUS, whatever the client does.
"""

cimport cython
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport strerror

cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/mman.h>
    #include <unistd.h>

    /* The order does not matter to a reader of the bit, which is advisory. But programs may publish other
       data together with bits of their own: sequential consistency is safe for all of them, and it costs
       nothing here, where a change happens once per enable. */
    static void utracefs_change_bit32(void *word, uint32_t mask, int value)
    {
        if (value) __atomic_fetch_or((uint32_t *)word, mask, __ATOMIC_SEQ_CST);
        else __atomic_fetch_and((uint32_t *)word, ~mask, __ATOMIC_SEQ_CST);
    }

    static void utracefs_change_bit64(void *word, uint64_t mask, int value)
    {
        if (value) __atomic_fetch_or((uint64_t *)word, mask, __ATOMIC_SEQ_CST);
        else __atomic_fetch_and((uint64_t *)word, ~mask, __ATOMIC_SEQ_CST);
    }
    """
    void utracefs_change_bit32(void *word, uint32_t mask, int value) nogil
    void utracefs_change_bit64(void *word, uint64_t mask, int value) nogil
    long sysconf(int name) nogil
    int _SC_PAGESIZE
    void *mmap(void *address, size_t length, int protection, int flags, int fd, long long offset) nogil
    int munmap(void *address, size_t length) nogil
    void *MAP_FAILED
    int PROT_READ, PROT_WRITE, MAP_SHARED

PAGE_SIZE = sysconf(_SC_PAGESIZE)  #: int


@cython.final
cdef class WordPage:
    """One page of a memory object, mapped shared and writable until `close` (or until it is collected).

    `page` is the index of the page in the file behind `fd`; the descriptor stays the caller's and may be
    closed at once. Raises OSError with mmap(2)'s errno: EACCES for a descriptor opened for reading, EPERM for
    one sealed against writing, ENOMEM when there are too many mappings.
    """

    cdef void *_address
    cdef size_t _size

    def __cinit__(self, int fd, long long page):
        self._address = NULL
        self._size = PAGE_SIZE
        if page < 0:
            raise ValueError("page is negative")
        cdef long long at = page * <long long>self._size
        cdef void *address = mmap(NULL, self._size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at)
        if address == MAP_FAILED:
            raise OSError(errno, strerror(errno).decode("ascii", "replace"))
        self._address = address

    def change_bit(self, size_t offset, int size, int bit, bint value) -> None:
        """Set or clear one bit of the word of `size` bytes (4 or 8) at byte `offset` of this page.

        `bit` 0 is the lowest. Atomic; the word's other bits are unchanged. ValueError for a word that is not
        naturally aligned or not inside the page, a bit outside the word, or a page that was closed.
        """
        if self._address == NULL:
            raise ValueError("the page is closed")
        if size not in (4, 8) or offset % size or offset + size > self._size:
            raise ValueError("no aligned word of 4 or 8 bytes there")
        if not 0 <= bit < size * 8:
            raise ValueError("no such bit in the word")
        cdef void *word = <void *>(<uintptr_t>self._address + offset)
        if size == 4:
            utracefs_change_bit32(word, <uint32_t>1 << bit, value)
        else:
            utracefs_change_bit64(word, <uint64_t>1 << bit, value)

    def close(self) -> None:
        """Unmap. May be called twice."""
        if self._address != NULL:
            munmap(self._address, self._size)
            self._address = NULL

    def __dealloc__(self):
        if self._address != NULL:
            munmap(self._address, self._size)
            self._address = NULL
