"""The steps that print the body of a user event; see _body.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from utracefsd.consumers.ftrace._line cimport (
    Line,
    load32,
    load64,
    printable,
    put,
    put_char,
    put_decimal,
    put_hex,
    put_hex_bytes,
    put_signed,
    put_string,
)

cdef enum Op:
    INT1
    INT2
    INT4
    INT8
    NO_SIZE
    CHARS
    DATA_STRING
    REL_STRING
    DATA_ARRAY
    REL_ARRAY

cdef struct Step:
    Op op
    uint64_t offset       # in the entry; a declaration may have several structs of 2 GiB: not 32 bits
    uint64_t size
    size_t label_size
    const char *label     # " NAME="; borrowed from BodyPlan.labels


cdef inline void put_field(Line *line, const Step *step, const uint8_t *entry, size_t size) noexcept nogil:
    cdef uint16_t short_value
    cdef uint32_t value
    cdef uint64_t start, length
    cdef const uint8_t *entry_field
    put(line, step.label, step.label_size)
    if step.offset + step.size > size:
        put(line, b"<OVERFLOW>", 10)
        return
    entry_field = entry + step.offset
    if step.op == INT4:
        value = load32(entry_field)
        put(line, b"0x", 2)
        put_hex(line, value, 0)
        put(line, b" (", 2)
        put_signed(line, <int32_t>value)
        put_char(line, c')')
    elif step.op == INT8:
        put(line, b"0x", 2)
        put_hex(line, load64(entry_field), 0)
        put(line, b" (", 2)
        put_signed(line, <int64_t>load64(entry_field))
        put_char(line, c')')
    elif step.op == INT2:
        memcpy(&short_value, entry_field, 2)
        put(line, b"0x", 2)
        put_hex(line, short_value, 0)
        put(line, b" (", 2)
        put_decimal(line, short_value, 0, c' ')
        put_char(line, c')')
    elif step.op == INT1:
        if printable(entry_field[0]):
            put_char(line, c"'")
            put_char(line, <char>entry_field[0])
            put_char(line, c"'")
        put_char(line, c'(')
        put_decimal(line, entry_field[0], 0, c' ')
        put_char(line, c')')
    elif step.op == CHARS:
        put_string(line, entry_field, step.size)
    elif step.op == NO_SIZE:
        put(line, b"<INVALID-SIZE>", 14)
    else:
        value = load32(entry_field)
        start = value & 0xFFFF
        length = value >> 16
        if step.op == REL_STRING or step.op == REL_ARRAY:
            start += step.offset + 4
        if start + length > size:
            put(line, b"<OVERFLOW>", 10)
        elif step.op == DATA_STRING or step.op == REL_STRING:
            put_string(line, entry + start, length)
        else:
            put_hex_bytes(line, entry + start, length, c',', False)


cdef class BodyPlan:
    cdef Step *steps
    cdef Py_ssize_t count
    cdef bint known
    cdef uint32_t checked    # the render call that last compared name and fields with the event table
    cdef object name
    cdef object fields
    cdef bytes title         # "NAME:"
    cdef list labels         # owns what Step.label points to

    cdef Op _op(self, field) except *
    cdef bint same(self, event)
