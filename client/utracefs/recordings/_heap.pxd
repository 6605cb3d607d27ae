"""A heap of numbers by time, equal times in the order of the numbers.

    heap[0]              the earliest
    heap[2i+1, 2i+2]     not earlier than heap[i]
"""

from libc.stdint cimport uint64_t

cdef struct Entry:
    uint64_t time
    uint64_t number


cdef inline bint earlier(const Entry *a, const Entry *b) noexcept nogil:
    return a.time < b.time or (a.time == b.time and a.number < b.number)


cdef inline void sift_down(Entry *heap, Py_ssize_t count, Py_ssize_t i) noexcept nogil:
    """heap[i] may be too late for its place."""
    cdef Entry moved
    cdef Py_ssize_t child
    if i >= count:
        return
    moved = heap[i]
    while True:
        child = 2 * i + 1
        if child >= count:
            break
        if child + 1 < count and earlier(&heap[child + 1], &heap[child]):
            child += 1
        if earlier(&moved, &heap[child]):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = moved


cdef inline void order(Entry *heap, Py_ssize_t count) noexcept nogil:
    """From entries in any order."""
    cdef Py_ssize_t i
    for i in range(count // 2 - 1, -1, -1):
        sift_down(heap, count, i)
