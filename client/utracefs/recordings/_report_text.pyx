# cython: boundscheck=False, wraparound=False, cdivision=True
"""The lines of a report: thread, cpu and time, then the fields printed by an EventPrinter.

    [buffer: ]           comm-pid   [cpu] seconds.fraction: event:      fields

Texts of the last threads are cached, and the printers of all events. If a line does not fit, the buffer is
doubled and the line printed again. A file may demand lines of any length (many fields may refer to the same
64 KiB), so one that takes more than LONGEST becomes `[LINE TOO BIG]`, as in the daemon's text.
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t, UINT64_MAX
from libc.string cimport memcpy, memset

from utracefs.recordings._output_buffer cimport Pieces, put_bytes
from utracefs.recordings._records cimport HEADER, Raw, passes
from utracefs.recordings.trace_dat._merge cimport Merge, Stream
from utracefs_protocol._event_printer cimport EventPrinter
from utracefs_protocol._line cimport Line, put, put_char, put_decimal
from utracefs_protocol.filter._program cimport Filter

cdef enum:
    LINE_ROOM = 4 << 10     # kept free for a line
    LONGEST = 16 << 20      # limit of a piece's buffer; records of the kernel have 64 KiB at most
    SLOTS = 256             # threads and events found without a dict; a power of two
    NS = 1000000000

cdef struct TaskSlot:
    int32_t pid
    void *text              # borrowed from ReportText._tasks; NULL: none yet

cdef struct EventSlot:
    uint16_t id
    bint known
    void *label             # borrowed from ReportText._events; NULL: this event is not printed
    void *printer
    void *filter            # NULL: all records


cdef class ReportText(Pieces):
    """The lines of a Merge's records, in pieces of whole lines.

    merge: whose `buffer` is an index into the next two.
    prefixes: by buffer, the prefix of its lines.
    in_ns: by buffer, whether its clock counts nanoseconds.
    printer: event id to (label, EventPrinter, Filter or None), None for an event that is not printed.
    Called once per id.
    task: pid to the text about the thread, up to the cpu.
    offset_ns: added to all times.
    full_ns: all nine digits of the time.
    comms: thread id to name, for filters.
    since, until: only records from the first time on, before the second; without offset_ns.
    pids: only records of these threads; None: all.
    """

    cdef Merge _merge
    cdef list _prefixes
    cdef list _in_ns
    cdef object _find_printer
    cdef object _find_task
    cdef uint64_t _offset
    cdef uint64_t _since
    cdef uint64_t _until
    cdef object _pids
    cdef bint _full_ns
    cdef dict _comms
    cdef list _tasks
    cdef dict _events
    cdef TaskSlot _task_slots[SLOTS]
    cdef EventSlot _event_slots[SLOTS]

    def __cinit__(
        self, Merge merge not None, list prefixes, list in_ns, printer, task, *, offset_ns=0,
        bint full_ns=False, dict comms not None={}, since=0, until=UINT64_MAX, pids=None
    ):
        self._merge = merge
        self._prefixes = prefixes
        self._in_ns = in_ns
        self._find_printer = printer
        self._find_task = task
        self._offset = offset_ns & 0xFFFF_FFFF_FFFF_FFFF
        self._full_ns = full_ns
        self._comms = comms
        self._since = min(since, <uint64_t>UINT64_MAX)
        self._pids = pids
        self._until = min(until, <uint64_t>UINT64_MAX)
        self._tasks = [None] * SLOTS
        self._events = {}
        memset(self._task_slots, 0, sizeof(self._task_slots))
        memset(self._event_slots, 0, sizeof(self._event_slots))

    cdef int _fill(self, size_t max_bytes) except -1:
        cdef Stream *stream
        while self._used < max_bytes:
            stream = self._merge.next()
            if stream == NULL:
                break
            if self._since <= stream.page.ts < self._until:
                self._append(stream)
        return 0

    cdef int _append(self, const Stream *stream) except -1:
        """Print a record, and before it the line about lost ones."""
        cdef const uint8_t *data = stream.page.page + stream.page.data
        cdef size_t size = stream.page.length
        cdef EventSlot *event = NULL
        cdef TaskSlot *task = NULL
        cdef Line line
        cdef uint16_t id
        cdef int32_t pid
        if size >= HEADER:
            memcpy(&id, data, 2)
            memcpy(&pid, data + 4, 4)
            event = self._event(id)
            if event.label == NULL:
                event = NULL
            elif self._pids is not None and pid not in self._pids:
                event = NULL
            elif event.filter != NULL and not self._passes(<Filter>event.filter, stream):
                event = NULL
            else:
                task = self._task(pid)
        if event == NULL and not stream.lost:
            return 0
        if self._used + LINE_ROOM > self._capacity:
            self._grow()
        while True:
            line.start = line.p = self._text + self._used
            line.end = self._text + self._capacity
            line.full = False
            if stream.lost:
                self._put_lost(&line, stream)
            if event != NULL:
                put_bytes(&line, <bytes>self._prefixes[stream.buffer])
                put_bytes(&line, <bytes>task.text)
                put_decimal(&line, stream.cpu, 3, c'0')
                put_char(&line, c']')
                self._put_stamp(&line, stream)
                put_bytes(&line, <bytes>event.label)
                (<EventPrinter>event.printer).put(&line, data, size)
                put_char(&line, c'\n')
            if not line.full:
                break
            if self._capacity > LONGEST:
                line.p = line.start
                put(&line, b"[LINE TOO BIG]\n", 15)
                break
            self._grow()
        self._used = line.p - self._text
        return 0

    cdef bint _passes(self, Filter filter, const Stream *stream) except -1:
        cdef Raw raw
        raw.time_ns = stream.page.ts + self._offset
        raw.cpu = stream.cpu
        raw.entry = stream.page.page + stream.page.data
        raw.size = stream.page.length
        memcpy(&raw.tid, raw.entry + 4, 4)
        raw.pid = raw.tid
        return passes(filter, &raw, self._comms)

    cdef int _put_lost(self, Line *line, const Stream *stream) except -1:
        put_bytes(line, <bytes>self._prefixes[stream.buffer])
        put(line, b"CPU:", 4)
        put_decimal(line, stream.cpu, 0, c' ')
        put(line, b" [", 2)
        if stream.lost > 0:
            put_decimal(line, stream.lost, 0, c' ')
            put_char(line, c' ')
        put(line, b"EVENTS DROPPED]\n", 16)
        return 0

    cdef int _put_stamp(self, Line *line, const Stream *stream) except -1:
        """print_event_time() of libtraceevent's event-parse.c."""
        cdef uint64_t ts = stream.page.ts + self._offset
        if not self._in_ns[stream.buffer]:
            put_decimal(line, ts, 12, c' ')
        else:
            put_char(line, c' ')
            if not self._full_ns:
                ts = (ts + 500) // 1000 * 1000
            put_decimal(line, ts // NS, 5, c' ')
            put_char(line, c'.')
            if self._full_ns:
                put_decimal(line, ts % NS, 9, c'0')
            else:
                put_decimal(line, ts % NS // 1000, 6, c'0')
        put(line, b": ", 2)
        return 0

    cdef EventSlot *_event(self, uint16_t id) except NULL:
        cdef EventSlot *slot = &self._event_slots[id & (SLOTS - 1)]
        if slot.known and slot.id == id:
            return slot
        if id not in self._events:
            self._events[id] = self._find_printer(id)
        found = self._events[id]
        slot.known = True
        slot.id = id
        slot.label = slot.printer = slot.filter = NULL
        if found is not None:
            slot.label = <void *><bytes?>found[0]
            slot.printer = <void *><EventPrinter?>found[1]
            slot.filter = NULL if found[2] is None else <void *><Filter?>found[2]
        return slot

    cdef TaskSlot *_task(self, int32_t pid) except NULL:
        cdef TaskSlot *slot = &self._task_slots[<uint32_t>pid & (SLOTS - 1)]
        if slot.text != NULL and slot.pid == pid:
            return slot
        text = <bytes?>self._find_task(pid)
        self._tasks[<uint32_t>pid & (SLOTS - 1)] = text
        slot.pid = pid
        slot.text = <void *>text
        return slot
