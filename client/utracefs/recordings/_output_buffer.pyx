# cython: boundscheck=False, wraparound=False
"""Bytes of records, in pieces: what all writers of text and samples share, whatever they read."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, realloc

cdef enum:
    FIRST_ROOM = 64 << 10


cdef class Pieces:
    """A writer says in `_fill` what the next records become. Its memory is kept from piece to piece."""

    def __dealloc__(self):
        free(self._text)

    def read(self, Py_ssize_t max_bytes):
        """What the next records become, up to the one that reaches max_bytes; b"" when there are no more.

        ValueError at what is broken, after all that came before it.
        """
        if self._error is not None:
            raise self._error
        self._used = 0
        try:
            self._fill(max_bytes)
        except ValueError as error:
            if not self._used:
                raise
            self._error = error
        return PyBytes_FromStringAndSize(self._text, self._used)

    cdef int _fill(self, size_t max_bytes) except -1:
        """Into `_text`, until `_used` is max_bytes or there are no more."""
        raise NotImplementedError

    cdef int _grow(self) except -1:
        cdef size_t capacity = 2 * self._capacity + FIRST_ROOM
        cdef void *text = realloc(self._text, capacity)
        if text == NULL:
            raise MemoryError
        self._text = <char *>text
        self._capacity = capacity
        return 0
