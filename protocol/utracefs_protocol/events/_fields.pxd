"""Where the bytes of a field are, and what they mean; see _fields.pyx."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memchr

from utracefs_protocol.events._line cimport Line, load32

cdef enum Where:
    FIXED             # `size` bytes at `offset`
    TO_END            # all from `offset` on
    DATA_LOC          # at `offset` a location word that counts from the beginning of the entry
    REL_LOC           # one that counts from its own end

cdef struct Place:
    Where where
    uint64_t offset   # in the entry; a declaration may have several structs of 2 GiB: not 32 bits
    uint64_t size     # of the fixed part

cdef enum ValueKind:
    SIGNED_VALUE
    UNSIGNED_VALUE
    TEXT_VALUE            # up to its first NUL
    BYTES_VALUE
    FLOAT_VALUE
    BOOL_VALUE
    ARRAY_VALUE

cdef struct Elements:     # of an array of numbers
    ValueKind kind
    size_t size           # bytes of one; 0: the field is no array

cdef struct Getter:
    ValueKind kind
    bint is_json          # a text that is JSON
    Place place
    Elements elements     # of an ARRAY_VALUE


cdef class Fields:
    cdef readonly tuple names  #: tuple[str, ...]
    cdef Getter *getters
    cdef readonly Py_ssize_t count

    cdef dict values(self, const uint8_t *entry, size_t size, const uint8_t *begin)


cdef int set_place(Place *place, field) except -1
cdef int set_elements(Elements *elements, field) except -1
cdef int put_elements(Line *line, Elements elements, const uint8_t *data, size_t length) except -1
cdef int put_json_float(Line *line, const uint8_t *data, size_t size) except -1
cdef bytes elements_text(Elements elements, const uint8_t *data, size_t length)
cdef object elements_of(Elements elements, const uint8_t *data, size_t length)
cdef ValueKind kind_of(field) except *
cdef value_of(const Getter *getter, const uint8_t *data, size_t length)


cdef inline size_t text_length(const uint8_t *data, size_t length) noexcept nogil:
    """Length of a text: up to the first NUL."""
    cdef const void *nul = memchr(data, 0, length) if length else NULL
    return <const uint8_t *>nul - data if nul != NULL else length


cdef inline bint find_bytes(
    const Place *place, const uint8_t *entry, size_t size, const uint8_t **data, size_t *length
) noexcept nogil:
    """False, and nothing set, when it is not all within the `size` bytes of the entry."""
    cdef uint32_t word
    cdef uint64_t start
    if place.offset + place.size > size:
        return False
    if place.where == FIXED:
        data[0] = entry + place.offset
        length[0] = place.size
        return True
    if place.where == TO_END:
        data[0] = entry + place.offset
        length[0] = size - place.offset
        return True
    word = load32(entry + place.offset)
    start = word & 0xFFFF
    if place.where == REL_LOC:
        start += place.offset + 4
    if start + (word >> 16) > size:
        return False
    data[0] = entry + start
    length[0] = word >> 16
    return True
