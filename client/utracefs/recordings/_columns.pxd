"""Records as columns; see _columns.pyx."""

cimport cython
from libc.stdint cimport uint8_t, uint64_t

from utracefs.recordings._records cimport EventDecoder, NameCache, Raw, Records, ValueKind
from utracefs_protocol.events._fields cimport Elements, Place

cdef enum:
    RUN = 128                   # records at most that are put together


cdef class _Buffer:
    cdef uint8_t *data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    cdef int room(self, Py_ssize_t more) except -1


cdef class Values:
    cdef Py_ssize_t put(self, const uint8_t *data, size_t length) except -1


@cython.final
cdef class Column(Values):
    cdef readonly str name
    cdef readonly str type
    cdef readonly Py_ssize_t nulls
    cdef _Buffer _values
    cdef _Buffer _offsets
    cdef _Buffer _validity
    cdef Py_ssize_t _width    # bytes of a number; 0: texts and bytes
    cdef ValueKind _kind
    cdef Elements _elements   # of an ARRAY_VALUE
    cdef bint _as_bytes       # a text that is not decoded
    cdef dict _codes          # text to its number, of a column with a dictionary; else None

    cdef int room(self, Py_ssize_t rows, Py_ssize_t more) except -1
    cdef void put_number(self, uint64_t value) noexcept
    cdef Py_ssize_t put_all(self, const Place *place, const Raw *raws, Py_ssize_t count) except -1
    cdef int put_members(self, const void *first, Py_ssize_t count) except -1
    cdef int put_repeated(self, bytes text, Py_ssize_t count) except -1
    cdef int put_bytes(self, const uint8_t *data, Py_ssize_t size) except -1
    cdef int put_text(self, const uint8_t *data, Py_ssize_t size) except -1
    cdef int put_object(self, bytes data) except -1
    cdef int put_null(self, Py_ssize_t rows) except -1
    cdef int cover(self, Py_ssize_t rows) except -1


@cython.final
cdef class Batch:
    cdef readonly EventDecoder event
    cdef readonly Py_ssize_t rows
    cdef readonly list columns  #: list[Column]
    cdef readonly Py_ssize_t commons
    cdef Py_ssize_t text_bytes
    cdef Py_ssize_t _capacity     # rows that there is room for

    cdef int put_common(self, const Raw *raws, Py_ssize_t count, Records records, NameCache names) except -1
    cdef int grow(self, Py_ssize_t rows) except -1
    cdef int finish(self) except -1
    cdef bint is_full(self) noexcept
    cdef Py_ssize_t size_bytes(self) noexcept


cdef class ColumnBatches:
    cdef Records _records
    cdef bint _text_as_bytes
    cdef bint _coded
    cdef dict _pending        # EventDecoder to Batch
    cdef Py_ssize_t _bytes    # of all of them
    cdef NameCache _names
    cdef EventDecoder _table  # whose table all records are in; None: each event has its own
    cdef object _error        # what the records raised, for when all before it is handed out
    cdef Raw _run[RUN]        # records of one event that follow each other
    cdef Py_ssize_t _count
    cdef Raw _ahead           # the record behind them
    cdef EventDecoder _event  # its event; None: there is none

    cdef Batch _begin(self, EventDecoder event)
    cdef EventDecoder _next_run(self)
    cdef int _put(self, Batch batch, EventDecoder event, const Raw *raws, Py_ssize_t count) except -1
    cdef Batch _largest(self)
    cdef Batch _take(self, Batch batch)


cdef Py_ssize_t put_fields(EventDecoder event, const Raw *raw, list columns, Py_ssize_t first) except -1
cdef Column new_column(str name, str type, Py_ssize_t width, ValueKind kind)
