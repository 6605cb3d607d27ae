# cython: boundscheck=False, wraparound=False
"""The kinds of triggers when they fire (kernel/trace/trace_events_trigger.c).

    TracingSwitch   traceon, traceoff                the instance's tracing_on
    EventSwitch     enable_event, disable_event      whether another event is soft-disabled
    SnapshotTrigger snapshot                         the live buffer and the spare
    Stacktrace      stacktrace                       no action: there is no kernel stack
    HistTrigger     hist                             counts
    HistSwitch      enable_hist, disable_hist        whether the histograms of another event count

The count of a switch decreases only when something changes. The cell of a hist trigger, in which others have
their count, is 1 while it counts and 0 while it is paused. `options` are those of Trigger.
"""

from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t

from utracefs_protocol.pages.record cimport Record
from utracefsd.consumers.ftrace.event._sink cimport FtraceProbe, FtraceSink
from utracefsd.consumers.ftrace.event._trigger_cells cimport (
    BEFORE, LAST, STORED, Cells, Trigger, tc_at, tc_fire
)
from utracefsd.consumers.ftrace.hist._hist cimport Hist, ht_has_taken, ht_key, ht_takes

from utracefsd.consumers.ftrace.event._trigger_cells import UNLIMITED
#: from utracefs_protocol.filter import Filter
#: _Options = TypedDict("_Options", {"filter": Filter | None, "kept": tuple[int, int] | None}, total=False)


cdef class TracingSwitch(Trigger):
    """Turn tracing of an instance on or off. traceoff fires after the record is stored."""

    cdef FtraceSink sink
    cdef bint on

    def __init__(
        self, FtraceSink sink not None, bint on, count: int = UNLIMITED, **options: Unpack[_Options]
    ):
        """The sink's `tracing_cell` must exist as long as this is attached."""
        Trigger.__init__(self, sink.cells, count, stage=BEFORE if on else LAST, **options)
        self.sink = sink
        self.on = self.turns_on = on

    cdef void fire(self, Record *r) noexcept:
        cdef FtraceSink sink = self.sink
        if sink.on == self.on or tc_at(self.cells.header, self.cell).value == 0:
            return
        tc_fire(self.cells.header, self.cell, self.counted(), sink.tracing_cell, self.on)
        sink.switch(self.on)


cdef class OfAnother(Trigger):
    """Turn something of another event in the same instance on or off."""

    cdef FtraceProbe target
    cdef bint on

    def __init__(
        self, FtraceProbe target not None, bint on, count: int = UNLIMITED, **options: Unpack[_Options]
    ):
        """The target must stay attached, with its `soft_cell`, as long as this is."""
        Trigger.__init__(self, target.sink.cells, count, **options)
        self.target = target
        self.on = on


cdef class EventSwitch(OfAnother):
    """Store the records of another event, or not."""

    cdef void fire(self, Record *r) noexcept:
        if self.target.soft_disabled != self.on or tc_at(self.cells.header, self.cell).value == 0:
            return
        tc_fire(self.cells.header, self.cell, self.counted(), self.target.soft_cell, self.on)
        self.target.soft_disabled = not self.on


cdef class Stacktrace(Trigger):
    """Count: there is no stack of the kernel to record."""

    def __init__(self, Cells cells not None, count: int = UNLIMITED, **options: Unpack[_Options]):
        Trigger.__init__(self, cells, count, stage=LAST, **options)

    cdef void fire(self, Record *r) noexcept:
        if tc_at(self.cells.header, self.cell).value:
            tc_fire(self.cells.header, self.cell, self.counted(), 0, 0)


cdef class SnapshotTrigger(Trigger):
    """Swap the live buffer and the spare of an instance.

    The swap is one store (include/spare.h), which has trigger and record; the count is stored after it. If
    the daemon is killed in between, the next one finds that key and stores the count.
    """

    cdef FtraceSink sink

    def __init__(self, FtraceSink sink not None, count: int = UNLIMITED, **options: Unpack[_Options]):
        cdef uint64_t serial
        Trigger.__init__(self, sink.cells, count, stage=STORED, **options)
        self.sink = sink
        serial = self.cells.header.serial
        if sink.has_taken_snapshot(self.key, serial) and tc_at(self.cells.header, self.cell).done != serial:
            tc_fire(self.cells.header, self.cell, self.counted(), 0, 0)
            if self.cells.fired is not None:
                self.cells.fired.add(self.key)

    cdef void fire(self, Record *r) noexcept:
        if tc_at(self.cells.header, self.cell).value == 0:
            return
        self.sink.take_snapshot(self.key, self.cells.header.serial)
        tc_fire(self.cells.header, self.cell, self.counted(), 0, 0)


cdef class HistTrigger(Trigger):
    """Count each record in `hist`. uses_timestamp: it needs the time of a record.

    A record that is dispatched again after a daemon was killed is not counted twice: the table has the last
    record that it counted, and the cell the last one for which it fired. active: False: it begins paused.
    """

    cdef readonly Hist hist
    cdef readonly FtraceSink sink
    cdef bint uses_timestamp

    def __init__(
        self, FtraceSink sink not None, Hist hist not None, *, bint uses_timestamp=False, bint active=True,
        **options: Unpack[_Options]
    ):
        Trigger.__init__(self, sink.cells, active, stage=STORED, needs_record=True, **options)
        self.hist = hist
        hist.owner = self.cells
        hist.pending = &self.cells.header.deferred
        self.sink = sink
        self.uses_timestamp = uses_timestamp
        self.paused = not tc_at(self.cells.header, self.cell).value
        if self.has_counted() and self.cells.fired is not None:
            self.cells.fired.add(self.key)  # killed between the table and the cell

    def finish(self) -> None:
        """After a restart and `Hist.link`: for the record that was being dispatched, remove the values that
        it read once and take the snapshot, unless the previous daemon did."""
        cdef uint64_t element = self.hist.table.c.header.redo.element
        cdef uint64_t serial = self.cells.header.serial
        if tc_at(self.cells.header, self.cell).done == serial:
            return
        if element and self.has_counted():
            self.hist.end_reads(<uint64_t *>ht_key(&self.hist.table.c, element), self.key, serial)
        if ht_takes(&self.hist.table.c, self.key, serial):
            self.take_snapshot()

    @property
    def active(self) -> bool:
        """It counts. Other triggers set it from within a record."""
        return not self.paused

    @active.setter
    def active(self, bint on):
        self.switch(on)

    cdef bint has_counted(self) noexcept:
        """Whether the table has counted the last record that was being dispatched."""
        return ht_has_taken(&self.hist.table.c, self.key, self.cells.header.serial)

    cdef void take_snapshot(self) noexcept:
        """For the present record, unless already taken: the swap is one store, after the count, with the same
        key as in SnapshotTrigger."""
        cdef uint64_t serial = self.cells.header.serial
        if not self.sink.has_taken_snapshot(self.key, serial):
            self.sink.take_snapshot(self.key, serial)

    cdef void switch(self, bint on) noexcept:
        tc_at(self.cells.header, self.cell).value = on
        self.paused = not on

    cdef void fire(self, Record *r) noexcept:
        cdef uint64_t serial = self.cells.header.serial
        self.hist.add(r, self.sink.stamp(r.ts_ns) if self.uses_timestamp else 0, self.key, serial)
        if ht_takes(&self.hist.table.c, self.key, serial):
            self.take_snapshot()
        tc_at(self.cells.header, self.cell).done = serial


cdef class HistSwitch(OfAnother):
    """Let all histograms of an event count, or none, from this record on."""

    cdef void fire(self, Record *r) noexcept:
        """After a kill in between it is repeated, with the same result; the cell is stored last."""
        cdef tuple triggers = self.target._triggers
        cdef Py_ssize_t i
        if tc_at(self.cells.header, self.cell).value == 0:
            return
        if triggers is not None:
            for i in range(PyTuple_GET_SIZE(triggers)):
                if isinstance(<object>PyTuple_GET_ITEM(triggers, i), HistTrigger):
                    (<HistTrigger>PyTuple_GET_ITEM(triggers, i)).switch(self.on)
        tc_fire(self.cells.header, self.cell, self.counted(), 0, 0)
