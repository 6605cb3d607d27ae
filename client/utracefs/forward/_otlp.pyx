# cython: boundscheck=False, wraparound=False
"""Records as log records and spans of OTLP; `otlp` has the table of fields.

Numbers are those of opentelemetry/proto (logs.proto, trace.proto, common.proto of version 1.x). Each record
is encoded as one repeated field, log_records or spans; a request joins those of a scope.
"""

import struct

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memmove, memset

from utracefs.export._protobuf cimport *
from utracefs.recordings._output_buffer cimport RecordWriter, put_bytes
from utracefs.recordings._records cimport *
from utracefs_protocol.events._fields cimport Elements, elements_of, find_bytes
from utracefs_protocol.events._line cimport (
    Line, load_float, load_signed, load_unsigned, put, put_char, put_decimal
)

from utracefs.recordings.columns import column_names

cdef enum:
    ITEM = 2 << 3 | BYTES           # ScopeLogs.log_records, ScopeSpans.spans

    LOG_TIME = 1 << 3 | FIXED64
    LOG_SEVERITY = 2 << 3 | VARINT
    LOG_SEVERITY_TEXT = 3 << 3 | BYTES
    LOG_BODY = 5 << 3 | BYTES
    LOG_ATTRIBUTE = 6 << 3 | BYTES
    LOG_TRACE_ID = 9 << 3 | BYTES
    LOG_SPAN_ID = 10 << 3 | BYTES
    LOG_OBSERVED = 11 << 3 | FIXED64
    LOG_EVENT_NAME = 12 << 3 | BYTES

    SPAN_TRACE_ID = 1 << 3 | BYTES
    SPAN_ID = 2 << 3 | BYTES
    SPAN_PARENT = 4 << 3 | BYTES
    SPAN_NAME = 5 << 3 | BYTES
    SPAN_KIND = 6 << 3 | VARINT
    SPAN_BEGIN = 7 << 3 | FIXED64
    SPAN_END = 8 << 3 | FIXED64
    SPAN_ATTRIBUTE = 9 << 3 | BYTES
    SPAN_STATUS = 15 << 3 | BYTES
    STATUS_MESSAGE = 2 << 3 | BYTES
    STATUS_CODE = 3 << 3 | VARINT
    INTERNAL = 1                    # of SpanKind
    ERROR = 2                       # of StatusCode

    KEY = 1 << 3 | BYTES
    VALUE = 2 << 3 | BYTES
    VALUE_STRING = 1 << 3 | BYTES
    VALUE_BOOL = 2 << 3 | VARINT
    VALUE_INT = 3 << 3 | VARINT
    VALUE_DOUBLE = 4 << 3 | FIXED64
    VALUE_ARRAY = 5 << 3 | BYTES
    VALUE_BYTES = 7 << 3 | BYTES
    ARRAY_VALUES = 1 << 3 | BYTES

    NR_THREADS = 256    # found without a dict; a power of two
    MOST_ROOTS = 1 << 16

cpdef enum Role:
    ATTRIBUTE
    SEVERITY            # a number of OpenTelemetry
    LOGGING_LEVEL       # of Python's logging: tens
    HEADER_LEVEL        # of EventHeader, 1 to 5
    SEVERITY_TEXT
    BODY
    TRACE_ID            # 32 hexadecimal digits
    SPAN_ID_TEXT        # 16
    SPAN_ID_NUMBER
    PARENT_ID
    DURATION
    ERROR_TEXT
    SPAN_NAME_TEXT

# Of EventHeader: none, critical, error, warning, information, verbose.
cdef int[6] LEVELS = [0, 21, 17, 13, 9, 5]

TAKEN = ("cpu.logical_number", "process.pid", "thread.id", "thread.name")


cdef struct Special:
    int64_t severity
    const uint8_t *severity_text
    size_t severity_text_size
    const uint8_t *body           # NULL: none
    size_t body_size
    const uint8_t *trace          # 32 digits; NULL: none
    uint64_t span_id              # 0: none
    uint64_t parent_id
    uint64_t duration
    const uint8_t *error
    size_t error_size
    const uint8_t *name
    size_t name_size


cdef class Plan:
    """How records of one event are encoded: its name, whether they are spans, the number of its scope,
    a Role for each field. envelope: bytes of the scope around its records."""

    cdef readonly str name
    cdef readonly bint is_span
    cdef readonly Py_ssize_t scope
    cdef size_t _envelope
    cdef Py_ssize_t _count            # records in the present request
    cdef bytes _name
    cdef list _keys
    cdef bytes _roles

    def __init__(
        self, EventDecoder event not None, *, str name, bint is_span, roles: Iterable[int], Py_ssize_t scope,
        size_t envelope
    ):
        self.name = f"{event.system}:{event.name}"
        self.is_span = is_span
        self.scope = scope
        self._envelope = envelope
        self._name = message(SPAN_NAME if is_span else LOG_EVENT_NAME, utf8(name))
        names = column_names(event.names, TAKEN)
        self._keys = [message(KEY, utf8(names[field])) for field in event.names]
        self._roles = bytes(roles)


cdef class _Thread:
    cdef int32_t pid
    cdef int32_t tid
    cdef bint is_span
    cdef bytes attributes


def field_kinds(EventDecoder event not None) -> list[str]:
    """`integer`, `text` or empty, for each field."""
    cdef Py_ssize_t i
    kinds = {SIGNED_VALUE: "integer", UNSIGNED_VALUE: "integer", TEXT_VALUE: "text"}
    return [kinds.get(event.getters[i].kind, "") for i in range(event.count)]


cdef class OtlpRecords(RecordWriter):
    """The items of the records of batches, one after the other; its buffer is reused.

    plan_of: EventDecoder to Plan; called once a batch for each. roots: span id to that of the root of its
    trace. offset_ns: added to times. observed_ns: when they were read, since 1970. trace: 8 bytes in front of
    the root's id in the id of a trace without another.
    """

    cdef uint64_t _offset
    cdef bytes _observed
    cdef object _plan_of
    cdef object _roots
    cdef bytes _trace
    cdef dict _plans
    cdef Plan _plan
    cdef EventDecoder _event_before
    cdef dict _threads
    cdef list _slots                  # of them, found without a dict
    cdef bytes _thread
    cdef list _kept                   # texts of the present record that were converted
    cdef int32_t _tid
    cdef int32_t _pid
    cdef bint _is_span
    cdef Py_ssize_t _carried          # size of the last item, which is one of the next request

    def __init__(self, plan_of: Callable[[EventDecoder], Plan], roots: dict[int, int]):
        self._plan_of = plan_of
        self._roots = roots

    def begin(
        self, Records records not None, *, offset_ns: int, uint64_t observed_ns, bytes trace not None
    ) -> None:
        """The next batch."""
        self._records = records
        self._offset = offset_ns & 0xFFFF_FFFF_FFFF_FFFF
        self._observed = bytes([LOG_OBSERVED]) + observed_ns.to_bytes(8, "little")
        self._trace = trace
        self._event_before = None
        self._plans = {}
        self._threads = {}
        self._slots = [None] * NR_THREADS
        self._kept = []
        self._thread = None
        self._carried = 0
        self._error = None

    def next_request(
        self, Py_ssize_t max_records, size_t max_bytes
    ) -> tuple[list[tuple[bool, int, bytes, int]], dict[Plan, int]]:
        """The next items, at most that many, and bytes with the envelopes of their scopes unless one item is
        larger: a list of (is_span, scope, bytes, number), and Plan to number. Empty at the end.

        ValueError at invalid data, after all records before it.
        """
        cdef Raw raw
        cdef EventDecoder event
        cdef Plan plan = None
        cdef Plan before = None
        cdef Py_ssize_t count = 0, begin = 0, in_run = 0, used = 0
        cdef size_t around = 0
        cdef list found = [], plans = []
        cdef set scopes = set()
        cdef dict counts = {}
        cdef bint is_carried = False
        # The item that the previous request had no space for is encoded already: it is the first of this one.
        if self._carried:
            memmove(self._text, self._text + self._used - self._carried, self._carried)
            self._used = self._carried
            self._carried = 0
            is_carried = True
        else:
            self._used = 0
        while count < max_records:
            used = self._used
            if is_carried:
                is_carried = False
                used = 0
            else:
                event = self._next(&raw)
                if event is None:
                    break
                self._append(event, &raw)
            plan = self._plan
            # A request has the envelope of a scope once, with the first record of that scope.
            if not plan._count and (plan.is_span, plan.scope) not in scopes:
                scopes.add((plan.is_span, plan.scope))
                around += plan._envelope
            # A first item is taken whatever its size: no other request would have more space for it.
            if count and self._used + around > max_bytes:
                self._carried = self._used - used
                break
            # Logs and spans have different paths, and each scope a message of its own: there a run ends.
            if before is not None and (plan.is_span != before.is_span or plan.scope != before.scope):
                found.append((before.is_span, before.scope, self._cut(begin, used), in_run))
                begin = used
                in_run = 0
            before = plan
            if not plan._count:
                plans.append(plan)
            plan._count += 1
            in_run += 1
            count += 1
        if before is not None:
            used = self._used - self._carried
            found.append((before.is_span, before.scope, self._cut(begin, used), in_run))
        # Plans are used for later requests, too, which count anew.
        for plan in plans:
            counts[plan] = plan._count
            plan._count = 0
        return found, counts

    cdef EventDecoder _next(self, Raw *raw):
        """As Pieces: an error comes after all before it."""
        if self._error is not None:
            raise self._error
        try:
            return self._records.next(raw)
        except ValueError as error:
            if not self._used:
                raise
            self._error = error
            return None

    cdef bytes _cut(self, Py_ssize_t begin, Py_ssize_t end):
        return PyBytes_FromStringAndSize(self._text + begin, end - begin)

    cdef int prepare(self, EventDecoder event, const Raw *raw) except -1:
        if event is not self._event_before:
            self._event_before = event
            found = self._plans.get(event)
            if found is None:
                found = self._plans[event] = self._plan_of(event)
            self._plan = <Plan?>found
        if (
            self._thread is None
            or raw.tid != self._tid
            or raw.pid != self._pid
            or self._plan.is_span != self._is_span
        ):
            self._tid = raw.tid
            self._pid = raw.pid
            self._is_span = self._plan.is_span
            self._thread = self._thread_of(raw)
        return 0

    cdef bytes _thread_of(self, const Raw *raw):
        """Its attributes."""
        cdef _Thread known
        cdef Py_ssize_t slot = (raw.tid ^ self._is_span) & (NR_THREADS - 1)
        if self._slots[slot] is not None:
            known = <_Thread>self._slots[slot]
            if known.tid == raw.tid and known.pid == raw.pid and known.is_span == self._is_span:
                return known.attributes
        key = (raw.pid, raw.tid, self._is_span)
        known = self._threads.get(key)
        if known is None:
            known = self._threads[key] = _Thread.__new__(_Thread)
            known.pid = raw.pid
            known.tid = raw.tid
            known.is_span = self._is_span
            known.attributes = self._thread_attributes(raw)
        self._slots[slot] = known
        return known.attributes

    cdef bytes _thread_attributes(self, const Raw *raw):
        cdef int tag = SPAN_ATTRIBUTE if self._is_span else LOG_ATTRIBUTE
        return (
            attribute(tag, "process.pid", raw.pid)
            + attribute(tag, "thread.id", raw.tid)
            + attribute(tag, "thread.name", self._records.comm(raw.tid))
        )

    cdef int put_record(self, Line *line, EventDecoder event, const Raw *raw, bint with_fields) except -1:
        cdef Plan plan = self._plan
        cdef int tag = SPAN_ATTRIBUTE if plan.is_span else LOG_ATTRIBUTE
        cdef uint64_t ns = unix_time(raw.time_ns, self._offset)
        cdef size_t item
        cdef Special special
        memset(&special, 0, sizeof(special))
        if self._kept:
            self._kept.clear()
        put_varint(line, ITEM)
        item = begin_message(line)
        if with_fields:
            self._put_fields(line, event, plan, raw, tag, &special)
        put_attribute_head(line, tag, CPU, 1 + size_of(raw.cpu))
        put_tagged(line, VALUE_INT, raw.cpu)
        put_bytes(line, self._thread)
        if special.span_id or special.trace != NULL:
            self._put_ids(line, plan, &special)
        if plan.is_span:
            put_span(line, plan, &special, ns)
        else:
            put_fixed64(line, LOG_TIME, ns)
            put_bytes(line, self._observed)
            put_bytes(line, plan._name)
            if special.severity > 0:
                put_tagged(line, LOG_SEVERITY, special.severity)
            if special.severity_text_size:
                put_text(line, LOG_SEVERITY_TEXT, special.severity_text, special.severity_text_size)
            if special.body != NULL:
                put_body(line, special.body, special.body_size)
        end_message(line, item)
        return 0

    cdef int _put_fields(
        self, Line *line, EventDecoder event, Plan plan, const Raw *raw, int tag, Special *special
    ) except -1:
        cdef const uint8_t *data = NULL
        cdef size_t length = 0
        cdef uint64_t value
        cdef Py_ssize_t i
        cdef Getter *getter
        cdef bytes key, encoded
        cdef const char *roles = PyBytes_AS_STRING(plan._roles)
        for i in range(event.count):
            if line.full:
                break
            getter = &event.getters[i]
            # This cannot fail: all fields are within the record, or `_append` passes with_fields as False.
            find_bytes(&getter.place, raw.entry, raw.size, &data, &length)
            # Protobuf's strings must be UTF-8, and a program's texts may be anything. The converted text
            # stays in `_kept`, since `special` may point to it until the record is complete.
            if getter.kind == TEXT_VALUE:
                length = text_length(data, length)
                if not is_ascii(data, length):
                    encoded = (<const char *>data)[:length].decode("utf-8", "replace").encode()
                    self._kept.append(encoded)
                    data = <const uint8_t *>PyBytes_AS_STRING(encoded)
                    length = PyBytes_GET_SIZE(encoded)
            if roles[i] != ATTRIBUTE and take_special(
                <Role>roles[i], plan.is_span, getter, data, length, special
            ):
                continue
            # An attribute begins with its size, so each value is measured before it is written.
            key = <bytes>plan._keys[i]
            if getter.kind == SIGNED_VALUE:
                value = <uint64_t>load_signed(data, length)
                put_attribute_head(line, tag, key, 1 + size_of(value))
                put_tagged(line, VALUE_INT, value)
            elif getter.kind == UNSIGNED_VALUE:
                value = load_unsigned(data, length)
                if value >> 63:                 # OTLP's integers are signed
                    length = 19 if value < <uint64_t>10000000000000000000u else 20
                    put_attribute_head(line, tag, key, 2 + length)
                    put_tagged(line, VALUE_STRING, length)
                    put_decimal(line, value, 0, c' ')
                else:
                    put_attribute_head(line, tag, key, 1 + size_of(value))
                    put_tagged(line, VALUE_INT, value)
            elif getter.kind == FLOAT_VALUE:
                put_attribute_head(line, tag, key, 9)
                put_double(line, load_float(data, length))
            elif getter.kind == BOOL_VALUE:
                put_attribute_head(line, tag, key, 2)
                put_tagged(line, VALUE_BOOL, data[0] != 0)
            elif getter.kind == ARRAY_VALUE:
                encoded = array_value(getter.elements, data, length)
                length = PyBytes_GET_SIZE(encoded)
                put_attribute_head(line, tag, key, 1 + size_of(length) + length)
                put_tagged(line, VALUE_ARRAY, length)
                put_bytes(line, encoded)
            elif getter.kind == TEXT_VALUE:
                put_attribute_head(line, tag, key, 1 + size_of(length) + length)
                put_tagged(line, VALUE_STRING, length)
                put(line, data, length)
            else:
                put_attribute_head(line, tag, key, 1 + size_of(length) + length)
                put_tagged(line, VALUE_BYTES, length)
                put(line, data, length)
        return 0

    cdef int _put_ids(self, Line *line, Plan plan, const Special *special) except -1:
        """The ids of trace and span; a span without a trace id gets that of its oldest known ancestor."""
        cdef uint8_t[8] id
        put_varint(line, SPAN_TRACE_ID if plan.is_span else LOG_TRACE_ID)
        put_varint(line, 16)
        if special.trace != NULL:
            put_unhex(line, special.trace, 16)
        else:
            put_bytes(line, self._trace)
            store_big(id, self._root(special.span_id, special.parent_id))
            put(line, id, 8)
        if special.span_id:
            put_varint(line, SPAN_ID if plan.is_span else LOG_SPAN_ID)
            put_varint(line, 8)
            store_big(id, special.span_id)
            put(line, id, 8)
        if special.parent_id and plan.is_span:
            put_varint(line, SPAN_PARENT)
            put_varint(line, 8)
            store_big(id, special.parent_id)
            put(line, id, 8)
        return 0

    cdef uint64_t _root(self, uint64_t span_id, uint64_t parent_id) except? 0:
        root = self._roots.get(span_id)
        if root is None:
            root = self._roots.get(parent_id, parent_id) if parent_id else span_id
            if len(self._roots) >= MOST_ROOTS:
                del self._roots[next(iter(self._roots))]
            self._roots[span_id] = root
        return root


cdef bytes CPU = message(KEY, b"cpu.logical_number")


cdef bint take_special(
    Role role, bint is_span, const Getter *getter, const uint8_t *data, size_t length, Special *special
) noexcept:
    """Whether the value has its own place; else it is an attribute."""
    cdef int64_t number = 0
    if getter.kind == SIGNED_VALUE:
        number = load_signed(data, length)
    elif getter.kind == UNSIGNED_VALUE:
        number = <int64_t>load_unsigned(data, length)
    # Numbers outside of a scale stay attributes, so that their value is not lost.
    if role == SEVERITY:
        if 1 <= number <= 24:
            special.severity = number
            return True
        return number == 0
    if role == LOGGING_LEVEL:
        if 10 <= number <= 59:
            special.severity = 1 + number // 10 * 4
        return False
    if role == HEADER_LEVEL:
        if 1 <= number <= 5:
            special.severity = LEVELS[number]
        return False
    if role == SEVERITY_TEXT:
        special.severity_text = data
        special.severity_text_size = length
    elif role == BODY:
        special.body = data
        special.body_size = length
    # Ids that are no hexadecimal digits stay attributes, too; empty ones, and a trace id of zeros, are none.
    elif role == TRACE_ID:
        if not length:
            return True
        if length != 32 or not is_hex(data, 32):
            return False
        if not load_hex(data, 16) and not load_hex(data + 16, 16):
            return True
        special.trace = data
    elif role == SPAN_ID_TEXT:
        if not length:
            return True
        if length != 16 or not is_hex(data, 16):
            return False
        special.span_id = load_hex(data, 16)
    elif role == SPAN_ID_NUMBER:
        special.span_id = <uint64_t>number
    elif role == PARENT_ID:
        special.parent_id = <uint64_t>number
        return is_span
    elif role == DURATION:
        special.duration = <uint64_t>number
    elif role == ERROR_TEXT:
        special.error = data
        special.error_size = length
    elif role == SPAN_NAME_TEXT:
        special.name = data
        special.name_size = length
    return True


cdef inline uint64_t unix_time(uint64_t ns, uint64_t offset) noexcept:
    """0 (in OTLP: unknown) for times before 1970 and after 2262, which no clock has but a program can
    write."""
    return 0 if ns >> 63 or (ns + offset) >> 63 else ns + offset


cdef int put_span(Line *line, Plan plan, const Special *special, uint64_t ns) except -1:
    """A record of its end."""
    if special.name_size:
        put_text(line, SPAN_NAME, special.name, special.name_size)
    else:
        put_bytes(line, plan._name)
    put_tagged(line, SPAN_KIND, INTERNAL)
    put_fixed64(line, SPAN_BEGIN, ns - min(special.duration, ns))
    put_fixed64(line, SPAN_END, ns)
    if special.error_size:
        put_varint(line, SPAN_STATUS)
        put_varint(line, 2 + 1 + size_of(special.error_size) + special.error_size)
        put_tagged(line, STATUS_CODE, ERROR)
        put_text(line, STATUS_MESSAGE, special.error, special.error_size)
    return 0


cdef inline void put_attribute_head(Line *line, int tag, bytes key, size_t value_size) noexcept:
    put_varint(line, tag)
    put_varint(line, len(key) + 1 + size_of(value_size) + value_size)
    put_bytes(line, key)
    put_tagged(line, VALUE, value_size)


cdef bytes array_value(Elements elements, const uint8_t *data, size_t length):
    cdef list values = []
    for one in elements_of(elements, data, length):
        if isinstance(one, bool):
            value = tagged(VALUE_BOOL, one)
        elif isinstance(one, float):
            value = varint(VALUE_DOUBLE) + struct.pack("<d", one)
        elif one >> 63 > 0:
            value = message(VALUE_STRING, b"%d" % one)
        else:
            value = tagged(VALUE_INT, one & 0xFFFF_FFFF_FFFF_FFFF)
        values.append(message(ARRAY_VALUES, value))
    return b"".join(values)


cdef inline void put_fixed64(Line *line, int tag, uint64_t value) noexcept nogil:
    put_varint(line, tag)
    put(line, &value, 8)


cdef inline void put_double(Line *line, double value) noexcept nogil:
    put_varint(line, VALUE_DOUBLE)
    put(line, &value, 8)


cdef inline void put_text(Line *line, int tag, const uint8_t *text, size_t size) noexcept nogil:
    put_tagged(line, tag, size)
    put(line, text, size)


cdef inline void put_body(Line *line, const uint8_t *text, size_t size) noexcept nogil:
    put_tagged(line, LOG_BODY, 1 + size_of(size) + size)
    put_text(line, VALUE_STRING, text, size)


cdef inline int digit(uint8_t c) noexcept nogil:
    """-1: it is none."""
    if c'0' <= c <= c'9':
        return c - c'0'
    c |= 0x20
    return c - c'a' + 10 if c'a' <= c <= c'f' else -1


cdef bint is_hex(const uint8_t *text, size_t size) noexcept nogil:
    cdef size_t i
    for i in range(size):
        if digit(text[i]) < 0:
            return False
    return True


cdef uint64_t load_hex(const uint8_t *text, size_t size) noexcept nogil:
    cdef size_t i
    cdef uint64_t value = 0
    for i in range(size):
        value = value << 4 | <uint64_t>digit(text[i])
    return value


cdef void put_unhex(Line *line, const uint8_t *text, size_t size) noexcept nogil:
    cdef size_t i
    for i in range(size):
        put_char(line, <char>(digit(text[2 * i]) << 4 | digit(text[2 * i + 1])))


cdef void store_big(uint8_t *to, uint64_t value) noexcept nogil:
    cdef int i
    for i in range(8):
        to[i] = <uint8_t>(value >> (56 - 8 * i))


cpdef bytes attribute(int tag, str key, value: int | float | str):
    """An attribute that is not of each record. A text, unless it is an integer of 64 bits."""
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        packed = tagged(VALUE_INT, value & 0xFFFF_FFFF_FFFF_FFFF)
    else:
        packed = message(VALUE_STRING, utf8(str(value)))
    return message(tag, message(KEY, utf8(key)) + message(VALUE, packed))
