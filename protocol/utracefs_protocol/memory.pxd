"""C's memory, where its lack is an exception. The caller frees it."""

from libc.stdlib cimport calloc, realloc


cdef inline void *zeroed(size_t count, size_t size) except NULL:
    cdef void *memory = calloc(count, size)
    if memory == NULL:
        raise MemoryError
    return memory


cdef inline void *resized(void *memory, size_t size) except NULL:
    """With the same content; MemoryError changes nothing."""
    memory = realloc(memory, size)
    if memory == NULL:
        raise MemoryError
    return memory
