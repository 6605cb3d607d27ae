"""The present time and cpu: those of the kernel, or of a simulation (tests/simulation).

No other module below `server` reads a clock: Python gets `now_ns` as an argument, compiled modules call these
functions. A simulation is one comparison for them, where a clock takes 20 ns.
"""

from posix.time cimport CLOCK_MONOTONIC

from utracefsd.machine.tsc_clock cimport tsc_clock_now

cdef extern from "machine.h" nogil:
    uint64_t machine_clock_ns(int clock)
    int machine_cpu()

cdef uint64_t simulated_ns = 0      # 0: there is no simulation
cdef uint64_t simulated_tick = 0
cdef int simulated_cpu = 0


cdef uint64_t clock_ns(int clock) noexcept nogil:
    """A clock of clock_gettime(2) in nanoseconds. A simulation has one clock for all."""
    global simulated_ns
    if simulated_ns:
        simulated_ns += simulated_tick
        return simulated_ns
    return machine_clock_ns(clock)


cdef tsc_clock_pair both_clocks() noexcept nogil:
    """CLOCK_MONOTONIC and the time stamp counter. A simulated machine has no counter."""
    if simulated_ns:
        return tsc_clock_pair(0, clock_ns(CLOCK_MONOTONIC))
    return tsc_clock_now()


cdef int cpu_now() noexcept nogil:
    return simulated_cpu if simulated_ns else machine_cpu()


def monotonic_ns() -> int:
    """CLOCK_MONOTONIC, as the compiled modules read it."""
    return clock_ns(CLOCK_MONOTONIC)


def current_cpu() -> int:
    """The cpu that the calling thread runs on; 0 if the system does not say."""
    return cpu_now()


def simulate(uint64_t now_ns, uint64_t tick_ns=0, int cpu=0) -> None:
    """Every clock of this process is at `now_ns` and advances by `tick_ns` at each read. 0: the kernel's."""
    global simulated_ns, simulated_tick, simulated_cpu
    simulated_ns, simulated_tick, simulated_cpu = now_ns, tick_ns, cpu
