"""The functions of include/tsc_clock.h."""

from libc.stdint cimport uint64_t

cdef extern from "tsc_clock.h" nogil:
    ctypedef struct tsc_clock_pair "struct tsc_clock_pair":
        uint64_t tsc
        uint64_t ns

    ctypedef struct tsc_clock "struct tsc_clock":
        tsc_clock_pair first
        tsc_clock_pair to

    bint tsc_clock_look(tsc_clock *c, tsc_clock_pair now)
    void tsc_clock_resume(tsc_clock *c, tsc_clock_pair first, tsc_clock_pair last)
    uint64_t tsc_clock_known_rate(const tsc_clock *c)
    uint64_t tsc_clock_ns(const tsc_clock *c, uint64_t tsc)
    tsc_clock_pair tsc_clock_now()
