# cython: boundscheck=False, wraparound=False
"""An ftrace instance on the record path: its switches, its trace clock, and the stores into its ring
buffer."""

import sys

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.errno cimport EFAULT
from libc.stdint cimport uint16_t
from libc.string cimport memcpy

from utracefs_protocol.pages.status_page import StatusBit
from utracefsd.consumers.ftrace.settings import CLOCKS

from utracefsd.consumers.ftrace.buffer._ring_buffer cimport (
    RB_AGAIN,
    RB_MAX_DATA,
    RB_RESERVED,
    RB_TOO_LARGE,
    Cursor,
    RingBuffer,
    rb_commit,
    rb_fill,
    rb_mark_lost,
    rb_note_origin,
    rb_reserve,
)
from utracefs_protocol.filter._program cimport Filter
from utracefs_protocol.pages.record cimport common_word, set_record
from utracefsd.consumers.ftrace.event._trigger_cells cimport BEFORE, LAST, STORED, tc_begin
from utracefsd.events._tracepoint cimport FILTERED, LOST, RECORDED
from utracefsd.machine._machine cimport clock_ns

cdef extern from * nogil:
    """
    #include <time.h>
    /* The same count for all clocks named `counter`, as the kernel's trace_counter: instances share it. */
    static uint64_t trace_counter;
    #if defined(__x86_64__) || defined(__i386__)
    static inline uint64_t read_tsc(void) { return __builtin_ia32_rdtsc(); }
    #else
    static inline uint64_t read_tsc(void) { return 0; }
    #endif
    """
    uint64_t trace_counter
    uint64_t read_tsc()
    enum:
        CLOCK_MONOTONIC
        CLOCK_BOOTTIME
        CLOCK_TAI
        CLOCK_MONOTONIC_RAW


cdef enum Clock:
    # Values of `_clock`. All names of CLOCK_MONOTONIC share MONO.
    MONO
    COUNTER
    UPTIME
    MONO_RAW
    BOOT
    TAI
    TSC

# local, global and perf are the producer's CLOCK_MONOTONIC: nanoseconds since boot, as in the kernel.
_CLOCK_OF = dict(zip(CLOCKS, (MONO, MONO, COUNTER, UPTIME, MONO, MONO, MONO_RAW, BOOT, TAI, TSC)))

# A clock's offset is sampled again for a record this far from the last sample. mono_raw drifts against mono
# by at most 500 ppm: half a microsecond in this time.
cdef enum:
    RESAMPLE_NS = 1000000
    # Limit of `strangers`; then they are checked again. The default number of thread ids of a machine.
    MAX_STRANGERS = 32768


@cython.final
cdef class FtraceSink:
    """The common sink of all FtraceProbes of one instance.

    tracing_on: Records are stored. A trigger may change it from within a record.
    paused: Records are not stored for now, whatever tracing_on says.
    clock: One of CLOCKS. Setting it does not clear the buffer: the instance does that. ValueError: unknown.
    page_reader: Consumes the pages of the ring buffer when they are full.
    """

    def __init__(self, RingBuffer ring_buffer not None, int number=0, Cells cells=None):
        self.ring_buffer = ring_buffer
        self.number = number
        self.cells = Cells() if cells is None else cells
        self.on = self.records = True
        self._clock = MONO
        self._clock_name = "local"
        self._cpumask_low = <uint64_t>-1
        self.strangers = set()

    @property
    def tracing_on(self) -> bool:
        return self.on

    @tracing_on.setter
    def tracing_on(self, bint on):
        self.switch(on)
        if self.tracing_cell:
            self.cells.set_value(self.tracing_cell, on)

    @property
    def paused(self) -> bool:
        return self._paused

    @paused.setter
    def paused(self, bint paused):
        self._paused = paused
        self.switch(self.on)

    @property
    def clock(self) -> str:
        return self._clock_name

    @clock.setter
    def clock(self, str name not None):
        if name not in _CLOCK_OF:
            raise ValueError(f"no trace clock {name!r}: there are {' '.join(CLOCKS)}")
        self._clock = _CLOCK_OF[name]
        self._clock_name = name
        self.offset_at_ns = 0

    def set_cpumask(self, mask: int | None) -> None:
        """mask: Bit per cpu that may record; None: all."""
        self._cpumask = mask
        self._cpumask_low = <uint64_t>-1 if mask is None else mask & 0xffffffffffffffff

    def set_threads(
        self, pids: Collection[int] | None, notrace_pids: Collection[int] | None = None,
        inherits: Callable[[int], None] | None = None
    ) -> None:
        """Record only the threads `pids` and not `notrace_pids`; None: no such list. Markers are recorded
        regardless. inherits: called with the id of each thread that writes, once; it may call this."""
        self._pids = None if pids is None else frozenset(pids)
        self._notrace_pids = None if notrace_pids is None else frozenset(notrace_pids)
        self.inherits = inherits
        self.strangers = set()

    cdef uint64_t stamp(self, uint64_t ts_ns) noexcept:
        """Convert a time of CLOCK_MONOTONIC to the trace clock. Each call increments `counter`."""
        global trace_counter
        cdef int clock = self._clock
        cdef uint64_t before
        if clock == MONO:
            return ts_ns
        if clock == COUNTER:
            trace_counter += 1
            return trace_counter
        if clock == UPTIME:
            return ts_ns // 10000000  # jiffies since boot in USER_HZ: 10 ms
        if clock == TSC:
            return read_tsc()  # now: there is no cycle count for an earlier time
        if ts_ns - self.offset_at_ns > RESAMPLE_NS:  # unsigned: also when the record is older than the sample
            before = clock_ns(CLOCK_MONOTONIC)
            self.offset_ns = clock_ns(
                CLOCK_BOOTTIME if clock == BOOT else CLOCK_TAI if clock == TAI else CLOCK_MONOTONIC_RAW
            ) - before
            self.offset_at_ns = ts_ns
        return ts_ns + self.offset_ns  # mod 2^64: mono_raw may lie behind

    cdef inline bint cpu_is_on(self, int cpu) noexcept:
        if cpu < 64:
            return self._cpumask_low >> cpu & 1
        return self._cpumask is None or bool(self._cpumask >> cpu & 1)

    cdef void switch(self, bint on) noexcept:
        """Set tracing_on without its cell."""
        self.on = on
        self.records = on and not self._paused

    cdef inline bint wants(self, int cpu, int32_t pid) noexcept:
        return self.records and self.cpu_is_on(cpu) and self.wants_thread(pid)

    cdef inline bint wants_thread(self, int32_t pid) noexcept:
        if self.inherits is None and self._pids is None and self._notrace_pids is None:
            return True
        return self.lists(pid)

    cdef bint lists(self, int32_t pid) noexcept:
        """Whether the pid lists let this thread pass."""
        if self.inherits is not None and pid not in <set>self.strangers:
            self.ask(pid)
        if self._pids is not None and pid not in <frozenset>self._pids:
            return False
        return self._notrace_pids is None or pid not in <frozenset>self._notrace_pids

    cdef void ask(self, int32_t pid) noexcept:
        """Find out, once for each thread, whether the pid lists inherit it from an ancestor."""
        if len(<set>self.strangers) >= MAX_STRANGERS:
            (<set>self.strangers).clear()
        (<set>self.strangers).add(pid)
        try:
            self.inherits(pid)
        except Exception:
            sys.excepthook(*sys.exc_info())  # a bug of the daemon: the thread is in no list

    cdef inline rb_cpu *ring_of(self, int cpu) noexcept:
        """The ring of a cpu. A cpu that was added after the buffer was made shares the ring of another."""
        # (a variable for the buffer would count references, for each record)
        if cpu >= self.ring_buffer.nr_cpus:
            cpu %= self.ring_buffer.nr_cpus
        return &self.ring_buffer.cpus[cpu]

    cdef inline bint is_too_large(self, size_t size) noexcept:
        return size + 8 > RB_MAX_DATA(self.ring_buffer.subbuf_size)

    cdef bint take_snapshot(self, uint64_t trigger, uint64_t serial) noexcept:
        cdef uint64_t *key = [trigger, serial, 0, 0]
        return self.ring_buffer.swap_rings(-1, key)

    cdef bint has_taken_snapshot(self, uint64_t trigger, uint64_t serial) noexcept:
        cdef uint64_t *key = [trigger, serial, 0, 0]
        return self.ring_buffer.has_swapped(key)

    cdef inline int reserve(self, rb_cpu *ring, uint64_t ts_ns, size_t size, rb_place *place) noexcept:
        """rb_reserve() at a time in the trace clock, read again on each page and not for an entry that is too
        large, as in rb_reserve_next_event() of the kernel: visible with `counter`."""
        cdef int code
        if self.is_too_large(size):
            return RB_TOO_LARGE
        while True:
            code = rb_reserve(ring, ts_ns if self._clock == MONO else self.stamp(ts_ns), size, place)
            if code != RB_AGAIN:
                return code
            if self.page_reader is not None:
                self.page_reader.take(ring, False)

    cdef void mark_lost(self, int cpu, uint64_t n) noexcept:
        rb_mark_lost(self.ring_of(cpu), n)

    def now(self) -> int:
        """The present time in the sink's clock (for `counter` that is a tick, as in the kernel)."""
        return self.stamp(clock_ns(CLOCK_MONOTONIC))

    def append_raw(self, uint64_t ts_ns, int cpu, int pid, int id, bytes body not None) -> int:
        """Store a marker: ts_ns in CLOCK_MONOTONIC, body without the common header. 0 stored; 1 refused
        (tracing off, cpu masked, or full with overwrite off); 2 too large for a sub-buffer."""
        cdef rb_place place
        cdef int code
        if not self.records or not self.cpu_is_on(cpu):
            return 1
        code = self.reserve(self.ring_of(cpu), ts_ns, PyBytes_GET_SIZE(body), &place)
        if code == RB_RESERVED:
            rb_fill(&place, common_word(id, pid), PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
            rb_commit(self.ring_of(cpu), &place)
        return code


@cython.final
cdef class FtraceProbe(Probe):
    """The probe of an ftrace instance; sets StatusBit.FTRACE.

    soft_disabled: Attached (the status bit is on) but stores nothing (see EventFile).
    filter: Selects the records to store; None: all.
    triggers: Of the event in this instance, in the order in which they fire.
    """

    def __init__(self, FtraceSink sink not None, str consumer not None="ftrace"):
        Probe.__init__(self, consumer, StatusBit.FTRACE)
        self.sink = sink

    cdef bint lose(self, uint64_t n) noexcept:
        if not self.misses_lost():
            # The ring buffer would not have taken them, but triggers missed them.
            self.counts[LOST if self.soft_disabled and self._triggers is not None else FILTERED] += n
            return False
        self.counts[LOST] += n
        return True

    cdef bint misses_lost(self) noexcept:
        """Whether the ring buffer would have taken the lost records."""
        return not self.soft_disabled and self.sink.records

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        return self._triggers or ()

    @triggers.setter
    def triggers(self, triggers: Sequence[Trigger]):
        cdef Trigger trigger
        self._triggers = tuple(triggers) or None
        self.conditional = any([trigger.is_conditional for trigger in triggers])

    cdef int take(self, Record *r) noexcept:
        return self.store_wanted(r) if self._triggers is None else self.take_with_triggers(r)

    cdef inline int store_wanted(self, Record *r) noexcept:
        """Store a record if all checks pass, in the order of user_event_ftrace() in the kernel."""
        cdef int verdict
        if self.filter is not None:
            verdict = self.judge(r)
            if verdict != RECORDED:
                return verdict
        if self.soft_disabled or not self.sink.wants(r.cpu, r.pid):
            return FILTERED
        return self.store(r)

    cdef inline int store(self, Record *r) noexcept:
        """An invalid record is refused after `reserve`: when that fails, its fault is not noticed."""
        cdef rb_cpu *ring = self.sink.ring_of(r.cpu)
        cdef rb_place place
        if r.origin:
            rb_note_origin(ring, r.origin, r.origin_at)
        if self.sink.reserve(ring, r.ts_ns, r.size, &place) != RB_RESERVED:
            return LOST
        if not r.valid:
            return -EFAULT  # the place is discarded
        rb_fill(&place, common_word(r.id, r.pid), r.payload, r.size)
        rb_commit(ring, &place)
        return RECORDED

    cdef int take_with_triggers(self, Record *r) noexcept:
        """The same for an event with triggers, in the order of trace_trigger_soft_disabled() and
        __event_trigger_test_discard() of the kernel.

        If no trigger needs the record, all fire before anything else is decided. With a trigger that does
        (TRIGGER_COND), they wait until the record is known to be valid, stored or not: the kernel reserves it
        in another buffer when tracing is off. `tracing_on` is read when that is reserved, so a `traceon` that
        waits does not store its own record.

        Triggers that the kernel fires between reserve and commit fire here before the record is stored if
        they can prevent that, otherwise after it: then it is the last record of a snapshot, and precedes
        records of a histogram's actions.
        """
        cdef FtraceSink sink = self.sink
        cdef Filter filter = self.filter    # a reference: it may be replaced while a name is looked up
        cdef bint on, aside
        cdef int outcome
        if not self.conditional:
            tc_begin(sink.cells.header, r.origin, r.origin_at)
            self.fire_all(r)
            return RECORDED if self.has_it else self.store_wanted(r)
        if not sink.wants_thread(r.pid):
            return FILTERED
        if sink.is_too_large(r.size):
            return LOST
        if not r.valid:
            return -EFAULT
        tc_begin(sink.cells.header, r.origin, r.origin_at)
        # A record that may be discarded is not reserved in the ring buffer before it is certain to be stored.
        aside = self.soft_disabled or filter is not None
        on = sink.records and not self.has_turned_on()
        self.fire_stage(r, BEFORE)
        if self.has_it:
            outcome = RECORDED
        elif self.soft_disabled or (filter is not None and not filter.matches(r)):
            outcome = FILTERED
        elif (sink.records if aside else on) and sink.cpu_is_on(r.cpu):
            outcome = self.store(r)
        else:
            outcome = FILTERED
        self.fire_stage(r, STORED)
        self.fire_stage(r, LAST)
        return outcome

    cdef bint has_turned_on(self) noexcept:
        """Whether a traceon fired for this record in the previous daemon, so that tracing was off before."""
        cdef Trigger trigger
        if self.sink.cells.again is None:
            return False
        for trigger in self._triggers:
            if trigger.turns_on and trigger.is_done():
                return True
        return False

    cdef void fire_all(self, Record *r) noexcept:
        """Fire triggers that need no record."""
        cdef tuple triggers = self._triggers
        cdef Trigger trigger
        cdef Py_ssize_t i
        for i in range(PyTuple_GET_SIZE(triggers)):
            trigger = <Trigger>PyTuple_GET_ITEM(triggers, i)
            if not trigger.paused and not trigger.is_done():
                trigger.fire(r)

    cdef void fire_stage(self, Record *r, Stage stage) noexcept:
        """Fire the triggers of a stage whose filter matches."""
        cdef tuple triggers = self._triggers
        cdef Trigger trigger
        cdef Py_ssize_t i
        for i in range(PyTuple_GET_SIZE(triggers)):
            trigger = <Trigger>PyTuple_GET_ITEM(triggers, i)
            if trigger.stage == stage and not trigger.paused and trigger.wants(r) and not trigger.is_done():
                trigger.fire(r)

    cdef int judge(self, Record *r) noexcept:
        """RECORDED if the filter lets a record pass, else the result for `take`.

        With a filter, the kernel copies a record to another buffer before it reserves space
        (trace_event_buffer_lock_reserve(), trace_buffered_event). So a filtered record takes no tick of the
        clock `counter`, and an invalid one is refused whatever the filter says, even while tracing is off
        (tests/conformance/6.12.117/12_filter.txt). A record too large for that buffer is handled as without a
        filter.
        """
        cdef Filter filter = self.filter    # a reference: it may be replaced while a name is looked up
        if self.soft_disabled or not self.sink.wants_thread(r.pid):
            return FILTERED
        if self.sink.is_too_large(r.size):
            return RECORDED
        if not r.valid:
            return -EFAULT
        return RECORDED if filter.matches(r) else FILTERED

    def inject(self, uint64_t ts_ns, int cpu, int pid, int id, bytes payload not None) -> bool:
        """Take a record that no producer wrote. It is not counted; True: it is recorded."""
        cdef Record r
        set_record(&r, ts_ns, cpu, pid, pid, id, payload)
        return self.take(&r) == RECORDED


def recorded_ids(RingBuffer buffer not None) -> set[int]:
    """The set of the event ids of all unread records, also the spare's. Reads each record."""
    cdef bytearray seen = bytearray(1 << 16)
    cdef Cursor cursor
    cdef uint16_t event_id
    cdef set ids = set()
    for cursor in (buffer.cursor(), buffer.cursor(snapshot=True)):
        while cursor.next():
            memcpy(&event_id, cursor.data, sizeof(event_id))
            if not seen[event_id]:
                seen[event_id] = 1
                ids.add(event_id)
    return ids
