"""Where the bytes of a field are; see _fields.pyx."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from utracefs_protocol.events._line cimport load32

cdef enum Where:
    FIXED             # `size` bytes at `offset`
    TO_END            # all from `offset` on
    DATA_LOC          # at `offset` a location word that counts from the beginning of the entry
    REL_LOC           # one that counts from its own end

cdef struct Place:
    Where where
    uint64_t offset   # in the entry; a declaration may have several structs of 2 GiB: not 32 bits
    uint64_t size     # of the fixed part

cdef int set_place(Place *place, field) except -1


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
