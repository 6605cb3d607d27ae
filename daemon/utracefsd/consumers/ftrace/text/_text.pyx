# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The records of `trace` and `trace_pipe` as text: one entry in, one line (sometimes more) out.

A line is a context (task, cpu, flags, time) and a body. The body of a user event is printed by a BodyPlan:
one step per field, made once per event id from its declaration.

    step     prints                                 declared as
    BYTE     'c'(N), or (N) if c is unprintable     any integer or struct of 1 byte
    INTEGER  0xH (N), N signed whatever is          of 2, 4 or 8 bytes
             declared, but unsigned of 2 bytes
    NO_SIZE  <INVALID-SIZE>                         structs of other sizes
    STRING   bytes up to a NUL or the size          char arrays
             bytes up to a NUL or the length        __data_loc and __rel_loc whose type contains `char`
    ARRAY    hex bytes joined by `,`                other __data_loc and __rel_loc

    FLOAT    as Python does                         struct double, struct float (a kernel: INTEGER)

    NUMBERS  JSON                                   arrays: Field.element (a kernel: as other structs)

    UNSIGNED, SIGNED, HEXADECIMAL                   fields of synthetic events (print_synth_event())

This follows print_fields() in kernel/trace/trace_output.c, not the event's print fmt. A field that reaches
beyond the end of the entry (checked in `_fields` of the protocol) prints `<OVERFLOW>`.

A record whose text (context and body) is longer than LINE_LIMIT becomes `[LINE TOO BIG]`. The limit is the
capacity of one `trace_seq` of the kernel: 8192 bytes less its header, 8156.
"""

from utracefs_protocol.events.declaration import NUMBER_SIZES
from utracefs_protocol.pages.subbuf import MARKER_IP

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from utracefs_protocol.events._fields cimport (
    Elements, Place, find_bytes, put_elements, set_elements, set_place
)
from utracefs_protocol.events._line cimport *
from utracefs_protocol.memory cimport zeroed
from utracefsd.consumers.ftrace.buffer._ring_buffer cimport Cursor
#: from utracefs_protocol.events.declaration import Field

cdef enum:
    LINE_MAX = 8156       # bytes of text for one record
    KEEP_MAX = 1 << 20    # bytes of working memory that an idle renderer may keep
    SPARE = 128           # room for the lines that _lines_before() prints
    MAX_CPUS = 8192       # the largest NR_CPUS a kernel can be built with
    TASK_SLOTS = 64       # pids whose context is kept; a power of two
    PLAN_SLOTS = 256   # ids whose plan is found without a dict; a power of two
    TASK_TEXT = 64        # 16 comm + 1 + 11 pid + 1 + 14 tgid, rounded up
    HEADER = 8            # u16 common_type, u8 common_flags, u8 common_preempt_count, i32 common_pid

    # ids of the kernel's own records (kernel/trace/trace.h, enum trace_type), as in events/ftrace/*/id
    ID_STACK = 4
    ID_PRINT = 5
    ID_RAW_DATA = 19

    # common_flags: enum trace_flag_type in include/linux/trace_events.h
    IRQS_OFF = 0x01
    IRQS_UNSUPPORTED = 0x02
    NEED_RESCHED = 0x04
    HARDIRQ = 0x08
    SOFTIRQ = 0x10
    PREEMPT_RESCHED = 0x20
    NMI = 0x40
    BH_OFF = 0x80

LINE_LIMIT = LINE_MAX  #: Final[int]

cdef enum Mode:
    NORMAL
    RAW
    HEX
    BIN

cdef enum Op:
    BYTE
    INTEGER
    NO_SIZE
    STRING
    ARRAY
    UNSIGNED
    SIGNED
    HEXADECIMAL
    FLOAT
    NUMBERS

cdef struct Step:
    Op op
    Place place
    Elements elements
    size_t label_size
    const char *label     # " NAME="; borrowed from BodyPlan.labels


cdef inline void put_field(Line *line, const Step *step, const uint8_t *entry, size_t size) noexcept nogil:
    cdef uint64_t value
    cdef const uint8_t *data
    cdef size_t length
    put(line, step.label, step.label_size)
    if not find_bytes(&step.place, entry, size, &data, &length):
        put(line, b"<OVERFLOW>", 10)
        return
    if step.op == INTEGER:
        value = load_unsigned(data, length)
        put(line, b"0x", 2)
        put_hex(line, value, 0)
        put(line, b" (", 2)
        put_signed(line, <int64_t>value if length == 2 else load_signed(data, length))
        put_char(line, c')')
    elif step.op == BYTE:
        if printable(data[0]):
            put_char(line, c"'")
            put_char(line, <char>data[0])
            put_char(line, c"'")
        put_char(line, c'(')
        put_decimal(line, data[0], 0, c' ')
        put_char(line, c')')
    elif step.op == STRING:
        put_string(line, data, length)
    elif step.op == ARRAY:
        put_hex_bytes(line, data, length, c',', False)
    elif step.op == SIGNED:
        put_signed(line, load_signed(data, length))
    elif step.op == UNSIGNED:
        put_decimal(line, load_unsigned(data, length), 0, c' ')
    elif step.op == HEXADECIMAL:
        put_hex(line, load_unsigned(data, length), 0)
    elif step.op == FLOAT:
        with gil:
            put_float(line, load_float(data, length))
    elif step.op == NUMBERS:
        with gil:
            put_elements(line, step.elements, data, length)
    else:
        put(line, b"<INVALID-SIZE>", 14)


cdef class BodyPlan:
    """The steps of one event. `known` is False for an id that belongs to no event."""

    cdef Step *steps
    cdef Py_ssize_t count
    cdef bint known
    cdef uint32_t checked    # the last render call that compared name and fields with the event table
    cdef object name
    cdef object fields
    cdef bint synthetic
    cdef bytes title         # "NAME:"
    cdef list labels         # owns the memory of Step.label

    def __cinit__(self, event: tuple[bytes, Sequence[Field]] | None):
        cdef Py_ssize_t i
        cdef Step *step
        cdef bytes label
        self.known = event is not None
        if event is None:
            return
        self.name, self.fields = event[:2]
        self.synthetic = len(event) > 2 and event[2]
        self.title = self.name + b":"
        self.labels = [b" %s=" % field.name for field in self.fields]
        self.count = len(self.labels)
        self.steps = <Step *>zeroed(self.count, sizeof(Step))
        for i, field in enumerate(self.fields):
            step = &self.steps[i]
            label = self.labels[i]
            step.label = PyBytes_AS_STRING(label)
            step.label_size = <size_t>PyBytes_GET_SIZE(label)
            set_place(&step.place, field)
            set_elements(&step.elements, field)
            step.op = self._op(field)

    cdef Op _op(self, field) except *:
        if field.is_string:
            return STRING
        if field.is_loc:
            return ARRAY
        if field.is_float:
            return FLOAT
        if field.element is not None:
            return NUMBERS
        size = field.size
        if self.synthetic:
            if field.type == b"gfp_t":
                return HEXADECIMAL
            # A smaller value is printed from its whole slot: -1 of an s8 is 255.
            return SIGNED if field.signed and size in (4, 8) else UNSIGNED
        if size not in NUMBER_SIZES:
            return NO_SIZE
        return BYTE if size == 1 else INTEGER

    def __dealloc__(self):
        free(self.steps)

    cdef bint same(self, event):
        if event is None:
            return not self.known
        return self.known and (
            (event[0] is self.name and event[1] is self.fields)
            or (event[0] == self.name and event[1] == self.fields)
        ) and self.synthetic == (len(event) > 2 and event[2])


cdef inline void put_flags(Line *line, uint8_t flags, uint8_t counts) noexcept nogil:
    cdef char text[5]
    if flags & (IRQS_OFF | BH_OFF) == IRQS_OFF | BH_OFF:
        text[0] = c'D'
    elif flags & IRQS_OFF:
        text[0] = c'd'
    elif flags & BH_OFF:
        text[0] = c'b'
    else:
        text[0] = c'X' if flags & IRQS_UNSUPPORTED else c'.'
    if flags & NEED_RESCHED:
        text[1] = c'N' if flags & PREEMPT_RESCHED else c'n'
    else:
        text[1] = c'p' if flags & PREEMPT_RESCHED else c'.'
    if flags & NMI:
        text[2] = c'Z' if flags & HARDIRQ else c'z'
    elif flags & HARDIRQ:
        text[2] = c'H' if flags & SOFTIRQ else c'h'
    else:
        text[2] = c's' if flags & SOFTIRQ else c'.'
    text[3] = HEX_DIGITS[counts & 15] if counts & 15 else c'.'
    text[4] = HEX_DIGITS[counts >> 4] if counts >> 4 else c'.'
    put(line, text, 5)


cdef inline char gap_mark(uint64_t gap_us) noexcept nogil:
    """The mark for the time until the next record, as in trace_find_mark() of the kernel."""
    if gap_us > 1000000:
        return c'$'
    if gap_us > 100000:
        return c'@'
    if gap_us > 10000:
        return c'*'
    if gap_us > 1000:
        return c'#'
    if gap_us > 100:
        return c'!'
    if gap_us > 10:
        return c'+'
    return c' '


cdef struct TaskSlot:
    int32_t pid
    uint32_t call          # the render call that filled it; 0: never
    uint32_t size
    char text[TASK_TEXT]

cdef struct PlanSlot:
    uint32_t call
    uint16_t id
    void *plan             # borrowed from TextRenderer._plans


cdef class TextRenderer:
    """Renders the records of one open `trace` or `trace_pipe`, with the options and clock of its making. It
    remembers which cpus' records were seen and how many records were shown."""

    cdef object _lookup
    cdef object _comm
    cdef object _tgid
    cdef Mode _mode
    cdef bint _fields
    cdef bint _verbose
    cdef bint _context_info
    cdef bint _irq_info
    cdef bint _latency
    cdef bint _record_tgid
    cdef bint _annotate
    cdef bint _message_only
    cdef bytes _marker_label       # text before the text of a marker
    cdef bint _clock_is_ns
    cdef bint _one_line
    cdef uint64_t _time_start

    cdef char *_text
    cdef size_t _capacity
    cdef size_t _used
    cdef uint64_t _index           # records rendered so far
    cdef uint32_t _call            # number of the present render call, never 0 in one
    cdef uint8_t *_kept            # latency-format: the present record while the cursor reads the next one
    cdef uint32_t _kept_size
    cdef bint _opened              # a render call has decided about _mark_starts
    cdef bint _mark_starts         # print the `buffer started` lines
    cdef dict _plans               # id -> BodyPlan
    cdef uint8_t _started[MAX_CPUS]  # by cpu: its first record was seen
    cdef TaskSlot _tasks[TASK_SLOTS]
    cdef PlanSlot _slots[PLAN_SLOTS]

    def __cinit__(
        self,
        events: Mapping[int, tuple[bytes, Sequence[Field]]]
        | Callable[[int], tuple[bytes, Sequence[Field]] | tuple[bytes, Sequence[Field], bool] | None],
        comm: Callable[[int], bytes], tgid: Callable[[int], int | None], options: Container[str],
        bint clock_is_ns, *, uint64_t time_start=0, bint one_line=False
    ):
        """The arguments.

        events: id -> (tracepoint name, fields) or (..., whether it is synthetic), None for an id of no event;
            called at most once per id and `render` call.
        comm: The name of a thread, b"<...>" if unknown; at most 15 bytes of it are shown. Called for positive
            pids only, normally once per pid and call.
        tgid: None or 0 if unknown; called with record-tgid only.
        options: Names of the trace options that are on.
        time_start: When the buffer was last cleared, in its own clock; latency-format counts from that time.
        one_line: `?` for LF and CR in a string; the kernel prints them.

        The first three may be called in the middle of a `render` call; their exceptions pass through it, and
        the present record is lost.
        """
        self._lookup = events if callable(events) else events.get
        self._comm = comm
        self._tgid = tgid
        modes = (("bin", BIN), ("hex", HEX), ("raw", RAW))
        self._mode = next((mode for name, mode in modes if name in options), NORMAL)
        self._fields = "fields" in options
        self._verbose = "verbose" in options
        self._context_info = "context-info" in options
        self._irq_info = "irq-info" in options
        self._latency = "latency-format" in options
        self._record_tgid = "record-tgid" in options
        self._annotate = "annotate" in options
        self._message_only = "printk-msg-only" in options and "trace_printk" in options
        self._marker_label = marker_label(options)
        self._clock_is_ns = clock_is_ns
        self._time_start = time_start
        self._one_line = one_line
        self._plans = {}
        memset(self._started, 0, sizeof(self._started))
        memset(self._tasks, 0, sizeof(self._tasks))
        memset(self._slots, 0, sizeof(self._slots))

    def __dealloc__(self):
        free(self._text)
        free(self._kept)

    def render(self, Cursor cursor not None, Py_ssize_t max_bytes) -> bytes:
        """The next whole lines, up to the record that reaches max_bytes, at least 1; b"": no more records.

        `CPU:n [LOST k EVENTS]` comes before the first record after a gap. `##### CPU n buffer started ####`
        comes before the first one of each further cpu, if the cursor does not consume and anything was
        overwritten before the first call.
        """
        cdef uint64_t ts, next_ts
        cdef uint32_t size
        cdef int cpu
        cdef const uint8_t *data
        self._begin()
        if not self._opened:
            # As in the kernel, decided once per open file and for the whole buffer, whichever cpus are shown.
            self._opened = True
            self._mark_starts = self._annotate and not cursor.consume and cursor.buffer.overruns() > 0
        while self._used < <size_t>max_bytes and cursor.next():
            if cursor.lost or cursor.overrun or self._mark_starts:
                self._lines_before(cursor.cpu, cursor.lost, cursor.overrun)
            cpu = cursor.cpu
            ts = next_ts = cursor.ts
            data = cursor.data
            size = cursor.size
            if self._latency:
                # Reading the next record invalidates the cursor's present one.
                if size > self._kept_size:
                    self._keep(size)
                memcpy(self._kept, data, size)
                data = self._kept
                if cursor.peek():
                    next_ts = cursor.ts
            self._append(cpu, ts, data, size, next_ts)
        text = PyBytes_FromStringAndSize(self._text, self._used)
        if self._capacity > KEEP_MAX:
            free(self._text)
            self._text = NULL
            self._capacity = 0
        return text

    def render_entry(self, int cpu, uint64_t ts, bytes data not None) -> bytes:
        """The text of one entry, of any length and content, without the lines that `render` adds."""
        cdef uint64_t index = self._index
        self._begin()
        self._append(cpu, ts, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), ts)
        self._index = index
        return PyBytes_FromStringAndSize(self._text, self._used)

    cdef void _begin(self) noexcept:
        self._used = 0
        self._call += 1
        if self._call == 0:  # a stamp of 2^32 calls ago must not look valid
            memset(self._tasks, 0, sizeof(self._tasks))
            memset(self._slots, 0, sizeof(self._slots))
            for plan in self._plans.values():
                (<BodyPlan>plan).checked = 0
            self._call = 1

    cdef int _keep(self, uint32_t size) except -1:
        cdef void *kept = realloc(self._kept, size)
        if kept == NULL:
            raise MemoryError
        self._kept = <uint8_t *>kept
        self._kept_size = size
        return 0

    cdef int _room(self) except -1:
        """Make room for one record and the lines before it."""
        cdef size_t wanted = self._used + LINE_MAX + SPARE
        cdef void *text
        if wanted > self._capacity:
            wanted *= 2
            text = realloc(self._text, wanted)
            if text == NULL:
                raise MemoryError
            self._text = <char *>text
            self._capacity = wanted
        return 0

    cdef int _lines_before(self, int cpu, uint64_t lost, bint overrun) except -1:
        """Add lines: records of this cpu are missing before this one, and this is its first one shown.
        overrun: Some are missing; how many is unknown."""
        cdef Line line
        self._room()
        line.p = self._text + self._used
        line.end = line.p + SPARE
        if lost or overrun:
            put(&line, b"CPU:", 4)
            put_signed(&line, cpu)
            put(&line, b" [LOST ", 7)
            if lost:
                put_decimal(&line, lost, 0, c' ')
                put_char(&line, c' ')
            put(&line, b"EVENTS]\n", 8)
        if self._mark_starts and self._mode == NORMAL and cpu < MAX_CPUS and not self._started[cpu]:
            self._started[cpu] = 1
            if self._index:
                put(&line, b"##### CPU ", 10)
                put_signed(&line, cpu)
                put(&line, b" buffer started ####\n", 21)
        self._used = line.p - self._text
        return 0

    cdef int _append(
        self, int cpu, uint64_t ts, const uint8_t *data, size_t size, uint64_t next_ts
    ) except -1:
        """Add one record. `data` must stay valid while comm, tgid and the event table are called."""
        cdef Line line
        cdef uint8_t header[HEADER]
        cdef int32_t pid
        cdef uint16_t id
        cdef TaskSlot *task = NULL
        cdef BodyPlan plan = None
        memset(header, 0, HEADER)
        memcpy(header, data, size if size < HEADER else HEADER)
        memcpy(&id, header, 2)
        memcpy(&pid, header + 4, 4)
        if self._context_info and self._mode == NORMAL:
            task = self._task(pid)
        if id != ID_PRINT and id != ID_RAW_DATA and id != ID_STACK:
            plan = self._plan(id)
        self._room()
        line.start = line.p = self._text + self._used
        line.end = line.start + LINE_MAX
        line.full = False
        if self._message_only and id == ID_PRINT:
            put_marker_text(&line, data, size)
        else:
            if self._context_info:
                self._context(&line, task, cpu, ts, next_ts, header, pid)
            if self._mode == NORMAL:
                self._body(&line, plan, id, data, size)
            else:
                self._bare_body(&line, plan, id, data, size)
        if line.full:
            line.p = line.start
            put(&line, b"[LINE TOO BIG]\n", 15)
        if self._one_line:
            while line.start < line.p - 1:
                if line.start[0] == c'\n' or line.start[0] == c'\r':
                    line.start[0] = c'?'
                line.start += 1
        self._used = line.p - self._text
        self._index += 1
        return 0

    cdef void _context(
        self, Line *line, const TaskSlot *task, int cpu, uint64_t ts, uint64_t next_ts, const uint8_t *header,
        int32_t pid,
    ) noexcept:
        if self._mode == BIN:
            put(line, &pid, 4)
            put(line, &cpu, 4)
            put(line, &ts, 8)
        elif self._mode == HEX:
            put_hex(line, <uint32_t>pid, 8)
            put_char(line, c' ')
            put_hex(line, <uint32_t>cpu, 8)
            put_char(line, c' ')
            put_hex(line, ts, 16)
            put_char(line, c' ')
        elif self._mode == RAW:
            put_signed(line, pid)
            put_char(line, c' ')
            put_signed(line, cpu)
            put_char(line, c' ')
            put_decimal(line, ts, 0, c' ')
            put_char(line, c' ')
        elif self._latency:
            put(line, task.text, task.size)
            put_decimal(line, <uint32_t>cpu, 3, c' ')
            if self._verbose:
                put_char(line, c' ')
                put_decimal(line, header[2], 0, c' ')
                put_char(line, c' ')
                put_hex(line, header[3] & 15, 8)
                put_char(line, c' ')
                put_hex(line, self._index, 8)
                put_char(line, c' ')
            else:
                put_flags(line, header[2], header[3])
            self._latency_time(line, ts, next_ts)
        else:
            put(line, task.text, task.size)
            put_char(line, c'[')
            put_decimal(line, <uint32_t>cpu, 3, c'0')
            put(line, b"] ", 2)
            if self._irq_info:
                put_flags(line, header[2], header[3])
            put_char(line, c' ')
            if self._clock_is_ns:
                ts //= 1000
                put_decimal(line, ts // 1000000, 5, c' ')
                put_char(line, c'.')
                put_decimal(line, ts % 1000000, 6, c'0')
            else:
                put_decimal(line, ts, 12, c' ')
            put(line, b": ", 2)

    cdef void _latency_time(self, Line *line, uint64_t ts, uint64_t next_ts) noexcept:
        cdef int64_t since_start = <int64_t>(ts - self._time_start)
        cdef int64_t gap = <int64_t>(next_ts - ts)
        cdef uint64_t start_us, gap_us
        # Negative only if the clock was changed in between; for 0 the value below exceeds 2^64 - 1.
        start_us = since_start if since_start > 0 else 0
        gap_us = gap if gap > 0 else 0
        if not self._clock_is_ns:
            if self._verbose:
                put_char(line, c'[')
                put_hex(line, ts, 16)
                put(line, b"] ", 2)
                put_decimal(line, start_us, 0, c' ')
                put(line, b" (+", 3)
                put_decimal(line, gap_us, 0, c' ')
                put_char(line, c')')
            else:
                put_char(line, c' ')
                put_decimal(line, start_us, 4, c' ')
        else:
            start_us //= 1000
            gap_us //= 1000
            if self._verbose:
                put_char(line, c'[')
                put_hex(line, ts // 1000, 8)
                put(line, b"] ", 2)
                put_milliseconds(line, start_us)
                put(line, b" (+", 3)
                put_milliseconds(line, gap_us)
                put_char(line, c')')
            else:
                put_char(line, c' ')
                put_decimal(line, start_us, 4, c' ')
                put(line, b"us", 2)
                put_char(line, gap_mark(gap_us))
        put(line, b": ", 2)

    cdef void _body(
        self, Line *line, BodyPlan plan, uint16_t id, const uint8_t *data, size_t size
    ) noexcept:
        cdef Py_ssize_t i
        if plan is not None and plan.known:
            put(line, PyBytes_AS_STRING(plan.title), PyBytes_GET_SIZE(plan.title))
            if plan.count == 0:
                put(line, b"No fields found", 15)
            for i in range(plan.count):
                put_field(line, &plan.steps[i], data, size)
            put_char(line, c'\n')
        elif plan is not None:
            put(line, b"Unknown type ", 13)
            put_decimal(line, id, 0, c' ')
            put_char(line, c'\n')
        elif self._fields:
            put(line, b"UNKNOWN TYPE ", 13)
            put_decimal(line, id, 0, c' ')
            put_char(line, c'\n')
        elif id == ID_PRINT:
            put(line, PyBytes_AS_STRING(self._marker_label), PyBytes_GET_SIZE(self._marker_label))
            put_marker_text(line, data, size)
        elif id == ID_RAW_DATA:
            put_raw_marker(line, data, size)
        else:
            put(line, b"<stack trace>\n", 14)

    cdef void _bare_body(
        self, Line *line, BodyPlan plan, uint16_t id, const uint8_t *data, size_t size
    ) noexcept:
        """The body in the formats raw, hex and bin: the id, or for a few records a raw text of their own."""
        if self._mode == RAW and id == ID_PRINT:
            put(line, b"# ", 2)
            put_hex(line, load64(data + HEADER) if size >= HEADER + 8 else 0, 0)
            put_char(line, c' ')
            put_marker_text(line, data, size)
        elif self._mode == RAW and id == ID_RAW_DATA:
            put_raw_marker(line, data, size)
        elif plan is None or plan.known:
            put(line, b"type: ", 6)
            put_decimal(line, id, 0, c' ')
            put_char(line, c'\n')
        elif self._mode == RAW:
            put_decimal(line, id, 0, c' ')
            put(line, b" ?\n", 3)
        if self._mode == HEX:
            put_char(line, c'\n')

    cdef BodyPlan _plan(self, uint16_t id):
        """The plan of an id. Each render call compares it with the event table: the id's event may change."""
        cdef PlanSlot *slot = &self._slots[id & (PLAN_SLOTS - 1)]
        cdef BodyPlan plan
        if slot.call == self._call and slot.id == id:
            return <BodyPlan>slot.plan
        plan = self._plans.get(id)
        if plan is None or plan.checked != self._call:
            event = self._lookup(id)
            if plan is None or not plan.same(event):
                plan = BodyPlan(event)
                self._plans[id] = plan
            plan.checked = self._call
        slot.call = self._call
        slot.id = id
        slot.plan = <void *>plan
        return plan

    cdef TaskSlot *_task(self, int32_t pid) except NULL:
        """The part of the context that depends on the pid alone."""
        cdef TaskSlot *slot = &self._tasks[<uint32_t>pid & (TASK_SLOTS - 1)]
        cdef bytes text
        if slot.call == self._call and slot.pid == pid:
            return slot
        if pid == 0:
            comm = b"<idle>"
        elif pid < 0:
            comm = b"<XXX>"
        else:
            comm = self._comm(pid)[:15]  # TASK_COMM_LEN less its NUL
        if self._latency and self._verbose:
            text = b"%16s %7d " % (comm, pid)
        elif self._latency:
            text = b"%8s-%-7d " % (comm[:8], pid)
        else:
            text = b"%16s-%-7d " % (comm, pid)
            if self._record_tgid:
                tgid = self._tgid(pid)
                text += b"(%7d) " % tgid if tgid else b"(-------) "
        slot.call = 0
        slot.size = <uint32_t>min(len(text), TASK_TEXT)
        memcpy(slot.text, PyBytes_AS_STRING(text), slot.size)
        slot.pid = pid
        slot.call = self._call
        return slot


cdef bytes marker_label(options):
    """seq_print_ip_sym() of kernel/trace/trace_output.c, for the one function named by markers."""
    return b"tracing_mark_write%s%s: " % (
        b"+0x0/0x170" if "sym-offset" in options else b"",
        b" <%016x>" % MARKER_IP if "sym-addr" in options else b"",
    )


cdef void put_milliseconds(Line *line, uint64_t us) noexcept nogil:
    put_decimal(line, us // 1000, 0, c' ')
    put_char(line, c'.')
    put_decimal(line, us % 1000, 3, c'0')
    put(line, b"ms", 2)


cdef void put_marker_text(Line *line, const uint8_t *data, size_t size) noexcept nogil:
    """The text of a marker, with its own newline. The entry is header, u64 ip, text."""
    if size < HEADER + 8:
        put(line, b"<OVERFLOW>\n", 11)
    else:
        put_string(line, data + HEADER + 8, size - HEADER - 8)


cdef void put_raw_marker(Line *line, const uint8_t *data, size_t size) noexcept nogil:
    """Tag and bytes of a raw marker: header, u32 tag, bytes. The padding at the end is shown, too."""
    if size < HEADER + 4:
        put(line, b"# <OVERFLOW>\n", 13)
        return
    put(line, b"# ", 2)
    put_hex(line, load32(data + HEADER), 0)
    put(line, b" buf:", 5)
    put_hex_bytes(line, data + HEADER + 4, size - HEADER - 4, c' ', True)
    put_char(line, c'\n')
