# cython: boundscheck=False, wraparound=False
"""Converts records to items on tracks, for all formats of timelines.

For each record `prepare` sets

    new        new or renamed tracks: they are described in front of the record
    parts      POINT │ [END ...] [BEGIN ...] [SPAN ...] [COUNT ...]; None: a point on the thread's track
    thread     the record's thread
    plan       constant data of the event

and a format writes them. Most records are points; those need no Python object. `Tracks.roles` says what an
event's records mean; this module where their items are drawn, with `_placing` for the lane of a slice.
"""

from libc.math cimport isfinite
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from utracefs.recordings._records cimport EventDecoder, Raw, value_of
from utracefs.export.timelines._placing cimport (
    COUNTER_TRACK,
    LANE_TRACK,
    LOST_TRACK,
    PROCESS_TRACK,
    THREAD_TRACK,
    Nesting,
    Open,
    OpenSlices,
    Track,
    TrackKind,
)
from utracefs.recordings._output_buffer cimport RecordWriter
from utracefs_protocol.events._fields cimport find_bytes

from utracefs.tree.event_names import EventName
from utracefs_protocol.text import clean
#: from utracefs.recordings._records import Records
#: from utracefs.export.timelines.tracks import Tracks


cdef class Part:
    """One item of a record."""


cdef class Thread:
    """A described thread."""


cdef class EventPlan:
    """Constant data of an event."""


cdef class TrackWriter(RecordWriter):
    """tracks: a Tracks. max_threads: limit of known threads; above it all are dropped, and described again at
    their next record."""

    def __init__(self, records: Records, tracks: Tracks):
        super().__init__(records)
        self.max_threads = 1 << 16
        self._tracks = tracks
        self._open = OpenSlices()
        self._plans = {}
        self._threads = {}
        self._processes = {}
        self._counters = {}
        self.new = []
        memset(self._slots, 0, sizeof(self._slots))

    @property
    def begins_without_end(self) -> int:
        return self._open.begins_without_end

    cdef object text_of_event(self, EventDecoder event, EventPlan plan):
        """The format's data of an event, as plan.text."""
        raise NotImplementedError

    cdef int prepare(self, EventDecoder event, const Raw *raw) except -1:
        self.new.clear()
        self.plan = self._plan(event)
        self._find_thread(raw)
        self.instance = self._records.instance(raw.buffer)
        if raw.lost and self.lost is None:
            self.lost = self._track(LOST_TRACK, "lost records", None, 0, 0)
        if raw.time_ns > self._seen_ns:
            self._seen_ns = raw.time_ns
        self.parts = None
        if not self.plan.is_point and event.fits(raw):
            self.parts = self._place(event, raw)
        return 0

    cdef EventPlan _plan(self, EventDecoder event):
        cdef EventPlan plan = self._plans.get(event)
        if plan is None:
            plan = self._plans[event] = EventPlan.__new__(EventPlan)
            roles = self._tracks.roles(EventName(event.system, event.name), event.names, event.opcode)
            plan.ends, plan.begins, plan.durations, plan.counters = roles
            plan.is_point = not any(roles)
            plan.span_name = -1
            if event.opcode < 0 and "span_name" in event.names:
                plan.span_name = event.names.index("span_name")
            taken = set()
            plan.names = tuple([free_name(clean(name), taken) for name in event.names])
            plan.cpu = free_name("cpu", taken)
            plan.tid = free_name("tid", taken)
            plan.pid = free_name("pid", taken)
            plan.instance = free_name("instance", taken)
            plan.end = free_name("end", taken)
            plan.text = self.text_of_event(event, plan)
        return plan

    cdef int _find_thread(self, const Raw *raw) except -1:
        cdef uint32_t hash = <uint32_t>raw.tid ^ <uint32_t>raw.pid << 4
        cdef ThreadSlot *slot = &self._slots[hash & (THREAD_SLOTS - 1)]
        cdef str comm = self._records.comm(raw.tid)
        cdef Thread thread
        if slot.thread == NULL or slot.tid != raw.tid or slot.pid != raw.pid:
            if len(self._threads) > self.max_threads:
                self._forget()
            key = (raw.pid, raw.tid)
            thread = self._threads.get(key)
            if thread is None:
                thread = self._threads[key] = Thread.__new__(Thread)
            slot.pid = raw.pid
            slot.tid = raw.tid
            slot.thread = <void *>thread
        self.thread = <Thread>slot.thread
        if self.thread.comm is not comm and self.thread.comm != comm:
            self._name_thread(raw, comm)
        return 0

    cdef int _name_thread(self, const Raw *raw, str comm) except -1:
        """A process gets the name of its first thread, or of the first one seen if that is unknown."""
        cdef Thread thread = self.thread
        cdef str main = self._records.comm(raw.pid)
        cdef Track process = self._processes.get(raw.pid)
        cdef bint is_known = not main.endswith("<...>")
        name = clean(main if is_known else comm)
        if process is None:
            process = self._processes[raw.pid] = self._track(PROCESS_TRACK, name, None, raw.pid, raw.pid)
        elif is_known and process.name != name:
            process.name = name
            self.new.append(process)
        thread.comm = comm
        if thread.track is None:
            thread.process = process
            thread.track = self._track(THREAD_TRACK, clean(comm), process, raw.pid, raw.tid)
        else:
            thread.track.name = clean(comm)
            self.new.append(thread.track)
        return 0

    def _forget(self):
        """From here on use new tracks, except those of threads."""
        self._threads.clear()
        self._processes.clear()
        self._counters.clear()
        self._open.forget_lanes()
        self._latest_ns = self._seen_ns
        memset(self._slots, 0, sizeof(self._slots))

    cdef list _place(self, EventDecoder event, const Raw *raw):
        cdef list parts = []
        cdef Thread thread = self.thread
        cdef Open one, parent
        cdef Track owner, track
        cdef Part part
        for number, places, place, name in self.plan.ends:
            one = self._open.end(self._key(event, raw, number, places), raw.pid, raw.tid, raw.time_ns)
            if one is not None:
                self._end(parts, one, raw.time_ns)
            elif place < 0:
                self.ends_without_begin += 1
            else:
                lasted = value_at(event, raw, place)
                name = self._name(event, raw, name)
                self._place_span(parts, name, max(0, raw.time_ns - lasted), raw.time_ns)
        for number, places, place, name in self.plan.begins:
            key = self._key(event, raw, number, places)
            owner = thread.process if places and place < 0 else thread.track
            if place >= 0:
                name = self._name(event, raw, name)
            one = Open(key, name, event.system, owner, raw.pid, raw.tid, raw.time_ns)
            track = None
            if place >= 0:
                parent = self._open.with_key((-1, value_at(event, raw, place)))
                if (
                    parent is not None
                    and parent.pid == raw.pid
                    and parent.tid == raw.tid
                    and parent.track.top is parent
                ):
                    one.under = parent
                    track = parent.track
            self._begin(parts, one, track, False)
            if place >= 0:
                one.track.top = one
        if self.plan.durations:
            self._place_spans(parts, event, raw)
        if not parts:
            parts.append(part_of(POINT_PART, thread.track, raw.time_ns, event.name, event.system))
        for place, name in self.plan.counters:
            value = value_at(event, raw, place)
            if isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
                track = self._counters.get((raw.pid, name))
                if track is None:
                    track = self._track(COUNTER_TRACK, clean(name), thread.process, raw.pid, raw.tid)
                    self._counters[raw.pid, name] = track
                part = part_of(COUNT_PART, track, raw.time_ns, name, event.system)
                part.value = value
                parts.append(part)
        return parts

    cdef object _name(self, EventDecoder event, const Raw *raw, name):
        """Name of a span."""
        if self.plan.span_name < 0:
            return name
        found = value_at(event, raw, self.plan.span_name)
        return found if isinstance(found, str) and found else name

    cdef int _begin(self, list parts, Open one, Track track, bint bare) except -1:
        """track: None for a free or a new lane."""
        cdef Part part
        if track is None:
            track = self._open.free_lane(one)
        if track is None:
            track = self._track(LANE_TRACK, clean(one.name), one.owner, one.pid, one.tid)
        if bare:
            one.track = track
        else:
            self._open.begin(one, track)
        part = part_of(BEGIN_PART, track, one.begin_ns, one.name, one.system)
        part.bare = bare
        parts.append(part)
        return 0

    cdef int _end(self, list parts, Open one, uint64_t ns) except -1:
        """Ends a slice, and cuts the spans in it."""
        cdef list cut = []
        cdef Track track = one.track
        cdef Open inner = track.top
        cdef Part part
        while inner is not None and inner is not one:
            cut.append(inner)
            part = part_of(END_PART, track, ns, inner.name, inner.system)
            part.bare = True
            parts.append(part)
            inner = inner.under
        parts.append(part_of(END_PART, track, ns, one.name, one.system))
        if inner is one:
            track.top = one.under
        for inner in reversed(cut):
            # (its begin is that of the slice: a lane that was free then may not be used)
            inner.begin_ns = ns
            inner.under = None
            self._begin(parts, inner, None, True)
            inner.track.top = inner
        return 0

    cdef int _place_spans(self, list parts, EventDecoder event, const Raw *raw) except -1:
        cdef list spans = []
        for place, unit_ns, name in self.plan.durations:
            value = value_at(event, raw, place)
            if isinstance(value, (int, float)) and 0 <= value < 1e30:
                spans.append((max(0, raw.time_ns - int(value * unit_ns)), name))
        if len(spans) > 1:
            # The inner one first, as if they came one by one.
            spans.sort(key=lambda span: -span[0])
        for begin_ns, name in spans:
            self._place_span(parts, name, begin_ns, raw.time_ns)
        return 0

    cdef int _place_span(self, list parts, str name, uint64_t begin_ns, uint64_t end_ns) except -1:
        cdef Thread thread = self.thread
        cdef Track track
        cdef Part part
        cdef int lane
        if thread.nesting is None:
            thread.nesting = Nesting(self._latest_ns)
            thread.lanes = [thread.track]
        lane = thread.nesting.lane(begin_ns, end_ns)
        if 0 <= lane < len(thread.lanes):
            track = <Track>thread.lanes[lane]
        else:
            track = self._track(LANE_TRACK, "overlapping", thread.track, thread.track.pid, thread.track.tid)
            if lane >= 0:
                thread.lanes.append(track)
        part = part_of(SPAN_PART, track, begin_ns, name, None)
        part.end_ns = end_ns
        part.on_thread = track is thread.track
        parts.append(part)
        return 0

    cdef tuple _key(self, EventDecoder event, const Raw *raw, number, tuple places):
        """The number of the Slice, and the values of its key."""
        if not places:
            return (number, raw.pid, raw.tid)
        if len(places) == 1:
            return (number, value_at(event, raw, places[0]))
        return (number, *[value_at(event, raw, place) for place in places])

    cdef Track _track(self, TrackKind kind, str name, Track parent, int32_t pid, int32_t tid):
        cdef Track track
        self._made += 1
        track = Track(kind, self._made, name, parent, pid, tid)
        self.new.append(track)
        return track


cdef object value_at(EventDecoder event, const Raw *raw, Py_ssize_t place):
    """Items of a record that matches its event."""
    cdef const uint8_t *data = NULL
    cdef size_t length = 0
    find_bytes(&event.getters[place].place, raw.entry, raw.size, &data, &length)
    value = value_of(&event.getters[place], data, length)
    return tuple(value) if type(value) is list else value


cdef Part part_of(PartKind kind, Track track, uint64_t ns, str name, str system):
    cdef Part part = Part.__new__(Part)
    part.kind = kind
    part.track = track
    part.begin_ns = part.end_ns = ns
    part.name = name
    part.system = system
    return part


cdef str free_name(str name, set taken):
    while name in taken:
        name = f"_{name}"
    taken.add(name)
    return name
