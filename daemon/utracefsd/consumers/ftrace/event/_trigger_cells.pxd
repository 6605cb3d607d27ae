"""Triggers on the record path: FtraceProbe.take fires them, a kind of trigger is a subclass; and their cells,
which include/trigger_cells.h describes."""

from libc.stdint cimport uint32_t, uint64_t

from utracefs_protocol.filter._program cimport Filter
from utracefs_protocol.pages.record cimport Record

cdef extern from "trigger_cells.h" nogil:
    const uint64_t TC_MAGIC
    const uint32_t TC_VERSION
    const uint32_t TC_CELL_BYTES
    const uint32_t TC_HEADER_BYTES
    const uint64_t TC_NAMED
    const uint32_t TC_NONE
    ctypedef struct tc_redo "struct tc_redo":
        uint64_t valid
        uint32_t cell
        uint32_t effect
    ctypedef struct tc_header "struct tc_header":
        uint64_t magic
        uint32_t version
        uint32_t cell_bytes
        uint64_t keys
        uint64_t serial
        uint64_t ring
        tc_redo redo
        uint64_t deferred
    ctypedef struct tc_cell "struct tc_cell":
        uint64_t key
        uint64_t value
        uint64_t done
    tc_cell *tc_at(tc_header *, uint32_t index)
    void tc_begin(tc_header *, uint64_t ring, uint64_t at)
    void tc_apply(tc_header *)
    void tc_fire(tc_header *, uint32_t cell, uint64_t value, uint32_t effect, uint64_t effect_value)
    bint tc_is_under_way(const tc_header *, uint64_t ring, uint64_t at, uint64_t dev, uint64_t ino)
    void tc_name(tc_header *, uint64_t dev, uint64_t ino)
    void tc_give(tc_header *, uint32_t index, uint64_t value)

cdef class Cells:
    cdef tc_header *header
    cdef readonly object refused  #: str | None
    cdef readonly uint64_t lost_deferred
    # While a record is dispatched again: keys of the triggers that had fired for it.
    cdef public object again  #: Set[int] | None
    # Keys of the triggers that had fired for the record that the previous daemon was dispatching, a set;
    # None: there is no such record. A trigger that finds out later that it had fired adds itself.
    cdef readonly object fired  #: set[int] | None
    cdef int fd
    cdef size_t map_bytes
    cdef readonly uint32_t limit
    cdef readonly uint32_t room         # cells in the file
    cdef list unused
    cdef list returned                  # freed cells that the log may still name
    cdef set given

    cdef int open_old(self, path) except -1
    cdef void begin(self) noexcept
    cdef int map_it(self, int fd) except -1
    cdef int grow(self) except -1
    cdef tc_cell *one(self, uint32_t index) except NULL
    cdef object fired_at(self, uint64_t ring, uint64_t at, uint64_t dev, uint64_t ino)
    cdef void end_judging(self) noexcept

cdef enum Stage:
    # When a trigger that needs the record fires (`Trigger.fire`).
    BEFORE      # may prevent that the record is stored: switches
    STORED      # after the record was stored, if it is
    LAST        # EVENT_CMD_FL_POST_TRIGGER

cdef class Trigger:
    cdef readonly Stage stage
    cdef readonly bint needs_record     # EVENT_CMD_FL_NEEDS_REC
    cdef readonly Filter filter  #: Filter | None
    cdef bint turns_on                  # it is a traceon
    cdef public bint paused
    cdef readonly Cells cells
    cdef readonly uint32_t cell
    cdef readonly uint64_t key

    cdef bint wants(self, Record *r) noexcept
    cdef void fire(self, Record *r) noexcept
    cdef bint is_done(self) noexcept
    cdef inline uint64_t counted(self) noexcept
