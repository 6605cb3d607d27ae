# cython: boundscheck=False, wraparound=False
"""Records as packets of a Perfetto trace; `perfetto` explains them.
"""

import struct

from libc.stdint cimport int64_t, uint8_t, uint64_t

from utracefs.recordings._output_buffer cimport put_bytes
from utracefs.recordings._records cimport *
from utracefs.export._protobuf cimport *
from utracefs.export.timelines._placing cimport COUNTER_TRACK, PROCESS_TRACK, THREAD_TRACK, Track
from utracefs.export.timelines._track_writer cimport *
from utracefs_protocol.events._fields cimport elements_text, find_bytes
from utracefs_protocol.events._line cimport (
    Line, load_float, load_signed, load_unsigned, put, put_char, put_decimal, put_hex_pairs
)
#: from utracefs.recordings._records import Records
#: from utracefs.export.timelines.tracks import Tracks


# Names and numbers are those of protos/perfetto/trace, which `tests/client/export/perfetto_reader.py` reads,
# too. A tag is number << 3 | type.
cdef enum:
    TRACE_PACKET = 1 << 3 | BYTES

    PACKET_CLOCK_SNAPSHOT = 6 << 3 | BYTES
    PACKET_TIMESTAMP = 8 << 3 | VARINT
    PACKET_SEQUENCE = 10 << 3 | VARINT
    PACKET_TRACK_EVENT = 11 << 3 | BYTES
    PACKET_INTERNED = 12 << 3 | BYTES
    PACKET_FLAGS = 13 << 3 | VARINT
    PACKET_DEFAULTS = 59 << 3 | BYTES
    PACKET_TRACK = 60 << 3 | BYTES

    FLAG_CLEARED = 1        # interned data before are invalid
    FLAG_NEEDED = 2         # interned data are needed

    SNAPSHOT_CLOCK = 1 << 3 | BYTES
    SNAPSHOT_PRIMARY = 2 << 3 | VARINT
    CLOCK_ID = 1 << 3 | VARINT
    CLOCK_TIMESTAMP = 2 << 3 | VARINT
    CLOCK_REALTIME = 1  # of BuiltinClock
    DEFAULTS_CLOCK = 58 << 3 | VARINT

    TRACK_UUID = 1 << 3 | VARINT
    TRACK_NAME = 2 << 3 | BYTES
    TRACK_PROCESS = 3 << 3 | BYTES
    TRACK_THREAD = 4 << 3 | BYTES
    TRACK_PARENT = 5 << 3 | VARINT
    TRACK_COUNTER = 8 << 3 | BYTES
    PROCESS_PID = 1 << 3 | VARINT
    PROCESS_NAME = 6 << 3 | BYTES
    THREAD_PID = 1 << 3 | VARINT
    THREAD_TID = 2 << 3 | VARINT
    THREAD_NAME = 5 << 3 | BYTES

    EVENT_CATEGORY = 3 << 3 | VARINT
    EVENT_ANNOTATION = 4 << 3 | BYTES
    EVENT_TYPE = 9 << 3 | VARINT
    EVENT_NAME = 10 << 3 | VARINT
    EVENT_TRACK = 11 << 3 | VARINT
    EVENT_COUNTER = 30 << 3 | VARINT
    EVENT_DOUBLE_COUNTER = 44 << 3 | FIXED64

    TYPE_SLICE_BEGIN = 1
    TYPE_SLICE_END = 2
    TYPE_INSTANT = 3
    TYPE_COUNTER = 4

    ANNOTATION_NAME = 1 << 3 | VARINT
    ANNOTATION_BOOL = 2 << 3 | VARINT
    ANNOTATION_UINT = 3 << 3 | VARINT
    ANNOTATION_INT = 4 << 3 | VARINT
    ANNOTATION_DOUBLE = 5 << 3 | FIXED64
    ANNOTATION_STRING = 6 << 3 | BYTES
    ANNOTATION_MEMBER = 11 << 3 | BYTES

    INTERNED_CATEGORY = 1 << 3 | BYTES
    INTERNED_EVENT = 2 << 3 | BYTES
    INTERNED_ANNOTATION = 3 << 3 | BYTES
    INTERNED_ID = 1 << 3 | VARINT
    INTERNED_TEXT = 2 << 3 | BYTES


cdef class _EventText:
    """Tags and ids in the packet."""

    cdef bytes category           # may be empty
    cdef bytes name
    cdef list fields              # of each: its name as ANNOTATION_NAME and id
    cdef bytes cpu
    cdef bytes tid
    cdef bytes pid
    cdef bytes instance
    cdef bytes end


cdef class PerfettoPackets(TrackWriter):
    """tracks: a Tracks. clock: id of the recording's clock. unix_offset_ns: offset from its times to times of
    day; None: unknown."""

    cdef uint64_t _clock
    cdef object _unix_offset_ns
    cdef bint _begun
    cdef dict _ids                # (tag, text) to id
    cdef list _interned           # packets that intern what the record at hand needs

    def __init__(self, records: Records, tracks: Tracks, clock: int, unix_offset_ns: int | None = None):
        super().__init__(records, tracks)
        self._clock = clock
        self._unix_offset_ns = unix_offset_ns
        self._ids = {}
        self._interned = []

    def head(self) -> bytes:
        """The beginning of a file without records."""
        return b"" if self._begun else self._head(0)

    cdef int prepare(self, EventDecoder event, const Raw *raw) except -1:
        cdef Part part
        self._interned.clear()
        if not self._begun:
            self._begun = True
            self._interned.append(self._head(raw.time_ns))
        TrackWriter.prepare(self, event, raw)
        if raw.lost:
            self._id(INTERNED_EVENT, "lost records")
            self._id(INTERNED_CATEGORY, "utracefs")
            self._id(INTERNED_ANNOTATION, "number")
        if self.parts is not None:
            for part in self.parts:
                if part.kind == BEGIN_PART or part.kind == SPAN_PART:
                    self._id(INTERNED_EVENT, part.name)
        return 0

    cdef object text_of_event(self, EventDecoder event, EventPlan plan):
        cdef _EventText text = _EventText.__new__(_EventText)
        text.category = b""
        if event.system:
            text.category = tagged(EVENT_CATEGORY, self._id(INTERNED_CATEGORY, event.system))
        text.name = tagged(EVENT_NAME, self._id(INTERNED_EVENT, event.name))
        text.fields = [self._annotation(name) for name in plan.names]
        text.cpu = self._annotation(plan.cpu)
        text.tid = self._annotation(plan.tid)
        text.pid = self._annotation(plan.pid)
        text.instance = self._annotation(plan.instance)
        text.end = self._annotation(plan.end)
        return text

    cdef int put_record(self, Line *line, EventDecoder event, const Raw *raw, bint with_fields) except -1:
        cdef _EventText text = self.plan.text
        cdef Track track
        for packet in self._interned:
            put_bytes(line, packet)
        for track in self.new:
            put_bytes(line, descriptor(track))
        if raw.lost:
            self._put_lost(line, raw)
        if self.parts is None:
            self._put_event(
                line, event, text, text.name, TYPE_INSTANT, self.thread.track.number, raw.time_ns, raw,
                with_fields
            )
        else:
            for part in self.parts:
                self._put_part(line, event, text, part, raw, with_fields)
        return 0

    cdef int _put_part(
        self, Line *line, EventDecoder event, _EventText text, Part part, const Raw *raw, bint with_fields
    ) except -1:
        cdef bytes name = text.name
        cdef size_t packet, body
        with_fields = with_fields and not part.bare
        if part.kind == BEGIN_PART or part.kind == SPAN_PART:
            name = tagged(EVENT_NAME, self._id(INTERNED_EVENT, part.name))
        if part.kind == POINT_PART:
            self._put_event(
                line, event, text, name, TYPE_INSTANT, part.track.number, part.begin_ns, raw, with_fields
            )
        elif part.kind == BEGIN_PART or part.kind == SPAN_PART:
            self._put_event(
                line, event, text, name, TYPE_SLICE_BEGIN, part.track.number, part.begin_ns, raw, with_fields,
                part.kind == BEGIN_PART
            )
        elif part.kind == END_PART:
            self._put_event(
                line, event, text, b"", TYPE_SLICE_END, part.track.number, part.begin_ns, raw, with_fields,
                True, raw.pid != part.track.pid
            )
        if part.kind == SPAN_PART:
            packet, body = begin_event(line, part.end_ns, TYPE_SLICE_END, part.track.number)
            end_event(line, packet, body)
        elif part.kind == COUNT_PART:
            packet, body = begin_event(line, part.begin_ns, TYPE_COUNTER, part.track.number)
            if isinstance(part.value, int) and part.value < 1 << 63:
                put_tagged(line, EVENT_COUNTER, <uint64_t><int64_t>part.value)
            else:
                put_varint(line, EVENT_DOUBLE_COUNTER)
                put_bytes(line, struct.pack("<d", part.value))
            end_event(line, packet, body)
        return 0

    cdef int _put_event(
        self, Line *line, EventDecoder event, _EventText text, bytes name, int type, uint64_t track,
        uint64_t ns, const Raw *raw, bint with_fields, bint with_thread=False, bint with_process=False
    ) except -1:
        """with_thread, with_process: name these if the event is not on the thread's track."""
        cdef size_t packet, body, all_members = 0
        cdef int tag = EVENT_ANNOTATION
        packet, body = begin_event(line, ns, type, track)
        if type != TYPE_SLICE_END:
            put_bytes(line, text.category)
            put_bytes(line, name)
        else:
            put_varint(line, EVENT_ANNOTATION)
            all_members = begin_message(line)
            put_bytes(line, text.end)
            tag = ANNOTATION_MEMBER
        if with_fields:
            self._put_fields(line, event, text.fields, raw, tag)
        put_number(line, tag, text.cpu, ANNOTATION_UINT, raw.cpu)
        if with_thread:
            put_number(line, tag, text.tid, ANNOTATION_INT, <uint64_t><int64_t>raw.tid)
        if with_process:
            put_number(line, tag, text.pid, ANNOTATION_INT, <uint64_t><int64_t>raw.pid)
        if self.instance:
            put_text(line, tag, text.instance, utf8(self.instance))
        if type == TYPE_SLICE_END:
            end_message(line, all_members)
        end_event(line, packet, body)
        return 0

    cdef int _put_fields(
        self, Line *line, EventDecoder event, list names, const Raw *raw, int tag
    ) except -1:
        cdef const uint8_t *data = NULL
        cdef size_t length = 0
        cdef uint64_t value
        cdef Py_ssize_t i
        cdef size_t message
        cdef Getter *getter
        cdef bytes name, text
        for i in range(event.count):
            if line.full:
                break
            getter = &event.getters[i]
            name = <bytes>names[i]
            find_bytes(&getter.place, raw.entry, raw.size, &data, &length)
            if getter.kind == SIGNED_VALUE:
                put_number(line, tag, name, ANNOTATION_INT, <uint64_t>load_signed(data, length))
            elif getter.kind == UNSIGNED_VALUE:
                value = load_unsigned(data, length)
                if value >> 63:
                    put_digits(line, tag, name, value)
                else:
                    put_number(line, tag, name, ANNOTATION_UINT, value)
            elif getter.kind == FLOAT_VALUE:
                put_double(line, tag, name, load_float(data, length))
            elif getter.kind == BOOL_VALUE:
                put_number(line, tag, name, ANNOTATION_BOOL, data[0] != 0)
            elif getter.kind == ARRAY_VALUE:
                put_text(line, tag, name, elements_text(getter.elements, data, length))
            elif getter.kind == TEXT_VALUE:
                length = text_length(data, length)
                if is_ascii(data, length):
                    put_string_head(line, tag, name, length)
                    put(line, data, length)
                else:
                    text = (<const char *>data)[:length].decode("utf-8", "replace").encode()
                    put_text(line, tag, name, text)
            else:
                put_string_head(line, tag, name, 2 * length)
                put_hex_pairs(line, data, length)
        return 0

    cdef int _put_lost(self, Line *line, const Raw *raw) except -1:
        cdef size_t packet, body
        cdef bytes number = self._annotation("number")
        packet, body = begin_event(line, raw.time_ns, TYPE_INSTANT, self.lost.number)
        put_tagged(line, EVENT_CATEGORY, self._id(INTERNED_CATEGORY, "utracefs"))
        put_tagged(line, EVENT_NAME, self._id(INTERNED_EVENT, "lost records"))
        if raw.lost > 0:
            put_number(line, EVENT_ANNOTATION, number, ANNOTATION_UINT, raw.lost)
        else:
            put_text(line, EVENT_ANNOTATION, number, b"not counted")
        end_event(line, packet, body)
        return 0

    cdef bytes _annotation(self, str name):
        return tagged(ANNOTATION_NAME, self._id(INTERNED_ANNOTATION, name))

    cdef uint64_t _id(self, int tag, str text) except 0:
        """The id of a name; a new one is interned in front of the present record."""
        cdef bytes entry
        found = self._ids.get((tag, text))
        if found is None:
            found = self._ids[tag, text] = len(self._ids) + 1
            entry = tagged(INTERNED_ID, found) + message(INTERNED_TEXT, utf8(text))
            self._interned.append(
                message(TRACE_PACKET, SEQUENCE + message(PACKET_INTERNED, message(tag, entry)))
            )
        return found

    cdef bytes _head(self, uint64_t ns):
        """The clock snapshot: sets the clock of this sequence's records, and that of the displayed trace."""
        snapshot = message(SNAPSHOT_CLOCK, tagged(CLOCK_ID, self._clock) + tagged(CLOCK_TIMESTAMP, ns))
        if self._unix_offset_ns is not None and self._clock != CLOCK_REALTIME:
            unix_ns = <uint64_t>((ns + self._unix_offset_ns) & 0xFFFF_FFFF_FFFF_FFFF)
            snapshot += message(SNAPSHOT_CLOCK, tagged(CLOCK_ID, CLOCK_REALTIME) + tagged(CLOCK_TIMESTAMP,
            unix_ns))
        snapshot += tagged(SNAPSHOT_PRIMARY, self._clock)
        defaults = tagged(DEFAULTS_CLOCK, self._clock)
        return b"".join(
            message(TRACE_PACKET, FIRST_OF_SEQUENCE + part)
            for part in (message(PACKET_CLOCK_SNAPSHOT, snapshot), message(PACKET_DEFAULTS, defaults))
        )


cdef bytes SEQUENCE = tagged(PACKET_SEQUENCE, 1) + tagged(PACKET_FLAGS, FLAG_NEEDED)
cdef bytes FIRST_OF_SEQUENCE = tagged(PACKET_SEQUENCE, 1) + tagged(PACKET_FLAGS, FLAG_CLEARED)


cdef bytes descriptor(Track track):
    """Write the packet that describes a track."""
    cdef bytes name = utf8(track.name)
    cdef bytes pid = tagged(PROCESS_PID, <uint64_t><int64_t>track.pid)
    cdef bytes about = tagged(TRACK_UUID, track.number)
    if track.parent is not None:
        about += tagged(TRACK_PARENT, track.parent.number)
    if track.kind == PROCESS_TRACK:
        about += message(TRACK_PROCESS, pid + message(PROCESS_NAME, name))
    elif track.kind == THREAD_TRACK:
        tid = tagged(THREAD_TID, <uint64_t><int64_t>track.tid)
        about += message(TRACK_THREAD, pid + tid + message(THREAD_NAME, name))
    else:
        about += message(TRACK_NAME, name)
        if track.kind == COUNTER_TRACK:
            about += message(TRACK_COUNTER, b"")
    return message(TRACE_PACKET, SEQUENCE + message(PACKET_TRACK, about))


cdef inline (size_t, size_t) begin_event(Line *line, uint64_t ns, int type, uint64_t track) noexcept nogil:
    cdef size_t packet, body
    put_varint(line, TRACE_PACKET)
    packet = begin_message(line)
    put_tagged(line, PACKET_TIMESTAMP, ns)
    put_tagged(line, PACKET_SEQUENCE, 1)
    put_tagged(line, PACKET_FLAGS, FLAG_NEEDED)
    put_varint(line, PACKET_TRACK_EVENT)
    body = begin_message(line)
    put_tagged(line, EVENT_TYPE, type)
    put_tagged(line, EVENT_TRACK, track)
    return packet, body


cdef inline void end_event(Line *line, size_t packet, size_t body) noexcept nogil:
    end_message(line, body)
    end_message(line, packet)


cdef inline void put_number(Line *line, int tag, bytes name, int kind, uint64_t value) noexcept:
    """An annotation. All of it is less than 128 bytes."""
    put_varint(line, tag)
    put_varint(line, len(name) + 1 + size_of(value))
    put_bytes(line, name)
    put_tagged(line, kind, value)


cdef inline void put_double(Line *line, int tag, bytes name, double value) noexcept:
    put_varint(line, tag)
    put_varint(line, len(name) + 1 + sizeof(value))
    put_bytes(line, name)
    put_varint(line, ANNOTATION_DOUBLE)
    put(line, &value, sizeof(value))


cdef inline void put_string_head(Line *line, int tag, bytes name, size_t size) noexcept:
    put_varint(line, tag)
    put_varint(line, len(name) + 1 + size_of(size) + size)
    put_bytes(line, name)
    put_tagged(line, ANNOTATION_STRING, size)


cdef inline void put_text(Line *line, int tag, bytes name, bytes text) noexcept:
    put_string_head(line, tag, name, len(text))
    put_bytes(line, text)


cdef inline void put_digits(Line *line, int tag, bytes name, uint64_t value) noexcept:
    """Length of a number from 2^63 on: 19 digits, or 20."""
    put_string_head(line, tag, name, 19 if value < <uint64_t>10000000000000000000u else 20)
    put_decimal(line, value, 0, c' ')
