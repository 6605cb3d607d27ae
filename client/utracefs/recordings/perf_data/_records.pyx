# cython: boundscheck=False, wraparound=False
"""Work per record of a perf ring: count it, note its thread, set the identifier of the file."""

from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy

from utracefs_protocol.events._line cimport load64

from utracefs_protocol.pages.perf_ring import PERF_RECORD_LOST, PERF_RECORD_SAMPLE

cdef enum:
    # With sample_type 0x10587: header, identifier, ip, process and thread, time, cpu, period, size of raw.
    ID_AT = 8
    TASK_AT = 24
    TIME_AT = 32
    SAMPLE_LEAST = 64       # a record is a multiple of 8
    LOST_COUNT_AT = 16
    LOST_LEAST = 24
    LOST_WITH_TRAILER = 56
    TRAILER_ID_AT = 48

cdef struct Header:
    uint32_t type
    uint16_t misc
    uint16_t size

cdef uint32_t RECORD_LOST = PERF_RECORD_LOST
cdef uint32_t RECORD_SAMPLE = PERF_RECORD_SAMPLE


cdef inline bint read_header(const uint8_t *data, Py_ssize_t left, Header *header) noexcept nogil:
    """Whether a whole record is here, long enough for the parts that are read."""
    cdef uint16_t least = 8
    if left < 8:
        return False
    memcpy(header, data, 8)
    if header.type == RECORD_SAMPLE:
        least = SAMPLE_LEAST
    elif header.type == RECORD_LOST:
        least = LOST_LEAST
    return header.size >= least and header.size % 8 == 0 and header.size <= left


cdef class Tally:
    """Counts the records of samplers.

    samples, lost: All added ones; lost as in LOST records.
    first_ns, last_ns: Times of the earliest and the latest sample; 0 without any.
    tasks: (process, thread) to its samples, since `take_tasks`.
    """

    cdef readonly uint64_t samples
    cdef readonly uint64_t lost
    cdef readonly uint64_t first_ns
    cdef readonly uint64_t last_ns
    cdef dict tasks

    def __init__(self):
        self.tasks = {}

    def take_tasks(self) -> dict[tuple[int, int], int]:
        """(process, thread) to the number of its samples since the last call."""
        tasks, self.tasks = self.tasks, {}
        return tasks

    def add(self, bytearray data not None, uint64_t id) -> int:
        """Add whole records of a ring, with sample_type 0x10587; sets their identifiers to `id`.

        Returns their bytes: less than all if `data` ends within a record, but not within the first one.
        ValueError: invalid `data`; records before the error are counted.
        """
        cdef uint8_t *bytes = data
        cdef Py_ssize_t at = 0, end = len(data)
        cdef Header header
        cdef uint64_t task, last_task = 0, run = 0, time
        while at < end:
            if not read_header(bytes + at, end - at, &header):
                self.flush(last_task, run)
                if at and (end - at < 8 or end - at < header.size):
                    return at
                raise ValueError(f"no perf record at byte {at} of {end}")
            if header.type == RECORD_SAMPLE:
                memcpy(bytes + at + ID_AT, &id, 8)
                task = load64(bytes + at + TASK_AT)
                time = load64(bytes + at + TIME_AT)
                if task != last_task:
                    self.flush(last_task, run)
                    last_task = task
                    run = 0
                run += 1
                self.samples += 1
                if self.first_ns == 0 or time < self.first_ns:
                    self.first_ns = time
                if time > self.last_ns:
                    self.last_ns = time
            elif header.type == RECORD_LOST:
                memcpy(bytes + at + ID_AT, &id, 8)
                self.lost += load64(bytes + at + LOST_COUNT_AT)
                if header.size >= LOST_WITH_TRAILER:
                    memcpy(bytes + at + TRAILER_ID_AT, &id, 8)
            at += header.size
        self.flush(last_task, run)
        return at

    cdef int flush(self, uint64_t task, uint64_t run) except -1:
        if run:
            key = (task & 0xffffffff, task >> 32)
            self.tasks[key] = self.tasks.get(key, 0) + run
        return 0
