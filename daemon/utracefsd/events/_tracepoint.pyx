# cython: boundscheck=False, wraparound=False
"""Tracepoints: one for each event, with a probe for each consumer attached to it.

The way of a record:

    from a data ring        Intake (intake/_intake)           all rings merged by time    } look up
    from the socket         IndexTable (intake/_index_table)  one per data connection     } the event
      -> Record             Tracepoint                        long enough? a probe attached? fields valid?
        -> take()           Probe                             one per consumer: recorded, filtered or lost
             FtraceProbe    consumers/ftrace/event/_sink      into the ring buffer, in its trace clock
             PerfProbe      consumers/perf/_sink              counted, and every period-th one sampled
             StreamProbe    consumers/stream/_sink            into the ring of a reader, or of a plug-in
             CountProbe     consumers/counts/_count           counted by process

The checks and their order are those of user_events_write_core() in kernel/trace/trace_events_user.c. Payloads
are hostile, so every offset in them is checked against the record's end before use.

All of it runs with the GIL held in one thread, so there are no locks. One danger: wherever a Python object is
made or dropped, the cyclic collector may run finalizers, and those may attach and detach probes. Loops over
probes therefore hold the tuple that they walk; attach and detach make a new one.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.errno cimport EBADF, EFAULT, EINVAL
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from utracefs_protocol.memory cimport zeroed
from utracefs_protocol.pages.data_ring cimport DR_MAX_WHY
from utracefs_protocol.pages.record cimport Record, common_word, set_record

from utracefs_protocol.events.declaration import FieldKind
from utracefs_protocol.text import escaped
from utracefsd.machine._machine import monotonic_ns
#: from utracefs_protocol.events.declaration import Field


cdef enum:
    PAST_MAX = 32
    MAX_REASONS = 16    # of refusals: the peer chooses the texts

EARLIER = "earlier consumers"
OTHER = b"other reasons"


cdef class Probe:
    """One consumer's attachment to ONE event. recorded + filtered + lost = records emitted while it was
    attached. status_bit: The StatusBit that it sets meanwhile."""

    def __init__(self, str consumer not None, int status_bit):
        self.consumer = consumer
        self.status_bit = status_bit

    @property
    def recorded(self) -> int:
        return self.counts[RECORDED]

    @property
    def filtered(self) -> int:
        return self.counts[FILTERED]

    @property
    def lost(self) -> int:
        return self.counts[LOST]

    cdef int take(self, Record *r) noexcept:
        # The base class keeps an event referenced and takes no records.
        return FILTERED

    cdef bint lose(self, uint64_t n) noexcept:
        self.counts[LOST] += n
        return True

    cdef bint lose_of(self, uint64_t n, int32_t pid) noexcept:
        return self.lose(n)

    def __repr__(self):
        numbers = f"recorded {self.recorded} filtered {self.filtered} lost {self.lost}"
        return f"<{type(self).__name__} {self.consumer}: {numbers}>"


cdef class Tracepoint:
    """One event on the record path: checks a record as write(2) does and passes it to every attached probe.

    emitted: Records that passed the checks while a probe was attached.
    missed: Records that found no consumer, also those lost in data rings; not part of `emitted`.
    payload_bytes: Of emitted records, but for `lost_in_rings`.
    lost_in_rings: The part of `emitted` that found its data ring full and reached no consumer.
    rings_gone: Data rings with this event in their table that were lost with unread records.
    refused: Reasons for which clients refused to make a record (UTF-8 by contract), with their counts; not
        part of `emitted`. At most 16 reasons; further ones are OTHER.
    status: OR of the status bits of the attached probes; 0: no consumer is attached.
    past: (consumer, recorded, filtered, lost) of detached probes, one per consumer name; the oldest of many
        are summed up as EARLIER.
    """

    def __cinit__(self, *args, **kwargs):
        self.locs = NULL
        self.past = []
        self.refused = {}
        self._probes = ()

    def __init__(self, event_id: int, bytes name not None, fields: Sequence[Field]):
        cdef int i = 0
        self.id = event_id
        self.name = name
        fields = tuple(fields)
        self.min_size = sum([field.size for field in fields])
        locs = [field for field in fields if field.kind in (FieldKind.DATA_LOC, FieldKind.REL_LOC)]
        if locs:
            self.locs = <LocCheck *>zeroed(len(locs), sizeof(LocCheck))
        for i, field in enumerate(locs):
            # min_size covers the loc word, so after the length check it can be read.
            self.locs[i].offset = field.offset - 8
            self.locs[i].relative = field.kind is FieldKind.REL_LOC
            self.locs[i].is_string = b"char" in field.type
        self.nr_locs = len(locs)
        self.set_probes(())

    def __dealloc__(self):
        free(self.locs)

    cdef int set_probes(self, tuple probes) except -1:
        status = 0
        for probe in probes:
            status |= (<Probe>probe).status_bit
        self._probes = probes
        self.nr_probes = <int>PyTuple_GET_SIZE(probes)
        # The array inside the tuple; valid while _probes refers to the tuple.
        self.probe_array = &(<PyTupleObject *>probes).ob_item[0]
        self.status = status
        return 0

    @property
    def probes(self) -> tuple[Probe, ...]:
        return self._probes

    @property
    def locations(self) -> list[list[int]]:
        """[offset in the payload, flags] of each location word, flags as in the result of DIAG_IOCSREG
        (messages/data.py): 1 __rel_loc, 2 must end in NUL."""
        cdef int i
        return [[self.locs[i].offset, self.locs[i].relative | self.locs[i].is_string << 1]
                for i in range(self.nr_locs)]

    def attach(self, Probe probe not None) -> None:
        """ValueError: attached already."""
        if probe in self._probes:
            raise ValueError(f"{probe!r} is attached already")
        self.set_probes((*self._probes, probe))

    def detach(self, Probe probe not None) -> None:
        """Adds the probe's counts to `past`, if any. ValueError: not attached."""
        if probe not in self._probes:
            raise ValueError(f"{probe!r} is not attached")
        self.set_probes(tuple([other for other in self._probes if other is not probe]))
        numbers = (probe.recorded, probe.filtered, probe.lost)
        for i, (consumer, *before) in enumerate(self.past):
            if consumer == probe.consumer:
                self.past[i] = (consumer, *map(sum, zip(before, numbers)))
                break
        else:
            if not any(numbers):
                return
            self.past.append((probe.consumer, *numbers))
            if len(self.past) > PAST_MAX:
                # Recorders and perf events attach and detach, each with a name of its own.
                both = zip(self.past[0][1:], self.past[1][1:])
                self.past[:2] = [(EARLIER, *map(sum, both))]

    cdef bint locs_are_valid(self, Record *r) noexcept:
        """user_event_validate() of the kernel: every location is in the entry, every string ends in a NUL.
        Positions count from the start of the entry."""
        cdef uint64_t entry_size = 8 + <uint64_t>r.size, end
        cdef uint32_t word
        cdef uint64_t common
        cdef int i
        for i in range(self.nr_locs):
            memcpy(&word, r.payload + self.locs[i].offset, 4)
            end = (word & 0xffff) + <uint64_t>(word >> 16)
            if self.locs[i].relative:
                end += 8 + self.locs[i].offset + 4
            if end > entry_size:
                return False
            if not self.locs[i].is_string:
                continue
            if end == 0:
                # __data_loc with offset and size 0: the kernel looks at the byte before the entry, which is
                # the top byte of a time delta and practically 0. So it is accepted
                # (tests/conformance/6.12.117/08_writes.txt).
                continue
            if end <= 8:
                common = common_word(r.id, r.pid)
                if common >> 8 * (end - 1) & 0xff:
                    return False
            elif r.payload[end - 9]:
                return False
        return True

    cdef int count_refusal(self, const uint8_t *why, size_t size) except -1:
        cdef bytes reason = why[:min(size, <size_t>DR_MAX_WHY)]
        if reason not in self.refused and len(self.refused) >= MAX_REASONS:
            reason = OTHER
        self.refused[reason] = self.refused.get(reason, 0) + 1
        return 0

    cdef int emit(self, Record *r) noexcept:
        cdef tuple probes
        cdef Probe probe
        cdef Py_ssize_t i
        if r.size < self.min_size:
            return -EINVAL
        if self.nr_probes == 0:
            self.missed += 1
            return -EBADF
        r.id = self.id
        r.valid = self.nr_locs == 0 or self.locs_are_valid(r)
        if not r.valid:
            return self.emit_invalid(r)
        self.emitted += 1
        self.payload_bytes += r.size
        probes = self._probes
        for i in range(PyTuple_GET_SIZE(probes)):
            probe = <Probe>PyTuple_GET_ITEM(probes, i)
            probe.counts[probe.take(r)] += 1
        return 0

    cdef int emit_invalid(self, Record *r) noexcept:
        """Emit a record with an invalid dynamic field: 0 or -EFAULT.

        Each probe checks the fields itself, once it has space for the record, as user_event_ftrace() and
        user_event_perf() do: when no probe gets that far, the record is emitted. A refused record was not
        emitted, so nothing is counted then; so a probe that takes it without a check gets it again after all
        others have checked it.
        """
        cdef tuple probes = self._probes
        cdef Py_ssize_t n = PyTuple_GET_SIZE(probes), i
        cdef Probe probe
        cdef bint faulted = False
        for i in range(n):
            probe = <Probe>PyTuple_GET_ITEM(probes, i)
            probe.outcome = probe.take(r)
            faulted |= probe.outcome < 0
        if faulted:
            return -EFAULT
        self.emitted += 1
        self.payload_bytes += r.size
        r.valid = True  # no further probe checks it
        for i in range(n):
            probe = <Probe>PyTuple_GET_ITEM(probes, i)
            outcome = probe.outcome
            probe.counts[probe.take(r) if outcome == UNDECIDED else outcome] += 1
        return 0

    def _bench_emit(self, Py_ssize_t n, bytes payload not None) -> float:
        """Emit the same record n times; returns nanoseconds for each. bench/core.py."""
        cdef Record r
        cdef Py_ssize_t i
        set_record(&r, 0, 0, 1, 1, self.id, payload)
        start = monotonic_ns()
        for i in range(n):
            r.ts_ns = 1000 * i
            self.emit(&r)
        return (monotonic_ns() - start) / n

    def stats_text(self) -> bytes:
        """The file `stats` of the event (docs/protocol.md, section 4.2); attached consumers come first."""
        numbers = {}
        attached = {probe.consumer for probe in self._probes}
        rows = [(p.consumer, p.recorded, p.filtered, p.lost) for p in self._probes]
        for consumer, *more in rows + self.past:
            numbers[consumer] = [a + b for a, b in zip(numbers.get(consumer, (0, 0, 0)), more)]
        lines = [f"emitted: {self.emitted}\n"]
        if self.payload_bytes:
            lines.append(f"bytes: {self.payload_bytes}\n")
        if self.lost_in_rings:
            lines.append(f"lost in data rings: {self.lost_in_rings}\n")
        if self.rings_gone:
            lines.append(f"lost with data rings that are gone: unknown, of {self.rings_gone}\n")
        for reason, count in self.refused.items():
            # (A colon would make it look like a consumer's line.)
            text = "".join([c if c.isprintable() and c != ":" else "?" for c in escaped(reason)])
            lines.append(f"refused: {count} {text}\n")
        for i, (consumer, (recorded, filtered, lost)) in enumerate(numbers.items()):
            if i == len(attached):
                lines.append("detached:\n")
            lines.append(f"{consumer}: recorded {recorded} filtered {filtered} lost {lost}\n")
        return "".join(lines).encode("utf-8", "surrogateescape")

    def __repr__(self):
        return f"<Tracepoint {self.name!r} id {self.id}, {self.nr_probes} probes>"


# Limit of records that one record causes, directly or not: a synthetic event may have a histogram that causes
# it again. In the kernel a synthetic event causes no others.
cdef int MAX_DEFERRED = 64

cdef list _deferred = []


cdef int defer(
    Tracepoint tracepoint, const Record *r, bytes payload, object owner, uint64_t *pending
) except -1:
    """Emit a record with the time, cpu and thread of `r`, after all probes have taken `r`.

    pending: Counter of the waiting records, in memory of `owner`; NULL: none.
    """
    global nr_deferred
    if tracepoint.nr_probes and nr_deferred < MAX_DEFERRED:
        _deferred.append((tracepoint, payload, r.ts_ns, r.cpu, r.pid, r.tgid, owner, <uintptr_t>pending))
        nr_deferred += 1
        if pending != NULL:
            pending[0] += 1
    return 0


cdef void emit_deferred() noexcept:
    """Emit the deferred records, and the records that they cause."""
    global nr_deferred
    cdef Record r
    cdef Tracepoint tracepoint
    cdef bytes payload
    cdef uintptr_t pending
    cdef Py_ssize_t i = 0
    memset(&r, 0, sizeof(r))
    while i < len(_deferred):
        tracepoint, payload, r.ts_ns, r.cpu, r.pid, r.tgid, _, pending = _deferred[i]
        r.payload = <const uint8_t *>PyBytes_AS_STRING(payload)
        r.size = <uint32_t>PyBytes_GET_SIZE(payload)
        tracepoint.emit(&r)
        if pending:
            (<uint64_t *>pending)[0] -= 1
        i += 1
    _deferred.clear()
    nr_deferred = 0
