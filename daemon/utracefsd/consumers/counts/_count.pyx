# cython: boundscheck=False, wraparound=False
"""Counts by event and process: records, bytes, and records that found their data ring full.

    CountProbe, one per event ──▶ the row of the last process, most often the same
                              ──▶ else CountTable: open addressing, (event id, pid) ──▶ Row
                              ──▶ else `others` of the probe: the table is full

A table grows to `max_rows` rows at most. Rows are never removed one by one: a sweep removes those of an event
or of ended processes by making the table anew.
"""

from libc.stdint cimport int32_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from utracefs_protocol.pages.status_page import StatusBit

from utracefs_protocol.pages.record cimport Record
from utracefsd.events._tracepoint cimport LOST, RECORDED, UNDECIDED, Probe

cdef enum:
    FIRST_SIZE = 64

cdef struct Row:
    uint64_t records
    uint64_t bytes          # of payload
    uint64_t lost           # found their data ring full
    uint64_t seen           # records and lost at the last sweep
    int32_t pid
    uint16_t id             # of the event; 0: the place is free


cdef inline uint32_t place_of(uint16_t id, int32_t pid) noexcept nogil:
    """Fibonacci hashing of both; takes the upper bits, which are the best mixed."""
    return <uint32_t>((<uint64_t>id << 32 | <uint32_t>pid) * <uint64_t>0x9E3779B97F4A7C15 >> 32)


cdef class CountTable:
    """The counts of many events. max_rows: limit of (event, process) pairs."""

    cdef Row *rows
    cdef uint32_t size      # places; a power of two
    cdef readonly uint32_t used
    cdef readonly uint32_t max_rows
    cdef uint64_t moves     # incremented when rows move
    cdef uint32_t swept     # place where the next sweep begins

    def __cinit__(self, uint32_t max_rows = 1 << 16):
        self.max_rows = max_rows
        if not self.make(FIRST_SIZE):
            raise MemoryError

    def __dealloc__(self):
        free(self.rows)

    cdef bint make(self, uint32_t size) noexcept:
        """Make the table anew with `size` places, and copy the rows."""
        cdef Row *rows = <Row *>calloc(size, sizeof(Row))
        cdef Row *old = self.rows
        cdef uint32_t i, at
        if rows == NULL:
            return False
        for i in range(self.size):
            if old[i].id:
                at = place_of(old[i].id, old[i].pid) & (size - 1)
                while rows[at].id:
                    at = (at + 1) & (size - 1)
                rows[at] = old[i]
        self.rows = rows
        self.size = size
        self.moves += 1
        free(old)
        return True

    cdef Row *find(self, uint16_t id, int32_t pid) noexcept:
        """The row, made now if there was none; NULL: the table is full."""
        cdef uint32_t at = place_of(id, pid) & (self.size - 1)
        while self.rows[at].id:
            if self.rows[at].id == id and self.rows[at].pid == pid:
                return &self.rows[at]
            at = (at + 1) & (self.size - 1)
        if self.used >= self.max_rows:
            return NULL
        if 4 * (self.used + 1) > 3 * self.size:
            if not self.make(2 * self.size):
                return NULL
            return self.find(id, pid)
        self.used += 1
        self.rows[at].id = id
        self.rows[at].pid = pid
        return &self.rows[at]

    def forget(self, uint16_t id) -> None:
        cdef uint32_t i
        for i in range(self.size):
            if self.rows[i].id == id:
                self.rows[i].id = 0
                self.used -= 1
        if not self.make(self.size):
            raise MemoryError

    def sweep(self, probes: Mapping[int, CountProbe], lives: Callable[[int], bool], int at_most=1000) -> None:
        """Move the counts of processes that have ended, and wrote nothing since the previous sweep, to
        `others` of their event. probes: event id to its CountProbe. lives: whether a process exists; called
        at most at_most times, and the next sweep continues from there."""
        cdef CountProbe probe
        cdef Row *row
        cdef uint32_t i
        for i in range(self.size):
            self.swept += 1
            row = &self.rows[self.swept & (self.size - 1)]
            if not row.id:
                continue
            if row.seen == row.records + row.lost:
                if at_most == 0:
                    break
                at_most -= 1
                if lives(row.pid):
                    continue
                probe = probes[row.id]
                probe.others.records += row.records
                probe.others.bytes += row.bytes
                probe.others.lost += row.lost
                row.id = 0
                self.used -= 1
            else:
                row.seen = row.records + row.lost
        if not self.make(self.size):
            raise MemoryError

    def read(self) -> list[tuple[int, int, int, int, int]]:
        """[event id, pid, records, bytes, lost] of each row."""
        cdef uint32_t i
        return [
            (self.rows[i].id, self.rows[i].pid, self.rows[i].records, self.rows[i].bytes, self.rows[i].lost)
            for i in range(self.size) if self.rows[i].id
        ]


cdef class CountProbe(Probe):
    """Counts the records of one event, whose trace event id is `id`; sets StatusBit.OTHER."""

    cdef readonly CountTable table
    cdef uint16_t id
    cdef Row others         # processes without a row: the table was full, or they have ended
    cdef Row *last          # of the process of the last record; valid while `moves` is unchanged
    cdef uint64_t moves

    def __init__(self, str consumer not None, CountTable table not None, uint16_t id):
        Probe.__init__(self, consumer, StatusBit.OTHER)
        self.table = table
        self.id = id

    def read_others(self) -> tuple[int, int, int]:
        """[records, bytes, lost] of processes that have no row (any more)."""
        return self.others.records, self.others.bytes, self.others.lost

    cdef Row *row(self, int32_t pid) noexcept:
        cdef Row *found
        if self.last != NULL and self.moves == self.table.moves and self.last.pid == pid:
            return self.last
        found = self.table.find(self.id, pid)
        self.last = found
        self.moves = self.table.moves
        return &self.others if found == NULL else found

    cdef int take(self, Record *r) noexcept:
        cdef Row *row
        if not r.valid:
            return UNDECIDED
        row = self.row(r.tgid)
        row.records += 1
        row.bytes += r.size
        return RECORDED

    cdef bint lose_of(self, uint64_t n, int32_t pid) noexcept:
        self.counts[LOST] += n
        self.row(pid).lost += n
        return True
