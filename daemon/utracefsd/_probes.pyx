# cython: boundscheck=False, wraparound=False
"""The record path: per event a tracepoint, per attached consumer a probe; what a write does, record by record.

    write_index, payload           IndexTable     which event is meant (one table per data connection)
      -> Record                    Tracepoint     long enough? anyone attached? dynamic fields sound?
        -> take()                  Probe          one per consumer: counts the record as recorded, filtered or lost
          -> FtraceSink.store      RingBuffer     common fields + payload, in the instance's trace clock
          -> PerfSink.take         memfd          counted, and every period-th one sampled
          -> BatchProbe            list           handed to Python in batches

The checks and their order are those of user_events_write_core in kernel/trace/trace_events_user.c (user_events.md
section 6); payloads are hostile, so every offset in them is checked against the record's end before use.

All of it runs with the GIL held in one thread, so nothing is locked. The one thing to be careful about: wherever a
Python object is made or dropped, the cyclic collector may run finalizers, and those may attach and detach probes.
Loops over probes therefore hold the tuple that they walk; attach and detach make a new one.
"""

import fcntl
import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.errno cimport EBADF, EFAULT, EINVAL, ENOENT, errno as c_errno
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

from utracefs_protocol.declaration import FieldKind
from utracefs_protocol.limits import MAX_DATA_OBJECT as _MAX_DATA_OBJECT
from utracefs_protocol.limits import MAX_PERF_DATA_PAGES, MAX_PERF_ENTRY as _MAX_PERF_ENTRY
from utracefs_protocol.status_page import StatusBit

cdef extern from * nogil:
    """
    #include <sched.h>
    #include <time.h>
    /* The same count for all clocks named `counter`, as the kernel's trace_counter: instances share it. */
    static uint64_t trace_counter;
    #if defined(__x86_64__) || defined(__i386__)
    #define HAVE_TSC 1
    static inline uint64_t read_tsc(void) { return __builtin_ia32_rdtsc(); }
    #else
    #define HAVE_TSC 0
    static inline uint64_t read_tsc(void) { return 0; }
    #endif
    static inline uint16_t big16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
    static inline uint32_t big32(const uint8_t *p)
    {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    static inline int running_cpu(void) { int cpu = sched_getcpu(); return cpu < 0 ? 0 : cpu; }
    #define LOAD_TAIL(p) __atomic_load_n((uint64_t *)(p), __ATOMIC_ACQUIRE)
    #define STORE_HEAD(p, v) __atomic_store_n((uint64_t *)(p), (v), __ATOMIC_RELEASE)
    """
    uint64_t trace_counter
    bint HAVE_TSC
    uint64_t read_tsc()
    uint16_t big16(const uint8_t *)
    uint32_t big32(const uint8_t *)
    int running_cpu()
    int popcount "__builtin_popcountll" (uint64_t)
    uint64_t LOAD_TAIL(uint8_t *)
    void STORE_HEAD(uint8_t *, uint64_t)
    enum:
        CLOCK_BOOTTIME
        CLOCK_TAI
        CLOCK_MONOTONIC_RAW

cdef uint64_t max_data_object = _MAX_DATA_OBJECT
cdef uint64_t max_perf_entry = _MAX_PERF_ENTRY

cdef uint64_t read_clock(int clock) noexcept:
    cdef timespec ts
    clock_gettime(clock, &ts)
    return <uint64_t>ts.tv_sec * 1000000000 + <uint64_t>ts.tv_nsec


# ---- tracepoint and probe ----


cdef class Probe:
    """One consumer's attachment to ONE event. recorded + filtered + lost = records emitted while it was attached."""

    def __init__(self, str consumer not None, int status_bit):
        self.consumer = consumer
        self.status_bit = status_bit

    cdef int take(self, Record *r) noexcept:
        # By itself a probe keeps an event wanted and takes nothing.
        self.filtered += 1
        return 0

    cdef bint looks_at(self, Record *r) noexcept:
        return False

    cdef int finish(self) except -1:
        """Before the probe's numbers are read for good."""
        return 0

    def __repr__(self):
        return (
            f"<{type(self).__name__} {self.consumer}: recorded {self.recorded} filtered {self.filtered} lost {self.lost}>"
        )


cdef class Tracepoint:
    """The compiled side of one event: checks a record as write(2) does and hands it to every attached probe."""

    def __cinit__(self, *args, **kwargs):
        self.locs = NULL
        self.past = []
        self._probes = ()

    def __init__(self, event_id, bytes name not None, fields):
        cdef int i = 0
        if not 0 < event_id < 65536:
            raise ValueError(f"event id {event_id}: it is stored in 16 bits, and 0 is none")
        if self.locs != NULL:
            raise RuntimeError("made already")
        self.id = event_id
        self.name = name
        fields = tuple(fields)
        self.min_size = sum([field.size for field in fields])
        locs = [field for field in fields if field.kind in (FieldKind.DATA_LOC, FieldKind.REL_LOC)]
        if locs:
            self.locs = <LocCheck *>calloc(len(locs), sizeof(LocCheck))
            if self.locs == NULL:
                raise MemoryError()
        for i, field in enumerate(locs):
            # min_size covers the loc word: what passed the length check can be read.
            if not (field.size == 4 and 0 <= field.offset - 8 <= self.min_size - 4):
                raise ValueError(f"field {field.name!r}: its location word lies outside the fixed part")
            self.locs[i].offset = field.offset - 8
            self.locs[i].relative = field.kind is FieldKind.REL_LOC
            self.locs[i].is_string = b"char" in field.type
        self.nr_locs = len(locs)
        self.set_probes(())

    def __dealloc__(self):
        free(self.locs)

    cdef int set_probes(self, tuple probes) except -1:
        status = 0
        for probe in probes:
            status |= (<Probe>probe).status_bit
        self._probes = probes
        self.nr_probes = <int>PyTuple_GET_SIZE(probes)
        # The tuple's own array; it lives as long as _probes holds the tuple.
        self.probe_array = &(<PyTupleObject *>probes).ob_item[0]
        self.status = status
        return 0

    @property
    def probes(self):
        return self._probes

    def attach(self, Probe probe not None):
        if probe in self._probes:
            raise ValueError(f"{probe!r} is attached already")
        self.set_probes((*self._probes, probe))

    def detach(self, Probe probe not None):
        if probe not in self._probes:
            raise ValueError(f"{probe!r} is not attached")
        probe.finish()
        if probe not in self._probes:
            return  # a plug-in that was handed its last batch detached itself
        self.set_probes(tuple([other for other in self._probes if other is not probe]))
        numbers = (probe.recorded, probe.filtered, probe.lost)
        for i, (consumer, *before) in enumerate(self.past):
            if consumer == probe.consumer:
                self.past[i] = (consumer, *map(sum, zip(before, numbers)))
                break
        else:
            self.past.append((probe.consumer, *numbers))

    cdef bint locs_are_valid(self, Record *r) noexcept:
        """user_event_validate: every location within the entry, every string ended by a NUL (user_events.md 4.6).

        Positions count from the start of the entry, whose first 8 bytes are the common fields, not in the payload.
        """
        cdef uint64_t entry_size = 8 + <uint64_t>r.size, end
        cdef uint32_t word
        cdef uint8_t common[8]
        cdef int i
        for i in range(self.nr_locs):
            memcpy(&word, r.payload + self.locs[i].offset, 4)
            end = (word & 0xffff) + <uint64_t>(word >> 16)
            if self.locs[i].relative:
                end += 8 + self.locs[i].offset + 4
            if end > entry_size:
                return False
            if not self.locs[i].is_string:
                continue
            if end == 0:
                # __data_loc with offset and size 0: the kernel looks at the byte in front of the entry, which is
                # the top byte of a time delta and practically 0. Golden 08: accepted.
                continue
            if end <= 8:
                common_fields(r, common)
                if common[end - 1]:
                    return False
            elif r.payload[end - 9]:
                return False
        return True

    cdef int emit(self, Record *r) noexcept:
        cdef tuple probes
        cdef Py_ssize_t i
        cdef bint faulted = False
        if r.size < self.min_size:
            return -EINVAL
        if self.nr_probes == 0:
            return -EBADF
        r.id = self.id
        probes = self._probes
        if self.nr_locs and not self.locs_are_valid(r):
            # Each tracer validates for itself, once it has room for the record: if none gets that far, nothing is wrong.
            for i in range(PyTuple_GET_SIZE(probes)):
                if (<Probe>PyTuple_GET_ITEM(probes, i)).looks_at(r):
                    faulted = True
            if faulted:
                return -EFAULT
        self.emitted += 1
        for i in range(PyTuple_GET_SIZE(probes)):
            (<Probe>PyTuple_GET_ITEM(probes, i)).take(r)
        return 0

    def write(self, bytes payload not None, *, ts_ns, int cpu, int pid, tgid=None):
        cdef Record r
        if cpu < 0:
            raise ValueError(f"cpu {cpu}")
        r.ts_ns = ts_ns
        r.cpu = cpu
        r.pid = pid
        r.tgid = pid if tgid is None else tgid
        r.payload = <const uint8_t *>PyBytes_AS_STRING(payload)
        r.size = <uint32_t>min(PyBytes_GET_SIZE(payload), 0xffffffff)
        return self.emit(&r)

    def stats_text(self):
        numbers = {}
        rows = [(p.consumer, p.recorded, p.filtered, p.lost) for p in self._probes]
        for consumer, *more in rows + self.past:
            numbers[consumer] = [a + b for a, b in zip(numbers.get(consumer, (0, 0, 0)), more)]
        lines = [f"emitted: {self.emitted}\n"]
        for consumer, (recorded, filtered, lost) in numbers.items():
            lines.append(f"{consumer}: recorded {recorded} filtered {filtered} lost {lost}\n")
        return "".join(lines).encode("utf-8", "surrogateescape")

    def __repr__(self):
        return f"<Tracepoint {self.name!r} id {self.id}, {self.nr_probes} probes>"


cdef void common_fields(Record *r, uint8_t *to) noexcept:
    """The first 8 bytes of an entry: u16 common_type, u8 common_flags 0, u8 common_preempt_count 0, i32 common_pid."""
    memset(to, 0, 4)
    memcpy(to, &r.id, 2)
    memcpy(to + 4, &r.pid, 4)


# ---- ftrace ----

cdef enum Clock:
    # what `_clock` holds; clocks that are CLOCK_MONOTONIC under several names share MONO
    MONO
    COUNTER
    UPTIME
    MONO_RAW
    BOOT
    TAI
    TSC

# The kernel's local, global and perf clocks are nanoseconds since boot as well; ours are all the producer's CLOCK_MONOTONIC.
_CLOCK_OF = {
    "local": MONO,
    "global": MONO,
    "counter": COUNTER,
    "uptime": UPTIME,
    "perf": MONO,
    "mono": MONO,
    "mono_raw": MONO_RAW,
    "boot": BOOT,
    "tai": TAI,
}
if HAVE_TSC:
    _CLOCK_OF["x86-tsc"] = TSC
CLOCKS = tuple(_CLOCK_OF)

# How far from the last sampling of a clock's offset a record may lie before the offset is sampled again. mono_raw drifts
# against mono by at most 500 ppm: half a microsecond in this time.
cdef enum:
    RESAMPLE_NS = 1000000


cdef class FtraceSink:
    """The compiled side of one ftrace instance: what all its FtraceProbes write through."""

    def __init__(self, RingBuffer ring_buffer not None):
        self._buffer = ring_buffer
        self.tracing_on = True
        self._clock = MONO
        self._clock_name = "local"
        self._cpumask_low = <uint64_t>-1

    @property
    def ring_buffer(self):
        return self._buffer

    @ring_buffer.setter
    def ring_buffer(self, RingBuffer buffer not None):
        self._buffer = buffer

    @property
    def clock(self):
        return self._clock_name

    @clock.setter
    def clock(self, str name not None):
        if name not in _CLOCK_OF:
            raise ValueError(f"no trace clock {name!r}: there are {' '.join(CLOCKS)}")
        self._clock = _CLOCK_OF[name]
        self._clock_name = name
        self.offset_at_ns = 0

    @property
    def cpumask(self):
        return self._cpumask

    @cpumask.setter
    def cpumask(self, mask):
        if mask is not None and mask < 0:
            raise ValueError(f"cpumask {mask}")
        self._cpumask = mask
        self._cpumask_low = <uint64_t>-1 if mask is None else mask & 0xffffffffffffffff

    @property
    def pids(self):
        return self._pids

    @pids.setter
    def pids(self, pids):
        self._pids = None if pids is None else frozenset(pids)

    @property
    def notrace_pids(self):
        return self._notrace_pids

    @notrace_pids.setter
    def notrace_pids(self, pids):
        self._notrace_pids = None if pids is None else frozenset(pids)

    cdef uint64_t stamp(self, uint64_t ts_ns) noexcept:
        """CLOCK_MONOTONIC to the trace clock. `counter` counts every call, as the kernel's does every reading."""
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
            return read_tsc()  # now: a record of another moment has no cycle count
        if ts_ns - self.offset_at_ns > RESAMPLE_NS:  # unsigned: also when the record is older than the sample
            before = read_clock(CLOCK_MONOTONIC)
            self.offset_ns = (
                read_clock(CLOCK_BOOTTIME if clock == BOOT else CLOCK_TAI if clock == TAI else CLOCK_MONOTONIC_RAW)
                - before
            )
            self.offset_at_ns = ts_ns
        return ts_ns + self.offset_ns  # mod 2^64: mono_raw may lie behind

    cdef bint cpu_is_on(self, int cpu) noexcept:
        if cpu < 64:
            return self._cpumask_low >> cpu & 1
        return self._cpumask is None or bool(self._cpumask >> cpu & 1)

    cdef bint wants(self, int cpu, int32_t pid) noexcept:
        if not self.tracing_on or not self.cpu_is_on(cpu):
            return False
        if self._pids is not None and pid not in <frozenset>self._pids:
            return False
        return self._notrace_pids is None or pid not in <frozenset>self._notrace_pids

    cdef int store(self, uint64_t ts_ns, int cpu, uint16_t id, int32_t pid, const void *payload, size_t size) noexcept:
        cdef RingBuffer buffer = self._buffer
        cdef uint64_t ts
        cdef int code
        if size + 32 > <size_t>buffer.subbuf_size:
            return 2  # before the clock is read: the kernel refuses it before, too
        # A cpu that came after the buffer was made shares the ring of another.
        if cpu >= buffer.nr_cpus:
            cpu %= buffer.nr_cpus
        ts = self.stamp(ts_ns)
        if self._clock == COUNTER and buffer.leaves_page(cpu, ts, size):
            ts = self.stamp(ts_ns)  # the kernel starts again on the next page, and reads the clock again
        code = buffer.append_entry(cpu, ts, id, pid, payload, size)
        self.generation += code == 0
        return code

    cdef bint could_store(self, uint64_t ts_ns, int cpu, size_t size) noexcept:
        """Whether a reservation would succeed. It reads the clock like one: `counter` goes on (golden 08)."""
        cdef RingBuffer buffer = self._buffer
        cdef uint64_t ts
        if size + 32 > <size_t>buffer.subbuf_size:
            return False
        cpu %= buffer.nr_cpus
        ts = self.stamp(ts_ns)
        if self._clock == COUNTER and buffer.leaves_page(cpu, ts, size):
            ts = self.stamp(ts_ns)
        return buffer.has_room(cpu, ts, size)

    def now(self):
        return self.stamp(read_clock(CLOCK_MONOTONIC))

    def append_raw(self, uint64_t ts_ns, int cpu, int pid, int id, bytes body not None):
        if not 0 < id < 65536 or cpu < 0:
            raise ValueError(f"id {id}, cpu {cpu}")
        if not self.tracing_on or not self.cpu_is_on(cpu):
            return 1
        return self.store(ts_ns, cpu, id, pid, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))


cdef class FtraceProbe(Probe):
    """recorded: in the ring buffer; filtered: tracing_on, cpumask, pid lists, soft-disabled; lost: full or too large."""

    def __init__(self, FtraceSink sink not None, str consumer not None="ftrace"):
        Probe.__init__(self, consumer, StatusBit.FTRACE)
        self.sink = sink

    cdef int take(self, Record *r) noexcept:
        if self.soft_disabled or not self.sink.wants(r.cpu, r.pid):
            self.filtered += 1
        elif self.sink.store(r.ts_ns, r.cpu, r.id, r.pid, r.payload, r.size) == 0:
            self.recorded += 1
        else:
            self.lost += 1
        return 0

    cdef bint looks_at(self, Record *r) noexcept:
        return (
            not self.soft_disabled
            and self.sink.wants(r.cpu, r.pid)
            and self.sink.could_store(r.ts_ns, r.cpu, r.size)
        )


# ---- perf ----

cdef enum:
    # PERF_SAMPLE_*, include/uapi/linux/perf_event.h
    SAMPLE_IP = 0x1
    SAMPLE_TID = 0x2
    SAMPLE_TIME = 0x4
    SAMPLE_ID = 0x40
    SAMPLE_CPU = 0x80
    SAMPLE_PERIOD = 0x100
    SAMPLE_STREAM_ID = 0x200
    SAMPLE_RAW = 0x400
    SAMPLE_IDENTIFIER = 0x10000
    SAMPLE_KNOWN = 0x107c7
    SAMPLE_TRAILER = 0x102c6  # TID, TIME, ID, CPU, STREAM_ID, IDENTIFIER
    # struct perf_event_mmap_page, as in utracefs_protocol.perf_ring.MMAP_PAGE_FIELDS
    PAGE_SIZE_AT = 72
    DATA_HEAD_AT = 1024
    DATA_TAIL_AT = 1032
    DATA_OFFSET_AT = 1040
    DATA_SIZE_AT = 1048
    DATA_OFFSET = 4096

cdef struct PerfHeader:
    uint32_t type
    uint16_t misc
    uint16_t size


cdef class PerfSink:
    """One perf event: a count, and with data_pages a memfd ring in the kernel's layout (protocol.md 6, exports.md 5.3)."""

    def __cinit__(self, *args, **kwargs):
        self.fd = -1
        self.map = NULL

    def __init__(self, id, *, sample_period=1, sample_freq=0, sample_type=0x10587, pid=-1, cpu=-1, data_pages=0,
                 bint enabled=True, bint sample_id_all=True):
        if self.map != NULL:
            raise RuntimeError("made already")
        if not 0 < id < 1 << 64:
            raise ValueError(f"id {id}: it must be a nonzero 64-bit number")
        if sample_period < 0 or sample_freq < 0 or sample_period >= 1 << 63 or sample_freq >= 1 << 32:
            raise ValueError(f"sample_period {sample_period}, sample_freq {sample_freq}: out of range")
        if sample_freq and sample_period > 1:
            raise ValueError("sample_period or sample_freq, not both")
        if sample_type & ~<uint64_t>SAMPLE_KNOWN:
            raise ValueError(f"sample_type {sample_type:#x}: bits {sample_type & ~SAMPLE_KNOWN:#x} are not supported")
        if pid < -1 or cpu < -1:
            raise ValueError(f"pid {pid}, cpu {cpu}: -1 means all")
        if data_pages and (not 0 < data_pages <= MAX_PERF_DATA_PAGES or data_pages & (data_pages - 1)):
            raise ValueError(f"data_pages {data_pages}: a power of two up to {MAX_PERF_DATA_PAGES}, or 0 for no ring")
        self.id = id
        self.sample_freq = sample_freq
        self.sample_type = sample_type
        self.pid = pid
        self.cpu = cpu
        self.enabled = enabled
        self.sample_id_all = sample_id_all
        self.sample_period = 1 if sample_freq else sample_period
        if data_pages:
            self.make_ring(data_pages)

    cdef int make_ring(self, int data_pages) except -1:
        cdef size_t size = DATA_OFFSET + <size_t>data_pages * 4096
        cdef void *map
        cdef uint64_t value
        cdef uint32_t page_size = 96  # how much of struct perf_event_mmap_page means something, as the kernel says it
        fd = os.memfd_create("utracefs-perf", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            # Allocated now, and sealed: neither want of memory nor a reader that holds the descriptor can make our
            # stores into the mapping fault later.
            os.posix_fallocate(fd, 0, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
            if map == MAP_FAILED:
                raise OSError(c_errno, os.strerror(c_errno), "perf ring")
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd
        self.map = <uint8_t *>map
        self.map_size = size
        self.size = size - DATA_OFFSET
        self.data_pages = data_pages
        value = DATA_OFFSET
        memcpy(self.map + DATA_OFFSET_AT, &value, 8)
        memcpy(self.map + DATA_SIZE_AT, &self.size, 8)
        memcpy(self.map + PAGE_SIZE_AT, &page_size, 4)
        return 0

    def close(self):
        """Unmap and close the memfd; counting goes on. Safe twice."""
        if self.map != NULL:
            munmap(self.map, self.map_size)
            self.map = NULL
            self.size = 0
            os.close(self.fd)
            self.fd = -1

    def __dealloc__(self):
        if self.map != NULL:
            munmap(self.map, self.map_size)
            try:
                os.close(self.fd)
            except Exception:  # at interpreter exit os may be gone; so is the descriptor then
                pass

    @property
    def sample_period(self):
        return self._period

    @sample_period.setter
    def sample_period(self, uint64_t period):
        self._period = period
        self.left = period

    def reset(self):
        self.count = 0

    cdef bint wants(self, Record *r) noexcept:
        return (
            self.enabled
            # a process' id means all its threads
            and (self.pid < 0 or self.pid == r.pid or self.pid == r.tgid)
            and (self.cpu < 0 or self.cpu == r.cpu)
        )

    cdef int take(self, Record *r) noexcept:
        cdef uint64_t period
        if not self.wants(r):
            return 2
        self.count += 1
        if self._period == 0:
            return 0
        self.left -= 1
        if self.left:
            return 0
        period = self._period
        if self.sample_freq:
            self.adapt(r.ts_ns)
        self.left = self._period
        if self.map == NULL or self.sample(r, period):
            return 0
        self.lost += 1
        return 1

    cdef void adapt(self, uint64_t now_ns) noexcept:
        """After each sample: an eighth of the way to the period that would have given sample_freq samples a second
        since the sample before (perf_adjust_period)."""
        cdef uint64_t passed = now_ns - self.last_sample_ns
        cdef double wanted
        if self.last_sample_ns == 0 or now_ns <= self.last_sample_ns:
            # the first sample, or records of one moment: too many by any measure
            wanted = self._period * 2.0 if self.last_sample_ns else self._period
        else:
            wanted = self._period * 1e9 / (<double>passed * self.sample_freq)
        self.last_sample_ns = max(now_ns, self.last_sample_ns)
        # rounded away from 0, so that small periods move, too; bounded, so that a burst cannot silence the event for good
        wanted = (min(wanted, 1e9) - self._period) / 8
        wanted = self._period + (wanted + 0.999 if wanted > 0 else wanted - 0.999)
        self._period = <uint64_t>wanted if wanted >= 1 else 1

    cdef bint sample(self, Record *r, uint64_t period) noexcept:
        """PERF_RECORD_SAMPLE; the order of its parts is that of perf_output_sample. False: no room, counted."""
        cdef uint64_t type = self.sample_type
        cdef uint64_t entry = 8 + <uint64_t>r.size, raw, size = 8
        cdef PerfHeader header
        cdef uint8_t common[8]
        cdef uint8_t zeros[8]
        cdef uint32_t word
        cdef uint64_t zero = 0
        if (entry + 7) & ~<uint64_t>7 > max_perf_entry:
            self.pending_lost += 1
            return False
        raw = ((entry + 4 + 7) & ~<uint64_t>7) - 4
        size += 8 * popcount(type & ~<uint64_t>SAMPLE_RAW)  # every part but RAW has 8 bytes
        if type & SAMPLE_RAW:
            size += 4 + raw
        if not self.reserve(size, r):
            self.pending_lost += 1
            return False
        header.type = 9
        header.misc = 2  # PERF_RECORD_MISC_USER
        header.size = <uint16_t>size  # at most 8192 + 8 * 10
        self.put(&header, 8)
        if type & SAMPLE_IDENTIFIER:
            self.put(&self.id, 8)
        if type & SAMPLE_IP:
            self.put(&zero, 8)
        if type & SAMPLE_TID:
            self.put(&r.tgid, 4)
            self.put(&r.pid, 4)
        if type & SAMPLE_TIME:
            self.put(&r.ts_ns, 8)
        if type & SAMPLE_ID:
            self.put(&self.id, 8)
        if type & SAMPLE_STREAM_ID:
            self.put(&self.id, 8)
        if type & SAMPLE_CPU:
            self.put(&r.cpu, 4)
            self.put(&zero, 4)
        if type & SAMPLE_PERIOD:
            self.put(&period, 8)
        if type & SAMPLE_RAW:
            word = <uint32_t>raw
            self.put(&word, 4)
            common_fields(r, common)
            self.put(common, 8)
            self.put(r.payload, r.size)
            memset(zeros, 0, 8)
            self.put(zeros, raw - entry)  # at most 7
        STORE_HEAD(self.map + DATA_HEAD_AT, self.head)  # after the bytes: the reader may look at them now
        return True

    cdef bint reserve(self, uint64_t need, Record *r) noexcept:
        """Whether `need` bytes fit, together with the PERF_RECORD_LOST that is due before them, which is written here.

        data_tail is the reader's word and worth nothing: it decides only how much we may write, never where. One
        that lies ahead of us or more than a ring behind means full. At least one byte stays free, as in the kernel.
        """
        cdef uint64_t tail = LOAD_TAIL(self.map + DATA_TAIL_AT), used = self.head - tail
        cdef uint64_t lost_size = 0
        cdef PerfHeader header
        if self.pending_lost:
            lost_size = 24 + self.trailer_size()
        if tail > self.head or used > self.size or self.size - used <= need + lost_size:
            return False
        if lost_size:
            header.type = 2
            header.misc = 0
            header.size = <uint16_t>lost_size
            self.put(&header, 8)
            self.put(&self.id, 8)
            self.put(&self.pending_lost, 8)
            if self.sample_id_all:
                self.put_trailer(r)
            self.pending_lost = 0
        return True

    cdef uint64_t trailer_size(self) noexcept:
        return 8 * popcount(self.sample_type & SAMPLE_TRAILER) if self.sample_id_all else 0

    cdef void put_trailer(self, Record *r) noexcept:
        """struct sample_id; the order is that of __perf_event__output_id_sample."""
        cdef uint64_t type = self.sample_type, zero = 0
        if type & SAMPLE_TID:
            self.put(&r.tgid, 4)
            self.put(&r.pid, 4)
        if type & SAMPLE_TIME:
            self.put(&r.ts_ns, 8)
        if type & SAMPLE_ID:
            self.put(&self.id, 8)
        if type & SAMPLE_STREAM_ID:
            self.put(&self.id, 8)
        if type & SAMPLE_CPU:
            self.put(&r.cpu, 4)
            self.put(&zero, 4)
        if type & SAMPLE_IDENTIFIER:
            self.put(&self.id, 8)

    cdef void put(self, const void *data, size_t size) noexcept:
        """Store at `head`, wrapping. reserve() saw to it that the ring has room, so size <= self.size."""
        cdef uint8_t *area = self.map + DATA_OFFSET
        cdef uint64_t at = self.head & (self.size - 1)
        cdef size_t first = min(size, <size_t>(self.size - at))
        if size == 0:
            return
        memcpy(area + at, data, first)
        if size > first:
            memcpy(area, <const uint8_t *>data + first, size - first)
        self.head += size


cdef class PerfProbe(Probe):
    """recorded: counted (and its sample, if one was due, stored); filtered: pid, cpu, disabled; lost: the sample did not fit."""

    def __init__(self, PerfSink sink not None, str consumer not None):
        Probe.__init__(self, consumer, StatusBit.PERF)
        self.sink = sink

    cdef int take(self, Record *r) noexcept:
        cdef int code = 2 if self.soft_disabled else self.sink.take(r)
        if code == 0:
            self.recorded += 1
        elif code == 1:
            self.lost += 1
        else:
            self.filtered += 1
        return 0

    cdef bint looks_at(self, Record *r) noexcept:
        return not self.soft_disabled and self.sink.wants(r) and 8 + <uint64_t>r.size <= max_perf_entry


# ---- plug-ins ----


cdef class BatchProbe(Probe):
    """For consumers written in Python: collects (ts_ns, cpu, pid, tgid, payload) and hands them over in batches."""

    def __init__(self, str consumer not None, deliver, Py_ssize_t max_pending=65536):
        if max_pending < 1:
            raise ValueError(f"max_pending {max_pending}: at least 1 is needed")
        Probe.__init__(self, consumer, StatusBit.OTHER)
        self.deliver = deliver
        self.batch = []
        self.max_pending = max_pending

    @property
    def pending(self):
        return PyList_GET_SIZE(self.batch)

    cdef int take(self, Record *r) noexcept:
        if self.soft_disabled:
            self.filtered += 1
            return 0
        if PyList_GET_SIZE(self.batch) >= self.max_pending:
            self.lost += 1
            return 0
        try:
            self.batch.append(
                (r.ts_ns, r.cpu, r.pid, r.tgid, PyBytes_FromStringAndSize(<const char *>r.payload, r.size))
            )
        except MemoryError:
            self.lost += 1
        else:
            self.recorded += 1
        return 0

    cdef bint looks_at(self, Record *r) noexcept:
        return not self.soft_disabled and PyList_GET_SIZE(self.batch) < self.max_pending

    cdef int finish(self) except -1:
        self.flush()
        return 0

    def flush(self):
        """Deliver what is pending; returns how many records that were."""
        cdef list batch = self.batch
        cdef Py_ssize_t n = PyList_GET_SIZE(batch)
        if n == 0:
            return 0
        self.batch = []  # before the call: what it emits by itself comes with the next batch
        try:
            self.deliver(batch)
        except Exception as error:  # a plug-in may do what it likes; the record path goes on, and the count tells
            self.failures += 1
            self.last_error = error
            self.recorded -= n
            self.lost += n
        return n


# ---- write_index tables ----

cdef enum:
    MAX_REFUSED_KEYS = 256  # a peer chooses the index: it must not make us remember any number of them
    CPU_EVERY = 64          # records between two looks at which cpu we run on


cdef class IndexTable:
    """The write_index table of one data connection (one open file of user_events_data)."""

    def __init__(self):
        self.tracepoints = []
        self._refused = {}

    @property
    def refused(self):
        return self._refused

    def take_refused(self):
        refused = self._refused
        self._refused = {}
        return refused

    def append(self, Tracepoint tracepoint not None):
        self.tracepoints.append(tracepoint)
        return len(self.tracepoints) - 1

    def __len__(self):
        return len(self.tracepoints)

    def __getitem__(self, write_index):
        return self.tracepoints[write_index]

    def clear(self):
        """Drop all tracepoints (the connection closed)."""
        self.tracepoints = []

    cdef int take_one(self, const uint8_t *data, size_t size, Record *r) noexcept:
        """One record as write(2) carries it: bytes taken, or -errno. The caller has filled in who, when and where."""
        cdef int32_t write_index
        cdef Tracepoint tracepoint
        cdef int code
        if size < 4:
            return -EFAULT
        memcpy(&write_index, data, 4)
        if write_index < 0:
            return -EINVAL
        if write_index >= PyList_GET_SIZE(self.tracepoints):
            return -ENOENT
        tracepoint = <Tracepoint>PyList_GET_ITEM(self.tracepoints, write_index)
        r.payload = data + 4
        r.size = <uint32_t>(size - 4)
        code = tracepoint.emit(r)
        return code if code else <int>size

    cdef void refuse(self, int error, int64_t write_index) noexcept:
        self.total_refused += 1
        try:
            key = (error, write_index)
            if key not in self._refused and len(self._refused) >= MAX_REFUSED_KEYS:
                key = (error, -1)
            self._refused[key] = self._refused.get(key, 0) + 1
        except MemoryError:
            pass  # total_refused has it

    def write(self, bytes record not None, int pid):
        cdef Record r
        cdef Py_ssize_t size = PyBytes_GET_SIZE(record)
        if size > 0x7fffffff:
            raise ValueError(f"record of {size} bytes")
        r.ts_ns = read_clock(CLOCK_MONOTONIC)
        r.cpu = running_cpu()
        r.pid = r.tgid = pid
        return self.take_one(<const uint8_t *>PyBytes_AS_STRING(record), size, &r)

    def take_in(self, buffer, Py_ssize_t offset, int pid):
        cdef Py_buffer view
        cdef const uint8_t *data
        cdef size_t at, head, left
        cdef uint32_t body
        cdef int32_t write_index
        cdef int code
        cdef unsigned int n = 0
        cdef Record r
        # While we hold it, nothing that runs below can resize or free the buffer.
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= offset <= view.len:
                raise ValueError(f"offset {offset} in {view.len} bytes")
            data = <const uint8_t *>view.buf
            at = offset
            r.pid = r.tgid = pid
            while True:
                left = <size_t>view.len - at
                # bin8, bin16, bin32: a byte of type, then the size, big-endian (MessagePack specification)
                if left < 2:
                    break
                if data[at] == 0xc4:
                    head = 2
                    body = data[at + 1]
                elif data[at] == 0xc5 and left >= 3:
                    head = 3
                    body = big16(data + at + 1)
                elif data[at] == 0xc6 and left >= 5:
                    head = 5
                    body = big32(data + at + 1)
                else:
                    break
                if head + <uint64_t>body > max_data_object or body > left - head:
                    break
                if n % CPU_EVERY == 0:
                    r.cpu = running_cpu()
                n += 1
                r.ts_ns = read_clock(CLOCK_MONOTONIC)
                code = self.take_one(data + at + head, body, &r)
                if code < 0:
                    write_index = -1
                    if body >= 4:
                        memcpy(&write_index, data + at + head, 4)
                    self.refuse(-code, write_index)
                at += head + body
            return <Py_ssize_t>at
        finally:
            PyBuffer_Release(&view)
