# cython: boundscheck=False, wraparound=False
"""A trigger on the record path. No Python code runs when it fires."""

from utracefsd.consumers.ftrace.event._trigger_cells cimport tc_at

# As the kernel's count of -1: it never ends.
UNLIMITED = 0xffffffffffffffff


cdef class Trigger:
    """One trigger of an event in an instance, as `struct event_trigger_data`; by itself it does nothing.

    count: How often it may still fire.
    filter: What it fires for; None: for every record.
    needs_record: It looks at the record.
    paused: It is attached and does not fire.
    cells, cell: Where the count is. A cell belongs to its trigger until `close`.
    key: The cell's number; the log of the state names it.
    """

    def __init__(
        self,
        Cells cells not None,
        count=UNLIMITED,
        *,
        Filter filter=None,
        kept=None,
        int stage=BEFORE,
        bint needs_record=False,
    ):
        """kept: (index, key) of the cell that it had in the daemon before; then that has the count.

        OSError, MemoryError: no room for its cell.
        """
        self.cells = cells
        self.filter = filter
        self.stage = <Stage>stage
        self.needs_record = needs_record
        if kept is not None and cells.keep(kept[0], kept[1]):
            self.cell = kept[0]
        else:
            self.cell = cells.give(count)
        self.key = cells.key(self.cell)

    def close(self):
        """It is not attached any more. Idempotent."""
        if self.cell:
            self.cells.take_back(self.cell)
            self.cell = 0

    @property
    def count(self):
        return self.cells.value(self.cell)

    @property
    def is_conditional(self):
        """With such a one among them, triggers wait for the record (`update_cond_flag()` in the kernel)."""
        return self.filter is not None or self.needs_record or self.stage == LAST

    cdef bint wants(self, Record *r) noexcept:
        """Whether its filter matches."""
        return self.filter is None or self.filter.matches(r)

    cdef void fire(self, Record *r) noexcept:
        """Do it. The record's payload is valid only if the trigger is conditional.

        What changes is stored with tc_fire(), which also notes that it is done with this record.
        """

    cdef bint is_done(self) noexcept:
        """Whether it has fired for this record, which is handed over again after a daemon's death."""
        return self.cells.again is not None and self.key in self.cells.again

    cdef inline uint64_t counted(self) noexcept:
        """The count once it has fired now; UINT64_MAX also for one that is unlimited."""
        cdef uint64_t count = tc_at(self.cells.header, self.cell).value
        return count if count == <uint64_t>-1 else count - 1
