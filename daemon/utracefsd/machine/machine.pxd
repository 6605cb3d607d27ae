"""The functions of include/machine.h."""

from libc.stdint cimport uint64_t

cdef extern from "machine.h" nogil:
    uint64_t machine_clock_ns(int clock)
    int machine_cpu()
