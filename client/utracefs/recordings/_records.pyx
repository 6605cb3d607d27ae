# cython: boundscheck=False, wraparound=False
"""Records of any recording, selected and decoded by one set of getters, independent of the file's format.

    RecordSource                 the records of a file, in the order of time
    ├── trace_dat._merge         of a trace.dat
    └── perf_data._samples       of a perf.data
    Records                      the selected ones ─▶ Record, or text (export._json_text)

`_fields` locates a field and checks it against the end of the record.
"""

from json import loads

import cython

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from utracefs_protocol.filter._program cimport Filter, Names
from utracefs_protocol.pages.record cimport COMM_SIZE, Record as Judged

from utracefs_protocol.text import bytes_of
#: from utracefs_protocol.events.declaration import Field


@cython.final
cdef class NameCache:
    """Bytes that are made of names, once. make: str to bytes."""

    def __cinit__(self, make: Callable[[str], bytes]):
        self._make = make
        self._known = {}

    cdef bytes of(self, str name):
        if name is not self._last:
            found = self._known.get(name)
            if found is None:
                if len(self._known) > KNOWN_NAMES:
                    self._known.clear()
                found = self._known[name] = self._make(name)
            self._last, self._made = name, <bytes>found
        return self._made


cdef class RecordSource:
    """Source of a file's records. comms: thread id to name, at the present record."""

    def __cinit__(self):
        self.comms = {}

    cdef bint next(self, Raw *raw) except -1:
        """Read the next record; False at the end."""
        return False

    cdef int original(self, Raw *raw) except -1:
        """Let `raw`, the present record, have the file's entry."""
        return 0


cdef class EventDecoder(Fields):
    """Decodes the records of one event. fields: those of an EventFormat. filter: selects records; None: all.
    paths: for each field the names of the structs that it is in, and its own; empty: there are no structs.
    json: names of fields with JSON. opcode: that of an event of EventHeader; -1: it is none."""

    def __init__(
        self, str system not None, str name not None, fields: Iterable[Field], *,
        tuple paths: tuple[tuple[str, ...], ...] = (), json: Collection[str] = (), int opcode=-1
    ):
        cdef Py_ssize_t i
        Fields.__init__(self, fields)
        self.system = system
        self.name = name
        self.paths = paths
        self.opcode = opcode
        self._json = tuple([name for name in self.names if name in json])
        for i in range(self.count):
            self.getters[i].is_json = self.names[i] in json
            self._least = max(self._least, self.getters[i].place.offset + self.getters[i].place.size)
            self._has_locs |= self.getters[i].place.where in (DATA_LOC, REL_LOC)

    cdef bint fits(self, const Raw *raw) noexcept:
        """Whether all fields are within the record."""
        cdef const uint8_t *data
        cdef size_t length
        cdef Py_ssize_t i
        if raw.size < self._least:
            return False
        for i in range(self.count if self._has_locs else 0):
            if not find_bytes(&self.getters[i].place, raw.entry, raw.size, &data, &length):
                return False
        return True

    cdef dict fields(self, const Raw *raw):
        """Name to int, float, bool, str, bytes or list, of EventHeader also to all that JSON has; empty for a
        record that does not match its event."""
        cdef dict found = self.values(raw.entry, raw.size, raw.entry)
        if found is None:
            return {}
        for name in self._json:
            found[name] = loads(found[name])
        return nested(self.paths, found.values()) if self.paths else found


@cython.wraparound(True)
cdef dict nested(tuple paths, values):
    cdef dict found = {}, inner
    for path, value in zip(paths, values):
        inner = found
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    return found


cdef class ThreadNames(Names):
    """Names of threads for filters, from the file."""

    cdef const char *name_of(self, const Judged *r) noexcept:
        cdef str comm = comm_of(self._comms, self._tid)
        cdef bytes name
        if comm is not self._shown:
            name = bytes_of(comm)
            memset(self._name, 0, COMM_SIZE)
            memcpy(self._name, PyBytes_AS_STRING(name), min(PyBytes_GET_SIZE(name), COMM_SIZE - 1))
            self._shown = comm
        return self._name


cdef str comm_of(dict comms, int32_t tid):
    found = comms.get(tid)
    if found:
        return found
    return "<...>" if tid else "<idle>"


cdef bint passes(Filter filter, const Raw *raw, dict comms) except -1:
    """Whether the record passes a filter, as in a daemon. The entry has its header."""
    cdef Judged r
    cdef ThreadNames names
    r.ts_ns = raw.time_ns
    r.cpu = raw.cpu
    memcpy(&r.id, raw.entry, 2)
    memcpy(&filter.flags, raw.entry + 2, 2)
    memcpy(&r.pid, raw.entry + 4, 4)
    r.tgid = raw.pid
    r.payload = raw.entry + HEADER
    r.size = raw.size - HEADER
    r.valid = True
    r.origin = r.origin_at = 0
    if filter.names is not None:
        names = <ThreadNames?>filter.names
        names._comms = comms
        names._tid = raw.tid
    return filter.matches(&r)


@cython.freelist(64)
cdef class Record:
    """One record of a recording.

    | attribute | value |
    |---|---|
    | time_ns | nanoseconds of the recording's clock |
    | cpu | its cpu |
    | pid | of the process; the thread's id if the file has no processes (trace.dat) |
    | tid | of the thread |
    | comm | the thread's name, `<...>` if not known |
    | system, name | of the event |
    | fields | name to int, float, bool, str (bytes that are not UTF-8 as surrogate escapes), bytes, or a
    list of numbers; empty for a record that is shorter than the event's fields |
    | lost | number of records lost before this one, on any cpu; -1: unknown |
    | instance | the instance of its buffer; empty for the top instance |
    | host | the host where it was recorded; empty if unknown |
    | file | the path of its recording |
    """

    cdef readonly uint64_t time_ns
    cdef readonly uint32_t cpu
    cdef readonly int32_t pid
    cdef readonly int32_t tid
    cdef readonly int64_t lost
    cdef readonly str comm
    cdef readonly str system
    cdef readonly str name
    cdef readonly str instance
    cdef readonly str host
    cdef readonly str file
    cdef readonly dict fields  #: dict[str, Any]

    def __repr__(self):
        return (
            f"<Record {self.time_ns} ns, cpu {self.cpu}, {self.comm}-{self.tid}: "
            f"{self.system}:{self.name} {self.fields}>"
        )


cdef class Records:
    """Iterates over the selected records of a source.

    find_event: event id to EventDecoder, None for an event that is not selected; called once per id. Of
    merged recordings it gets `event_key`.
    instances: names of the buffers. places: (host, file) of each recording; is_merged: there are several.
    apart: for viewers, which know one host only: for each recording a number that is added to process and
    thread ids, and a prefix for names of threads; None: ids and names are unchanged.
    pids: process or thread ids, cpus: numbers, None: all.
    since_ns, until_ns: times from the first and before the second, None: all.
    count: records returned. last_ns: time of the last one.
    lost: records known by the file to be lost, within the selected cpus and times, of any event;
    lost_uncounted: an unknown number more is lost.

    ValueError at invalid data, after all records before it.
    """

    def __init__(
        self, RecordSource source not None, find_event: Callable[[int], EventDecoder | None], *,
        list instances not None: list[str] = [], list places not None: list[tuple[str, str]] = [],
        list apart: list[tuple[int, str]] | None = None, pids: Collection[int] | None = None,
        cpus: Collection[int] | None = None, since_ns: int | None = None, until_ns: int | None = None
    ):
        self._source = source
        self._find_event = find_event
        self._events = {}
        self._instances = instances
        self._places = places
        self._apart = apart
        self._labelled = {}
        self.is_merged = len(places) > 1
        self._pids = pids
        self._cpus = cpus
        self._since = 0 if since_ns is None else min(max(since_ns, 0), 2**64 - 1)
        self._last = 2**64 - 1 if until_ns is None else min(max(until_ns - 1, 0), 2**64 - 1)
        self._none = until_ns is not None and until_ns <= 0
        self._takes_all = pids is None and cpus is None and since_ns is None and until_ns is None
        memset(self._slots, 0, sizeof(self._slots))

    def __iter__(self):
        return self

    def __next__(self) -> Record:
        cdef Raw raw
        cdef EventDecoder event = self.next(&raw)
        cdef Record record
        if event is None:
            raise StopIteration
        record = Record.__new__(Record)
        record.time_ns = raw.time_ns
        record.cpu = raw.cpu
        record.pid = raw.pid
        record.tid = raw.tid
        record.lost = raw.lost
        record.comm = self.comm(raw.tid)
        record.system = event.system
        record.name = event.name
        record.instance = self.instance(raw.buffer)
        record.host, record.file = self.place(&raw)
        record.fields = event.fields(&raw)
        return record

    def events(self) -> list[EventDecoder]:
        """Read the rest, and return the decoders of the events found, in the order of their first records, up
        to an error, if any."""
        cdef Raw raw
        cdef EventDecoder event
        cdef EventDecoder before = None
        found = {}
        try:
            while (event := self.next(&raw)) is not None:
                if event is not before:
                    found[event] = None
                    before = event
        except ValueError:
            pass
        return list(found)

    cdef bint within(self, const Raw *raw) except -1:
        """Whether it has one of the times and cpus; what was lost in front of it counts only then."""
        if raw.time_ns < self._since or raw.time_ns > self._last or self._none:
            return False
        return self._cpus is None or raw.cpu in self._cpus

    cdef EventDecoder selected(self, const Raw *raw):
        """The decoder of a record that is `within`; None where it was not asked for."""
        cdef EventDecoder event
        if raw.size < HEADER:
            return None
        event = self._selected(event_key(raw))
        if event is None:
            return None
        if self._pids is not None and raw.pid not in self._pids and raw.tid not in self._pids:
            return None
        if event.filter is not None and not passes(event.filter, raw, self._source.comms):
            return None
        return event

    cdef EventDecoder next(self, Raw *raw):
        """Decoder of the next record; None at the end."""
        cdef EventDecoder event
        while self._source.next(raw):
            if (
                self._again is not None
                and not raw.lost
                and raw.size >= HEADER
                and event_key(raw) == self._key
            ):
                raw.lost = self._pending
                self._pending = 0
                self.count += 1
                self.last_ns = raw.time_ns
                return self._again
            if not self.within(raw):
                continue
            if raw.lost < 0:
                self.lost_uncounted = True
                self._pending = -1
            elif raw.lost:
                self.lost += raw.lost
                if self._pending >= 0:
                    self._pending += raw.lost
            event = self.selected(raw)
            if event is None:
                continue
            raw.lost = self._pending
            self._pending = 0
            self.count += 1
            self.last_ns = raw.time_ns
            if self._apart is not None:
                self._shift = self._apart[raw.recording][0]
                raw.pid += self._shift
                raw.tid += self._shift
            elif self._takes_all and event.filter is None:
                self._again, self._key = event, event_key(raw)
            return event
        if self._last == <uint64_t>-1 and self._cpus is None:
            self.lost += max(self._source.lost_behind, 0)
            self.lost_uncounted |= self._source.lost_behind < 0
            self._source.lost_behind = 0
        return None

    cdef EventDecoder next_original(self, Raw *raw):
        """The same, with the file's entry in place of that of an event in it."""
        cdef EventDecoder event = self.next(raw)
        if event is not None:
            self._source.original(raw)
        return event

    cdef EventDecoder _selected(self, uint32_t key):
        cdef EventSlot *slot = &self._slots[slot_of(key)]
        if not slot.known or slot.key != key:
            if key not in self._events:
                self._events[key] = self._find_event(key)
            found = self._events[key]
            slot.decoder = NULL if found is None else <void *><EventDecoder?>found
            slot.known = True
            slot.key = key
        return None if slot.decoder == NULL else <EventDecoder>slot.decoder

    cdef str comm(self, int32_t tid):
        """Name of the present record's thread, or of its process."""
        cdef str comm = self._comm
        if comm is None or tid != self._tid or not self._source.keeps_comms:
            comm = self._comm = comm_of(self._source.comms, tid - self._shift)
            self._tid = tid
        if self._apart is None:
            return comm
        found = self._labelled.get((self._shift, comm))
        if found is None:
            if len(self._labelled) > KNOWN_NAMES:
                self._labelled.clear()
            # No generator expression: each call would make an object for its scope.
            for shift, label in self._apart:
                if shift == self._shift:
                    found = self._labelled[self._shift, comm] = f"{label}{comm}"
                    break
        return found

    cdef str instance(self, uint32_t buffer):
        return self._instances[buffer] if buffer < <size_t>len(self._instances) else ""

    cdef tuple place(self, const Raw *raw):
        """(host, file) of a record."""
        return <tuple>self._places[raw.recording] if self._places else ("", "")

    cdef bint is_steady(self) noexcept:
        """Whether the source is steady."""
        return self._source.is_steady
