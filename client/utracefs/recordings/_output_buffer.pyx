# cython: boundscheck=False, wraparound=False
"""Output in pieces, for all writers of text and samples."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free

from utracefs_protocol.memory cimport resized

cdef enum:
    FIRST_ROOM = 64 << 10


cdef class Pieces:
    """A subclass converts the next records in `_fill`. The buffer is reused from piece to piece."""

    def __dealloc__(self):
        free(self._text)

    def read(self, Py_ssize_t max_bytes) -> bytes:
        """The output of the next records, up to the one that reaches max_bytes; b"" at the end.

        ValueError at invalid data, after the output of all records before it.
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
        """Append to `_text`, until `_used` is max_bytes or there are no more records."""
        raise NotImplementedError

    cdef int _grow(self) except -1:
        cdef size_t capacity = 2 * self._capacity + FIRST_ROOM
        self._text = <char *>resized(self._text, capacity)
        self._capacity = capacity
        return 0
