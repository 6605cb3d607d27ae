"""Protobuf, for writers; see _protobuf.pyx."""

from libc.stdint cimport uint8_t, uint64_t

from utracefs_protocol.events._line cimport Line

cdef enum:
    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


cpdef bytes utf8(str text)
cpdef bytes varint(uint64_t value)
cpdef bytes tagged(int tag, uint64_t value)
cpdef bytes message(int tag, bytes body)


cdef inline void put_varint(Line *line, uint64_t value) noexcept nogil:
    if line.end - line.p < 10:
        line.full = True
        return
    while value > 127:
        line.p[0] = <char>(value & 127 | 128)
        line.p += 1
        value >>= 7
    line.p[0] = <char>value
    line.p += 1


cdef inline void put_tagged(Line *line, int tag, uint64_t value) noexcept nogil:
    put_varint(line, tag)
    put_varint(line, value)


cdef inline size_t begin_message(Line *line) noexcept nogil:
    """Reserve the length; for end_message."""
    if line.end - line.p < 4:
        line.full = True
        return 0
    line.p += 4
    return line.p - line.start


cdef inline void end_message(Line *line, size_t begin) noexcept nogil:
    cdef size_t size
    cdef char *p
    if line.full:
        return
    size = line.p - line.start - begin
    p = line.start + begin - 4
    p[0] = <char>(size & 127 | 128)
    p[1] = <char>(size >> 7 & 127 | 128)
    p[2] = <char>(size >> 14 & 127 | 128)
    p[3] = <char>(size >> 21 & 127)


cdef inline int size_of(uint64_t value) noexcept nogil:
    """Number of bytes of the varint."""
    cdef int size = 1
    while value > 127:
        value >>= 7
        size += 1
    return size


cdef inline bint is_ascii(const uint8_t *text, size_t size) noexcept nogil:
    cdef size_t i
    cdef uint8_t all = 0
    for i in range(size):
        all |= text[i]
    return all < 0x80
