# cython: boundscheck=False, wraparound=False
"""Output in pieces, for all writers of text and samples."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free

from utracefs_protocol.memory cimport resized

cdef enum:
    FIRST_ROOM = 64 << 10
    RECORD_ROOM = 4 << 10   # kept free for a record
    LONGEST = 16 << 20      # limit of a buffer


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


cdef class RecordWriter(Pieces):
    """A subclass writes a record in put_record.

    If a record does not fit, the buffer is doubled and the record written again. A file may demand records of
    any length (many fields may refer to the same 64 KiB), so one that takes more than LONGEST is written
    without its fields.
    """

    def __init__(self, Records records not None):
        self._records = records

    cdef int prepare(self, EventDecoder event, const Raw *raw) except -1:
        """Called once for each record, before it is written."""
        return 0

    cdef int put_record(self, Line *line, EventDecoder event, const Raw *raw, bint with_fields) except -1:
        """Called again for a record that did not fit."""
        raise NotImplementedError

    cdef int _fill(self, size_t max_bytes) except -1:
        cdef Raw raw
        cdef EventDecoder event
        while self._used < max_bytes:
            event = self._records.next(&raw)
            if event is None:
                break
            self._append(event, &raw)
        return 0

    cdef int _append(self, EventDecoder event, const Raw *raw) except -1:
        self.prepare(event, raw)
        self.append(event, raw, event.fits(raw))
        return 0

    cdef int append(self, EventDecoder event, const Raw *raw, bint with_fields) except -1:
        cdef Line line
        if self._used + RECORD_ROOM > self._capacity:
            self._grow()
        while True:
            line.start = line.p = self._text + self._used
            line.end = self._text + self._capacity
            line.full = False
            self.put_record(&line, event, raw, with_fields)
            if not line.full:
                break
            if self._capacity > LONGEST and with_fields:
                with_fields = False
            else:
                self._grow()
        self._used = line.p - self._text
        return 0
