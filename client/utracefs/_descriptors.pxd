cdef extern from "descriptor.h" nogil:
    ctypedef struct ut_descriptor "struct ut_descriptor":
        int fd
        bint is_anonymous
        const ut_descriptor *beside

    ctypedef struct ut_bell "struct ut_bell":
        ut_descriptor near_end

    bint ut_is_ours(const ut_descriptor *d)
    int ut_take(ut_descriptor *d, int fd)
    void ut_close(ut_descriptor *d)
    void ut_bell_init(ut_bell *b)
    int ut_bell_open(ut_bell *b)
    void ut_bell_close(ut_bell *b)
    bint ut_bell_is_ours(const ut_bell *b)
    void ut_bell_ring(const ut_bell *b)
    void ut_bell_silence(const ut_bell *b)


cdef class Descriptor:
    cdef ut_descriptor own
    cdef readonly Descriptor beside
