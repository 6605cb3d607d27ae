"""Locates the bytes of a field in an entry, for all compiled readers of records.

Entries and the formats of files are hostile: every field, and every range given by a location word, is
checked against the end of the entry before it is read. `__data_loc` offsets count from the start of the
entry, so a range may overlap the common header or the location word itself; that is allowed.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint64_t

from utracefs_protocol.events.declaration import FieldKind

cdef enum:
    LOC_SIZE = 4

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


def field_bytes(field, entry):
    """The bytes of a field; for a location word the bytes it points at. ValueError: they are not all within
    the entry, which begins with the common fields."""
    cdef Py_buffer view
    cdef Place place
    cdef const unsigned char *data
    cdef size_t length
    set_place(&place, field)
    PyObject_GetBuffer(entry, &view, PyBUF_SIMPLE)
    try:
        if not find_bytes(&place, <const unsigned char *>view.buf, view.len, &data, &length):
            raise ValueError(f"a field reaches past the entry of {view.len} bytes")
        return (<const char *>data)[:length] if length else b""
    finally:
        PyBuffer_Release(&view)
