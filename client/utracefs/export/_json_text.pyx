# cython: boundscheck=False, wraparound=False
"""Records as JSON, one object a line.

What depends on an event or a name is made once; numbers, hex and ASCII text are written here, other text by
the json module. Where a line does not fit, the room is doubled and it is written once more. A file may ask
for lines of any length (many fields may lead to the same 64 KiB), so one that takes more than LONGEST is
written without its fields.
"""

import json

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr

from utracefs._records cimport (
    SIGNED_VALUE,
    TEXT_VALUE,
    UNSIGNED_VALUE,
    EventDecoder,
    Getter,
    Raw,
    Records,
    signed_value,
    unsigned_value,
)
from utracefs_protocol._fields cimport find_bytes
from utracefs_protocol._line cimport HEX_DIGITS, Line, put, put_char, put_decimal, put_hex_pairs, put_signed

from utracefs_protocol.text import bytes_of

cdef enum:
    LINE_ROOM = 4 << 10     # what is kept free for a line
    LONGEST = 16 << 20      # of the room for a piece


cdef class _EventText:
    """What is the same in all lines of an event."""

    cdef bytes head           # `,"system":"...","name":"...","fields":{`
    cdef list keys            # `"a":`, `,"b":`, ...


cdef class JsonText:
    """The lines of `records`. Where some were lost a line says how many, null: not counted."""

    cdef Records _records
    cdef dict _events
    cdef dict _texts          # str to JSON
    cdef char *_text
    cdef size_t _capacity
    cdef size_t _used
    cdef object _error        # what the records raised, for the next `read`

    def __init__(self, Records records not None):
        self._records = records
        self._events = {}
        self._texts = {}

    def __dealloc__(self):
        free(self._text)

    def read(self, Py_ssize_t max_bytes):
        """The next whole lines, up to the record that reaches max_bytes; b"" when there are no more.

        ValueError at what is broken, after the lines of all that came before it.
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
        cdef Raw raw
        cdef EventDecoder event
        while self._used < max_bytes:
            event = self._records.next(&raw)
            if event is None:
                break
            self._append(event, &raw)
        return 0

    cdef int _append(self, EventDecoder event, const Raw *raw) except -1:
        cdef Line line
        cdef _EventText text = self._events.get(event)
        cdef bytes comm = self._json(self._records.comm(raw.tid))
        cdef str instance = self._records.instance(raw.buffer)
        cdef bint with_fields
        if text is None:
            text = self._events[event] = self._event_text(event)
        with_fields = event.fits(raw)
        if self._used + LINE_ROOM > self._capacity:
            self._grow()
        while True:
            line.start = line.p = self._text + self._used
            line.end = self._text + self._capacity
            line.full = False
            if raw.lost:
                put(&line, b'{"lost":', 8)
                if raw.lost > 0:
                    put_decimal(&line, raw.lost, 0, c' ')
                else:
                    put(&line, b"null", 4)
                put(&line, b"}\n", 2)
            put(&line, b'{"time_ns":', 11)
            put_decimal(&line, raw.time_ns, 0, c' ')
            put(&line, b',"cpu":', 7)
            put_decimal(&line, raw.cpu, 0, c' ')
            put(&line, b',"pid":', 7)
            put_signed(&line, raw.pid)
            put(&line, b',"tid":', 7)
            put_signed(&line, raw.tid)
            put(&line, b',"comm":', 8)
            put_bytes(&line, comm)
            put_bytes(&line, text.head)
            if with_fields:
                put_fields(&line, event, text.keys, raw)
            put_char(&line, c'}')
            if instance:
                put(&line, b',"instance":', 12)
                put_bytes(&line, self._json(instance))
            put(&line, b"}\n", 2)
            if not line.full:
                break
            if self._capacity > LONGEST:
                with_fields = False
            else:
                self._grow()
        self._used = line.p - self._text
        return 0

    cdef bytes _json(self, str text):
        found = self._texts.get(text)
        if found is None:
            if len(self._texts) > 1 << 16:
                self._texts.clear()
            found = self._texts[text] = as_json(bytes_of(text))
        return <bytes>found

    cdef _EventText _event_text(self, EventDecoder event):
        cdef _EventText text = _EventText.__new__(_EventText)
        text.head = b',"system":%s,"name":%s,"fields":{' % (self._json(event.system), self._json(event.name))
        text.keys = json_keys(event.names)
        return text

    cdef int _grow(self) except -1:
        cdef size_t capacity = 2 * self._capacity + 16 * LINE_ROOM
        cdef void *text = realloc(self._text, capacity)
        if text == NULL:
            raise MemoryError
        self._text = <char *>text
        self._capacity = capacity
        return 0


cdef list json_keys(names):
    """`"a":`, `,"b":`, ..."""
    return [(b"," if i else b"") + as_json(bytes_of(name)) + b":" for i, name in enumerate(names)]


cdef int put_fields(Line *line, EventDecoder event, list keys, const Raw *raw) except -1:
    """The members of an object, of a record that fits."""
    cdef const uint8_t *data = NULL
    cdef size_t length = 0
    cdef const void *nul
    cdef Py_ssize_t i
    cdef Getter *getter
    for i in range(event.count):
        if line.full:
            break
        getter = &event.getters[i]
        find_bytes(&getter.place, raw.entry, raw.size, &data, &length)
        put_bytes(line, <bytes>keys[i])
        if getter.kind == SIGNED_VALUE:
            put_signed(line, signed_value(data, length))
        elif getter.kind == UNSIGNED_VALUE:
            put_decimal(line, unsigned_value(data, length), 0, c' ')
        elif getter.kind == TEXT_VALUE:
            nul = memchr(data, 0, length) if length else NULL
            put_text(line, data, <const uint8_t *>nul - data if nul != NULL else length)
        else:
            put_char(line, c'"')
            put_hex_pairs(line, data, length)
            put_char(line, c'"')
    return 0


cdef int put_text(Line *line, const uint8_t *text, size_t size) except -1:
    cdef size_t i, begin = 0
    cdef uint8_t c
    for i in range(size):
        if text[i] >= 0x80:
            put_bytes(line, as_json((<const char *>text)[:size]))
            return 0
    put_char(line, c'"')
    for i in range(size):
        c = text[i]
        if c >= 0x20 and c != c'"' and c != c'\\' and c != c'<':
            continue
        put(line, text + begin, i - begin)
        begin = i + 1
        if c == c'"' or c == c'\\':
            put_char(line, c'\\')
            put_char(line, c)
        else:
            put(line, b"\\u00", 4)
            put_char(line, HEX_DIGITS[c >> 4])
            put_char(line, HEX_DIGITS[c & 15])
    put(line, text + begin, size - begin)
    put_char(line, c'"')
    return 0


cdef bytes as_json(bytes text):
    """ASCII; U+FFFD for what is not UTF-8; no < that could end a <script>."""
    return json.dumps(text.decode("utf-8", "replace")).replace("<", "\\u003c").encode("ascii")


cdef inline void put_bytes(Line *line, bytes text) noexcept:
    put(line, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
