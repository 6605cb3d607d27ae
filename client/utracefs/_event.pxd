"""What `_emit` knows of an Event: its packing plan, where it leads, its counts."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from utracefs._outlets cimport Fifo, Outlet
from utracefs._status_map cimport StatusMap

cdef enum:
    # A status byte that no daemon says: look again.
    PENDING = 0x40
    # A command string of 511 bytes has fewer fields than this ("u8 ;" is the shortest).
    MAX_FIELDS = 128

cdef enum Kind:
    INTEGER = 0
    CHAR_ARRAY = 1
    STRUCT = 2
    DATA_LOC = 3
    REL_LOC = 4

cdef struct Step:
    # one field of the plan
    uint8_t kind
    uint8_t is_signed
    uint8_t is_string
    uint8_t was_told    # the program, that a value did not fit
    uint32_t size
    uint32_t offset     # in the payload
    int32_t loc_base    # what to add to the place of dynamic data in the payload to get the offset to write

cdef class Event:
    cdef const unsigned char *status
    # In a forked child, until its own connection is wanted: the parent's status byte, which holds for it,
    # too.
    cdef const unsigned char *inherited
    # Payloads that signal handlers emitted in a thread that waited for the answer; None: there are none.
    cdef list held
    cdef size_t held_bytes
    cdef StatusMap status_map
    cdef Outlet outlet
    cdef Fifo fifo
    cdef readonly object session
    cdef Step *steps
    cdef Py_ssize_t nr_fields
    cdef size_t min_size
    cdef size_t max_size
    cdef tuple keywords
    cdef bint ambiguous
    cdef int64_t write_index
    cdef readonly uint64_t lost
    cdef readonly uint64_t emitted
    cdef readonly str name
    cdef readonly str declaration
    cdef readonly int flags
    cdef public object error
    cdef public dict refused
    # The keywords of a call that were right, behind `known_args` values. (A call has the same tuple each
    # time.)
    cdef tuple known_names
    cdef Py_ssize_t known_args

    cdef bint is_on(self) except -1
    cdef bint look_again(self, bint to_emit) except -1
    cdef void follow(
        self, StatusMap status_map, size_t status_index, int64_t write_index, Outlet outlet
    ) noexcept
    cdef void leave_map(self) noexcept
    cdef unsigned char *hold(self, size_t size) noexcept
    cdef void emit_held(self) noexcept
