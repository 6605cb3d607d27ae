# cython: boundscheck=False, wraparound=False
"""Records as rows of CSV; csv_table.py says which.

A cell is quoted as the csv module does, if it has a comma, a quote, CR or LF. Numbers, hex and ASCII text are
written here, cells of names once; what is left goes through `plain`.
"""

from json import loads

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from utracefs.recordings._output_buffer cimport RecordWriter, put_bytes
from utracefs.recordings._records cimport *
from utracefs_protocol.events._fields cimport find_bytes
from utracefs_protocol.events._line cimport *

from utracefs.export.common import plain


cdef class _EventCells:
    """The constant parts of an event's rows."""

    cdef bytes head           # `,SYSTEM,NAME`
    cdef list commas          # in front of each of its cells, and behind the last one
    cdef list order           # the numbers of its fields, in the order of columns


cdef class CsvText(RecordWriter):
    """The rows of `records`, and in front of them `header`, the names of all columns. fields: the names of
    those fields that the last columns have."""

    cdef bytes _header
    cdef bytes _no_cells      # the commas of a record without fields
    cdef dict _columns
    cdef dict _events
    cdef NameCache _names
    cdef _EventCells _event
    cdef bytes _comm
    cdef bytes _place         # its host and file, of merged recordings

    def __init__(self, records: Records, header: Iterable[str], fields: Iterable[str]):
        super().__init__(records)
        self._header = b",".join([cell(name) for name in header]) + b"\r\n"
        self._columns = {name: i for i, name in enumerate(fields)}
        self._no_cells = b"," * len(fields)
        self._events = {}
        self._names = NameCache(cell)

    cdef int _fill(self, size_t max_bytes) except -1:
        if self._header is not None:
            while self._capacity < <size_t>PyBytes_GET_SIZE(self._header):
                self._grow()
            self._used = PyBytes_GET_SIZE(self._header)
            memcpy(self._text, PyBytes_AS_STRING(self._header), self._used)
            self._header = None
        return RecordWriter._fill(self, max_bytes)

    cdef int prepare(self, EventDecoder event, const Raw *raw) except -1:
        self._event = self._events.get(event)
        if self._event is None:
            self._event = self._events[event] = self._cells_of(event)
        self._comm = self._names.of(self._records.comm(raw.tid))
        if self._records.is_merged:
            host, file = self._records.place(raw)
            self._place = b",%s,%s" % (self._names.of(host), self._names.of(file))
        return 0

    cdef _EventCells _cells_of(self, EventDecoder event):
        cdef _EventCells cells = _EventCells.__new__(_EventCells)
        columns = sorted([(self._columns[name], i) for i, name in enumerate(event.names)])
        cells.head = b",%s,%s" % (cell(event.system), cell(event.name))
        cells.order = [i for _, i in columns]
        places = [-1, *[column for column, _ in columns], len(self._columns) - 1]
        cells.commas = [b"," * (place - before) for before, place in zip(places, places[1:])]
        return cells

    cdef int put_record(self, Line *line, EventDecoder event, const Raw *raw, bint with_fields) except -1:
        cdef const uint8_t *data = NULL
        cdef size_t length = 0
        cdef Py_ssize_t i
        cdef Getter *getter
        put_decimal(line, raw.time_ns, 0, c' ')
        put_char(line, c',')
        put_decimal(line, raw.cpu, 0, c' ')
        put_char(line, c',')
        put_signed(line, raw.pid)
        put_char(line, c',')
        put_signed(line, raw.tid)
        put_char(line, c',')
        put_bytes(line, self._comm)
        put_bytes(line, self._event.head)
        if self._place is not None:
            put_bytes(line, self._place)
        if with_fields:
            for i in range(event.count):
                if line.full:
                    break
                put_bytes(line, <bytes>self._event.commas[i])
                getter = &event.getters[<Py_ssize_t>self._event.order[i]]
                find_bytes(&getter.place, raw.entry, raw.size, &data, &length)
                put_value(line, getter, data, length)
            put_bytes(line, <bytes>self._event.commas[event.count])
        else:
            put_bytes(line, self._no_cells)
        put(line, b"\r\n", 2)
        return 0


cdef int put_value(Line *line, const Getter *getter, const uint8_t *data, size_t length) except -1:
    if getter.kind == SIGNED_VALUE:
        put_signed(line, load_signed(data, length))
    elif getter.kind == UNSIGNED_VALUE:
        put_decimal(line, load_unsigned(data, length), 0, c' ')
    elif getter.is_json:
        put_bytes(line, cell(loads(value_of(getter, data, length))))
    elif getter.kind == FLOAT_VALUE:
        put_float(line, load_float(data, length))
    elif getter.kind == TEXT_VALUE:
        put_text(line, data, text_length(data, length))
    elif getter.kind == BYTES_VALUE:
        put_hex_pairs(line, data, length)
    else:
        put_bytes(line, cell(value_of(getter, data, length)))
    return 0


cdef int put_text(Line *line, const uint8_t *text, size_t size) except -1:
    """Like `cell`, which it calls for text that is not ASCII."""
    cdef size_t i
    cdef bint quoted = False
    for i in range(size):
        if text[i] >= 0x80:
            put_bytes(line, cell((<const char *>text)[:size].decode("utf-8", "replace")))
            return 0
        quoted |= text[i] == c',' or text[i] == c'"' or text[i] == c'\r' or text[i] == c'\n'
    if not quoted:
        put(line, text, size)
        return 0
    put_char(line, c'"')
    for i in range(size):
        if text[i] == c'"':
            put_char(line, c'"')
        put_char(line, text[i])
    put_char(line, c'"')
    return 0


cpdef bytes cell(value: object):
    """As csv.writer writes it: a float by its repr, a text in quotes if it needs them."""
    value = plain(value)
    cdef str text = repr(value) if isinstance(value, float) else str(value)
    if "," in text or '"' in text or "\r" in text or "\n" in text:
        text = '"%s"' % text.replace('"', '""')
    return text.encode()
