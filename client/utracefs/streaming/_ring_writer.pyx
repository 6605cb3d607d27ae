# cython: boundscheck=False, wraparound=False
"""Recordings for a reader of streams: their records in a stream ring (include/stream_ring.h), as the daemon
writes it. Unlike the daemon it waits for the reader, so nothing is lost on the way."""

import fcntl
import mmap
import os

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from utracefs.recordings._records cimport Raw, Records, event_key
from utracefs_protocol.pages.stream_ring cimport *

cdef enum:
    # Records published together; the reader reads them meanwhile.
    STEP = 512


cdef class RingWriter:
    """Makes the ring. `fd` is its memory, closed with this object.

    ids: the number of an event in the recordings to the id of its records in the ring; 0: leave them out.
    described: id to system, NUL, `format`. size: bytes of the data area, a power of two.
    unknown: records of events without a format, left out, too.
    """

    cdef readonly Records records
    cdef dict ids
    cdef dict described
    cdef dict comms           # thread id to the name that the reader knows
    cdef uint8_t[::1] memory
    cdef ss_header *header
    cdef uint8_t *area
    cdef uint64_t size
    cdef uint64_t head
    cdef uint64_t lost
    cdef Raw raw              # the record at hand
    cdef bint is_pending      # it is not written yet
    cdef uint32_t key         # its event, and that one's id
    cdef uint16_t id
    cdef bint is_known
    cdef int32_t tid          # whose name is `comm`
    cdef str comm
    cdef readonly int fd
    cdef readonly uint64_t unknown

    def __init__(
        self, Records records not None, dict ids: Mapping[int, int], dict described: Mapping[int, bytes],
        uint64_t size
    ):
        self.records = records
        self.ids = ids
        self.described = dict(described)
        self.comms = {}
        self.size = size
        self.key = <uint32_t>-1
        self.fd = os.memfd_create("utracefs-stream", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, SS_DATA_OFFSET + size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.memory = mmap.mmap(self.fd, 0)
        self.area = &self.memory[SS_DATA_OFFSET]
        self.header = <ss_header *>&self.memory[0]
        self.header.magic = SS_MAGIC
        self.header.version = SS_VERSION
        self.header.data_offset = SS_DATA_OFFSET
        self.header.size = <uint32_t>size

    def __dealloc__(self):
        if self.memory is not None:
            os.close(self.fd)

    def write(self) -> int | None:
        """Write records while there is room, some hundred at most. Returns their number; None: all are
        written. ValueError: invalid data."""
        cdef uint64_t written = 0
        cdef uint32_t key
        try:
            while written < STEP:
                if not self.is_pending:
                    if self.records.next(&self.raw) is None:
                        return None if self.write_rest() else written
                    self.is_pending = True
                    key = event_key(&self.raw)
                    if key != self.key:
                        self.is_known = key in self.ids
                        self.id = self.ids.get(key, 0)
                        self.key = key
                    self.unknown += not self.is_known
                if not self.write_pending():
                    break
                self.is_pending = False
                written += 1
        finally:
            ss_store(&self.header.head, self.head)
        return written

    cdef bint write_rest(self) except -1:
        """Losses behind the last record."""
        return self.write_lost(<int64_t>(self.records.lost - self.lost))

    cdef bint write_pending(self) except -1:
        cdef bytes text
        cdef str comm
        if self.raw.lost > 0:
            if not self.write_lost(self.raw.lost):
                return False
            self.raw.lost = 0
        if self.id == 0:
            return True
        text = self.described.get(self.id)
        if text is not None:
            if not self.put(SS_FORMAT, self.id, 0, <const uint8_t *><const char *>text, len(text)):
                return False
            del self.described[self.id]
        comm = self.records.comm(self.raw.tid)
        if comm is not self.comm or self.raw.tid != self.tid:
            if self.comms.get(self.raw.tid) != comm:
                text = comm.encode(errors="surrogateescape")[:SS_COMM_SIZE - 1].ljust(SS_COMM_SIZE, b"\0")
                if not self.put(SS_COMM, 0, self.raw.tid, <const uint8_t *><const char *>text, SS_COMM_SIZE):
                    return False
                self.comms[self.raw.tid] = comm
            self.comm, self.tid = comm, self.raw.tid
        return self.put(
            SS_RECORD, self.id, self.raw.tid, self.raw.entry + SS_COMMON, self.raw.size - SS_COMMON
        )

    cdef bint write_lost(self, int64_t count) except -1:
        """Recordings do not say of which event: id 0."""
        if count > 0:
            if not self.put(SS_LOST, 0, 0, <const uint8_t *>&count, sizeof(count)):
                return False
            self.lost += count
            ss_store(&self.header.lost, self.lost)
        return True

    cdef bint put(
        self, uint16_t kind, uint16_t id, int32_t tid, const uint8_t *data, size_t length
    ) noexcept:
        cdef uint64_t need = (SS_RECORD_HEADER + SS_COMMON + length + 7) & ~<uint64_t>7
        cdef uint64_t left = self.size - (self.head & (self.size - 1))
        cdef uint64_t wanted = need if need <= left else left + need
        cdef ss_record *record = <ss_record *>(self.area + (self.head & (self.size - 1)))
        if self.head + wanted - ss_load(&self.header.tail) > self.size:
            return False
        if need > left:
            record.size = <uint32_t>left
            record.kind = SS_PAD
            self.head += left
            record = <ss_record *>self.area
        memset(<uint8_t *>record + need - 8, 0, 8)
        record.size = <uint32_t>need
        record.kind = kind
        record.cpu = <uint16_t>self.raw.cpu
        record.time_ns = self.raw.time_ns
        record.pid = self.raw.pid
        record.length = <uint32_t>(SS_COMMON + length)
        memset(record.entry, 0, SS_COMMON)
        memcpy(record.entry, &id, sizeof(id))
        memcpy(record.entry + 4, &tid, sizeof(tid))
        memcpy(record.entry + SS_COMMON, data, length)
        self.head += need
        return True
