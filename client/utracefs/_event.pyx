"""Events: what runs once per `if event:`, and how events move from one connection to another.

An Event is a status pointer, a packing plan and an outlet. `if event:` reads the one byte the pointer leads
to; `emit` is in _emit.pyx.

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

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from utracefs_protocol.data_ring cimport DR_COMM, DR_REFUSED, dr_walk
from utracefs._outlets cimport (
    BIN_MAX_HEADER,
    BIN_MAX_OBJECT,
    BIN_SIGNATURE,
    Counts,
    Fifo,
    LostOutlet,
    Outlet,
    RingOutlet,
    bin_index_at,
    ut_get_le32,
    ut_now_ns,
    ut_put,
)
from utracefs._status_map cimport StatusMap

# The two places of the status pointer that are no daemon's. Read like the mapped bytes, never written.
cdef unsigned char off_byte = 0
cdef unsigned char pending_byte = PENDING

# When this process was forked from one that had sessions, CLOCK_MONOTONIC; 0 if it was not.
cdef uint64_t forked_at_ns = 0

cdef enum:
    # How long a forked child follows its parent's status byte before it wants a connection of its own.
    INHERITED_NS = 1_000_000_000

KINDS = {
    "INTEGER": INTEGER,
    "CHAR_ARRAY": CHAR_ARRAY,
    "STRUCT": STRUCT,
    "DATA_LOC": DATA_LOC,
    "REL_LOC": REL_LOC,
}

# Bytes of records that one event holds until it is answered.
cdef size_t MAX_HELD = 1 << 20
# What a held record has besides its payload, with a name, and as an object on the socket.
cdef size_t HELD_MORE = BIN_MAX_HEADER + BIN_SIGNATURE + 4 + DR_COMM


cdef class Event:
    """One event of one session. Made by `utracefs.event`, never directly.

    `if event:` is true while a consumer is attached. `event.emit(...)` writes a record then, and does nothing
    otherwise.

    lost: Records given up because there was no room for them, or no daemon to send them to any more.
    emitted: Calls of `emit` while the event was on, those whose records were lost or refused included.
    declaration: The command string in the spelling of dynamic_events, without its `u:`.
    flags: 1 persist, 2 multi-format.
    error: The TraceError with which the daemon refused the registration, or None.
    refused: Records that were not taken, {reason: count}: by this client, because a value did not fit
        ("usec was float"), or by the daemon (errno name).
    """

    def __cinit__(self, object session=None, Fifo fifo=None, bytes name=None, bytes declaration=None,
                  int flags=0, object fields=(), size_t max_size=0):
        """session: has `_await_answer(event)`, `_start()`, `_reduce(event)` and `_log_for_caller(text)`; or
        None.
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
            self.steps[i].was_told = False
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
            waits_already = self.session._await_answer(self)
            # Then nobody knows yet; what is emitted is held.
            return waits_already if self.status == &pending_byte else self.status[0] != 0
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
        self.held = None

    @property
    def _is_unsettled(self):
        return self.status == &pending_byte

    cdef unsigned char *hold(self, size_t size) noexcept:
        """Room for a record of an event that was never answered; NULL: too many of them, or no memory. It is
        kept with its thread's signature and name (bin.h)."""
        cdef size_t named = DR_COMM if size + HELD_MORE <= BIN_MAX_OBJECT else 0
        cdef unsigned char *record
        if self.status != &pending_byte or (self.held is not None and self.held_bytes + size > MAX_HELD):
            return NULL
        try:
            made = []  # which may run finalizers, and one of these emit
            if self.held is None:
                self.held = made
                self.held_bytes = 0
            kept = PyBytes_FromStringAndSize(NULL, BIN_SIGNATURE + 4 + size + named)
            self.held.append(kept)
        except MemoryError:
            return NULL
        self.held_bytes += size
        record = <unsigned char *>PyBytes_AS_STRING(kept)
        return self.fifo.sign_record(record, size, named != 0)

    cdef void emit_held(self) noexcept:
        """The answer has come: what was held is written if a consumer is attached, as if it were now. What
        has no room in the ring goes through the socket."""
        cdef list held = self.held
        cdef const unsigned char *record
        cdef uint32_t size
        self.held = None
        if held is None or self.status[0] == 0:
            return
        for kept in held:
            self.emitted += 1
            record = <const unsigned char *>PyBytes_AS_STRING(kept)
            size = <uint32_t>PyBytes_GET_SIZE(kept)
            if not self.outlet.take_over(<uint32_t>self.write_index, record, size) and (
                not self.fifo.take_over(<uint32_t>self.write_index, record, size)
            ):
                self.lost += 1
                self.outlet.counts.lost += 1


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
            event.status = &off_byte


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
        (<Event>place[0]).emit_held()


def move(StatusMap status_map, Outlet outlet, list places, Fifo fifo, list by_old_index):
    """A connection is up: give every event its place there, and move what the FIFO holds there, too. One
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
    cdef uint32_t index
    cdef size_t size
    cdef RingOutlet ring = outlet if isinstance(outlet, RingOutlet) else None
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
    while kept != NULL and (record := fifo.next_record(&position, &header, &size)) != NULL:
        index = index_of(record + header, size - header)
        event = event_at(by_old_index, index & ~DR_REFUSED)
        if event is None or event.write_index < 0:
            count_dropped(fifo.counts, by_old_index, index)
            continue
        if ring is not None and filled == 0 and ring.take_over(
            <uint32_t>event.write_index | index & DR_REFUSED, record + header, <uint32_t>(size - header)
        ):
            # There it is the daemon's at once. It was counted before.
            fifo.counts.records_in -= 1
            continue
        memcpy(kept + filled, record, size)
        header += bin_index_at(record + header, <uint32_t>(size - header))
        ut_put(kept + filled + header, <uint32_t>event.write_index | index & DR_REFUSED, 4)
        filled += size
    if kept != NULL:
        fifo.begin_with(kept, filled)
    for place in places:
        (<Event>place[0]).emit_held()


def cut_off(list events, LostOutlet outlet, Fifo fifo, list by_index):
    """In a forked child that cannot reach the daemon: these follow their parent's bytes, and all that was and
    will be emitted is lost. by_index: as in `give_up_fifo`."""
    cdef Event event
    give_up_fifo(fifo, by_index, outlet)
    for event in events:
        if event.inherited != NULL:
            event.status = event.inherited
            event.inherited = NULL
        if event.status_map is None:
            event.leave_map()
        else:
            event.outlet = outlet


def give_up_fifo(Fifo fifo, list by_index, LostOutlet told=None):
    """Count everything pending as lost: the session closes, or the daemon cannot be reached. by_index: the
    Event of each write_index, or None. told: where it is counted for others, too."""
    cdef uint64_t position = fifo.boundary
    cdef unsigned char *record
    cdef unsigned header
    cdef size_t size
    while (record := fifo.next_record(&position, &header, &size)) != NULL:
        count_dropped(fifo.counts, by_index, index_of(record + header, size - header))
        if told is not None:
            told.reserve(index_of(record + header, size - header), 0)
    fifo.begin_with(NULL, 0)


def give_up_ring(RingOutlet outlet, list by_index):
    """Count as lost what no daemon took out of a ring that cannot be adopted. No event may lead there any
    more.

    by_index: as in `give_up_fifo`.
    """
    cdef uint64_t position = 0
    cdef uint32_t index
    while dr_walk(&outlet.ring, &position, &index):
        count_dropped(outlet.counts, by_index, index)


cdef inline uint32_t index_of(const unsigned char *record, size_t size) noexcept:
    return ut_get_le32(record + bin_index_at(record, <uint32_t>size))


cdef inline Event event_at(list by_index, uint32_t index):
    return <Event>by_index[index] if index < <uint32_t>len(by_index) else None


cdef inline void count_dropped(Counts counts, list by_index, uint32_t index) noexcept:
    """One that was committed is given up. Of a refusal nothing is lost: it stays counted here."""
    cdef Event event
    if index & DR_REFUSED:
        return
    event = event_at(by_index, index)
    counts.lost += 1
    counts.dropped += 1
    if event is not None:
        event.lost += 1


def start_child(list events):
    """In a forked child: leave the parent's ring to it, remember its status bytes, and begin to count
    anew."""
    cdef Event event
    for event in events:
        event.lost = 0
        event.emitted = 0
        event.refused = {}
        event.held = None
    begin_anew(events)


def begin_anew(list events):
    """The connection is gone, and the daemon may be there as it was: the status bytes hold until there is
    another one, which the next emit waits for."""
    global forked_at_ns
    cdef Event event
    for event in events:
        event.outlet = event.fifo
        if event.status == &pending_byte:
            continue
        event.inherited = event.status
        event.status = &pending_byte
    forked_at_ns = ut_now_ns()
