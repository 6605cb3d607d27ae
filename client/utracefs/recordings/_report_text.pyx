# cython: boundscheck=False, wraparound=False, cdivision=True
"""The lines of a report: thread, cpu and time, then the fields printed by an EventPrinter.

    [buffer: ]           comm-pid   [cpu] seconds.fraction: event:      fields

Texts of the last threads are cached, and the printers of all events. A line without its fields (see
`_output_buffer`) is `[LINE TOO BIG]`, as in the daemon's text.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memset

from utracefs.recordings._output_buffer cimport RecordWriter, put_bytes
from utracefs.recordings._records cimport NR_SLOTS, EventDecoder, Raw, Records, event_key, slot_of
from utracefs_protocol.events._event_printer cimport EventPrinter
from utracefs_protocol.events._line cimport Line, put, put_char, put_decimal

cdef enum:
    NS = 1000000000

cdef struct TaskSlot:
    uint32_t recording
    int32_t pid
    void *text              # borrowed from ReportText._tasks; NULL: none yet

cdef struct EventSlot:
    uint32_t key
    bint known
    void *label             # borrowed from ReportText._events
    void *printer


cdef class ReportText(RecordWriter):
    """The lines of Records, in pieces of whole lines.

    prefixes: by buffer, the prefix of its lines.
    in_ns: by buffer, whether its clock counts nanoseconds.
    printer: event id to (label, EventPrinter). Called once per id; of merged recordings it gets `event_key`.
    task: number of the recording and thread id to the text about the thread, up to the cpu.
    full_ns: all nine digits of the time.
    """

    cdef list _prefixes
    cdef list _in_ns
    cdef object _find_printer
    cdef object _find_task
    cdef bint _full_ns
    cdef list _tasks
    cdef dict _events
    cdef TaskSlot _task_slots[NR_SLOTS]
    cdef EventSlot _event_slots[NR_SLOTS]

    def __init__(
        self, Records records not None, list prefixes: list[bytes], list in_ns: list[bool],
        printer: Callable[[int], tuple[bytes, EventPrinter]], task: Callable[[int, int], bytes], *,
        bint full_ns=False
    ):
        super().__init__(records)
        self._prefixes = prefixes
        self._in_ns = in_ns
        self._find_printer = printer
        self._find_task = task
        self._full_ns = full_ns
        self._tasks = [None] * NR_SLOTS
        self._events = {}
        memset(self._task_slots, 0, sizeof(self._task_slots))
        memset(self._event_slots, 0, sizeof(self._event_slots))

    cdef int _fill(self, size_t max_bytes) except -1:
        cdef Raw raw
        cdef EventDecoder selected
        while self._used < max_bytes and self._records._source.next(&raw):
            if self._records.within(&raw):
                selected = self._records.selected(&raw)
                if selected is not None or raw.lost:
                    self.append(selected, &raw, True)
        return 0

    cdef int put_record(self, Line *line, EventDecoder selected, const Raw *raw, bint with_fields) except -1:
        """Print a record, if it is selected, and before it the line about lost ones."""
        cdef EventSlot *event
        if not with_fields:
            put(line, b"[LINE TOO BIG]\n", 15)
            return 0
        if raw.lost:
            self._put_lost(line, raw)
        if selected is not None:
            event = self._event(event_key(raw))
            put_bytes(line, <bytes>self._prefixes[raw.buffer])
            put_bytes(line, <bytes>self._task(raw.recording, raw.tid).text)
            put_decimal(line, raw.cpu, 3, c'0')
            put_char(line, c']')
            self._put_stamp(line, raw)
            put_bytes(line, <bytes>event.label)
            (<EventPrinter>event.printer).put(line, raw.entry, raw.size)
            put_char(line, c'\n')
        return 0

    cdef int _put_lost(self, Line *line, const Raw *raw) except -1:
        put_bytes(line, <bytes>self._prefixes[raw.buffer])
        put(line, b"CPU:", 4)
        put_decimal(line, raw.cpu, 0, c' ')
        put(line, b" [", 2)
        if raw.lost > 0:
            put_decimal(line, raw.lost, 0, c' ')
            put_char(line, c' ')
        put(line, b"EVENTS DROPPED]\n", 16)
        return 0

    cdef int _put_stamp(self, Line *line, const Raw *raw) except -1:
        """print_event_time() of libtraceevent's event-parse.c."""
        cdef uint64_t ts = raw.time_ns
        if not self._in_ns[raw.buffer]:
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

    cdef EventSlot *_event(self, uint32_t key) except NULL:
        cdef EventSlot *slot = &self._event_slots[slot_of(key)]
        if slot.known and slot.key == key:
            return slot
        if key not in self._events:
            self._events[key] = self._find_printer(key)
        found = self._events[key]
        slot.label = <void *><bytes?>found[0]
        slot.printer = <void *><EventPrinter?>found[1]
        slot.known = True
        slot.key = key
        return slot

    cdef TaskSlot *_task(self, uint32_t recording, int32_t pid) except NULL:
        cdef uint32_t number = (<uint32_t>pid + recording * 37) & (NR_SLOTS - 1)
        cdef TaskSlot *slot = &self._task_slots[number]
        if slot.text != NULL and slot.pid == pid and slot.recording == recording:
            return slot
        text = <bytes?>self._find_task(recording, pid)
        self._tasks[number] = text
        slot.recording = recording
        slot.pid = pid
        slot.text = <void *>text
        return slot
