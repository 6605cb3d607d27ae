"""Locates the bytes of a field in an entry, and makes values of them, for all compiled readers of records.

Entries and the formats of files are hostile: every field, and every range given by a location word, is
checked against the end of the entry before it is read. `__data_loc` offsets count from the start of the
entry, so a range may overlap the common header or the location word itself; that is allowed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.math cimport isfinite, isnan
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, strtof
from libc.string cimport strlen

from utracefs_protocol.events._line cimport (
    Line, load_float, load_signed, load_unsigned, put, put_char, put_decimal, put_signed
)

from utracefs_protocol.memory cimport zeroed

from utracefs_protocol.events.declaration import FieldKind
from utracefs_protocol.limits import ENTRY_HEADER_SIZE
from utracefs_protocol.text import text_of
#: from utracefs_protocol.events.declaration import Field

cdef extern from "Python.h":
    char *PyOS_double_to_string(double value, char code, int precision, int flags, int *type) except NULL
    int Py_DTSF_ADD_DOT_0

cdef enum:
    LOC_SIZE = 4
    LONGEST_NUMBER = 26      # -1.2345678901234567e-300, and a comma

cdef size_t HEADER = ENTRY_HEADER_SIZE
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
    elements.kind = UNSIGNED_VALUE if element is None else kind_of(element)
    return 0


cdef int put_elements(Line *line, Elements elements, const uint8_t *data, size_t length) except -1:
    """The array as JSON."""
    cdef size_t at = 0
    put_char(line, c'[')
    while at < length and not line.full:
        if at:
            put_char(line, c',')
        if elements.kind == UNSIGNED_VALUE:
            put_decimal(line, load_unsigned(data + at, elements.size), 0, c' ')
        elif elements.kind == SIGNED_VALUE:
            put_signed(line, load_signed(data + at, elements.size))
        elif elements.kind == FLOAT_VALUE:
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
    cdef Getter one
    cdef size_t at = 0
    one.kind = elements.kind
    while at < length:
        found.append(value_of(&one, data + at, elements.size))
        at += elements.size
    return found


cdef ValueKind kind_of(field) except *:
    """The kind of a field's value, as in `Fields.unpack`."""
    if field.element is not None:
        return ARRAY_VALUE
    if field.is_float:
        return FLOAT_VALUE
    if field.is_bool:
        return BOOL_VALUE
    kind = field.kind
    if kind is FieldKind.INTEGER:
        return SIGNED_VALUE if field.signed else UNSIGNED_VALUE
    if kind is FieldKind.CHAR_ARRAY:
        return BYTES_VALUE if field.type.startswith(b"unsigned") else TEXT_VALUE
    if field.is_loc and field.is_string:
        return TEXT_VALUE
    return BYTES_VALUE


cdef value_of(const Getter *getter, const uint8_t *data, size_t length):
    cdef ValueKind kind = getter.kind
    if kind == SIGNED_VALUE:
        return load_signed(data, length)
    if kind == UNSIGNED_VALUE:
        return load_unsigned(data, length)
    if kind == TEXT_VALUE:
        length = text_length(data, length)
        return PyUnicode_DecodeUTF8(<const char *>data, length, b"surrogateescape") if length else ""
    if kind == FLOAT_VALUE:
        return load_float(data, length)
    if kind == BOOL_VALUE:
        return data[0] != 0
    if kind == ARRAY_VALUE:
        return elements_of(getter.elements, data, length)
    return PyBytes_FromStringAndSize(<const char *>data, length)


cdef class Fields:
    """The fields of an event, with distinct names."""

    def __init__(self, fields: Iterable[Field]):
        cdef Py_ssize_t i
        cdef Getter *getter
        fields = tuple(fields)
        self.names = tuple([text_of(field.name) for field in fields])
        free(self.getters)
        self.getters = <Getter *>zeroed(len(fields) + 1, sizeof(Getter))
        self.count = len(fields)
        for i in range(self.count):
            getter = &self.getters[i]
            set_place(&getter.place, fields[i])
            set_elements(&getter.elements, fields[i])
            getter.kind = kind_of(fields[i])

    def __dealloc__(self):
        free(self.getters)

    cdef dict values(self, const uint8_t *entry, size_t size, const uint8_t *begin):
        """By name; None: a field is not within the entry, or a text of it before `begin`."""
        cdef dict found = {}
        cdef const uint8_t *data = NULL
        cdef size_t length = 0
        cdef Py_ssize_t i
        for i in range(self.count):
            if not find_bytes(&self.getters[i].place, entry, size, &data, &length) or data < begin:
                return None
            found[self.names[i]] = value_of(&self.getters[i], data, length)
        return found

    def unpack(self, bytes payload not None) -> dict[str, Any]:
        """Name to value. Arrays (`Field.element`) are lists of numbers; text (`char[N]`, dynamic data with
        `char` in its type) is str up to its first NUL; `unsigned char[N]`, other structs and other dynamic
        data are bytes. A field of size 0, as in the kernel's `char buf[]`, goes to the end.

        ValueError: the payload is too short, or a location word points outside of it.
        """
        cdef const uint8_t *begin = <const uint8_t *>PyBytes_AS_STRING(payload)
        # Places count from the common header, which is in front of a payload in an entry.
        found = self.values(begin - HEADER, PyBytes_GET_SIZE(payload) + HEADER, begin)
        if found is None:
            raise ValueError(f"payload of {len(payload)} bytes, in which the fields are not all there")
        return found
