# cython: boundscheck=False, wraparound=False
"""The records of all events as one table, in the order of time, for `utracefs sql`.

Besides the common columns it has `system`, `name`, and the fields as a JSON object, as in JSON lines. That is
absent for a record that is shorter than its event's fields, or whose JSON takes more than LONGEST.
"""

from libc.stdint cimport uint8_t

from utracefs.recordings._columns cimport _Buffer, Batch, Column, ColumnBatches, new_column
from utracefs.recordings._records cimport TEXT_VALUE, EventDecoder, Raw, Records
from utracefs.export._json_text cimport json_keys, put_fields
from utracefs_protocol.events._line cimport Line, put_char

cdef enum:
    FIRST_ROOM = 4 << 10
    LONGEST = 16 << 20      # many fields may refer to the same 64 KiB

cdef class AllRecords(ColumnBatches):
    """Iterates over `records` as Batches of an event without a name.

    ValueError at invalid data, after all before it.
    """

    cdef dict _known          # EventDecoder to its system, its name, and its keys in JSON
    cdef _Buffer _text        # room for the fields of a record

    def __init__(self, Records records not None):
        super().__init__(records)
        self._table = EventDecoder("", "", ())
        self._known = {}
        self._text = _Buffer.__new__(_Buffer)

    def empty(self) -> Batch:
        """A batch without rows, for the columns."""
        return self._begin(self._table)

    cdef Batch _begin(self, EventDecoder event):
        cdef Batch batch = Batch(event, with_place=self._records.is_merged)
        cdef Column column
        for name in ("system", "name", "fields"):
            column = new_column(name, "string", 0, TEXT_VALUE)
            column.room(0, batch._capacity)
            batch.columns.append(column)
        return batch

    cdef int _put(self, Batch batch, EventDecoder event, const Raw *raws, Py_ssize_t count) except -1:
        cdef Py_ssize_t i
        for i in range(count):
            self._put_row(batch, event, &raws[i], batch.rows + i)
        return 0

    cdef int _put_row(self, Batch batch, EventDecoder event, const Raw *raw, Py_ssize_t row) except -1:
        cdef list columns = batch.columns
        cdef Column fields = <Column>columns[batch.commons + 2]
        cdef Line line
        cdef tuple known = self._known.get(event)
        if known is None:
            keys = json_keys(event.names, True, event.paths)
            known = self._known[event] = self._names.of(event.system), self._names.of(event.name), keys
        (<Column>columns[batch.commons]).put_object(<bytes>known[0])
        (<Column>columns[batch.commons + 1]).put_object(<bytes>known[1])
        if not event.fits(raw):
            fields.put_null(row)
            return 0
        while True:
            line.start = line.p = <char *>self._text.data
            line.end = line.start + self._text.capacity
            line.full = False
            put_char(&line, c'{')
            put_fields(&line, event, <list>known[2], raw, False)
            put_char(&line, c'}')
            if not line.full or self._text.capacity > LONGEST:
                break
            self._text.room(2 * self._text.capacity + FIRST_ROOM)
        if line.full:
            fields.put_null(row)
        else:
            fields.put_bytes(<const uint8_t *>line.start, line.p - line.start)
            batch.text_bytes += line.p - line.start
        return 0
