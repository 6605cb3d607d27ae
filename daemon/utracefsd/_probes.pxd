"""What other compiled modules may use of the record path. All of it needs the GIL."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from cpython.ref cimport PyObject

cdef extern from "Python.h":
    ctypedef struct PyTupleObject:
        PyObject *ob_item[1]

from utracefsd._ring_buffer cimport RingBuffer

ctypedef struct Record:
    uint64_t ts_ns              # CLOCK_MONOTONIC
    int32_t cpu
    int32_t pid                 # common_pid: the writing thread
    int32_t tgid                # its process; pid where nobody knows better
    uint16_t id                 # the event's id; set by Tracepoint.emit
    uint32_t size               # bytes of payload
    const uint8_t *payload      # borrowed for the duration of the call

ctypedef struct LocCheck:
    uint32_t offset             # of the loc word in the payload
    bint relative               # __rel_loc: counts from the end of the word, else from the start of the entry
    bint is_string              # type text contains "char": must end in NUL

cdef class Probe:
    cdef readonly str consumer
    cdef readonly int status_bit
    cdef public bint soft_disabled
    cdef readonly uint64_t recorded
    cdef readonly uint64_t filtered
    cdef readonly uint64_t lost
    # take one record and count it in exactly one of the three numbers
    cdef int take(self, Record *r) noexcept
    # would take() look into the payload now? Only then a bad loc field is EFAULT (golden 08)
    cdef bint looks_at(self, Record *r) noexcept
    cdef int finish(self) except -1

cdef class Tracepoint:
    cdef readonly uint16_t id
    cdef readonly bytes name
    cdef readonly uint32_t min_size
    cdef readonly uint64_t emitted
    cdef readonly int status
    cdef readonly list past
    cdef tuple _probes
    cdef PyObject **probe_array     # the items of _probes, borrowed: do not keep across anything that may run Python
    cdef int nr_probes
    cdef LocCheck *locs
    cdef int nr_locs

    cdef int emit(self, Record *r) noexcept     # 0 or -errno
    cdef bint locs_are_valid(self, Record *r) noexcept
    cdef int set_probes(self, tuple probes) except -1

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

cdef class PerfSink:
    cdef readonly uint64_t id               # identifier in samples, nonzero
    cdef readonly uint64_t count
    cdef readonly uint64_t lost
    cdef readonly uint64_t sample_type
    cdef readonly uint64_t sample_freq
    cdef uint64_t _period
    cdef uint64_t left                      # records until the next sample
    cdef uint64_t last_sample_ns
    cdef readonly int pid
    cdef readonly int cpu
    cdef public bint enabled
    cdef readonly bint sample_id_all
    cdef readonly int data_pages
    cdef readonly int fd
    cdef uint8_t *map
    cdef size_t map_size
    cdef uint64_t head                      # ours; the copy in the mapping is for the reader
    cdef uint64_t size                      # bytes of the data area, 0 without ring
    cdef uint64_t pending_lost              # not yet told by a PERF_RECORD_LOST

    cdef int take(self, Record *r) noexcept # 0 counted (and sampled if due), 1 the sample was lost, 2 not for this event
    cdef bint wants(self, Record *r) noexcept
    cdef bint sample(self, Record *r, uint64_t period) noexcept
    cdef bint reserve(self, uint64_t need, Record *r) noexcept
    cdef uint64_t trailer_size(self) noexcept
    cdef void adapt(self, uint64_t now_ns) noexcept
    cdef int make_ring(self, int data_pages) except -1
    cdef void put(self, const void *data, size_t size) noexcept
    cdef void put_trailer(self, Record *r) noexcept

cdef class PerfProbe(Probe):
    cdef readonly PerfSink sink

cdef class BatchProbe(Probe):
    cdef object deliver
    cdef list batch
    cdef readonly Py_ssize_t max_pending
    cdef readonly uint64_t failures
    cdef readonly object last_error

cdef class IndexTable:
    cdef list tracepoints
    cdef dict _refused
    cdef readonly uint64_t total_refused
    cdef int take_one(self, const uint8_t *data, size_t size, Record *r) noexcept
    cdef void refuse(self, int error, int64_t write_index) noexcept
