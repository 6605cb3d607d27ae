"""Counts by event and process; see _count.pyx."""

from libc.stdint cimport int32_t, uint16_t, uint32_t, uint64_t

from utracefs_protocol.pages.record cimport Record
from utracefsd.events._tracepoint cimport Probe

cdef struct Row:
    uint64_t records
    uint64_t bytes          # of payload
    uint64_t lost           # found their data ring full
    uint64_t seen           # records and lost at the last sweep
    int32_t pid
    uint16_t id             # of the event; 0: the place is free


cdef class CountTable:
    cdef Row *rows
    cdef uint32_t size      # places; a power of two
    cdef readonly uint32_t used
    cdef readonly uint32_t max_rows
    cdef uint64_t moves     # incremented when rows move
    cdef uint32_t swept     # place where the next sweep begins

    cdef Row *find(self, uint16_t id, int32_t pid) noexcept
    cdef bint make(self, uint32_t size) noexcept


cdef class CountProbe(Probe):
    cdef readonly CountTable table
    cdef uint16_t id
    cdef Row others         # processes without a row: the table was full, or they have ended
    cdef Row *last          # of the process of the last record; valid while `moves` is unchanged
    cdef uint64_t moves

    cdef Row *row(self, int32_t pid) noexcept
