"""Events: what runs once per `if event:` and once per `emit`.

An Event is a status pointer, a packing plan and an outlet. `if event:` reads the one byte the pointer leads
to; `emit` turns its arguments into C values, and only when all of them are good does it ask the outlet for
room, fill it and commit.

The status pointer leads to one of three places:

| place | byte | meaning |
|---|---|---|
| OFF | 0 | no consumer can be attached: no daemon, refused, closed |
| PENDING | 0x40, never a status | look again: the slow path finds out what is true and moves the pointer |
| a byte of a StatusMap | the daemon's | 0 no consumer is attached, else bits 0 ftrace, 1 perf, 7 other |

The outlet is the session's Fifo, or a RingOutlet while the pointer leads into a StatusMap of the connection
that the ring belongs to. Pointer and outlet are changed together.

Who protects what: everything here runs with the GIL held and, from the first write to shared state to the
last, calls no Python code. So an emit is one step for every other thread, for a signal handler and for fork,
without any lock that could be found locked; and so is a move of all events to another connection. An emit can
be entered again only while it still converts its arguments (`__index__` of an argument is Python code), and
then it has touched nothing. For the same reason a status map or a ring may be unmapped as soon as no event
leads into it: no thread is between loading the pointer and loading the byte.
"""

from sys import intern

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy, memset

from utracefs_protocol.data_ring cimport dr_walk
from utracefs._outlets cimport Counts, Fifo, Outlet, RingOutlet, ut_get_le32, ut_now_ns, ut_put
from utracefs._status_map cimport StatusMap

cdef extern from "Python.h":
    int PyLong_Check(PyObject *o)
    long long PyLong_AsLongLong(PyObject *o)
    unsigned long long PyLong_AsUnsignedLongLong(PyObject *o)
    PyObject *PyErr_Occurred()
    int PyErr_ExceptionMatches(object kind)
    void PyErr_Clear()
    const char *PyUnicode_AsUTF8AndSize(object o, Py_ssize_t *size) except NULL
    object PyNumber_Index(object o)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *o)
    PyObject *PyTuple_GET_ITEM(PyObject *o, Py_ssize_t i)
    object PyDescr_NewMethod(type owner, PyMethodDef *method)
    void PyType_Modified(type t)
    ctypedef PyObject *(*PyCFunction)(PyObject *, PyObject *)
    ctypedef struct PyMethodDef:
        const char *ml_name
        PyCFunction ml_meth
        int ml_flags
        const char *ml_doc
    ctypedef struct PyTypeObject:
        PyObject *tp_dict
    int METH_FASTCALL, METH_KEYWORDS

cdef extern from "small_int.h":
    bint ut_small_int(PyObject *given, int64_t *value)

# The two places of the status pointer that are no daemon's. Read like the mapped bytes, never written.
cdef enum:
    PENDING = 0x40
cdef unsigned char off_byte = 0
cdef unsigned char pending_byte = PENDING

# When this process was forked from one that had sessions, CLOCK_MONOTONIC; 0 if it was not.
cdef uint64_t forked_at_ns = 0

cdef enum:
    # How long a forked child follows its parent's status byte before it wants a connection of its own.
    INHERITED_NS = 1_000_000_000


# --------------------------------------------------------------------------------------------------- packing

cdef enum Kind:
    INTEGER = 0
    CHAR_ARRAY = 1
    STRUCT = 2
    DATA_LOC = 3
    REL_LOC = 4

KINDS = {
    "INTEGER": INTEGER,
    "CHAR_ARRAY": CHAR_ARRAY,
    "STRUCT": STRUCT,
    "DATA_LOC": DATA_LOC,
    "REL_LOC": REL_LOC,
}

cdef struct Step:
    # one field of the plan
    uint8_t kind
    uint8_t is_signed
    uint8_t is_string
    uint32_t size
    uint32_t offset     # in the payload
    int32_t loc_base    # what to add to the place of dynamic data in the payload to get the offset to write

cdef union Number:
    uint64_t u
    int64_t s

cdef struct Value:
    # one argument, checked and converted; `text` belongs to the argument or to `held`
    Number number
    const char *text
    size_t length

cdef enum:
    # A command string of 511 bytes has fewer fields than this ("u8 ;" is the shortest).
    MAX_FIELDS = 128

cdef size_t MAX_LOC = 0xffff


cdef class Event:
    """One event of one session. Made by `utracefs.event`, never directly.

    `if event:` is true while a consumer is attached. `event.emit(...)` writes a record then, and does nothing
    otherwise.
    """

    cdef const unsigned char *status
    cdef const unsigned char *inherited
    """In a forked child, until its own connection is wanted: the parent's status byte, which holds for it,
    too."""
    cdef StatusMap status_map
    cdef Outlet outlet
    cdef Fifo fifo
    cdef readonly object session
    cdef Step *steps
    cdef Py_ssize_t nr_fields
    cdef size_t min_size
    cdef size_t max_size
    cdef tuple keywords
    cdef bint ambiguous
    cdef int64_t write_index
    cdef readonly uint64_t lost
    """Records given up because there was no room for them, or no daemon to send them to any more."""
    cdef readonly uint64_t emitted
    """Records written while the event was on, the lost ones included."""
    cdef readonly str name
    cdef readonly str declaration
    """The command string in the spelling of dynamic_events, without its `u:`."""
    cdef readonly int flags
    """1 persist, 2 multi-format."""
    cdef public object error
    """The TraceError with which the daemon refused the registration, or None."""
    cdef public dict refused
    """Records that the daemon refused: {errno name: count}."""

    def __cinit__(self, object session=None, Fifo fifo=None, bytes name=None, bytes declaration=None,
                  int flags=0, object fields=(), size_t max_size=0):
        """session: has `_await_answer(event)`, `_start()` and `_reduce(event)`, or is None.
        fields: of (name: bytes, kind: a value of KINDS, offset in the payload, size, signed, is_string)."""
        cdef Py_ssize_t i = 0
        if fifo is None:
            raise TypeError("an Event is made by utracefs.event('NAME TYPE FIELD; ...')")
        self.status = &off_byte
        self.write_index = -1
        self.session = session
        self.fifo = fifo
        self.outlet = fifo
        self.name = name.decode("utf-8", "surrogateescape")
        self.declaration = declaration.decode("utf-8", "surrogateescape")
        self.flags = flags
        self.refused = {}
        self.max_size = max_size
        self.nr_fields = len(fields)
        if self.nr_fields > MAX_FIELDS:
            raise ValueError(f"{self.nr_fields} fields; at most {MAX_FIELDS} are possible")
        if self.nr_fields:
            self.steps = <Step *>PyMem_Malloc(self.nr_fields * sizeof(Step))
            if self.steps == NULL:
                raise MemoryError
        keywords = []
        for field_name, kind, offset, size, is_signed, is_string in fields:
            keywords.append(intern((<bytes>field_name).decode("utf-8", "surrogateescape")))
            self.steps[i].kind = kind
            self.steps[i].offset = offset
            self.steps[i].size = size
            self.steps[i].is_signed = is_signed
            self.steps[i].is_string = is_string
            # __data_loc counts from the common fields in front of the payload, __rel_loc from behind its own
            # word.
            self.steps[i].loc_base = 8 if kind == DATA_LOC else -<int32_t>(offset + 4)
            self.min_size = offset + size
            i += 1
        self.keywords = tuple(keywords)
        self.ambiguous = self.nr_fields > 1 and len(set(keywords)) < self.nr_fields

    def __dealloc__(self):
        PyMem_Free(self.steps)

    cdef inline bint is_on(self) except -1:
        cdef unsigned char byte = self.status[0]
        if byte == 0:
            return False
        if byte == PENDING:
            return self.look_again(False)
        return True

    def __bool__(self):
        return self.is_on()

    @property
    def enabled(self):
        """Whether a consumer is attached: the same as `bool(event)`."""
        return self.is_on()

    @property
    def fields(self):
        """The names of the fields, in order."""
        return self.keywords

    @property
    def registered(self):
        """Whether the daemon knows the event, with a consumer or without."""
        return self.status_map is not None

    @property
    def index(self):
        """write_index on the session's connection, -1 while there is none."""
        return self.write_index

    def __repr__(self):
        if self.error is not None:
            state = f"refused: {self.error}"
        elif self.inherited != NULL:
            state = "on" if self.inherited[0] else "off"
        elif self.status == &pending_byte:
            state = "not settled"
        else:
            state = "on" if self.status[0] else "off"
        return f"<utracefs.Event {self.declaration!r}, {state}>"

    def __reduce__(self):
        return self.session._reduce(self)

    # -- the pointer; all of this is the session's business

    cdef bint look_again(self, bint to_emit) except -1:
        """Behind PENDING: find out what is true. Moves the pointer, unless the process was forked a moment
        ago."""
        cdef StatusMap inherited_map = self.status_map
        cdef bint on
        if self.inherited == NULL:
            self.session._await_answer(self)
            return self.status[0] != 0 and self.status != &pending_byte
        # The parent's byte holds until this process has a connection of its own. It gets one when it first
        # has something to write, which waits for it, so that a child that ends at once has written into its
        # own ring; or when it turns out to live for a while and must outlive the parent's daemon.
        on = self.inherited[0] != 0
        if on and to_emit:
            self.session._await_answer(self)
            if self.status_map is not None and self.status_map is not inherited_map:
                return self.status[0] != 0
            # No connection so far: the FIFO holds the record for one.
        elif ut_now_ns() - forked_at_ns >= INHERITED_NS:
            self.session._start()
        return on

    cdef void follow(
        self, StatusMap status_map, size_t status_index, int64_t write_index, Outlet outlet
    ) noexcept:
        """The daemon has answered: from now on follow its byte, which must lie within the map."""
        self.status = status_map.bytes + status_index
        self.status_map = status_map
        self.inherited = NULL
        self.write_index = write_index
        self.outlet = outlet
        self.error = None

    def _set_pending(self):
        """A registration is under way: the next look shall wait for it."""
        self.leave_map()
        self.status = &pending_byte

    def _set_off(self):
        self.leave_map()

    cdef void leave_map(self) noexcept:
        """Off. An emit that saw the event on and still converts its arguments must not find the ring gone: it
        goes to the FIFO, which holds it for the next connection."""
        self.status = &off_byte
        self.inherited = NULL
        self.status_map = None
        self.outlet = self.fifo

    @property
    def _is_unsettled(self):
        return self.status == &pending_byte


# ----------------------------------------------------------------------------------- all events of a session

def set_all_off(list events):
    """No consumer can be attached to any of these: one step, as far as any emit can see."""
    cdef Event event
    for event in events:
        event.leave_map()


def give_up_waiting(list events):
    """Those that wait for an answer are off until it comes; those of a forked child follow their parent's
    bytes, without detour."""
    cdef Event event
    for event in events:
        if event.inherited != NULL:
            event.status = event.inherited
            event.inherited = NULL
        elif event.status == &pending_byte:
            event.leave_map()


cdef int check_places(StatusMap status_map, list places) except -1:
    """The daemon's numbers, before anything follows them."""
    cdef tuple place
    for place in places:
        if not 0 < place[1] < status_map.size or not 0 <= place[2] < 0x80000000:
            raise ValueError(
                f"status_index {place[1]} of {status_map.size}, write_index {place[2]}: out of range"
            )
    return 0


def follow(StatusMap status_map, Outlet outlet, list places):
    """Registrations were answered on the connection that is up: these events follow their bytes from now on.

    places: of (event, status_index, write_index). ValueError, and nothing done, when a number is out of
    range.
    """
    cdef tuple place
    check_places(status_map, places)
    for place in places:
        (<Event>place[0]).follow(status_map, place[1], place[2], outlet)


def move(StatusMap status_map, Outlet outlet, list places, Fifo fifo, list by_old_index):
    """A connection is up: give every event its place there, and what the FIFO holds its new write_index. One
    step.

    places: as in `follow`, of every event registered on the new connection.
    by_old_index: the Event, or None, that each write_index of the old connection stood for.
    Records of events that have no place any more are lost. Called by the session thread, before it sends.
    """
    cdef Event event
    cdef tuple place
    cdef unsigned char *kept = NULL
    cdef unsigned char *record
    cdef uint64_t position = fifo.boundary
    cdef uint64_t filled = 0
    cdef unsigned header
    cdef size_t size
    check_places(status_map, places)
    if position != fifo.head:
        kept = <unsigned char *>malloc(fifo.capacity)
        if kept == NULL:
            raise MemoryError
    # From here on nothing can fail and no Python code runs.
    for event in by_old_index:
        if event is not None:
            event.write_index = -1
    for place in places:
        (<Event>place[0]).follow(status_map, place[1], place[2], outlet)
    fifo.held = False
    if kept == NULL:
        return
    while (record := fifo.next_record(&position, &header, &size)) != NULL:
        event = event_at(by_old_index, ut_get_le32(record + header))
        if event is None or event.write_index < 0:
            count_dropped(fifo.counts, event)
            continue
        memcpy(kept + filled, record, size)
        ut_put(kept + filled + header, <uint32_t>event.write_index, 4)
        filled += size
    fifo.begin_with(kept, filled)


def give_up_fifo(Fifo fifo, list by_index):
    """Count everything pending as lost: the session closes. by_index: the Event of each write_index, or
    None."""
    cdef uint64_t position = fifo.boundary
    cdef unsigned char *record
    cdef unsigned header
    cdef size_t size
    while (record := fifo.next_record(&position, &header, &size)) != NULL:
        count_dropped(fifo.counts, event_at(by_index, ut_get_le32(record + header)))
    fifo.begin_with(NULL, 0)


def give_up_ring(RingOutlet outlet, list by_index):
    """Count as lost what no daemon took out of a ring that cannot be adopted. No event may lead there any
    more.

    by_index: as in `give_up_fifo`.
    """
    cdef uint64_t position = 0
    cdef uint32_t index
    while dr_walk(&outlet.ring, &position, &index):
        count_dropped(outlet.counts, event_at(by_index, index))


cdef inline Event event_at(list by_index, uint32_t index):
    return <Event>by_index[index] if index < <uint32_t>len(by_index) else None


cdef inline void count_dropped(Counts counts, Event event) noexcept:
    counts.lost += 1
    counts.dropped += 1
    if event is not None:
        event.lost += 1


def start_child(list events):
    """In a forked child: leave the parent's ring to it, remember its status bytes, and begin to count
    anew."""
    global forked_at_ns
    cdef Event event
    for event in events:
        event.lost = 0
        event.emitted = 0
        event.refused = {}
        event.outlet = event.fifo
        if event.status == &pending_byte:
            continue
        event.inherited = event.status
        event.status = &pending_byte
    forked_at_ns = ut_now_ns()


# ------------------------------------------------------------------------------------------------------ emit

cdef object emit(PyObject *self, PyObject *const *args, Py_ssize_t nr_args, PyObject *keyword_names):
    """Event.emit, called by the vectorcall protocol: no tuple, no dict."""
    cdef Event event = <Event>self
    cdef unsigned char byte = event.status[0]
    cdef PyObject *ordered[MAX_FIELDS]
    cdef Value values[MAX_FIELDS]
    cdef PyObject *const *given = args
    cdef unsigned char *payload
    cdef Step *step
    cdef Value *value
    cdef size_t size
    cdef Py_ssize_t i
    cdef list held = None
    if byte == 0 or (byte == PENDING and not event.look_again(True)):
        return None
    if keyword_names != NULL:
        sort_arguments(event, ordered, args, nr_args, keyword_names)
        given = ordered
    elif nr_args != event.nr_fields:
        raise TypeError(
            f"{event.name}: {nr_args} values for {event.nr_fields} fields ({', '.join(event.keywords)})"
        )
    size = event.min_size
    for i in range(event.nr_fields):
        step = &event.steps[i]
        value = &values[i]
        if step.kind == INTEGER:
            if not ut_small_int(given[i], &value.number.s):
                convert_number(event, i, value, given[i])
            elif value.number.s < 0 and not step.is_signed:
                raise_range_error(event, i, given[i])
            if step.size < 8:
                if step.is_signed:
                    if value.number.s != sign_extended(value.number.s, step.size):
                        raise_range_error(event, i, given[i])
                elif value.number.u >> (8 * step.size):
                    raise_range_error(event, i, given[i])
            continue
        if PyBytes_Check(<object>given[i]):
            value.text = PyBytes_AS_STRING(<object>given[i])
            value.length = PyBytes_GET_SIZE(<object>given[i])
        else:
            copy = convert_text(event, i, value, <object>given[i])
            if copy is not None:
                if held is None:
                    held = []
                held.append(copy)
        if step.kind == DATA_LOC or step.kind == REL_LOC:
            if value.length + step.is_string > MAX_LOC or <int64_t>size + step.loc_base > <int64_t>MAX_LOC:
                raise ValueError(
                    f"{event.name}: field {event.keywords[i]!r}: {value.length} bytes behind {size} others; "
                    f"a location word holds at most {MAX_LOC} each"
                )
            size += value.length + step.is_string
        elif step.kind == CHAR_ARRAY:
            if value.length > step.size:
                raise ValueError(
                    f"{event.name}: field {event.keywords[i]!r} has room for {step.size} bytes, "
                    f"not {value.length}"
                )
        elif value.length != step.size:
            raise ValueError(
                f"{event.name}: field {event.keywords[i]!r} takes exactly {step.size} bytes, "
                f"not {value.length}"
            )
    if size > event.max_size:
        raise ValueError(f"{event.name}: a record of {size} bytes; at most {event.max_size} are possible")
    # From here on no Python code runs until the record is committed.
    event.emitted += 1
    payload = event.outlet.reserve(<uint32_t>event.write_index, size) if event.write_index >= 0 else NULL
    if payload == NULL:
        event.lost += 1
        event.outlet.counts.lost += 1
        return None
    fill(event, values, payload)
    event.outlet.commit()
    return None


cdef int sort_arguments(Event event, PyObject **ordered, PyObject *const *args, Py_ssize_t nr_args,
                        PyObject *keyword_names) except -1:
    """Positional and keyword arguments into the order of the fields; TypeError like a call of a Python
    function."""
    cdef Py_ssize_t i, at, nr_keywords = PyTuple_GET_SIZE(keyword_names)
    cdef PyObject *name
    if nr_args > event.nr_fields:
        raise TypeError(f"{event.name}: {nr_args} values for {event.nr_fields} fields")
    for i in range(event.nr_fields):
        ordered[i] = args[i] if i < nr_args else NULL
    for i in range(nr_keywords):
        name = PyTuple_GET_ITEM(keyword_names, i)
        at = find_keyword(event.keywords, name)
        if event.ambiguous and event.keywords.count(<object>name) > 1:
            raise TypeError(
                f"{event.name}: several fields are called {<object>name!r}; give them by position"
            )
        if at < 0:
            raise TypeError(f"{event.name}: no field {<object>name!r}; there are {', '.join(event.keywords)}")
        if ordered[at] != NULL:
            raise TypeError(f"{event.name}: two values for the field {<object>name!r}")
        ordered[at] = args[nr_args + i]
    for i in range(event.nr_fields):
        if ordered[i] == NULL:
            raise TypeError(f"{event.name}: no value for the field {event.keywords[i]!r}")
    return 0


cdef Py_ssize_t find_keyword(tuple keywords, PyObject *name) except -2:
    """Names in a call are interned, nearly always, and so are these: look at the addresses first."""
    cdef Py_ssize_t i
    for i in range(len(keywords)):
        if PyTuple_GET_ITEM(<PyObject *>keywords, i) == name:
            return i
    for i in range(len(keywords)):
        if keywords[i] == <object>name:
            return i
    return -1


cdef uint64_t NO_NUMBER = 0xffffffffffffffffU


cdef inline int64_t sign_extended(int64_t number, unsigned size) noexcept:
    """`number` after being stored in `size` bytes (1, 2 or 4)."""
    if size == 1:
        return <int8_t>number
    if size == 2:
        return <int16_t>number
    return <int32_t>number


cdef int convert_number(Event event, Py_ssize_t i, Value *value, PyObject *given) except -1:
    """A large int, or what is none but may stand for one."""
    if event.steps[i].is_signed:
        value.number.s = PyLong_AsLongLong(given)
        if value.number.s == -1 and PyErr_Occurred() != NULL:
            return raise_number_error(event, i, given)
        return 0
    if PyLong_Check(given):
        value.number.u = PyLong_AsUnsignedLongLong(given)
    else:
        value.number.u = index_number(event, i, given)
    if value.number.u == NO_NUMBER and PyErr_Occurred() != NULL:
        return raise_number_error(event, i, given)
    return 0


cdef uint64_t index_number(Event event, Py_ssize_t i, PyObject *given) except? 0xffffffffffffffffU:
    """An argument that is no int but may stand for one (`__index__`)."""
    try:
        number = PyNumber_Index(<object>given)
    except TypeError:
        raise TypeError(type_error_text(event, i, given, "an integer")) from None
    if number < 0:
        raise_range_error(event, i, given)
    return PyLong_AsUnsignedLongLong(<PyObject *>number)


cdef int raise_number_error(Event event, Py_ssize_t i, PyObject *given) except -1:
    """Python's own error about a number says neither event nor field."""
    if PyErr_ExceptionMatches(OverflowError):
        PyErr_Clear()
        return raise_range_error(event, i, given)
    if PyErr_ExceptionMatches(TypeError) and not hasattr(type(<object>given), "__index__"):
        PyErr_Clear()
        raise TypeError(type_error_text(event, i, given, "an integer"))
    return -1


cdef int raise_range_error(Event event, Py_ssize_t i, PyObject *given) except -1:
    cdef Step *step = &event.steps[i]
    bits = 8 * step.size
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if step.is_signed else (0, (1 << bits) - 1)
    raise OverflowError(
        f"{event.name}: {PyNumber_Index(<object>given)} does not fit the field {event.keywords[i]!r} "
        f"({low} to {high})"
    )


cdef str type_error_text(Event event, Py_ssize_t i, PyObject *given, str wanted):
    return f"{event.name}: field {event.keywords[i]!r} takes {wanted}, not {type(<object>given).__name__}"


cdef object convert_text(Event event, Py_ssize_t i, Value *value, object given):
    """Anything but bytes: str, bytearray, memoryview. Returns what must be held until the record is
    written."""
    cdef Step *step = &event.steps[i]
    cdef Py_ssize_t length
    copy = None
    if isinstance(given, str) and step.kind != STRUCT:
        try:
            # the str keeps these bytes
            value.text = PyUnicode_AsUTF8AndSize(given, &length)
            value.length = length
            return None
        except UnicodeEncodeError:
            copy = given.encode("utf-8", "surrogateescape")
    elif isinstance(given, (bytearray, memoryview)):
        # A copy: the other arguments' conversion might resize or rewrite it.
        copy = bytes(given)
    else:
        raise TypeError(
            type_error_text(event, i, <PyObject *>given, "bytes" if step.kind == STRUCT else "str or bytes")
        )
    value.text = PyBytes_AS_STRING(copy)
    value.length = PyBytes_GET_SIZE(copy)
    return copy


cdef void fill(Event event, const Value *values, unsigned char *payload) noexcept:
    """Write the payload; dynamic data stand behind the fixed part, in the order of their fields."""
    cdef size_t end = event.min_size
    cdef size_t length
    cdef Py_ssize_t i
    cdef const Step *step
    cdef const Value *value
    for i in range(event.nr_fields):
        step = &event.steps[i]
        value = &values[i]
        if step.kind == INTEGER:
            ut_put(payload + step.offset, value.number.u, step.size)
        elif step.kind == CHAR_ARRAY or step.kind == STRUCT:
            memcpy(payload + step.offset, value.text, value.length)
            memset(payload + step.offset + value.length, 0, step.size - value.length)
        else:
            memcpy(payload + end, value.text, value.length)
            length = value.length
            if step.is_string:
                payload[end + length] = 0
                length += 1
            ut_put(payload + step.offset, length << 16 | (end + step.loc_base), 4)
            end += length


# ------------------------------------------------------------------------------------ Event.emit as a method

cdef PyMethodDef emit_method
emit_method.ml_name = b"emit"
emit_method.ml_meth = <PyCFunction><void *>emit
emit_method.ml_flags = METH_FASTCALL | METH_KEYWORDS
emit_method.ml_doc = b"""emit($self, /, *args, **kwargs)
--

Write one record if a consumer is attached; do nothing otherwise, whatever the arguments.

One value per field, by position or by name: integers; str or bytes for text; bytes for structs (exactly their
size) and for other dynamic data. TypeError: wrong type or number of values. OverflowError: an integer that
does not fit its field. ValueError: text that does not fit its array, a struct of another size, more than
65,529 bytes in all. After an error nothing was written. Never blocks: what does not fit is counted in `lost`.
"""
# Cython's `def emit(self, *args, **kwargs)` builds a tuple and a dict per call, even to find the event off.
(<dict>(<PyTypeObject *>Event).tp_dict)["emit"] = PyDescr_NewMethod(Event, &emit_method)
PyType_Modified(Event)
