"""A trigger on the record path: FtraceProbe.take fires it, a kind of trigger is a subclass."""

from libc.stdint cimport uint32_t, uint64_t

from utracefs_protocol.filter._program cimport Filter
from utracefs_protocol.pages.record cimport Record
from utracefsd.consumers.ftrace.event._trigger_cells cimport Cells

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
