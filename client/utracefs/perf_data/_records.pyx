# cython: boundscheck=False, wraparound=False
"""What is done once per record of a perf ring: count, say whose, put the identifier of the file in place."""

from cpython.array cimport array, clone
from libc.stdint cimport uint16_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcpy

cdef enum:
    RECORD_LOST = 2
    RECORD_SAMPLE = 9
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

cdef struct Place:
    uint64_t time
    uint64_t at

cdef array U64S = array("Q")


cdef inline uint64_t load64(const uint8_t *data) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, data, 8)
    return value


cdef inline bint read_header(const uint8_t *data, Py_ssize_t left, Header *header) noexcept nogil:
    """Whether a whole record lies here, long enough for what is read of it."""
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

    samples, lost: Of all that was added; lost as LOST records say.
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

    def take_tasks(self):
        """(process, thread) to the number of its samples since the last call."""
        tasks, self.tasks = self.tasks, {}
        return tasks

    def add(self, bytearray data not None, uint64_t id):
        """Whole records as a ring held them, with sample_type 0x10587; their identifiers become `id`.

        ValueError: that is not what `data` holds; what stands before the fault is counted.
        """
        cdef uint8_t *bytes = data
        cdef Py_ssize_t at = 0, end = len(data)
        cdef Header header
        cdef uint64_t task, last_task = 0, run = 0, time
        while at < end:
            if not read_header(bytes + at, end - at, &header):
                self.flush(last_task, run)
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

    cdef int flush(self, uint64_t task, uint64_t run) except -1:
        if run:
            key = (task & 0xffffffff, task >> 32)
            self.tasks[key] = self.tasks.get(key, 0) + run
        return 0


cdef int by_time(const void *a, const void *b) noexcept nogil:
    """Samples of one time stay in the order of the file."""
    cdef const Place *x = <const Place *>a
    cdef const Place *y = <const Place *>b
    if x.time != y.time:
        return -1 if x.time < y.time else 1
    return -1 if x.at < y.at else <int>(x.at > y.at)


def sorted_samples(const unsigned char[::1] data not None):
    """(offsets of the samples in the order of time as array of Q, offsets of all other records likewise in
    the order of `data`, bytes of whole records).

    What is no record ends it: the third is less than the length of `data` then. MemoryError.
    """
    cdef const uint8_t *bytes = &data[0] if data.shape[0] else NULL
    cdef Py_ssize_t at = 0, end = data.shape[0], n = 0, others = 0, i = 0, k = 0
    cdef Header header
    cdef array samples, rest
    cdef uint64_t[::1] out, out_rest
    cdef Place *places
    while at < end and read_header(bytes + at, end - at, &header):
        if header.type == RECORD_SAMPLE:
            n += 1
        else:
            others += 1
        at += header.size
    end = at
    samples = clone(U64S, n, False)
    rest = clone(U64S, others, False)
    places = <Place *>malloc(max(1, n) * sizeof(Place))
    if places == NULL:
        raise MemoryError
    try:
        out_rest = rest
        at = 0
        while at < end:
            # The second time the same bytes may not say the same, if somebody writes to the file meanwhile.
            if not read_header(bytes + at, end - at, &header):
                raise ValueError("the file changes while it is read")
            if header.type == RECORD_SAMPLE:
                if i >= n:
                    raise ValueError("the file changes while it is read")
                places[i].time = load64(bytes + at + TIME_AT)
                places[i].at = at
                i += 1
            else:
                if k >= others:
                    raise ValueError("the file changes while it is read")
                out_rest[k] = at
                k += 1
            at += header.size
        if i != n or k != others:
            raise ValueError("the file changes while it is read")
        qsort(places, n, sizeof(Place), by_time)
        out = samples
        for i in range(n):
            out[i] = places[i].at
    finally:
        free(places)
    return samples, rest, end
