# cython: boundscheck=False, wraparound=False
"""Counting per recorded record: in Python it would be a third of a recorder's work."""

from libc.stdint cimport uint16_t
from libc.string cimport memcpy

from utracefs_protocol.pages._subbuf cimport RECORD, PageCursor, find_record, open_page

cdef enum:
    # The ids of ftrace's own records (kernel/trace/trace_entries.h) end below.
    FIRST_EVENT = 20


def count_events(const unsigned char[::1] page not None):
    """Number of records of events in a sub-buffer, without ftrace's own (markers), up to an invalid one."""
    cdef PageCursor cursor
    cdef uint16_t id
    cdef int n = 0
    try:
        open_page(&cursor, &page[0] if page.shape[0] else NULL, page.shape[0])
    except ValueError:
        return 0
    while find_record(&cursor) == RECORD:
        if cursor.length >= 2:
            memcpy(&id, cursor.page + cursor.data, 2)
            n += id >= FIRST_EVENT
    return n
