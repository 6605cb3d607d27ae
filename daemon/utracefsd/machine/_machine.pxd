"""The present time and cpu, for compiled modules that need them once per record or round."""

from libc.stdint cimport uint64_t

from utracefsd.machine.tsc_clock cimport tsc_clock_pair

cdef uint64_t clock_ns(int clock) noexcept nogil
cdef tsc_clock_pair both_clocks() noexcept nogil
cdef int cpu_now() noexcept nogil
