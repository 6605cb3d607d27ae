# cython: boundscheck=False, wraparound=False
"""Triggers of histograms on the record path.

    HistTrigger   hist                         counts
    HistSwitch    enable_hist, disable_hist    whether the histograms of another event count

The cell of a hist trigger, in which others have their count, is 1 while it counts and 0 while it is paused.
"""

from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t

from utracefs_protocol.pages.record cimport Record
from utracefsd.consumers.ftrace.event._sink cimport FtraceProbe, FtraceSink
from utracefsd.consumers.ftrace.hist._hist cimport Hist, ht_has_taken, ht_key, ht_takes
from utracefsd.consumers.ftrace.event._trigger_cells cimport tc_at, tc_fire
from utracefsd.consumers.ftrace.event._trigger cimport STORED, Trigger

from utracefsd.consumers.ftrace.event._trigger import UNLIMITED


cdef class HistTrigger(Trigger):
    """Count each record in `hist`. uses_timestamp: it needs the time of a record.

    A record that is dispatched again after a daemon was killed is not counted twice: the table has the last
    record that it counted, and the cell the last one for which it fired. active: False: it begins paused.
    """

    def __init__(
        self, FtraceSink sink not None, Hist hist not None, *, bint uses_timestamp=False, bint active=True,
        filter=None, kept=None
    ):
        Trigger.__init__(self, sink.cells, active, filter=filter, kept=kept, stage=STORED, needs_record=True)
        self.hist = hist
        hist.owner = self.cells
        hist.pending = &self.cells.header.deferred
        self.sink = sink
        self.uses_timestamp = uses_timestamp
        self.paused = not tc_at(self.cells.header, self.cell).value
        if self.has_counted() and self.cells.fired is not None:
            self.cells.fired.add(self.key)  # killed between the table and the cell

    def finish(self):
        """After a restart, once `Hist.link` was called: for the record that was being dispatched, remove the
        values that it read once and take the snapshot, unless the previous daemon did."""
        cdef uint64_t element = self.hist.table.c.header.redo.element
        cdef uint64_t serial = self.cells.header.serial
        if tc_at(self.cells.header, self.cell).done == serial:
            return
        if element and self.has_counted():
            self.hist.end_reads(<uint64_t *>ht_key(&self.hist.table.c, element), self.key, serial)
        if ht_takes(&self.hist.table.c, self.key, serial):
            self.take_snapshot()

    @property
    def active(self):
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


cdef class HistSwitch(Trigger):
    """Let all histograms of an event count, or none, from this record on."""

    cdef FtraceProbe target
    cdef bint on

    def __init__(self, FtraceProbe target not None, bint on, count=UNLIMITED, *, filter=None, kept=None):
        """The target must stay attached as long as this is."""
        Trigger.__init__(self, target.sink.cells, count, filter=filter, kept=kept)
        self.target = target
        self.on = on

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
