cimport cython
from libc.stdint cimport int32_t, uint32_t, uint64_t

from utracefs_protocol.filter._program cimport Filter
from utracefs_protocol.pages.record cimport Record
from utracefsd.consumers.ftrace.buffer._ring_buffer cimport PageReader, RingBuffer, rb_cpu, rb_place
from utracefsd.consumers.ftrace.event._trigger_cells cimport Cells, Stage, Trigger
from utracefsd.events._tracepoint cimport Probe

@cython.final
cdef class FtraceSink:
    cdef public RingBuffer ring_buffer
    cdef public PageReader page_reader  #: PageReader | None  # None: readers of the files alone
    cdef readonly int number            # of the instance: 0 is the top one
    cdef readonly Cells cells           # of the triggers of this instance
    cdef bint on                        # value of `tracing_on`
    cdef bint _paused
    cdef bint records                   # on, and not paused
    cdef public uint32_t tracing_cell   # the cell in which triggers change `on`; 0: no trigger does
    cdef public int tracing_switches    # number of such triggers
    cdef int _clock
    cdef str _clock_name
    cdef uint64_t offset_ns         # of the clock to CLOCK_MONOTONIC, as sampled at offset_at_ns
    cdef uint64_t offset_at_ns
    cdef uint64_t _cpumask_low      # cpus 0..63
    cdef object _cpumask            # None: all cpus
    cdef object _pids
    cdef object _notrace_pids
    cdef object inherits
    cdef set strangers              # threads for which `inherits` was called

    cdef uint64_t stamp(self, uint64_t ts_ns) noexcept
    cdef void switch(self, bint on) noexcept
    cdef bint wants_thread(self, int32_t pid) noexcept
    cdef bint lists(self, int32_t pid) noexcept
    cdef void ask(self, int32_t pid) noexcept
    cdef bint wants(self, int cpu, int32_t pid) noexcept
    cdef bint is_too_large(self, size_t size) noexcept
    cdef bint cpu_is_on(self, int cpu) noexcept
    cdef rb_cpu *ring_of(self, int cpu) noexcept
    cdef void mark_lost(self, int cpu, uint64_t n) noexcept
    # Take a snapshot within a record, not between its reserve and its commit (RingBuffer.swap_rings). The
    # numbers in the cells identify trigger and record. False: no spare is allocated.
    cdef bint take_snapshot(self, uint64_t trigger, uint64_t serial) noexcept
    # Whether this trigger and record took the last snapshot; for a record that is dispatched again.
    cdef bint has_taken_snapshot(self, uint64_t trigger, uint64_t serial) noexcept
    cdef int reserve(self, rb_cpu *ring, uint64_t ts_ns, size_t size, rb_place *place) noexcept

@cython.final
cdef class FtraceProbe(Probe):
    cdef readonly FtraceSink sink
    cdef public bint soft_disabled
    cdef public Filter filter  #: Filter | None
    cdef public uint32_t soft_cell  # its cell, with 1 unless soft-disabled; 0: no trigger changes that
    cdef tuple _triggers            # None: no triggers
    cdef bint conditional           # a trigger needs the record
    cdef bint has_it                # the record is in the ring buffer already: see emit_again() of Intake

    cdef bint misses_lost(self) noexcept
    cdef int judge(self, Record *r) noexcept
    cdef int store_wanted(self, Record *r) noexcept
    cdef int store(self, Record *r) noexcept
    cdef int take_with_triggers(self, Record *r) noexcept
    cdef bint has_turned_on(self) noexcept
    cdef void fire_all(self, Record *r) noexcept
    cdef void fire_stage(self, Record *r, Stage stage) noexcept
