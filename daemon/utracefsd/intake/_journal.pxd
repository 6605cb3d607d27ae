"""The journal, for Intake, which uses its clock."""

from libc.stdint cimport uint64_t

from utracefsd.consumers.ftrace.event._trigger_cells cimport Cells
from utracefsd.intake._data_ring cimport DataRing
from utracefsd.intake.journal cimport jr_slot
from utracefsd.machine.tsc_clock cimport tsc_clock

cdef class Journal:
    cdef readonly object path  #: str
    cdef readonly object refused  #: str | None
    cdef readonly Cells cells
    # (st_dev, st_ino) -> (position, set of keys): triggers that fired for a record to be dispatched again.
    cdef readonly dict fired  #: dict[Key, tuple[int, set[int]]]
    cdef dict waiting                   # (st_dev, st_ino) -> slot: left by an earlier daemon, not yet adopted
    cdef list unused
    cdef int fd
    cdef unsigned char *map
    cdef size_t map_bytes
    cdef Py_ssize_t slots               # in the file
    cdef uint64_t numbers               # given to data rings so far; see include/journal.h

    cdef int judge(self, jr_slot *slot, dict buffers) except -1
    cdef int judge_triggers(self, jr_slot *slot) except -1
    cdef jr_slot *at(self, Py_ssize_t i) noexcept
    cdef object open_old(self)
    cdef int make_new(self) except -1
    cdef int map_it(self, int fd) except -1
    cdef Py_ssize_t unused_slot(self) except -1
    cdef int give(self, DataRing ring, object key, Py_ssize_t i) except -1
    cdef void resume_clock(self, tsc_clock *clock) noexcept
    cdef void note_clock(self, const tsc_clock *clock) noexcept
    cdef Py_ssize_t index_of(self, DataRing ring) noexcept
    cdef int detach(self, DataRing ring) except -1
