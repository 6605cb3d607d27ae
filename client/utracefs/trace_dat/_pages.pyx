# cython: boundscheck=False, wraparound=False
"""What is counted once per record that is recorded: in Python that would be a third of a recorder's work."""

from libc.stdint cimport uint16_t, uint32_t
from libc.string cimport memcpy

cdef enum:
    # include/linux/ring_buffer.h, enum ring_buffer_type
    PADDING = 29
    TIME_EXTEND = 30
    TIME_STAMP = 31
    # Bytes of a page's header, and the bits of its commit word that are a length.
    HEADER = 16
    COMMIT = 0xfffff
    # The ids of ftrace's own records (kernel/trace/trace_entries.h) end below.
    FIRST_EVENT = 20


def count_events(const unsigned char[::1] page not None):
    """Records of events in a sub-buffer; ftrace's own (markers) do not count. What is broken ends it."""
    cdef Py_ssize_t end, at = HEADER
    cdef uint32_t word, length = 0
    cdef uint16_t id
    cdef int n = 0
    if page.shape[0] < HEADER:
        return 0
    memcpy(&word, &page[8], 4)
    end = min(<Py_ssize_t>HEADER + (word & COMMIT), page.shape[0])
    while at + 8 <= end:
        memcpy(&word, &page[at], 4)
        memcpy(&length, &page[at + 4], 4)
        if word & 31 == PADDING:
            if word >> 5 == 0:
                break
            at += 4 + <Py_ssize_t>length
            continue
        if word & 31 == TIME_EXTEND or word & 31 == TIME_STAMP:
            at += 8
            continue
        at += 4
        if word & 31 == 0:
            at += 4
            length -= 4
        else:
            length = 4 * (word & 31)
        if <Py_ssize_t>length < 8 or at + <Py_ssize_t>length > end:
            break
        memcpy(&id, &page[at], 2)
        n += id >= FIRST_EVENT
        at += length
    return n
