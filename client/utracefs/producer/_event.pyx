"""Events; `if event:` runs here.

An Event has a `struct utracefs_event` of libutracefs (client/c) and a packing plan. `if event:` follows the
struct's pointer to one byte: 0 while no consumer is attached. The byte is PENDING while the library has no
answer of the daemon, and in a forked child; then `if event:` calls the library, which connects and waits for
no answer. `emit` is in _emit.pyx.

The library changes the pointer from its own thread, without the GIL, and never unmaps its target. Waiting
calls release the GIL, and run the program's signal handlers meanwhile, whose exceptions propagate.
"""

#: from utracefs_protocol.errors import TraceError

from sys import intern

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EINPROGRESS, ENOTCONN
from libc.stdint cimport int32_t

from utracefs.producer._binding cimport (
    PENDING,
    raise_what_is_set,
    run_handlers,
    utb_event_init,
    utb_event_stats,
    utb_event_stats_of,
    utb_find_place,
    utracefs_detach,
    utracefs_is_wanted,
)

KINDS = {  #: Final[dict[str, int]]
    "INTEGER": INTEGER,
    "CHAR_ARRAY": CHAR_ARRAY,
    "STRUCT": STRUCT,
    "DATA_LOC": DATA_LOC,
    "REL_LOC": REL_LOC,
    "FLOAT": FLOAT,
    "BOOL": BOOL,
}

cdef class Event:
    """One event of one session. Made by `utracefs.event`, never directly.

    `if event:` is true while a consumer is attached, and until the daemon's first answer. `event.emit(...)`
    then writes a record, and otherwise does nothing.

    declaration: The command string in the spelling of dynamic_events, without its `u:`.
    flags: 1 persist, 2 multi-format.
    """

    #: def __new__(
    #:     cls, session: Any, name: bytes, declaration: bytes, command: bytes, flags: int,
    #:     fields: Iterable[tuple[bytes, int, int, int, bool, bool, int]], max_size: int,
    #: ) -> Self: ...
    #: def emit(
    #:     self,
    #:     *args: SupportsIndex | SupportsFloat | str | bytes | bytearray | memoryview
    #:     | Sequence[SupportsFloat],
    #:     **kwargs: Any,
    #: ) -> None: ...

    def __cinit__(self, object session=None, bytes name=None, bytes declaration=None, bytes command=None,
                  int flags=0, object fields=(), size_t max_size=0):
        """session: has `_reduce(event)` and `_log_for_caller(text)`; or None. command: to register.
        fields: of (name: bytes, kind: a value of KINDS, offset in the payload, size, signed, is_string,
        element: bytes of an element of an array of the kind, or 0)."""
        cdef Py_ssize_t i = 0
        self.command = b"" if command is None else command
        utb_event_init(&self.own, self.command, flags)
        if command is None:
            raise TypeError("an Event is made by utracefs.event('NAME TYPE FIELD; ...')")
        self.session = session
        self.name = name.decode("utf-8", "surrogateescape")
        self.declaration = declaration.decode("utf-8", "surrogateescape")
        self.flags = flags
        self.refusals = {}
        self.max_size = max_size
        self.nr_fields = self.known_bare = len(fields)
        if self.nr_fields > MAX_FIELDS:
            raise ValueError(f"{self.nr_fields} fields; at most {MAX_FIELDS} are possible")
        if self.nr_fields:
            self.steps = <Step *>PyMem_Malloc(self.nr_fields * sizeof(Step))
            if self.steps == NULL:
                raise MemoryError
        keywords = []
        for field_name, kind, offset, size, is_signed, is_string, element in fields:
            keywords.append(intern((<bytes>field_name).decode("utf-8", "surrogateescape")))
            self.steps[i].kind = STRUCT if element else INTEGER if kind == BOOL else kind
            self.steps[i].bits = 1 if kind == BOOL else min(8 * (element or size), 64)
            self.steps[i].element = element
            self.steps[i].of_floats = kind == FLOAT
            self.steps[i].offset = offset
            self.steps[i].size = size
            self.steps[i].is_signed = is_signed
            self.steps[i].is_string = is_string
            self.steps[i].was_warned = False
            # __data_loc counts from the common fields in front of the payload, __rel_loc from behind its own
            # word.
            self.steps[i].loc_base = 8 if kind == DATA_LOC else -<int32_t>(offset + 4)
            self.min_size = offset + size
            i += 1
        self.keywords = tuple(keywords)
        self.ambiguous = self.nr_fields > 1 and len(set(keywords)) < self.nr_fields

    def __dealloc__(self):
        utracefs_detach(&self.own)
        PyMem_Free(self.steps)

    cdef bint may_emit(self) noexcept:
        """Called while the byte is PENDING: whether to make a record."""
        cdef bint on
        with nogil:
            on = utracefs_is_wanted(&self.own)
        return on

    cdef int find_place(self, uint32_t size, uint64_t *until) except -1:
        """Wait for a data ring, or for room in it: whether there is one. until: 0 at first."""
        cdef int has_place
        with nogil:
            has_place = utb_find_place(&self.own, size, until, run_handlers, NULL)
        raise_what_is_set()
        return has_place > 0

    def __bool__(self):
        cdef unsigned char byte = status_of(self)
        if byte == PENDING:
            return self.may_emit()
        return byte != 0

    @property
    def enabled(self) -> bool:
        """Whether a consumer is attached, or the daemon has not answered yet: the same as `bool(event)`."""
        return bool(self)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return self.keywords

    @property
    def registered(self) -> bool:
        """Whether the event is registered at the daemon, with a consumer or without. To wait for a consumer:
        `while not (event.registered and event)`."""
        return self.stats().error == 0

    @property
    def index(self) -> int:
        """write_index on the session's connection, -1 without one."""
        return <int32_t>self.stats().write_index

    @property
    def emitted(self) -> int:
        """Calls of `emit` while the event was on, including lost and refused records."""
        return self.counted - self.stats().unwanted

    @property
    def lost(self) -> int:
        """Records lost because there was no space for them, or no daemon any more."""
        return self.stats().lost

    @property
    def refused(self) -> dict[str, int]:
        """Refused records, {reason: number}: by this client, because a value did not fit ("usec was float"),
        or by the daemon (errno name)."""
        cdef utb_event_stats stats = self.stats()
        cdef unsigned i
        from utracefs_protocol.errors import TraceError  # (who declares an event has imported it)
        found = dict(self.refusals)
        for i in range(stats.nr_refusals):
            found[TraceError(stats.refusals[i].error, "").errno_name] = stats.refusals[i].count
        return found

    @property
    def error(self) -> TraceError | None:
        """The TraceError with which the daemon refused the registration, or None."""
        cdef utb_event_stats stats = self.stats()
        if stats.error == 0:
            self.known_error = None
        elif stats.error != EINPROGRESS and stats.error != ENOTCONN:
            from utracefs_protocol.errors import TraceError
            text = (<bytes>stats.text).decode("utf-8", "replace")
            if self.known_error is None or (stats.error, text) != (
                self.known_error.errno, self.known_error.text
            ):
                self.known_error = TraceError(stats.error, text)
        return self.known_error

    cdef utb_event_stats stats(self) noexcept:
        cdef utb_event_stats stats
        utb_event_stats_of(&self.own, &stats)
        return stats

    def _counts(self) -> tuple[int, int, int]:
        """(emitted, lost, pending). The session's `is_connected` updates `pending`."""
        cdef utb_event_stats stats = self.stats()
        return self.counted - stats.unwanted, stats.lost, stats.pending

    def _start_child(self) -> None:
        """In a forked child: reset the counts."""
        self.counted = 0
        self.refusals = {}

    def __repr__(self):
        if self.error is not None:
            state = f"refused: {self.error}"
        elif status_of(self) == PENDING:
            state = "not known yet"
        else:
            state = "on" if status_of(self) else "off"
        return f"<utracefs.Event {self.declaration!r}, {state}>"

    def __str__(self):
        return self.declaration

    def __reduce__(self):
        return self.session._reduce(self)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self
