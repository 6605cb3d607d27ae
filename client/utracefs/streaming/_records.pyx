# cython: boundscheck=False, wraparound=False
"""The records of a stream, for the getters shared by all recordings."""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from utracefs.recordings._records cimport Raw, RecordSource
from utracefs_protocol.pages._stream_ring cimport StreamRing
from utracefs_protocol.pages.stream_ring cimport *

cdef enum:
    # Bytes read before their space is freed, if records are read one by one.
    RELEASE_BYTES = 65536


cdef class RingRecords(RecordSource):
    """The records of a ring's present batch; RuntimeError after its end.

    release: free their space while they are read; the batch is then over for all other readers.
    """

    cdef StreamRing _ring
    cdef uint64_t _at
    cdef uint64_t _released
    cdef uint64_t _generation
    cdef bint _release

    def __init__(self, StreamRing ring not None, bint release=False):
        self._ring = ring
        ring.generation += release
        self._at = self._released = ring.begin
        self._generation = ring.generation
        self._release = release
        self.comms = ring.comms
        self.keeps_comms = True

    cdef bint next(self, Raw *raw) except -1:
        cdef StreamRing ring = self._ring
        cdef ss_record *record
        cdef uint64_t n
        raw.lost = ring.gap
        if ring.generation != self._generation:
            raise RuntimeError("this batch is over: its memory is used again")
        while self._at != ring.end:
            record = ring.record_at(self._at)
            if self._release and self._at - self._released >= RELEASE_BYTES:
                ring.release(self._at)
                self._released = self._at
            # Only the daemon writes here, and not before the space is freed: scan() has validated it.
            self._at += record.size
            if record.kind == SS_RECORD:
                ring.gap = 0
                raw.time_ns = record.time_ns
                raw.cpu = record.cpu
                raw.buffer = raw.recording = 0
                raw.pid = record.pid
                memcpy(&raw.tid, record.entry + 4, 4)
                raw.entry = record.entry
                raw.size = record.length
                return True
            if record.kind == SS_LOST and raw.lost >= 0:
                memcpy(&n, record.entry + SS_COMMON, 8)
                raw.lost += <int64_t>min(n, <uint64_t>1 << 62)
        return False
