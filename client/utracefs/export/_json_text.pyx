# cython: boundscheck=False, wraparound=False
"""Records as JSON, one object per line, and JSON functions for other writers.

Texts for events and names are made once; numbers, hex and ASCII text are written here, other text by the json
module.
"""

import json

import cython

from libc.string cimport memcpy
from libc.math cimport isfinite, isnan
from libc.stdint cimport int32_t, uint8_t, uint64_t

from utracefs.recordings._output_buffer cimport RecordWriter, put_bytes
from utracefs.recordings._records cimport *
from utracefs_protocol.events._fields cimport find_bytes, put_elements
from utracefs_protocol.events._line cimport *

from utracefs_protocol.text import clean


cdef enum:
    MIDDLE = 512


cdef class _EventText:
    """The constant parts of an event's lines."""

    cdef bytes head           # `,"system":"...","name":"...","fields":{`
    cdef list keys            # `"a":`, `,"b":`, ...


cdef class JsonText(RecordWriter):
    """The lines of `records`. A line before a record has the number of lost ones, null: unknown."""

    cdef dict _events
    cdef NameCache _cache
    cdef _EventText _event
    cdef EventDecoder _of
    cdef str _thread
    cdef bytes _comm
    cdef int32_t _pid, _tid
    cdef char _middle[MIDDLE]  # from pid to fields, as of the last record: most have the same
    cdef size_t _middle_size   # 0: none
    cdef str _instance
    cdef bytes _place         # its host and file, of merged recordings
    cdef dict _places

    def __init__(self, records: Records):
        super().__init__(records)
        self._events = {}
        self._places = {}
        self._cache = NameCache(as_json)

    cdef int prepare(self, EventDecoder event, const Raw *raw) except -1:
        cdef str thread = self._records.comm(raw.tid)
        if (
            event is not self._of or thread is not self._thread
            or raw.tid != self._tid or raw.pid != self._pid
        ):
            self._of, self._thread, self._tid, self._pid = event, thread, raw.tid, raw.pid
            self._event = self._events.get(event)
            if self._event is None:
                self._event = self._events[event] = self._event_text(event)
            self._comm = self._cache.of(thread)
            self._middle_size = 0
        self._instance = self._records.instance(raw.buffer)
        if self._records.is_merged:
            self._place = self._places.get(raw.recording)
            if self._place is None:
                texts = tuple([self._cache.of(text) for text in self._records.place(raw)])
                self._place = self._places[raw.recording] = b',"host":%s,"file":%s' % texts
        return 0

    cdef int put_record(self, Line *line, EventDecoder event, const Raw *raw, bint with_fields) except -1:
        cdef char *begin
        if raw.lost:
            put(line, b'{"lost":', 8)
            if raw.lost > 0:
                put_decimal(line, raw.lost, 0, c' ')
            else:
                put(line, b"null", 4)
            put(line, b"}\n", 2)
        put(line, b'{"time_ns":', 11)
        put_decimal(line, raw.time_ns, 0, c' ')
        put(line, b',"cpu":', 7)
        put_decimal(line, raw.cpu, 0, c' ')
        begin = line.p
        if self._middle_size:
            put(line, self._middle, self._middle_size)
        else:
            put(line, b',"pid":', 7)
            put_signed(line, raw.pid)
            put(line, b',"tid":', 7)
            put_signed(line, raw.tid)
            put(line, b',"comm":', 8)
            put_bytes(line, self._comm)
            put_bytes(line, self._event.head)
            if not line.full and line.p - begin <= MIDDLE:
                self._middle_size = line.p - begin
                memcpy(self._middle, begin, self._middle_size)
        if with_fields:
            put_fields(line, event, self._event.keys, raw, False)
        put_char(line, c'}')
        if self._instance:
            put(line, b',"instance":', 12)
            put_bytes(line, self._cache.of(self._instance))
        if self._place is not None:
            put_bytes(line, self._place)
        put(line, b"}\n", 2)
        return 0

    cdef _EventText _event_text(self, EventDecoder event):
        cdef _EventText text = _EventText.__new__(_EventText)
        text.head = b',"system":%s,"name":%s,"fields":{' % (
            self._cache.of(event.system), self._cache.of(event.name)
        )
        text.keys = json_keys(event.names, True, event.paths)
        return text


@cython.wraparound(True)
cdef list json_keys(names, bint ascii, paths=()):
    """`"a":`, `,"b":`, ... paths: those of EventDecoder; then there is one more text, for behind the last."""
    if not paths:
        return [(b"," if i else b"") + as_json(name, ascii) + b":" for i, name in enumerate(names)]
    keys = []
    outer = ()
    for path in paths:
        same = 0
        while same < min(len(outer), len(path) - 1) and outer[same] == path[same]:
            same += 1
        key = b"}" * (len(outer) - same) + (b"," if keys else b"")
        keys.append(key + b"{".join([as_json(name, ascii) + b":" for name in path[same:]]))
        outer = path[:-1]
    return [*keys, b"}" * len(outer)]


cdef int put_fields(Line *line, EventDecoder event, list keys, const Raw *raw, bint for_viewers) except -1:
    """The members of an object. for_viewers: not in ASCII, and integers from 2^63 on are strings."""
    cdef const uint8_t *data = NULL
    cdef size_t length = 0
    cdef uint64_t value
    cdef Py_ssize_t i
    cdef Getter *getter
    for i in range(event.count):
        if line.full:
            break
        getter = &event.getters[i]
        find_bytes(&getter.place, raw.entry, raw.size, &data, &length)
        put_bytes(line, <bytes>keys[i])
        if getter.kind == SIGNED_VALUE:
            put_signed(line, load_signed(data, length))
        elif getter.kind == UNSIGNED_VALUE:
            value = load_unsigned(data, length)
            if for_viewers and value >> 63:
                put_char(line, c'"')
                put_decimal(line, value, 0, c' ')
                put_char(line, c'"')
            else:
                put_decimal(line, value, 0, c' ')
        elif getter.is_json:
            put(line, data, text_length(data, length))
        elif getter.kind == FLOAT_VALUE:
            put_number(line, load_float(data, length))
        elif getter.kind == ARRAY_VALUE:
            put_elements(line, getter.elements, data, length)
        elif getter.kind == BOOL_VALUE:
            put_bytes(line, b"true" if data[0] else b"false")
        elif getter.kind == TEXT_VALUE:
            put_text(line, data, text_length(data, length), not for_viewers)
        else:
            put_char(line, c'"')
            put_hex_pairs(line, data, length)
            put_char(line, c'"')
    if len(keys) > event.count:
        put_bytes(line, <bytes>keys[event.count])
    return 0


cdef int put_number(Line *line, double value) except -1:
    """JSON has no infinities and no NaN: they are strings, as in the JSON of Protocol Buffers."""
    if isfinite(value):
        put_float(line, value)
    else:
        put_bytes(line, b'"NaN"' if isnan(value) else b'"Infinity"' if value > 0 else b'"-Infinity"')
    return 0


cdef int put_text(Line *line, const uint8_t *text, size_t size, bint ascii) except -1:
    """Like as_json, which it calls for all but simple cases."""
    cdef size_t i
    cdef uint8_t c
    for i in range(size):
        c = text[i]
        if c < 0x20 or c >= 0x80 or c == c'"' or c == c'\\' or (ascii and c == c'<'):
            put_bytes(line, quoted((<const char *>text)[:size].decode("utf-8", "replace"), ascii))
            return 0
    put_char(line, c'"')
    put(line, text, size)
    put_char(line, c'"')
    return 0


cpdef bytes as_json(str text, bint ascii=True):
    """U+FFFD for bytes that are not UTF-8. ascii: without characters that could end a <script>; else with the
    fewest escapes that JSON allows, since Perfetto shows many of them undecoded."""
    return quoted(clean(text), ascii)


cdef bytes quoted(str text, bint ascii):
    if ascii:
        return json.dumps(text).replace("<", "\\u003c").encode("ascii")
    return json.dumps(text, ensure_ascii=False).encode()
