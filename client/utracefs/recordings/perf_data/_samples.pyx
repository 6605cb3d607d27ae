# cython: boundscheck=False, wraparound=False
"""The samples of a perf.data in the order of time.

    struct perf_event_header     u32 type, u16 misc, u16 size; then the body (perf_event_open(2))

Samples come from many ring buffers, so they are only roughly in order: a heap holds the next `window` records
and yields the earliest, equal times in the order of the file. COMM and LOST wait for their turn in it, too;
names of time 0 are read in advance. Records later than the `window` allows are yielded out of order.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free

from utracefs.recordings._heap cimport Entry, earlier, sift_down
from utracefs.recordings._records cimport Raw, RecordSource, text_length
from utracefs_protocol.events._line cimport load32, load64
from utracefs_protocol.memory cimport resized

from utracefs.recordings.perf_data.format import PERF_RECORD_COMM
from utracefs_protocol.pages.perf_ring import PERF_RECORD_LOST, PERF_RECORD_SAMPLE, Sample
from utracefs_protocol.text import text_of

cdef uint32_t RECORD_LOST = PERF_RECORD_LOST
cdef uint32_t RECORD_COMM = PERF_RECORD_COMM
cdef uint32_t RECORD_SAMPLE = PERF_RECORD_SAMPLE

cdef enum:
    RECORD_LOST_SAMPLES = 13
    HEADER_SIZE = 8
    # enum perf_event_sample_format
    SAMPLE_IP = 1
    SAMPLE_TID = 2
    SAMPLE_TIME = 4
    SAMPLE_ADDR = 8
    SAMPLE_ID = 1 << 6
    SAMPLE_CPU = 1 << 7
    SAMPLE_PERIOD = 1 << 8
    SAMPLE_STREAM_ID = 1 << 9
    SAMPLE_RAW = 1 << 10
    SAMPLE_IDENTIFIER = 1 << 16
    NEEDED = SAMPLE_TID | SAMPLE_TIME | SAMPLE_CPU | SAMPLE_RAW
    # ... and all of a fixed size
    KNOWN = 0x107CF


cdef class Samples(RecordSource):
    """Iterates over each Sample; `comms` are those at the present one.

    file: the whole file. offset, size: those of its data. sample_type, sample_id_all: common to all attrs.
    comms: thread id to name at the beginning.

    recover: end at the first invalid record, without an error. read_bytes: of the data, so far. lost: as in
    the records so far. gaps: records of these without a number.

    ValueError: sample_type lacks time, thread, cpu or raw data, or has a part of variable size before those;
    while iterating, an invalid record, after all before it.
    """

    cdef Py_buffer _file
    cdef uint64_t _begin
    cdef uint64_t _end
    cdef uint64_t _at
    cdef size_t _id_at           # offsets in a sample, its header included; 0: it has none
    cdef size_t _ip_at
    cdef size_t _period_at
    cdef size_t _tid_at
    cdef size_t _time_at
    cdef size_t _cpu_at
    cdef size_t _raw_at
    cdef size_t _trailer_time    # of other records, from their end; 0: they have none
    cdef size_t _window
    cdef bint _recover
    cdef bint _ended
    cdef object _error
    cdef uint64_t _latest
    cdef int64_t _lost           # since the sample before; -1: not counted
    cdef readonly object lost  #: int
    cdef readonly uint64_t gaps
    cdef Entry *_heap            # the numbers are offsets in the file
    cdef size_t _count
    cdef size_t _capacity

    def __init__(
        self, file: mmap.mmap | bytes | bytearray, uint64_t offset, uint64_t size, uint64_t sample_type,
        bint sample_id_all, *, comms: dict[int, str], size_t window=1 << 22, bint recover=False
    ):
        cdef size_t at = HEADER_SIZE
        if sample_type & NEEDED != NEEDED or sample_type & ~<uint64_t>KNOWN:
            raise ValueError(f"samples of type {sample_type:#x}; time, thread, cpu and raw data are needed")
        PyObject_GetBuffer(file, &self._file, PyBUF_SIMPLE)
        if offset > <uint64_t>self._file.len or size > <uint64_t>self._file.len - offset:
            raise ValueError(f"data of {size} bytes at {offset} of a file of {self._file.len}")
        self.comms = dict(comms)
        self.lost = 0
        self._begin = self._at = offset
        self._end = offset + size
        self._window = window if window else 1
        self._recover = recover
        if sample_type & SAMPLE_IDENTIFIER:
            self._id_at = at
            at += 8
        if sample_type & SAMPLE_IP:
            self._ip_at = at
            at += 8
        self._tid_at = at
        self._time_at = at + 8
        at += 16
        for bit in (SAMPLE_ADDR, SAMPLE_ID, SAMPLE_STREAM_ID):
            if sample_type & <uint64_t>bit:
                at += 8
        self._cpu_at = at
        at += 8
        if sample_type & SAMPLE_PERIOD:
            self._period_at = at
            at += 8
        self._raw_at = at
        self._trailer_time = 0
        if sample_id_all:
            # struct sample_id: pid and tid, time, id, stream_id, cpu, identifier
            self._trailer_time = 16
            for bit in (SAMPLE_ID, SAMPLE_STREAM_ID, SAMPLE_IDENTIFIER):
                if sample_type & <uint64_t>bit:
                    self._trailer_time += 8
        self._take_first_comms()

    def __dealloc__(self):
        free(self._heap)
        PyBuffer_Release(&self._file)    # no effect without one

    @property
    def read_bytes(self) -> int:
        return self._at - self._begin

    def __iter__(self):
        return self

    def __next__(self) -> Sample:
        cdef Raw raw
        cdef const uint8_t *record
        if not self.next(&raw):
            raise StopIteration
        record = raw.entry - (self._raw_at + 4)
        return Sample(
            load64(record + self._id_at) if self._id_at else 0,
            load64(record + self._ip_at) if self._ip_at else 0,
            raw.pid,
            raw.tid,
            raw.time_ns,
            raw.cpu,
            load64(record + self._period_at) if self._period_at else 0,
            (<const char *>raw.entry)[:raw.size],
        )

    cdef bint next(self, Raw *raw) except -1:
        cdef Entry first
        cdef const uint8_t *record
        cdef uint32_t kind, size
        while True:
            while not self._ended and self._count < self._window:
                self._read_one()
            if not self._count:
                if self._error is not None:
                    raise self._error
                self.lost_behind = self._lost
                self._lost = 0
                return False
            first = self._heap[0]
            self._count -= 1
            self._heap[0] = self._heap[self._count]
            sift_down(self._heap, self._count, 0)
            record = <const uint8_t *>self._file.buf + first.number
            kind = load32(record)
            size = load32(record + 4) >> 16
            # This is a second read: in a mapped file the record may have changed.
            if size > self._end - first.number or size < self._least(kind):
                raise ValueError("the file changes while it is read")
            if kind == RECORD_COMM:
                self._take_comm(record, size)
            elif kind == RECORD_LOST:
                self._take_lost(load64(record + 16))
            elif kind == RECORD_LOST_SAMPLES:
                self._take_lost(load64(record + 8))
            elif kind == RECORD_SAMPLE:
                raw.time_ns = first.time
                raw.lost = self._lost
                raw.cpu = load32(record + self._cpu_at)
                raw.buffer = raw.recording = 0
                raw.pid = <int>load32(record + self._tid_at)
                raw.tid = <int>load32(record + self._tid_at + 4)
                raw.size = load32(record + self._raw_at)
                raw.entry = record + self._raw_at + 4
                if raw.size > size - self._raw_at - 4:
                    raise ValueError("the file changes while it is read")
                self._lost = 0
                return True

    cdef int _take_first_comms(self) except -1:
        """Read names valid from the beginning, with time 0, which may be anywhere, even behind all
        samples."""
        cdef const uint8_t *record
        cdef uint64_t at = self._begin
        cdef uint32_t size
        while self._end - at >= HEADER_SIZE:
            record = <const uint8_t *>self._file.buf + at
            size = load32(record + 4) >> 16
            if size < HEADER_SIZE or size > self._end - at:
                break
            if load32(record) == RECORD_COMM and size >= 24 and self._time_of(record, size, 1) == 0:
                self._take_comm(record, size)
            at += size
        return 0

    cdef size_t _least(self, uint32_t kind) noexcept:
        """The bytes of a record that are parsed."""
        if kind == RECORD_SAMPLE:
            return self._raw_at + 4
        if kind == RECORD_COMM or kind == RECORD_LOST:
            return 24
        return 16 if kind == RECORD_LOST_SAMPLES else HEADER_SIZE

    cdef uint64_t _time_of(self, const uint8_t *record, uint32_t size, uint64_t otherwise) noexcept:
        """Time of a record that is no sample, if it has one."""
        if self._trailer_time and size >= HEADER_SIZE + 8 + self._trailer_time + 8:
            return load64(record + size - self._trailer_time)
        return otherwise

    cdef int _take_comm(self, const uint8_t *record, size_t size) except -1:
        """u32 pid, u32 tid, the name up to a NUL."""
        cdef size_t length = text_length(record + 16, size - 16)
        self.comms[<int>load32(record + 12)] = text_of((<const char *>record + 16)[:length])
        return 0

    cdef int _take_lost(self, uint64_t lost) except -1:
        self.lost += lost
        self.gaps += not lost
        if not lost or lost > <uint64_t>1 << 62 or self._lost < 0:
            self._lost = -1
        else:
            self._lost = min(self._lost + <int64_t>lost, <int64_t>1 << 62)
        return 0

    cdef int _read_one(self) except -1:
        """Read the next record of the file, into the heap if it is used."""
        cdef const uint8_t *record = <const uint8_t *>self._file.buf + self._at
        cdef uint64_t left = self._end - self._at
        cdef uint32_t kind, size
        cdef uint64_t time = self._latest
        if not left:
            self._ended = True
            return 0
        if left < HEADER_SIZE:
            return self._broken("is cut off")
        kind = load32(record)
        size = load32(record + 4) >> 16
        if size < HEADER_SIZE or size > left:
            return self._broken(f"has {size} bytes; {left} are left")
        if kind == RECORD_SAMPLE:
            if size < self._least(kind) or load32(record + self._raw_at) > size - self._raw_at - 4:
                return self._broken("is a sample whose raw data is cut off")
            time = load64(record + self._time_at)
            self._latest = max(self._latest, time)
            self._push(time)
        elif kind == RECORD_COMM or kind == RECORD_LOST or kind == RECORD_LOST_SAMPLES:
            if size < self._least(kind):
                return self._broken(f"of type {kind} has {size} bytes")
            time = self._time_of(record, size, self._latest)
            if kind != RECORD_COMM or time:
                self._push(time)
        self._at += size
        return 0

    cdef int _broken(self, text) except -1:
        self._ended = True
        if self._recover:
            self._lost = -1
        else:
            self._error = ValueError(f"record at {self._at} {text}")
        return 0

    cdef int _push(self, uint64_t time) except -1:
        cdef Entry new
        cdef size_t i = self._count, parent
        if self._count == self._capacity:
            self._heap = <Entry *>resized(self._heap, (2 * self._capacity + 1024) * sizeof(Entry))
            self._capacity = 2 * self._capacity + 1024
        new.time = time
        new.number = self._at
        while i:
            parent = (i - 1) // 2
            if not earlier(&new, &self._heap[parent]):
                break
            self._heap[i] = self._heap[parent]
            i = parent
        self._heap[i] = new
        self._count += 1
        return 0
