"""Locates the bytes of a field in an entry, for all compiled readers of records.

Entries and the formats of files are hostile: every field, and every range given by a location word, is
checked against the end of the entry before it is read. `__data_loc` offsets count from the start of the
entry, so a range may overlap the common header or the location word itself; that is allowed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from libc.math cimport isfinite, isnan
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport strtof
from libc.string cimport strlen

from utracefs_protocol.events._line cimport (
    Line, load_float, load_signed, load_unsigned, put, put_char, put_decimal, put_signed
)

from utracefs_protocol.events.declaration import FieldKind

cdef extern from "Python.h":
    char *PyOS_double_to_string(double value, char code, int precision, int flags, int *type) except NULL
    int Py_DTSF_ADD_DOT_0

cdef enum:
    LOC_SIZE = 4
    LONGEST_NUMBER = 26      # -1.2345678901234567e-300, and a comma

cdef uint64_t FAR = <uint64_t>1 << 62    # beyond all entries, and two of them still fit 64 bits


cdef int set_place(Place *place, field) except -1:
    """field: a declaration's Field, or a `format` file's, which may claim any offset and size."""
    kind = field.kind
    place.offset = min(field.offset, FAR)
    place.size = min(field.size, FAR)
    if kind is FieldKind.DATA_LOC or kind is FieldKind.REL_LOC:
        place.where = DATA_LOC if kind is FieldKind.DATA_LOC else REL_LOC
        place.size = LOC_SIZE
    else:
        place.where = FIXED if place.size else TO_END
    return 0


cdef int set_elements(Elements *elements, field) except -1:
    """For an array of numbers (`Field.element`); else their size is 0."""
    element = field.element
    elements.size = 0 if element is None else element.size
    elements.kind = UNSIGNED_NUMBER
    if element is not None:
        if element.is_float:
            elements.kind = FLOAT_NUMBER
        elif element.is_bool:
            elements.kind = BOOL_NUMBER
        elif element.signed:
            elements.kind = SIGNED_NUMBER
    return 0


cdef int put_elements(Line *line, Elements elements, const uint8_t *data, size_t length) except -1:
    """The array as JSON."""
    cdef size_t at = 0
    put_char(line, c'[')
    while at < length and not line.full:
        if at:
            put_char(line, c',')
        if elements.kind == UNSIGNED_NUMBER:
            put_decimal(line, load_unsigned(data + at, elements.size), 0, c' ')
        elif elements.kind == SIGNED_NUMBER:
            put_signed(line, load_signed(data + at, elements.size))
        elif elements.kind == FLOAT_NUMBER:
            put_json_float(line, data + at, elements.size)
        elif data[at]:
            put(line, b"true", 4)
        else:
            put(line, b"false", 5)
        at += elements.size
    put_char(line, c']')
    return 0


cdef bytes elements_text(Elements elements, const uint8_t *data, size_t length):
    """The array as JSON."""
    cdef Line line
    cdef bytes text = PyBytes_FromStringAndSize(NULL, 2 + length // elements.size * LONGEST_NUMBER)
    line.start = line.p = PyBytes_AS_STRING(text)
    line.end = line.start + PyBytes_GET_SIZE(text)
    line.full = False
    put_elements(&line, elements, data, length)
    return text[:line.p - line.start]


cdef int put_json_float(Line *line, const uint8_t *data, size_t size) except -1:
    """The shortest text with this value, in JSON; that has no NaN and no infinities, so these are strings."""
    cdef double value = load_float(data, size)
    cdef float small = <float>value
    cdef char *text
    cdef int precision = 6
    if isnan(value):
        put(line, b'"NaN"', 5)
        return 0
    if not isfinite(value):
        put(line, b'"Infinity"' if value > 0 else b'"-Infinity"', 10 if value > 0 else 11)
        return 0
    if size == 8:
        text = PyOS_double_to_string(value, b"r", 0, Py_DTSF_ADD_DOT_0, NULL)
    else:
        text = PyOS_double_to_string(value, b"g", precision, Py_DTSF_ADD_DOT_0, NULL)
        while strtof(text, NULL) != small and precision < 9:
            PyMem_Free(text)
            precision += 1
            text = PyOS_double_to_string(value, b"g", precision, Py_DTSF_ADD_DOT_0, NULL)
    put(line, text, strlen(text))
    PyMem_Free(text)
    return 0


cdef object elements_of(Elements elements, const uint8_t *data, size_t length):
    cdef list found = []
    cdef size_t at = 0
    while at < length:
        if elements.kind == UNSIGNED_NUMBER:
            found.append(load_unsigned(data + at, elements.size))
        elif elements.kind == SIGNED_NUMBER:
            found.append(load_signed(data + at, elements.size))
        elif elements.kind == FLOAT_NUMBER:
            found.append(load_float(data + at, elements.size))
        else:
            found.append(data[at] != 0)
        at += elements.size
    return found
