# cython: boundscheck=False, wraparound=False, cdivision=True
"""Records of EventHeader tracepoints as records of the events in them.

EventHeader is the convention of LinuxTracepoints, .NET and OpenTelemetry for user_events: a tracepoint has
only eight bytes of fields; the event's name, its fields and their types are in each record.

    entry      u16 id │ 6 bytes │ header │ extension ... │ values
    header     u8 flags, u8 version, u16 id, u16 tag, u8 opcode, u8 level
    extension  u16 size, u16 kind (0x8000: one more follows), bytes: 1 metadata, 2 activity and related id

`EventHeaders` is between the source of a file's records and its readers. It replaces such a record by one of
the event that the metadata describe, with an id and a format like any other: integers in the byte order of
this machine, texts in UTF-8 behind location words, arrays as JSON. So all readers have the events, with
filters and columns. `event_header.py` reads the metadata, once for each distinct text; a Plan is the result.

    metadata ─▶ event_header.py ─▶ Plan: nodes, one for each field ─▶ entry of the event

A record that does not match its metadata becomes one of an event with the tracepoint's fields, and the bytes
behind them as `rest`. No byte outside of the record is read.
"""

import json

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, memmove, memset, strlen

from utracefs.recordings._records cimport HEADER, Raw, RecordSource
from utracefs_protocol.events._fields cimport put_json_float
from utracefs_protocol.events._line cimport (
    Line, load_signed, load_unsigned, put, put_char, put_decimal, put_hex_pairs, put_signed
)
from utracefs_protocol.memory cimport resized, zeroed

cdef extern from "<arpa/inet.h>" nogil:
    const char *inet_ntop(int family, const void *data, char *text, unsigned size)
    int AF_INET, AF_INET6

cdef enum:
    FIELDS = 8              # bytes of the header
    FLAG_LITTLE = 2
    FLAG_EXTENSION = 4
    MORE_EXTENSIONS = 0x8000
    METADATA = 1
    ACTIVITY = 2
    UUID_SIZE = 16
    UUID_TEXT = 36
    ADDRESS_TEXT = 46       # INET6_ADDRSTRLEN
    LOC_MOST = 0xFFFF       # of the length and of the offset in a location word
    FIRST_ROOM = 256 << 10  # for the fixed part, and what location words reach
    MOST_KEYS = 1 << 20     # bytes of the keys of kept plans; a plan takes up to 70 times its key
    KEY_SIZE = 11           # of a plan, in front of the metadata
    REPLACEMENT = 0xFFFD

cdef uint64_t FNV_PRIME = 0x100000001B3
cdef uint16_t ONE = 1
cdef bint IS_LITTLE = (<uint8_t *>&ONE)[0] == 1

cpdef enum Op:
    NUMBER                # an integer of `size` bytes
    TRUTH                 # one that is a boolean
    REAL                  # a float of 4 or 8 bytes
    CHARACTER             # a code point
    UUID
    ADDRESS               # of IPv4 or IPv6, by its length
    TEXT                  # UTF of units of `size` bytes
    LATIN_TEXT
    MARKED_TEXT           # UTF with a byte order mark; without one as TEXT
    BYTES
    STRUCT

cpdef enum Repeated:
    ONCE
    CONSTANT              # `count` times
    VARIABLE              # a u16 in front of the elements counts them

cdef enum:
    NR_PLANS = 256        # found without a dict; a power of two

cdef struct Node:
    Op op
    Repeated repeated
    uint8_t size          # of a value, or of a unit of text
    bint swap
    bint is_foreign       # the record has the other byte order
    bint is_signed
    bint is_counted       # a u16 in front of the bytes counts their units
    bint is_ended         # a unit of 0 ends them
    bint is_json          # the column has JSON
    uint8_t sizes         # of a counted value, added: with another one it is as without a format
    bint is_text          # such a value is text, else bytes
    uint16_t count
    uint32_t end          # of a struct: the number of the node behind it
    uint32_t at           # of the value, or of its location word, in the new entry
    const char *key       # `"name":`; borrowed from Plan._keys
    size_t key_size

cdef struct Bytes:
    const uint8_t *p
    const uint8_t *end

cdef struct PlanSlot:
    uint64_t hash
    void *plan            # borrowed from EventHeaders._kept; NULL: none yet


cdef class Plan:
    """How to convert the records of one tracepoint, header and metadata.

    event_id: of the event, in common_type. start: the fixed part of all entries, with the values of the
    header. nodes: for each field, structs included, in the order of the metadata, the members of a Node from
    `op` to `at`, and its name. activity_at, related_at: offsets of the texts; 0: none.
    """

    cdef readonly uint16_t event_id
    cdef Node *_nodes
    cdef uint32_t _count
    cdef list _keys
    cdef bytes _start
    cdef size_t _activity_at
    cdef size_t _related_at
    cdef bytes _key

    def __cinit__(
        self, uint16_t event_id, bytes start not None, list nodes not None: list[Any], activity_at: int,
        related_at: int
    ):
        cdef Node *node
        cdef bytes key
        self.event_id = event_id
        self._start = start
        self._activity_at = activity_at
        self._related_at = related_at
        self._count = len(nodes)
        self._keys = []
        self._nodes = <Node *>zeroed(self._count + 1, sizeof(Node))
        for i, one in enumerate(nodes):
            node = &self._nodes[i]
            node.op = one.op
            node.repeated = one.repeated
            node.size = one.size
            node.is_foreign = one.is_foreign
            node.swap = one.is_big == IS_LITTLE
            node.is_signed = one.is_signed
            node.is_counted = one.is_counted
            node.is_ended = one.is_ended
            node.is_json = one.is_json
            node.sizes = one.sizes
            node.is_text = one.is_text
            node.count = one.count
            node.end = one.end
            node.at = one.at
            key = json.dumps(one.name).replace("<", "\\u003c").encode("ascii") + b":"
            self._keys.append(key)
            node.key = PyBytes_AS_STRING(key)
            node.key_size = PyBytes_GET_SIZE(key)

    def __dealloc__(self):
        free(self._nodes)

    cdef size_t fill(
        self, const uint8_t *entry, const uint8_t *activity, Bytes payload, char *to, size_t room
    ) except? 0:
        """Write the entry of a record with these values; its size, 0: they do not match, or need too much."""
        cdef Line line
        cdef Node *node
        cdef const uint8_t *data = NULL
        cdef size_t length = 0
        cdef uint32_t i = 0
        cdef char *begin
        cdef uint64_t word
        cdef uint16_t value16
        cdef uint32_t value32
        cdef uint64_t value64
        cdef size_t start = PyBytes_GET_SIZE(self._start)
        memcpy(to, PyBytes_AS_STRING(self._start), start)
        memcpy(to, &self.event_id, 2)
        memcpy(to + 2, entry + 2, HEADER - 2)
        line.start = to
        line.p = to + start
        line.end = to + room
        line.full = False
        # The fixed part has known places; texts follow behind it, where location words point.
        if self._activity_at:
            uuid_text(activity, to + self._activity_at)
        if self._related_at:
            uuid_text(activity + UUID_SIZE, to + self._related_at)
        while i < self._count:
            node = &self._nodes[i]
            i += 1
            if node.op == STRUCT and node.repeated == ONCE:
                continue                        # its members are columns
            if node.repeated == ONCE:
                if not take(node, &payload, &data, &length):
                    return 0
                if node.op == UUID and not node.is_json:
                    uuid_text(data, to + node.at)
                    continue
                if node.op == TRUTH and not node.is_json:
                    to[node.at] = number(node, data, length) != 0
                    continue
                if node.op <= REAL and not node.is_json:
                    if not node.swap or length == 1:
                        memcpy(to + node.at, data, length)
                    else:
                        swap_bytes(data, length, <uint8_t *>to + node.at)
                    continue
            # All others are texts behind the fixed part.
            begin = line.p
            if node.repeated != ONCE:
                if not self._put_array(&line, i - 1, &payload):
                    return 0
                if node.op == STRUCT:
                    i = node.end
            elif node.is_json:
                put_json(&line, node, data, length)
            else:
                put_value(&line, node, data, length)
                if node.op != BYTES:
                    replace_zeros(&line, begin)
            if node.op != BYTES or node.repeated != ONCE:
                put_char(&line, 0)              # as in all texts of events
            # A location word has 16 bits for each number.
            word = begin - to - node.at - 4
            if line.full or word > LOC_MOST or line.p - begin > LOC_MOST:
                return 0
            value32 = <uint32_t>(<uint64_t>(line.p - begin) << 16 | word)
            memcpy(to + node.at, &value32, 4)
        return line.p - to

    cdef bint _put_array(self, Line *line, uint32_t i, Bytes *payload) except -1:
        """The JSON of an array, of structs or of values; False: it is not all there."""
        cdef Node *node = &self._nodes[i]
        cdef uint16_t left = node.count
        cdef bint is_first = True
        if node.repeated == VARIABLE:
            if payload.end - payload.p < 2:
                return False
            left = load16(payload.p, node.is_foreign)
            payload.p += 2
        put_char(line, c'[')
        while left and not line.full:
            left -= 1
            if not is_first:
                put_char(line, c',')
            is_first = False
            if not self._put_one(line, i, payload):
                return False
        put_char(line, c']')
        return True

    cdef bint _put_one(self, Line *line, uint32_t i, Bytes *payload) except -1:
        """The JSON of one struct or value."""
        cdef Node *node = &self._nodes[i]
        cdef const uint8_t *data = NULL
        cdef size_t length = 0
        if node.op == STRUCT:
            return self._put_struct(line, i, payload)
        if not take(node, payload, &data, &length):
            return False
        put_json(line, node, data, length)
        return True

    cdef bint _put_struct(self, Line *line, uint32_t i, Bytes *payload) except -1:
        """One struct as a JSON object. event_header.py limits their depth."""
        cdef uint32_t end = self._nodes[i].end
        cdef Node *node
        cdef bint is_first = True
        put_char(line, c'{')
        i += 1
        while i < end and not line.full:
            node = &self._nodes[i]
            if not is_first:
                put_char(line, c',')
            is_first = False
            put(line, node.key, node.key_size)
            if node.repeated == ONCE and not self._put_one(line, i, payload):
                return False
            if node.repeated != ONCE and not self._put_array(line, i, payload):
                return False
            i = node.end if node.op == STRUCT else i + 1
        put_char(line, c'}')
        return True


cdef inline uint16_t load16(const uint8_t *p, bint swap) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, p, 2)
    return <uint16_t>(value >> 8 | value << 8) if swap else value


cdef inline void swap_bytes(const uint8_t *data, size_t size, uint8_t *to) noexcept nogil:
    cdef size_t i
    for i in range(size):
        to[i] = data[size - 1 - i]


cdef inline bint take(const Node *node, Bytes *payload, const uint8_t **data, size_t *length) noexcept nogil:
    """The bytes of the next value, without its count and its end; False: they are not all there."""
    cdef size_t left = payload.end - payload.p
    cdef size_t size = node.size
    cdef size_t behind = 0
    if node.is_counted:
        if left < 2:
            return False
        size *= load16(payload.p, node.is_foreign)
        payload.p += 2
        left -= 2
    elif node.is_ended:
        size = ended_size(payload.p, left, node.size)
        behind = node.size
    if size + behind > left:
        return False
    data[0] = payload.p
    length[0] = size
    payload.p += size + behind
    return True


cdef size_t ended_size(const uint8_t *data, size_t left, size_t unit) noexcept nogil:
    """Bytes in front of the first unit of 0; `left` if there is none."""
    cdef uint32_t zero = 0
    cdef size_t at = 0
    while at + unit <= left:
        if memcmp(data + at, &zero, unit) == 0:
            return at
        at += unit
    return left


cdef int put_value(Line *line, const Node *node, const uint8_t *data, size_t length) except -1:
    """A text, or bytes."""
    cdef uint8_t value[8]
    cdef size_t unit = node.size
    cdef bint swap = node.swap
    if node.op == BYTES:
        put(line, data, length)
    elif node.op == CHARACTER:
        put_character(line, <uint32_t>number(node, data, length))
    elif node.op == UUID:
        put_uuid(line, data)
    elif node.op == ADDRESS:
        put_address(line, data, length)
    elif node.op == LATIN_TEXT:
        put_units(line, data, length, 1, False, False)
    else:
        if node.op == MARKED_TEXT:
            skip_mark(&data, &length, &unit, &swap)
        put_units(line, data, length, unit, swap, True)
    return 0


cdef int put_json(Line *line, const Node *node, const uint8_t *data, size_t length) except -1:
    cdef char *begin = line.p
    cdef uint64_t value
    if node.sizes and length == 0:
        put(line, b"null", 4)
    elif node.sizes and (length & (length - 1) or not length & node.sizes):
        if node.is_text:
            put(line, data, length)
            replace_zeros(line, begin)
            quote(line, begin)
        else:
            put_hex_json(line, data, length)
    elif node.op == NUMBER:
        value = number(node, data, length)
        if node.is_signed:
            put_signed(line, <int64_t>value)
        else:
            put_decimal(line, value, 0, c' ')
    elif node.op == TRUTH:
        value = number(node, data, length)
        if value > 1:
            put_decimal(line, value, 0, c' ')
        elif value:
            put(line, b"true", 4)
        else:
            put(line, b"false", 5)
    elif node.op == REAL:
        value = number(node, data, length)
        put_json_float(line, <const uint8_t *>&value, length)
    elif node.op == BYTES:
        put_hex_json(line, data, length)
    else:
        put_value(line, node, data, length)
        quote(line, begin)
    return 0


cdef inline uint64_t number(const Node *node, const uint8_t *data, size_t length) noexcept:
    cdef uint8_t swapped[8]
    if node.swap and length > 1:
        swap_bytes(data, length, swapped)
        data = swapped
    return <uint64_t>load_signed(data, length) if node.is_signed else load_unsigned(data, length)


cdef void put_hex_json(Line *line, const uint8_t *data, size_t length) noexcept nogil:
    put_char(line, c'"')
    put_hex_pairs(line, data, length)
    put_char(line, c'"')


cdef void put_address(Line *line, const uint8_t *data, size_t length) noexcept nogil:
    cdef char[ADDRESS_TEXT] text
    inet_ntop(AF_INET if length == 4 else AF_INET6, data, text, ADDRESS_TEXT)
    put(line, text, strlen(text))


cdef void uuid_text(const uint8_t *data, char *to) noexcept nogil:
    """36 characters."""
    cdef Line line
    line.start = line.p = to
    line.end = to + UUID_TEXT
    line.full = False
    put_uuid(&line, data)


cdef void put_uuid(Line *line, const uint8_t *data) noexcept nogil:
    put_hex_pairs(line, data, 4)
    put_char(line, c'-')
    put_hex_pairs(line, data + 4, 2)
    put_char(line, c'-')
    put_hex_pairs(line, data + 6, 2)
    put_char(line, c'-')
    put_hex_pairs(line, data + 8, 2)
    put_char(line, c'-')
    put_hex_pairs(line, data + 10, 6)


cdef void skip_mark(const uint8_t **data, size_t *length, size_t *unit, bint *swap) noexcept nogil:
    """Skip a byte order mark, and do as it says. A longer one before its beginning."""
    cdef const uint8_t *p = data[0]
    cdef size_t size
    if length[0] >= 4 and (memcmp(p, b"\0\0\xFE\xFF", 4) == 0 or memcmp(p, b"\xFF\xFE\0\0", 4) == 0):
        size = unit[0] = 4
    elif length[0] >= 3 and memcmp(p, b"\xEF\xBB\xBF", 3) == 0:
        size = 3
        unit[0] = 1
    elif length[0] >= 2 and (memcmp(p, b"\xFE\xFF", 2) == 0 or memcmp(p, b"\xFF\xFE", 2) == 0):
        size = unit[0] = 2
    else:
        return
    swap[0] = (p[0] != 0xFF) == IS_LITTLE
    data[0] += size
    length[0] -= size


cdef void replace_zeros(Line *line, char *begin) noexcept nogil:
    """U+FFFD for zeros in a text, which would end there; those at its end are left out."""
    cdef size_t growth = 0
    cdef char *p
    cdef char *to
    while line.p > begin and (line.p - 1)[0] == 0:
        line.p -= 1
    p = <char *>memchr(begin, 0, line.p - begin)
    while p != NULL:
        growth += 2
        p = <char *>memchr(p + 1, 0, line.p - p - 1)
    if growth > <size_t>(line.end - line.p):
        line.full = True
        return
    p = line.p
    line.p = to = p + growth
    while to > p:
        p -= 1
        to -= 1
        to[0] = p[0]
        if p[0] == 0:
            to -= 2
            memcpy(to, b"\xef\xbf\xbd", 3)


cdef void put_units(
    Line *line, const uint8_t *data, size_t length, size_t unit, bint swap, bint is_utf
) noexcept nogil:
    """Text in UTF-8: U+FFFD for what is no code point. UTF-8 itself is not checked, as in all events."""
    cdef size_t i, count = length // unit
    cdef uint32_t c, low
    if unit == 1 and is_utf:
        put(line, data, length)
        return
    i = 0
    while i < count and not line.full:
        c = unit_at(data, i, unit, swap)
        i += 1
        if unit == 2 and 0xD800 <= c < 0xDC00 and i < count:
            low = unit_at(data, i, 2, swap)
            if 0xDC00 <= low < 0xE000:
                c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00)
                i += 1
        put_character(line, c)


cdef inline uint32_t unit_at(const uint8_t *data, size_t i, size_t unit, bint swap) noexcept nogil:
    cdef uint32_t value
    if unit == 1:
        return data[i]
    if unit == 2:
        return load16(data + 2 * i, swap)
    if swap:
        swap_bytes(data + 4 * i, 4, <uint8_t *>&value)
    else:
        memcpy(&value, data + 4 * i, 4)
    return value


cdef void put_character(Line *line, uint32_t c) noexcept nogil:
    cdef uint8_t text[4]
    cdef int i, size
    if c > 0x10FFFF or 0xD800 <= c < 0xE000:
        c = REPLACEMENT
    if c < 0x80:
        put_char(line, <char>c)
        return
    size = 4 if c >= 0x10000 else 3 if c >= 0x800 else 2
    for i in range(size - 1, 0, -1):
        text[i] = 0x80 | (c & 0x3F)
        c >>= 6
    text[0] = <uint8_t>(0xF00 >> size) | c
    put(line, text, size)


cdef int quote(Line *line, char *begin) except -1:
    """Make JSON of the text from `begin` on: ASCII, without a < that could end a <script>."""
    cdef size_t size = line.p - begin
    cdef char *p = begin
    cdef uint8_t c
    cdef bytes text
    while p < line.p:
        c = <uint8_t>p[0]
        if c < 0x20 or c >= 0x7F or c == c'"' or c == c'\\' or c == c'<':
            text = json.dumps(begin[:size].decode("utf-8", "replace")).replace("<", "\\u003c").encode("ascii")
            line.p = begin
            put(line, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
            return 0
        p += 1
    if line.end - line.p < 2:
        line.full = True
        return 0
    memmove(begin + 1, begin, size)
    begin[0] = c'"'
    begin[size + 1] = c'"'
    line.p += 2
    return 0


cdef class EventHeaders(RecordSource):
    """The records of a source, those of EventHeader tracepoints as records of the events in them.

    tracepoints: ids of those. plans: those found so far, kept for other sources. find_plan: (tracepoint's
    id, the header, number of bytes of the activity, metadata) to a Plan, None: the metadata are invalid.
    find_rest: tracepoint's id to that of the event for undecoded records, None: they stay unchanged. Both
    are called once for each distinct argument, find_plan again if there are very many.
    """

    cdef RecordSource _source
    cdef object _find_plan
    cdef object _find_rest
    cdef dict _plans
    cdef size_t _keys_size    # bytes of their keys
    cdef list _kept           # the plans of the slots
    cdef dict _rests
    cdef PlanSlot _slots[NR_PLANS]
    cdef uint8_t *_is_header  # by tracepoint's id
    cdef char *_to
    cdef size_t _room
    cdef const uint8_t *_entry
    cdef size_t _size

    def __cinit__(self):
        self._is_header = <uint8_t *>zeroed(1 << 16, 1)
        self._to = <char *>resized(NULL, FIRST_ROOM)
        self._room = FIRST_ROOM

    def __init__(
        self, RecordSource source not None, tracepoints: Iterable[int],
        dict plans not None: dict[bytes, Plan | None],
        find_plan: Callable[[int, bytes, int, bytes], Plan | None], find_rest: Callable[[int], int | None]
    ):
        self._source = source
        self.comms = source.comms
        self._find_plan = find_plan
        self._find_rest = find_rest
        self._plans = plans
        self._keys_size = sum(map(len, plans))
        self._kept = [None] * NR_PLANS
        self._rests = {}
        memset(self._slots, 0, sizeof(self._slots))
        for id in tracepoints:
            self._is_header[<uint16_t>id] = 1

    def __dealloc__(self):
        free(self._is_header)
        free(self._to)

    cdef bint next(self, Raw *raw) except -1:
        cdef uint16_t id = 0
        cdef size_t size
        if not self._source.next(raw):
            self.lost_behind = self._source.lost_behind
            self._source.lost_behind = 0
            return False
        self._entry = raw.entry
        self._size = raw.size
        if raw.size < HEADER + FIELDS:
            return True
        memcpy(&id, raw.entry, 2)
        if not self._is_header[id]:
            return True
        size = self._decode(id, raw.entry, raw.size) or self._rest(id, raw.entry, raw.size)
        if size:
            raw.entry = <const uint8_t *>self._to
            raw.size = size
        return True

    cdef int original(self, Raw *raw) except -1:
        raw.entry = self._entry
        raw.size = self._size
        return 0

    cdef size_t _rest(self, uint16_t id, const uint8_t *entry, size_t size) except? 0:
        """Copy a record that is not decoded, with another id; its size, or 0."""
        cdef uint16_t new
        found = self._rests.get(id)
        if found is None:
            found = self._find_rest(id)
            if found is None:
                return 0
            self._rests[id] = found
        if size > self._room:
            self._to = <char *>resized(self._to, size)
            self._room = size
        new = found
        memcpy(self._to, entry, size)
        memcpy(self._to, &new, 2)
        return size

    cdef size_t _decode(self, uint16_t id, const uint8_t *entry, size_t size) except? 0:
        """Write a record's entry; its size, or 0."""
        cdef const uint8_t *header = entry + HEADER
        cdef const uint8_t *metadata = NULL
        cdef const uint8_t *activity = NULL
        cdef size_t metadata_size = 0, activity_size = 0, extension
        cdef uint16_t kind = MORE_EXTENSIONS
        cdef uint8_t key[KEY_SIZE]
        cdef Bytes payload
        cdef Plan plan
        cdef bint is_foreign = ((header[0] & FLAG_LITTLE) != 0) != IS_LITTLE
        if not header[0] & FLAG_EXTENSION or header[0] > 7:
            return 0
        payload.p = header + FIELDS
        payload.end = entry + size
        while kind & MORE_EXTENSIONS:
            if payload.end - payload.p < 4:
                return 0
            extension = load16(payload.p, is_foreign)
            kind = load16(payload.p + 2, is_foreign)
            payload.p += 4
            if extension > <size_t>(payload.end - payload.p):
                return 0
            if kind & 0x7FFF == METADATA and metadata == NULL:
                metadata = payload.p
                metadata_size = extension
            elif kind & 0x7FFF == ACTIVITY and activity == NULL and extension in (16, 32):
                activity = payload.p
                activity_size = extension
            elif kind & 0x7FFF in (0, METADATA, ACTIVITY):
                return 0
            payload.p += extension
        if metadata == NULL:
            return 0
        memcpy(key, &id, 2)
        memcpy(key + 2, header, FIELDS)
        key[KEY_SIZE - 1] = <uint8_t>activity_size
        plan = self._plan(key, metadata, metadata_size)
        return 0 if plan is None else plan.fill(entry, activity, payload, self._to, self._room)

    cdef Plan _plan(self, const uint8_t *key, const uint8_t *metadata, size_t size):
        cdef uint64_t hash = size, i
        cdef PlanSlot *slot
        cdef Plan plan
        cdef bytes whole
        for i in range(<uint64_t>KEY_SIZE):
            hash = (hash ^ key[i]) * FNV_PRIME
        for i in range(<uint64_t>min(size, <size_t>32)):
            hash = (hash ^ metadata[i]) * FNV_PRIME
        slot = &self._slots[(hash ^ hash >> 32) & (NR_PLANS - 1)]
        if slot.plan != NULL and slot.hash == hash:
            plan = <Plan>slot.plan
            if (
                <size_t>PyBytes_GET_SIZE(plan._key) == <size_t>KEY_SIZE + size
                and memcmp(PyBytes_AS_STRING(plan._key), key, KEY_SIZE) == 0
                and memcmp(PyBytes_AS_STRING(plan._key) + KEY_SIZE, metadata, size) == 0
            ):
                return plan
        whole = PyBytes_FromStringAndSize(<const char *>key, KEY_SIZE) + (<const char *>metadata)[:size]
        if whole not in self._plans:
            self._keys_size += PyBytes_GET_SIZE(whole)
            if self._keys_size > MOST_KEYS:
                self._keys_size = PyBytes_GET_SIZE(whole)
                self._plans.clear()
                memset(self._slots, 0, sizeof(self._slots))
                self._kept = [None] * NR_PLANS
            self._plans[whole] = self._find_plan(
                key[0] | key[1] << 8 if IS_LITTLE else key[0] << 8 | key[1],
                whole[2:2 + FIELDS], key[KEY_SIZE - 1], whole[KEY_SIZE:],
            )
        plan = self._plans[whole]
        if plan is not None:
            plan._key = whole
            slot.hash = hash
            self._kept[slot - self._slots] = plan
            slot.plan = <void *>plan
        return plan
