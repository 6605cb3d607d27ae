"""The steps that print the body of a user event; see _body.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from utracefs_protocol.events._fields cimport Elements, Place, find_bytes, put_elements
from utracefs_protocol.events._line cimport (
    Line,
    load32,
    load64,
    load_float,
    printable,
    put,
    put_char,
    put_decimal,
    put_float,
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
    STRING
    ARRAY
    UNSIGNED
    SIGNED
    HEXADECIMAL
    FLOAT
    NUMBERS

cdef struct Step:
    Op op
    Place place
    Elements elements
    size_t label_size
    const char *label     # " NAME="; borrowed from BodyPlan.labels


cdef inline void put_field(Line *line, const Step *step, const uint8_t *entry, size_t size) noexcept nogil:
    cdef uint16_t short_value
    cdef uint32_t value
    cdef const uint8_t *data
    cdef size_t length
    put(line, step.label, step.label_size)
    if not find_bytes(&step.place, entry, size, &data, &length):
        put(line, b"<OVERFLOW>", 10)
        return
    if step.op == INT4:
        value = load32(data)
        put(line, b"0x", 2)
        put_hex(line, value, 0)
        put(line, b" (", 2)
        put_signed(line, <int32_t>value)
        put_char(line, c')')
    elif step.op == INT8:
        put(line, b"0x", 2)
        put_hex(line, load64(data), 0)
        put(line, b" (", 2)
        put_signed(line, <int64_t>load64(data))
        put_char(line, c')')
    elif step.op == INT2:
        memcpy(&short_value, data, 2)
        put(line, b"0x", 2)
        put_hex(line, short_value, 0)
        put(line, b" (", 2)
        put_decimal(line, short_value, 0, c' ')
        put_char(line, c')')
    elif step.op == INT1:
        if printable(data[0]):
            put_char(line, c"'")
            put_char(line, <char>data[0])
            put_char(line, c"'")
        put_char(line, c'(')
        put_decimal(line, data[0], 0, c' ')
        put_char(line, c')')
    elif step.op == STRING:
        put_string(line, data, length)
    elif step.op == ARRAY:
        put_hex_bytes(line, data, length, c',', False)
    elif step.op == SIGNED:
        put_signed(line, <int32_t>load32(data) if length == 4 else <int64_t>load64(data))
    elif step.op == UNSIGNED:
        put_decimal(line, load_unsigned(data, length), 0, c' ')
    elif step.op == HEXADECIMAL:
        put_hex(line, load_unsigned(data, length), 0)
    elif step.op == FLOAT:
        with gil:
            put_float(line, load_float(data, length))
    elif step.op == NUMBERS:
        with gil:
            put_elements(line, step.elements, data, length)
    else:
        put(line, b"<INVALID-SIZE>", 14)


cdef inline uint64_t load_unsigned(const uint8_t *data, size_t length) noexcept nogil:
    cdef uint16_t value
    if length == 8:
        return load64(data)
    if length == 4:
        return load32(data)
    if length == 2:
        memcpy(&value, data, 2)
        return value
    return data[0]


cdef class BodyPlan:
    cdef Step *steps
    cdef Py_ssize_t count
    cdef bint known
    cdef uint32_t checked    # the last render call that compared name and fields with the event table
    cdef object name
    cdef object fields
    cdef bint synthetic
    cdef bytes title         # "NAME:"
    cdef list labels         # owns the memory of Step.label

    cdef Op _op(self, field) except *
    cdef bint same(self, event)
