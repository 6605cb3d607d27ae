# cython: boundscheck=False, wraparound=False
"""A perf event on the record path: a count, and every period-th record as a sample in a ring."""

from libc.errno cimport EFAULT
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from utracefs_protocol.limits import MAX_PERF_ENTRY as _MAX_PERF_ENTRY
from utracefs_protocol.pages.status_page import StatusBit

from utracefs_protocol.filter._program cimport Filter
from utracefs_protocol.pages.record cimport Record, common_word
from utracefsd.events._tracepoint cimport FILTERED, LOST, RECORDED, UNDECIDED, Probe
from utracefsd.machine._sealed_memory cimport SealedMemory

cdef extern from * nogil:
    """
    #define LOAD_TAIL(p) __atomic_load_n((uint64_t *)(p), __ATOMIC_ACQUIRE)
    #define STORE_HEAD(p, v) __atomic_store_n((uint64_t *)(p), (v), __ATOMIC_RELEASE)
    """
    int popcount "__builtin_popcountll" (uint64_t)
    uint64_t LOAD_TAIL(uint8_t *)
    void STORE_HEAD(uint8_t *, uint64_t)

cdef uint64_t max_perf_entry = _MAX_PERF_ENTRY

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
    SAMPLE_TRAILER = 0x102c6  # TID, TIME, ID, CPU, STREAM_ID, IDENTIFIER
    # struct perf_event_mmap_page
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


cdef class PerfProbe(Probe):
    """One perf event: a count, and with data_pages a memfd ring (docs/protocol.md, section 6); sets
    StatusBit.PERF.

    The ring has the kernel's layout (include/uapi/linux/perf_event.h). Its samples carry the id of its event.

    lost_samples: Samples that did not fit, or whose record is larger than 8192 bytes.
    enabled: While False, every record counts as filtered; the status bit stays.
    sample_period: Records per sample; 0: count only. Settable (ioctl PERIOD).
    sample_freq: Desired samples per second, reached by adapting the period; 0: fixed period. Settable.
    fd: memfd of the ring (sealed against resizing), owned by the probe until it is taken, metadata page
        first; -1 without ring. Its data pages get memory as samples come, since most of thousands of events
        never have one.
    """

    cdef readonly uint64_t id               # identifier in samples, nonzero
    cdef readonly uint64_t count
    cdef readonly uint64_t lost_samples
    cdef readonly uint64_t sample_type
    cdef public uint64_t sample_freq
    cdef uint64_t _period
    cdef uint64_t left                      # records until the next sample
    cdef uint64_t last_sample_ns
    cdef readonly int pid
    cdef readonly int cpu
    cdef public bint enabled
    cdef public Filter filter  #: Filter | None
    cdef readonly int data_pages
    cdef SealedMemory memory                # of the ring; None without one
    cdef uint8_t *map                       # NULL without a ring
    cdef uint64_t head                      # private; the copy in the mapping is for the reader
    cdef uint64_t size                      # bytes of the data area, 0 without ring
    cdef uint64_t pending_lost              # samples lost since the last PERF_RECORD_LOST

    def __cinit__(self, *args, **kwargs):
        self.map = NULL

    def __init__(
        self, str consumer not None, id: int, *, sample_period: int = 1, sample_freq: int = 0,
        sample_type: int = 0x10587, pid: int = -1, cpu: int = -1, data_pages: int = 0, bint enabled=True
    ):
        """Make the ring, if data_pages is not 0. The values are checked where they came in (PerfAttr).

        OSError: no memory for the ring.
        """
        Probe.__init__(self, consumer, StatusBit.PERF)
        self.id = id
        self.sample_freq = sample_freq
        self.sample_type = sample_type
        self.pid = pid
        self.cpu = cpu
        self.enabled = enabled
        self.sample_period = 1 if sample_freq else sample_period
        if data_pages:
            self.make_ring(data_pages)

    cdef int make_ring(self, int data_pages) except -1:
        cdef uint64_t value = DATA_OFFSET
        cdef uint32_t page_size = 96  # `size` in struct perf_event_mmap_page: the bytes that are defined
        self.memory = SealedMemory("utracefs-perf", DATA_OFFSET + <size_t>data_pages * 4096, DATA_OFFSET)
        self.map = self.memory.map
        self.size = self.memory.size - DATA_OFFSET
        self.data_pages = data_pages
        memcpy(self.map + DATA_OFFSET_AT, &value, 8)
        memcpy(self.map + DATA_SIZE_AT, &self.size, 8)
        memcpy(self.map + PAGE_SIZE_AT, &page_size, 4)
        return 0

    def close(self) -> None:
        """Unmap and close the memfd; counting continues. May be called twice."""
        if self.memory is not None:
            self.memory.close()
            self.map = NULL
            self.size = 0

    def take_fd(self) -> int:
        """The memfd, the caller's to close from now on; -1 without a ring, or when it was taken before."""
        return -1 if self.memory is None else self.memory.take_fd()

    @property
    def fd(self) -> int:
        return -1 if self.memory is None else self.memory.fd

    @property
    def sample_period(self) -> int:
        return self._period

    @sample_period.setter
    def sample_period(self, uint64_t period):
        self._period = period
        self.left = period

    def is_filled(self, uint64_t watermark) -> bool:
        """Whether `watermark` bytes wait for the reader, or a sample was lost. False without a ring."""
        if self.map == NULL:
            return False
        return self.pending_lost > 0 or self.head - LOAD_TAIL(self.map + DATA_TAIL_AT) >= watermark

    def reset(self) -> None:
        """Set `count` to 0."""
        self.count = 0

    cdef bint wants(self, Record *r) noexcept:
        return (
            self.enabled
            # A process id means all threads of the process.
            and (self.pid < 0 or self.pid == r.pid or self.pid == r.tgid)
            and (self.cpu < 0 or self.cpu == r.cpu)
        )

    cdef int take(self, Record *r) noexcept:
        cdef uint64_t period
        if not self.wants(r):
            return FILTERED
        if not r.valid:
            # A larger record is dropped before it is filtered, as in perf_trace_buf_alloc().
            return -EFAULT if 8 + <uint64_t>r.size <= max_perf_entry else UNDECIDED
        if self.filter is not None and not self.passes(r):
            return FILTERED
        self.count += 1
        if self._period == 0:
            return RECORDED
        self.left -= 1
        if self.left:
            return RECORDED
        period = self._period
        if self.sample_freq:
            self.adapt(r.ts_ns)
        self.left = self._period
        if self.map == NULL or self.sample(r, period):
            return RECORDED
        self.lost_samples += 1
        return LOST

    cdef bint passes(self, Record *r) noexcept:
        """The last condition of perf_tp_event_match(): a record that the filter rejects is not counted."""
        cdef Filter filter = self.filter    # a reference: it may be replaced while a name is looked up
        return filter.matches(r)

    cdef void adapt(self, uint64_t now_ns) noexcept:
        """Adapt the period after a sample, as perf_adjust_period() in kernel/events/core.c: by an eighth
        towards the one that would have given sample_freq samples a second since the previous sample."""
        cdef uint64_t passed = now_ns - self.last_sample_ns
        cdef double wanted
        if self.last_sample_ns == 0 or now_ns <= self.last_sample_ns:
            # The first sample keeps the period; several at the same time raise it.
            wanted = self._period * 2.0 if self.last_sample_ns else self._period
        else:
            wanted = self._period * 1e9 / (<double>passed * self.sample_freq)
        self.last_sample_ns = max(now_ns, self.last_sample_ns)
        # Rounded away from 0, so that small periods move, too; bounded, so that a burst cannot silence the
        # event forever.
        wanted = (min(wanted, 1e9) - self._period) / 8
        wanted = self._period + (wanted + 0.999 if wanted > 0 else wanted - 0.999)
        self._period = <uint64_t>wanted if wanted >= 1 else 1

    cdef bint sample(self, Record *r, uint64_t period) noexcept:
        """Write a PERF_RECORD_SAMPLE, its parts in the order of perf_output_sample(). False: no space; the
        loss is counted."""
        cdef uint64_t type = self.sample_type
        cdef uint64_t entry = 8 + <uint64_t>r.size, raw, size = 8
        cdef PerfHeader header
        cdef uint32_t word
        cdef uint64_t zero = 0, common
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
        self.put_who_and_when(r)
        if type & SAMPLE_PERIOD:
            self.put(&period, 8)
        if type & SAMPLE_RAW:
            word = <uint32_t>raw
            self.put(&word, 4)
            common = common_word(r.id, r.pid)
            self.put(&common, 8)
            self.put(r.payload, r.size)
            self.put(&zero, raw - entry)  # at most 7
        STORE_HEAD(self.map + DATA_HEAD_AT, self.head)  # after the bytes, which are complete
        return True

    cdef bint reserve(self, uint64_t need, Record *r) noexcept:
        """Whether `need` bytes fit behind a PERF_RECORD_LOST that is due, which is written here.

        data_tail comes from the reader and is not trusted: it decides only how much is written, never where.
        A value ahead of head, or more than a ring behind it, means a full ring. At least one byte stays free,
        as in the kernel.
        """
        cdef uint64_t tail = LOAD_TAIL(self.map + DATA_TAIL_AT), used = self.head - tail
        cdef uint64_t lost_size = 0
        cdef PerfHeader header
        if self.pending_lost:
            lost_size = 24 + 8 * popcount(self.sample_type & SAMPLE_TRAILER)
        if tail > self.head or used > self.size or self.size - used <= need + lost_size:
            return False
        if not self.memory.take(DATA_OFFSET + self.head + need + lost_size):
            return False
        if lost_size:
            header.type = 2
            header.misc = 0
            header.size = <uint16_t>lost_size
            self.put(&header, 8)
            self.put(&self.id, 8)
            self.put(&self.pending_lost, 8)
            self.put_trailer(r)
            self.pending_lost = 0
        return True

    cdef void put_trailer(self, Record *r) noexcept:
        """Write a struct sample_id (attr.sample_id_all), in the order of __perf_event__output_id_sample()."""
        self.put_who_and_when(r)
        if self.sample_type & SAMPLE_IDENTIFIER:
            self.put(&self.id, 8)

    cdef void put_who_and_when(self, Record *r) noexcept:
        """The common part of a sample and a struct sample_id, in their common order."""
        cdef uint64_t type = self.sample_type
        cdef uint32_t zero = 0
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

    cdef void put(self, const void *data, size_t size) noexcept:
        """Store at `head`, wrapping. reserve() checked that the ring has space, so size <= self.size."""
        cdef uint8_t *area = self.map + DATA_OFFSET
        cdef uint64_t at = self.head & (self.size - 1)
        cdef size_t first = min(size, <size_t>(self.size - at))
        if size == 0:
            return
        memcpy(area + at, data, first)
        if size > first:
            memcpy(area, <const uint8_t *>data + first, size - first)
        self.head += size
