from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from utracefsd.consumers.ftrace._ring_buffer cimport RingBuffer
from utracefsd.events._tracepoint cimport Probe, Record

cdef class FtraceSink:
    cdef readonly RingBuffer _buffer
    cdef public bint tracing_on
    cdef int _clock
    cdef str _clock_name
    cdef uint64_t offset_ns         # of the clock to CLOCK_MONOTONIC, as sampled at offset_at_ns
    cdef uint64_t offset_at_ns
    cdef uint64_t _cpumask_low      # cpus 0..63
    cdef object _cpumask            # None: all cpus
    cdef object _pids
    cdef object _notrace_pids
    cdef readonly uint64_t generation

    cdef uint64_t stamp(self, uint64_t ts_ns) noexcept
    cdef bint wants(self, int cpu, int32_t pid) noexcept
    cdef bint cpu_is_on(self, int cpu) noexcept
    cdef int store(self, uint64_t ts_ns, int cpu, uint16_t id, int32_t pid, const void *payload, size_t size) noexcept
    cdef bint could_store(self, uint64_t ts_ns, int cpu, size_t size) noexcept

cdef class FtraceProbe(Probe):
    cdef readonly FtraceSink sink
