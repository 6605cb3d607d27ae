# cython: boundscheck=False, wraparound=False
"""The records of all events as one table, in the order of time, for `utracefs sql`.

Besides the common columns it has `system`, `name`, and the fields as a JSON object, as JSON lines have them.
Those are absent for a record that is shorter than its event says, or whose JSON takes more than LONGEST.
"""

from libc.stdint cimport uint8_t

from utracefs.recordings._columns cimport _Buffer, Batch, CleanNames, Column, new_column
from utracefs.recordings._records cimport TEXT_VALUE, EventDecoder, Raw, Records
from utracefs.export._json_text cimport json_keys, put_fields
from utracefs_protocol._line cimport Line, put_char

from utracefs.recordings._columns import COMMON_COLUMNS

cdef enum:
    FIRST_ROOM = 4 << 10
    LONGEST = 16 << 20      # many fields may lead to the same 64 KiB

cdef Py_ssize_t COMMONS = len(COMMON_COLUMNS)


cdef class AllRecords:
    """Iterates over `records` as Batches of an event without a name.

    ValueError at what is broken, after all before it.
    """

    cdef Records _records
    cdef CleanNames _names
    cdef EventDecoder _event
    cdef dict _keys           # EventDecoder to its keys in JSON
    cdef _Buffer _text        # room for the fields of a record
    cdef object _error        # what the records raised, for when all before it is handed out

    def __init__(self, Records records not None):
        self._records = records
        self._names = CleanNames()
        self._event = EventDecoder("", "", ())
        self._keys = {}
        self._text = _Buffer.__new__(_Buffer)

    def __iter__(self):
        return self

    def __next__(self):
        cdef Raw raw
        cdef EventDecoder event
        cdef Batch batch = self.empty()
        try:
            while self._error is None and not batch.is_full():
                event = self._records.next(&raw)
                if event is None:
                    break
                self._append(batch, event, &raw)
        except ValueError as error:
            self._error = error
        if batch.rows:
            batch.finish()
            return batch
        if self._error is not None:
            raise self._error
        raise StopIteration

    def empty(self):
        """A batch without rows: what columns there are."""
        cdef Batch batch = Batch(self._event)
        cdef Column column
        for name in ("system", "name", "fields"):
            column = new_column(name, "string", 0, TEXT_VALUE)
            column.room(0, batch._capacity)
            batch.columns.append(column)
        return batch

    cdef int _append(self, Batch batch, EventDecoder event, const Raw *raw) except -1:
        cdef list columns = batch.columns
        cdef Column fields = <Column>columns[COMMONS + 2]
        cdef Line line
        cdef list keys = self._keys.get(event)
        if keys is None:
            keys = self._keys[event] = json_keys(event.names, True)
        comm = self._names.clean(self._records.comm(raw.tid))
        batch.put_common(raw, comm, self._names.clean(self._records.instance(raw.buffer)))
        (<Column>columns[COMMONS]).put_object(self._names.clean(event.system))
        (<Column>columns[COMMONS + 1]).put_object(self._names.clean(event.name))
        if not event.fits(raw):
            fields.put_null(batch.rows)
            batch.rows += 1
            return 0
        while True:
            line.start = line.p = <char *>self._text.data
            line.end = line.start + self._text.capacity
            line.full = False
            put_char(&line, c'{')
            put_fields(&line, event, keys, raw, False)
            put_char(&line, c'}')
            if not line.full or self._text.capacity > LONGEST:
                break
            self._text.room(2 * self._text.capacity + FIRST_ROOM)
        if line.full:
            fields.put_null(batch.rows)
        else:
            fields.put_bytes(<const uint8_t *>line.start, line.p - line.start)
            batch.text_bytes += line.p - line.start
        batch.rows += 1
        return 0
