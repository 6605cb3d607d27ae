cdef class StatusMap:
    cdef const unsigned char *bytes
    cdef readonly size_t size
