"""The parts of an Event for `_emit`: its packing plan, its pointer, its counts."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from utracefs.producer._binding cimport utb_event_stats, utracefs_event

cdef enum:
    # A command string of 511 bytes has fewer fields than this ("u8 ;" is the shortest).
    MAX_FIELDS = 128

cdef enum Kind:
    INTEGER = 0
    CHAR_ARRAY = 1
    STRUCT = 2
    DATA_LOC = 3
    REL_LOC = 4
    FLOAT = 5
    BOOL = 6            # only in KINDS: its step is an INTEGER of one bit

cdef struct Step:
    # one field of the plan
    uint8_t kind
    uint8_t bits        # of an INTEGER, or of the elements of an array
    uint8_t is_signed
    uint8_t is_string
    uint8_t was_warned    # whether the program was warned of a refusal
    uint8_t element     # bytes of an element of an array, which is a STRUCT; 0: it is none
    uint8_t of_floats
    uint32_t size
    uint32_t offset     # in the payload
    int32_t loc_base    # added to the place of dynamic data in the payload for the offset to write

cdef class Event:
    cdef utracefs_event own
    cdef bytes command          # own points into it
    cdef Step *steps
    cdef Py_ssize_t nr_fields
    cdef size_t min_size
    cdef size_t max_size
    cdef tuple keywords
    cdef bint ambiguous
    cdef uint64_t counted       # calls of `emit` that were committed or lost
    cdef readonly str name
    cdef readonly str declaration
    cdef readonly int flags
    cdef readonly object session  #: Any
    cdef dict refusals          # by this client: reason to count
    cdef object known_error
    # The keywords of a call that were right, behind `known_args` values. (A call has the same tuple each
    # time.)
    cdef tuple known_names
    cdef Py_ssize_t known_args
    cdef Py_ssize_t known_bare  # values that were right without keywords
    cdef public dict defaults   #: dict[str, Any] | None  # values of fields that a call may leave out

    cdef bint may_emit(self) noexcept
    cdef int find_place(self, uint32_t size, uint64_t *until) except -1
    cdef utb_event_stats stats(self) noexcept

cdef inline unsigned char status_of(Event event) noexcept:
    """The byte at the event's pointer: 0 off, PENDING look again, else on."""
    return event.own.state[0]
