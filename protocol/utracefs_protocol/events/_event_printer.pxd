"""Prints the records of one event by its print fmt; see _event_printer.pyx."""

from libc.stdint cimport uint8_t

from utracefs_protocol.events._fields cimport Elements, Place
from utracefs_protocol.events._line cimport Line

cdef enum Op:
    TEXT_ONLY
    UNSIGNED
    SIGNED
    HEX_NUMBER
    POINTER
    SYMBOL
    STRING
    HEX_BYTES
    FLOAT
    ARRAY
    FORMATTED

cdef struct Step:
    const char *before    # the text in front of the field; borrowed from EventPrinter._texts
    size_t before_size
    Op op
    Place place
    Elements elements


cdef class EventPrinter:
    cdef readonly str name
    cdef bint _drops_newline  # a marker's text ends with a newline, which is dropped
    cdef bint _is_raw_data
    cdef bint _one_line
    cdef object _symbols
    cdef Step *_steps
    cdef Py_ssize_t _count
    cdef list _texts
    cdef list _pieces         # the Conversion of each step

    cdef int put(self, Line *line, const uint8_t *entry, size_t size) except -1
    cdef bint _put_steps(self, Line *line, const uint8_t *entry, size_t size) except -1
    cdef int _put_object(self, Line *line, Py_ssize_t i, const uint8_t *data, size_t length) except -1
