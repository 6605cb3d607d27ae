# cython: boundscheck=False, wraparound=False
"""Records as objects of Chrome JSON, each preceded by `,` and a newline; see `chrome`."""

from functools import partial

from libc.stdint cimport int32_t, uint64_t

from utracefs.recordings._output_buffer cimport put_bytes
from utracefs.recordings._records cimport EventDecoder, NameCache, Raw
from utracefs.export._json_text cimport json_keys, put_fields
from utracefs.export.timelines._placing cimport PROCESS_TRACK, THREAD_TRACK, Track
from utracefs.export.timelines._track_writer cimport *
from utracefs_protocol.events._line cimport Line, put_char, put_decimal, put_float, put_signed

from utracefs.export._json_text import as_json
#: from utracefs.recordings._records import Records
#: from utracefs.export.timelines.tracks import Tracks



cdef class _EventText:
    """The constant parts of an event's objects."""

    cdef bytes point          # ,\n{"ph":"i","s":"t","cat":"...","name":"...","pid":
    cdef bytes category       # "..."
    cdef list keys            # of the fields
    cdef bytes cpu            # "cpu":
    cdef bytes tid
    cdef bytes pid
    cdef bytes instance
    cdef bytes end            # {"end":{


cdef class ChromeText(TrackWriter):
    """tracks: a Tracks."""

    cdef NameCache _cache

    def __init__(self, records: Records, tracks: Tracks):
        super().__init__(records, tracks)
        self._cache = NameCache(partial(as_json, ascii=False))

    cdef object text_of_event(self, EventDecoder event, EventPlan plan):
        cdef _EventText text = _EventText.__new__(_EventText)
        text.category = self._cache.of(event.system)
        text.point = b',\n{"ph":"i","s":"t","cat":%s,"name":%s,"pid":' % (
            text.category, self._cache.of(event.name)
        )
        text.keys = json_keys(plan.names, False)
        text.cpu = self._cache.of(plan.cpu) + b":"
        text.tid = self._cache.of(plan.tid) + b":"
        text.pid = self._cache.of(plan.pid) + b":"
        text.instance = self._cache.of(plan.instance) + b":"
        text.end = b'{%s:{' % self._cache.of(plan.end)
        return text

    cdef int put_record(self, Line *line, EventDecoder event, const Raw *raw, bint with_fields) except -1:
        cdef _EventText text = self.plan.text
        cdef Track track
        for track in self.new:
            if track.kind == PROCESS_TRACK or track.kind == THREAD_TRACK:
                self._put_name(line, track)
        if raw.lost:
            self._put_lost(line, raw)
        if self.parts is not None:
            for part in self.parts:
                self._put_part(line, event, text, part, raw, with_fields)
            return 0
        put_bytes(line, text.point)
        self._put_where(line, raw.pid, raw.tid)
        put_bytes(line, b',"ts":')
        put_us(line, raw.time_ns)
        put_bytes(line, b',"args":{')
        self._put_arguments(line, event, text, raw, with_fields, False)
        put_bytes(line, b"}}")
        return 0

    cdef int _put_part(
        self, Line *line, EventDecoder event, _EventText text, Part part, const Raw *raw, bint with_fields
    ) except -1:
        cdef bytes name = self._cache.of(part.name)
        cdef bint is_end = part.kind == END_PART
        with_fields = with_fields and not part.bare
        if part.kind == COUNT_PART:
            put_bytes(line, b',\n{"ph":"C","name":')
            put_bytes(line, name)
            put_bytes(line, b',"pid":')
            put_signed(line, raw.pid)
            put_bytes(line, b',"ts":')
            put_us(line, part.begin_ns)
            put_bytes(line, b',"args":{"value":')
            # Readers have signed 64 bit, and doubles where there is an exponent.
            if isinstance(part.value, float):
                put_float(line, part.value)
            else:
                put_bytes(line, (b"%d" if part.value < 1 << 63 else b"%.17e") % part.value)
            put_bytes(line, b"}}")
            return 0
        # Spans of a thread that overlap are on tracks of their own, which Chrome only has for asynchronous
        # events (b, e).
        if part.kind == POINT_PART:
            put_bytes(line, b',\n{"ph":"i","s":"t"')
        elif part.kind == SPAN_PART and part.on_thread:
            put_bytes(line, b',\n{"ph":"X","dur":')
            put_us(line, part.end_ns - part.begin_ns)
        else:
            put_bytes(line, b',\n{"ph":"e"' if is_end else b',\n{"ph":"b"')
            put_bytes(line, b',"id2":{"local":"')
            put_decimal(line, part.track.number, 0, c' ')
            put_bytes(line, b'"}')
        put_bytes(line, b',"cat":')
        put_bytes(line, text.category if part.system is None else self._cache.of(part.system))
        put_bytes(line, b',"name":')
        put_bytes(line, name)
        put_bytes(line, b',"pid":')
        self._put_where(line, part.track.pid if is_end else raw.pid, raw.tid)
        put_bytes(line, b',"ts":')
        put_us(line, part.begin_ns)
        put_bytes(line, b',"args":')
        if is_end:
            put_bytes(line, text.end)
        else:
            put_char(line, c'{')
        self._put_arguments(line, event, text, raw, with_fields, part.kind == BEGIN_PART or is_end)
        # An end belongs to the process of its begin; the record's own process is an argument then.
        if is_end:
            if raw.pid != part.track.pid:
                put_char(line, c',')
                put_bytes(line, text.pid)
                put_signed(line, raw.pid)
            put_char(line, c'}')
        put_bytes(line, b"}}")
        # (X exists for threads alone: such a span needs its end, too.)
        if part.kind == SPAN_PART and not part.on_thread:
            put_bytes(line, b',\n{"ph":"e","id2":{"local":"')
            put_decimal(line, part.track.number, 0, c' ')
            put_bytes(line, b'"},"cat":')
            put_bytes(line, text.category)
            put_bytes(line, b',"name":')
            put_bytes(line, name)
            put_bytes(line, b',"pid":')
            self._put_where(line, raw.pid, raw.tid)
            put_bytes(line, b',"ts":')
            put_us(line, part.end_ns)
            put_char(line, c'}')
        return 0

    cdef int _put_arguments(
        self, Line *line, EventDecoder event, _EventText text, const Raw *raw, bint with_fields,
        bint with_thread
    ) except -1:
        """with_thread: name the thread if the object is not on its track."""
        if with_fields and event.count:
            put_fields(line, event, text.keys, raw, True)
            put_char(line, c',')
        put_bytes(line, text.cpu)
        put_decimal(line, raw.cpu, 0, c' ')
        if with_thread:
            put_char(line, c',')
            put_bytes(line, text.tid)
            put_signed(line, raw.tid)
        if self.instance:
            put_char(line, c',')
            put_bytes(line, text.instance)
            put_bytes(line, self._cache.of(self.instance))
        return 0

    cdef int _put_where(self, Line *line, int32_t pid, int32_t tid) except -1:
        put_signed(line, pid)
        put_bytes(line, b',"tid":')
        put_signed(line, tid)
        return 0

    cdef int _put_lost(self, Line *line, const Raw *raw) except -1:
        put_bytes(line, b',\n{"ph":"i","s":"g","cat":"utracefs","name":"lost records","pid":')
        self._put_where(line, raw.pid, raw.tid)
        put_bytes(line, b',"ts":')
        put_us(line, raw.time_ns)
        put_bytes(line, b',"args":{"number":')
        if raw.lost > 0:
            put_decimal(line, raw.lost, 0, c' ')
        else:
            put_bytes(line, b'"not counted"')
        put_bytes(line, b"}}")
        return 0

    cdef int _put_name(self, Line *line, Track track) except -1:
        if track.kind == PROCESS_TRACK:
            put_bytes(line, b',\n{"ph":"M","name":"process_name","pid":')
            put_signed(line, track.pid)
        else:
            put_bytes(line, b',\n{"ph":"M","name":"thread_name","pid":')
            self._put_where(line, track.pid, track.tid)
        put_bytes(line, b',"args":{"name":')
        put_bytes(line, self._cache.of(track.name))
        put_bytes(line, b"}}")
        return 0


cdef inline int put_us(Line *line, uint64_t ns) except -1:
    """Microseconds with three decimals."""
    put_decimal(line, ns // 1000, 0, c' ')
    put_char(line, c'.')
    put_decimal(line, ns % 1000, 3, c'0')
    return 0
