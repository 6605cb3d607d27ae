"""Records of EventHeader tracepoints as records of the events in them; see _event_header.pyx."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from utracefs.recordings._records cimport Raw, RecordSource
from utracefs_protocol.events._line cimport Line

cpdef enum Op:
    NUMBER                # an integer of `size` bytes
    TRUTH                 # one that is a boolean
    REAL                  # a float of 4 or 8 bytes
    CHARACTER             # a code point
    UUID
    ADDRESS               # of IPv4 or IPv6, by its length
    TEXT                  # UTF of units of `size` bytes
    LATIN_TEXT
    MARKED_TEXT           # UTF with a byte order mark; without one as TEXT
    BYTES
    STRUCT

cpdef enum Repeated:
    ONCE
    CONSTANT              # `count` times
    VARIABLE              # a u16 in front of the elements counts them

cdef enum:
    NR_PLANS = 256        # found without a dict; a power of two

cdef struct Node:
    Op op
    Repeated repeated
    uint8_t size          # of a value, or of a unit of text
    bint swap
    bint is_foreign       # the record has the other byte order
    bint is_signed
    bint is_counted       # a u16 in front of the bytes counts their units
    bint is_ended         # a unit of 0 ends them
    bint is_json          # the column has JSON
    uint8_t sizes         # of a counted value, added: with another one it is as without a format
    bint is_text          # such a value is text, else bytes
    uint16_t count
    uint32_t end          # of a struct: the number of the node behind it
    uint32_t at           # of the value, or of its location word, in the new entry
    const char *key       # `"name":`; borrowed from Plan._keys
    size_t key_size

cdef struct Bytes:
    const uint8_t *p
    const uint8_t *end

cdef struct PlanSlot:
    uint64_t hash
    void *plan            # borrowed from EventHeaders._kept; NULL: none yet


cdef class Plan:
    cdef readonly uint16_t event_id
    cdef Node *_nodes
    cdef uint32_t _count
    cdef list _keys
    cdef bytes _start
    cdef size_t _activity_at
    cdef size_t _related_at
    cdef bytes _key

    cdef size_t fill(
        self, const uint8_t *entry, const uint8_t *activity, Bytes payload, char *to, size_t room
    ) except? 0
    cdef bint _put_array(self, Line *line, uint32_t i, Bytes *payload) except -1
    cdef bint _put_struct(self, Line *line, uint32_t i, Bytes *payload) except -1


cdef class EventHeaders(RecordSource):
    cdef RecordSource _source
    cdef object _find_plan
    cdef object _find_rest
    cdef dict _plans
    cdef size_t _keys_size    # bytes of their keys
    cdef list _kept           # the plans of the slots
    cdef dict _rests
    cdef PlanSlot _slots[NR_PLANS]
    cdef uint8_t *_is_header  # by tracepoint's id
    cdef char *_to
    cdef size_t _room
    cdef const uint8_t *_entry
    cdef size_t _size

    cdef size_t _decode(self, uint16_t id, const uint8_t *entry, size_t size) except? 0
    cdef size_t _rest(self, uint16_t id, const uint8_t *entry, size_t size) except? 0
    cdef Plan _plan(self, const uint8_t *key, const uint8_t *metadata, size_t size)
