# cython: boundscheck=False, wraparound=False
"""Counts the records of pages, compiled because in Python this would be a third of a recorder's work."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint16_t
from libc.string cimport memcpy

from utracefs_protocol.pages._subbuf cimport RECORD, PageCursor, find_record, open_page

cdef enum:
    # The ids of ftrace's own records (kernel/trace/trace_entries.h) end below.
    FIRST_EVENT = 20


def count_events(page):
    """Number of records of events in a sub-buffer, without ftrace's own (markers), up to an invalid one."""
    cdef Py_buffer view
    cdef PageCursor cursor
    cdef uint16_t id
    cdef int n = 0
    PyObject_GetBuffer(page, &view, PyBUF_SIMPLE)
    try:
        open_page(&cursor, <const unsigned char *>view.buf, view.len)
        while find_record(&cursor) == RECORD:
            if cursor.length >= 2:
                memcpy(&id, cursor.page + cursor.data, 2)
                n += id >= FIRST_EVENT
    except ValueError:
        return 0
    finally:
        PyBuffer_Release(&view)
    return n
