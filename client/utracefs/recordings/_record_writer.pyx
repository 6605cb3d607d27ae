# cython: boundscheck=False, wraparound=False
"""Records of any length, for the compiled writers of all formats.

If a record does not fit, the buffer is doubled and the record written again. A file may demand records of any
length (many fields may refer to the same 64 KiB), so one that takes more than LONGEST is written without its
fields.
"""

from utracefs.recordings._output_buffer cimport Pieces
from utracefs.recordings._records cimport EventDecoder, Raw, Records
from utracefs_protocol.events._line cimport Line

cdef enum:
    RECORD_ROOM = 4 << 10   # kept free for a record
    LONGEST = 16 << 20      # limit of a piece's buffer


cdef class RecordWriter(Pieces):
    """A subclass writes a record in put_record."""

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
