# cython: boundscheck=False, wraparound=False
"""The reader's end of a stream ring (include/stream_ring.h).

`next_batch` makes a batch of the ring's present content, which stays in the ring until the next call. `scan`
validates it, counts its records and processes the other entries.
"""

import os

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport errno as c_errno
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap

from utracefs_protocol.pages.stream_ring cimport *

from utracefs_protocol.limits import MAX_STREAM_RING, MIN_STREAM_RING
from utracefs_protocol.text import text_of

cdef enum:
    NR_IDS = 65536


cdef inline bytes behind_common(const ss_record *record):
    """The entry without its common fields: the payload of a record."""
    return PyBytes_FromStringAndSize(<const char *>record.entry + SS_COMMON, record.length - SS_COMMON)


cdef class StreamRing:
    """Maps the ring of a descriptor, which the caller keeps and closes.

    gap: an unknown number of records was lost in front of the ring's content. comms: thread id to name, as
    of the present batch; starts with the given names.

    records: number in the present batch. generation: another number for each batch.
    described: event id to the daemon's last description: system, NUL, `format`.
    reported_lost: lost records reported so far, of all events. is_over: set it when the writer has ended, for
    records that it did not publish.

    ValueError: not a stream ring; also in `next_batch`, for invalid content. OSError: mmap(2).
    """

    def __cinit__(self, *args, **kwargs):
        self.header = NULL
        self.counted = <uint32_t *>calloc(NR_IDS, sizeof(uint32_t))
        self.ids = <uint16_t *>calloc(NR_IDS, sizeof(uint16_t))
        if self.counted == NULL or self.ids == NULL:
            raise MemoryError

    def __init__(self, int fd, bint gap=False, dict comms: dict[int, str] | None = None):
        cdef size_t map_size = os.fstat(fd).st_size
        cdef ss_header *header
        if map_size < SS_DATA_OFFSET + <size_t>MIN_STREAM_RING:
            raise ValueError(f"{map_size} bytes are no stream ring")
        header = <ss_header *>mmap(NULL, map_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if header == <ss_header *>MAP_FAILED:
            raise OSError(c_errno, os.strerror(c_errno))
        self.map_size = map_size
        self.header = header
        self.area = <uint8_t *>header + SS_DATA_OFFSET
        self.size = header.size
        if (
            header.magic != SS_MAGIC
            or header.version != SS_VERSION
            or header.data_offset != SS_DATA_OFFSET
            or self.size & (self.size - 1)
            or self.size > <uint64_t>MAX_STREAM_RING
            or SS_DATA_OFFSET + self.size != map_size
        ):
            self.close()
            raise ValueError("no stream ring of a version that is known here")
        self.begin = self.end = header.tail
        self.gap = -1 if gap else 0
        self.comms = {} if comms is None else comms
        self.described = {}
        self.lost = {}

    def close(self) -> None:
        """Unmap it, once all memoryviews are released. May be called twice."""
        if self.header != NULL:
            self.header = NULL
            self.generation += 1
            if not self.views:
                munmap(self.area - SS_DATA_OFFSET, self.map_size)
                self.area = NULL

    def __dealloc__(self):
        if self.area != NULL:
            munmap(self.area - SS_DATA_OFFSET, self.map_size)
        free(self.counted)
        free(self.ids)

    @property
    def unreported_lost(self) -> int:
        """Lost records whose events the ring has not named yet."""
        return 0 if self.header == NULL else ss_load(&self.header.lost) - self.reported_lost

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        """The data area, read-only."""
        if self.header == NULL:
            raise BufferError("the ring is closed")
        PyBuffer_FillInfo(buffer, self, self.area, self.size, True, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self.views -= 1

    @property
    def position(self) -> int:
        """Read position: bytes since the beginning."""
        return self.end

    @property
    def head(self) -> int:
        """Write position: bytes since the beginning."""
        return self.end if self.header == NULL else ss_load(&self.header.head)

    def next_batch(self, until: int | None = None, most: int | None = None) -> bool:
        """Free the present batch and begin the next. Returns whether it has entries. A batch ends in front of
        an event that reuses the id of another one. until: do not read beyond this position. most: end it with
        the record at this number of bytes."""
        cdef uint64_t head
        cdef Py_ssize_t i
        if self.header == NULL:
            return False
        self.release(self.end)
        self.generation += 1
        for i in range(self.nr_ids):
            self.counted[self.ids[i]] = 0
        self.nr_ids = self.records = 0
        self.lost = {}
        self.begin = self.end
        head = ss_load(&self.header.head)
        if self.is_over and ss_load(&self.header.written) - head <= self.size:
            head = ss_load(&self.header.written)
        if head - self.begin > self.size:
            raise ValueError(f"stream ring with head {head}, tail {self.begin} of {self.size} bytes")
        if until is not None and until - self.begin < head - self.begin:
            head = until
        self.scan(head, <uint64_t>-1 if most is None else most)
        return self.end != self.begin

    def release_batch(self) -> None:
        """Free the present batch now, before the next one is wanted."""
        self.release(self.end)

    def take_lost(self) -> dict[int, int]:
        """Event id to lost records reported in the present batch. Clears the counts."""
        lost, self.lost = self.lost, {}
        return lost

    def pieces(self) -> list[memoryview]:
        """The raw present batch: memoryviews, two where the ring wraps. Valid until the next batch."""
        if self.end == self.begin or self.header == NULL:
            return []
        begin, end = self.begin & (self.size - 1), self.end & (self.size - 1)
        whole = memoryview(self)
        return [whole[begin:end]] if begin < end else [whole[begin:], *([whole[:end]] if end else [])]

    def tuples(self) -> list[tuple[int, int, int, int, int, bytes]]:
        """The records of the present batch: event id, time_ns, cpu, process, thread, payload."""
        cdef uint64_t at = self.begin
        cdef ss_record *record
        cdef uint16_t id
        cdef int32_t tid
        found = []
        while at != self.end and self.header != NULL:
            record = self.record_at(at)
            at += record.size
            if record.kind == SS_RECORD:
                memcpy(&id, record.entry, 2)
                memcpy(&tid, record.entry + 4, 4)
                found.append((id, record.time_ns, record.cpu, record.pid, tid, behind_common(record)))
        return found

    def counts(self) -> dict[int, int]:
        """Records of the present batch by event id."""
        cdef Py_ssize_t i
        return {self.ids[i]: self.counted[self.ids[i]] for i in range(self.nr_ids)}

    cdef void release(self, uint64_t tail) noexcept:
        if self.header != NULL:
            ss_store(&self.header.tail, tail)

    cdef ss_record *record_at(self, uint64_t at) except NULL:
        return <ss_record *>(self.area + (at & (self.size - 1)))

    cdef int scan(self, uint64_t head, uint64_t most) except -1:
        cdef uint64_t at = self.begin, n
        cdef ss_record *record
        cdef uint16_t id
        cdef int32_t tid
        while at != head and at - self.begin < most:
            record = self.record_at(at)
            if (
                record.size < 8
                or record.size & 7
                or record.size > head - at
                or (at & (self.size - 1)) + record.size > self.size
                or (
                    record.kind != SS_PAD
                    and (
                        record.size < SS_RECORD_HEADER + SS_COMMON
                        or record.length < SS_COMMON
                        or record.length > record.size - SS_RECORD_HEADER
                    )
                )
            ):
                self.end = at
                raise ValueError(f"stream ring: a record of {record.size} bytes at {at} of {head}")
            if record.kind == SS_RECORD:
                memcpy(&id, record.entry, 2)
                if self.counted[id] == 0:
                    self.ids[self.nr_ids] = id
                    self.nr_ids += 1
                self.counted[id] += 1
                self.records += 1
            elif record.kind != SS_PAD:
                memcpy(&id, record.entry, 2)
                memcpy(&tid, record.entry + 4, 4)
                if record.kind == SS_LOST and record.length >= SS_COMMON + 8:
                    memcpy(&n, record.entry + SS_COMMON, 8)
                    self.lost[id] = self.lost.get(id, 0) + n
                    self.reported_lost += n
                elif record.kind == SS_FORMAT:
                    if self.counted[id] or id in self.lost:
                        break
                    self.described[id] = behind_common(record)
                elif record.kind == SS_COMM:
                    self.comms[tid] = text_of(behind_common(record).partition(b"\0")[0])
            at += record.size
        self.end = at
        return 0
