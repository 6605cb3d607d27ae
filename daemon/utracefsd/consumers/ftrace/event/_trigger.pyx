# cython: boundscheck=False, wraparound=False
"""A trigger on the record path. No Python code runs when it fires."""

from utracefsd.consumers.ftrace.event._trigger_cells cimport tc_at

# The kernel's count of -1: unlimited.
UNLIMITED = 0xffffffffffffffff  #: int


cdef class Trigger:
    """One trigger of an event in an instance, as `struct event_trigger_data`; the base class does nothing.

    count: How often it may still fire.
    filter: Selects the records for which it fires; None: every record.
    needs_record: It reads the record.
    paused: It is attached and does not fire.
    cells, cell: The cell of the count. A cell belongs to its trigger until `close`.
    key: The cell's number, used in the log of the state.
    """

    def __init__(
        self, Cells cells not None, count: int = UNLIMITED, *, Filter filter=None,
        kept: tuple[int, int] | None = None, int stage=BEFORE, bint needs_record=False
    ):
        """kept: (index, key) of its cell in the previous daemon; then that has the count.

        OSError, MemoryError: no space for its cell.
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

    def close(self) -> None:
        """It was detached. Idempotent."""
        if self.cell:
            self.cells.take_back(self.cell)
            self.cell = 0

    @property
    def count(self) -> int:
        return self.cells.value(self.cell)

    @property
    def is_conditional(self) -> bool:
        """If one of its event's triggers is conditional, all wait for the record (`update_cond_flag()` in the
        kernel)."""
        return self.filter is not None or self.needs_record or self.stage == LAST

    cdef bint wants(self, Record *r) noexcept:
        return self.filter is None or self.filter.matches(r)

    cdef void fire(self, Record *r) noexcept:
        """Carry out the trigger. The record's payload is valid only if the trigger is conditional.

        tc_fire() stores the changes, and notes that it has fired for this record.
        """

    cdef bint is_done(self) noexcept:
        """Whether it has already fired for this record, which is dispatched again after a daemon was
        killed."""
        return self.cells.again is not None and self.key in self.cells.again

    cdef inline uint64_t counted(self) noexcept:
        """The count after firing now; UINT64_MAX also if unlimited."""
        cdef uint64_t count = tc_at(self.cells.header, self.cell).value
        return count if count == <uint64_t>-1 else count - 1
