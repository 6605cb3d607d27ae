# cython: boundscheck=False, wraparound=False
"""The simple kinds of triggers when they fire (kernel/trace/trace_events_trigger.c).

    TracingSwitch   traceon, traceoff                the instance's tracing_on
    EventSwitch     enable_event, disable_event      whether another event is soft-disabled
    SnapshotTrigger snapshot                         the live buffer and the spare
    Stacktrace      stacktrace                       no action: there is no kernel stack

The count of a switch decreases only when something changes.
"""

from libc.stdint cimport uint64_t

from utracefs_protocol.pages.record cimport Record
from utracefsd.consumers.ftrace.event._sink cimport FtraceProbe, FtraceSink
from utracefsd.consumers.ftrace.event._trigger_cells cimport Cells, tc_at, tc_fire
from utracefsd.consumers.ftrace.event._trigger cimport BEFORE, LAST, STORED, Trigger

from utracefsd.consumers.ftrace.event._trigger import UNLIMITED


cdef class TracingSwitch(Trigger):
    """Turn tracing of an instance on or off. traceoff fires after the record is stored."""

    cdef FtraceSink sink
    cdef bint on

    def __init__(self, FtraceSink sink not None, bint on, count=UNLIMITED, *, filter=None, kept=None):
        """The sink's `tracing_cell` must exist as long as this is attached."""
        Trigger.__init__(
            self, sink.cells, count, filter=filter, kept=kept, stage=BEFORE if on else LAST
        )
        self.sink = sink
        self.on = self.turns_on = on

    cdef void fire(self, Record *r) noexcept:
        cdef FtraceSink sink = self.sink
        if sink.on == self.on or tc_at(self.cells.header, self.cell).value == 0:
            return
        tc_fire(self.cells.header, self.cell, self.counted(), sink.tracing_cell, self.on)
        sink.switch(self.on)


cdef class EventSwitch(Trigger):
    """Turn the storing of another event's records in the same instance on or off."""

    cdef FtraceProbe target
    cdef bint on

    def __init__(self, FtraceProbe target not None, bint on, count=UNLIMITED, *, filter=None, kept=None):
        """The target must stay attached, with its `soft_cell`, as long as this is."""
        Trigger.__init__(self, target.sink.cells, count, filter=filter, kept=kept)
        self.target = target
        self.on = on

    cdef void fire(self, Record *r) noexcept:
        if self.target.soft_disabled != self.on or tc_at(self.cells.header, self.cell).value == 0:
            return
        tc_fire(self.cells.header, self.cell, self.counted(), self.target.soft_cell, self.on)
        self.target.soft_disabled = not self.on


cdef class Stacktrace(Trigger):
    """Count: there is no stack of the kernel to record."""

    def __init__(self, Cells cells not None, count=UNLIMITED, *, filter=None, kept=None):
        Trigger.__init__(self, cells, count, filter=filter, kept=kept, stage=LAST)

    cdef void fire(self, Record *r) noexcept:
        if tc_at(self.cells.header, self.cell).value:
            tc_fire(self.cells.header, self.cell, self.counted(), 0, 0)


cdef class SnapshotTrigger(Trigger):
    """Swap the live buffer and the spare of an instance.

    The swap is one store of its own (include/spare.h), which stores trigger and record; the count is stored
    after it. If the daemon is killed in between, the next one finds that key and stores the count.
    """

    cdef FtraceSink sink

    def __init__(self, FtraceSink sink not None, count=UNLIMITED, *, filter=None, kept=None):
        cdef uint64_t serial
        Trigger.__init__(self, sink.cells, count, filter=filter, kept=kept, stage=STORED)
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
