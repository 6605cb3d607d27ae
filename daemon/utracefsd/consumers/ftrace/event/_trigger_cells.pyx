# cython: boundscheck=False, wraparound=False
"""A trigger on the record path, and the cells: numbers that triggers change from within a record
(include/trigger_cells.h). No Python code runs when a trigger fires."""

import os

from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE, munmap
from posix.mman cimport mmap as map_file
from posix.unistd cimport close as close_fd

from utracefsd.machine import disk
from utracefsd.machine.kept_file import made_whole, open_kept

# A trigger takes one cell and perhaps another for its switch: more than anyone writes by hand. The mapping is
# large enough for all of them (32 MiB of addresses), the file grows by the page.
MAX_CELLS = 1 << 20  #: int

# The kernel's count of -1: unlimited.
UNLIMITED = 0xffffffffffffffff  #: int

cdef enum:
    CELLS_A_PAGE = 128


cdef class Cells:
    """The cells of a daemon, in the file `path`, where the next daemon finds them; None: in memory of this
    process. `keep` confirms those of the previous daemon in use, `drop_the_rest` frees the others.

    limit: of cells at once. OSError: the file cannot be opened or made.
    refused: The error of an old file that has been replaced; None if nothing.
    lost_deferred: Synthetic events that the previous daemon had not recorded yet.
    """

    def __cinit__(self):
        self.fd = -1

    def __init__(self, path: str | os.PathLike[str] | None = None, uint32_t limit=MAX_CELLS):
        self.limit = limit
        self.unused = []
        self.returned = []
        self.given = set()
        self.map_bytes = TC_HEADER_BYTES + <size_t>limit * TC_CELL_BYTES
        if path is None:
            self.map_it(-1)
            self.begin()
        elif not self.open_old(path):
            with made_whole(path, TC_HEADER_BYTES) as fd:
                self.map_it(fd)
                self.begin()
            self.fd = fd
        self.lost_deferred = self.header.deferred
        self.header.deferred = 0
        if self.header.redo.valid:  # killed while a trigger fired
            if 0 < self.header.redo.cell <= self.room and self.header.redo.effect <= self.room:
                tc_apply(self.header)
            self.header.redo.valid = 0

    cdef int open_old(self, path) except -1:
        """Open and map an old file. False: there is none, or it cannot be used."""
        opened = open_kept(path)
        if opened is None:
            return False
        fd, size = opened
        rest = size - TC_HEADER_BYTES
        self.refused = "no file of cells has this length"
        if rest >= 0 and rest % TC_CELL_BYTES == 0 and rest // TC_CELL_BYTES <= self.limit:
            self.map_it(fd)
            if (
                self.header.magic == TC_MAGIC
                and self.header.version == TC_VERSION
                and self.header.cell_bytes == TC_CELL_BYTES
            ):
                self.fd = fd
                self.room = rest // TC_CELL_BYTES
                self.refused = None
                return True
            munmap(self.header, self.map_bytes)
            self.header = NULL
            self.refused = "not a file of cells of this version"
        os.close(fd)
        return False

    cdef void begin(self) noexcept:
        """Initialise new memory."""
        self.header.version = TC_VERSION
        self.header.cell_bytes = TC_CELL_BYTES
        self.header.magic = TC_MAGIC

    cdef int map_it(self, int fd) except -1:
        """The descriptor stays the caller's; -1: memory."""
        cdef void *map = map_file(
            NULL,
            self.map_bytes,
            PROT_READ | PROT_WRITE,
            MAP_SHARED if fd >= 0 else MAP_PRIVATE | MAP_ANONYMOUS,
            fd,
            0,
        )
        if map == MAP_FAILED:
            raise MemoryError("the cells of triggers cannot be mapped")
        self.header = <tc_header *>map
        return 0

    def __dealloc__(self):
        if self.header != NULL:
            munmap(self.header, self.map_bytes)
        if self.fd >= 0:
            close_fd(self.fd)

    def __len__(self):
        """How many cells are in use."""
        return len(self.given)

    cdef int grow(self) except -1:
        cdef uint32_t more = self.limit - self.room
        if more > CELLS_A_PAGE:
            more = CELLS_A_PAGE
        if more == 0 and self.returned:
            self.recycle()
            return 0
        if more == 0:
            raise MemoryError(f"there are {self.limit} cells of triggers, which is the limit")
        if self.fd >= 0:
            begin = TC_HEADER_BYTES + <long long>self.room * TC_CELL_BYTES
            disk.posix_fallocate(self.fd, begin, <long long>more * TC_CELL_BYTES)
        self.unused.extend(range(self.room + more, self.room, -1))
        self.room += more
        return 0

    cdef tc_cell *one(self, uint32_t index) except NULL:
        if index not in self.given:
            raise ValueError(f"cell {index} is not given out")
        return tc_at(self.header, index)

    def give(self, uint64_t value) -> int:
        """The index of a free cell, now in use. OSError: no space for it. MemoryError: the limit."""
        if not self.unused:
            self.grow()
        index = self.unused.pop()
        self.given.add(index)
        tc_give(self.header, index, value)
        return index

    def take_back(self, uint32_t index) -> None:
        """Free a cell. ValueError: it is not in use.

        It is not reused before `recycle`: until the log is written, the next daemon would use it.
        """
        self.one(index)
        self.given.discard(index)
        self.returned.append(index)

    def recycle(self) -> None:
        """The log is written: it names no freed cells."""
        self.unused.extend(self.returned)
        self.returned.clear()

    def key(self, uint32_t index) -> int:
        """A number that no other cell has or had."""
        return self.one(index).key

    def value(self, uint32_t index) -> int:
        return self.one(index).value

    def set_value(self, uint32_t index, uint64_t value) -> None:
        """One store: after a kill the next daemon finds the old or the new value."""
        self.one(index).value = value

    def keep(self, index: int, key: int) -> bool:
        """Keep using a cell that a log names; returns whether it still is that cell. In place of a lost file
        keys begin anew, so a cell that was given out since then may have the same one."""
        if not 0 < index <= self.room or (<tc_cell *>tc_at(self.header, index)).key != key or key == 0:
            return False
        if index in self.given:
            return False
        self.given.add(index)
        return True

    def drop_the_rest(self) -> None:
        """Free the cells of the previous daemon that no trigger has kept. Cells that were returned since
        then, with instances left over, wait for `recycle`."""
        known = self.given.union(self.returned)
        self.unused = [index for index in range(self.room, 0, -1) if index not in known]

    cdef object fired_at(self, uint64_t ring, uint64_t at, uint64_t dev, uint64_t ino):
        """Keys of the triggers that fired for the record at `at` of a data ring, a set, which is `fired` from
        now on; None: that was not being dispatched. ring: its number in the previous daemon."""
        cdef uint32_t index
        cdef tc_cell *cell
        if not tc_is_under_way(self.header, ring, at, dev, ino):
            return None
        tc_name(self.header, dev, ino)
        self.fired = set()
        for index in range(1, self.room + 1):
            cell = tc_at(self.header, index)
            if cell.done == self.header.serial and cell.key:
                self.fired.add(cell.key)
        return self.fired

    cdef void end_judging(self) noexcept:
        """All data rings were judged: the old numbers of data rings are invalid from now on."""
        if self.header.ring != TC_NAMED:
            self.header.ring = 0

    def __repr__(self):
        return f"<Cells {len(self.given)} of {self.room}>"


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
        """Carry out the trigger, by tc_fire(). The record's payload is valid only if it is conditional."""

    cdef bint is_done(self) noexcept:
        """Whether it fired for this record before the daemon was killed."""
        return self.cells.again is not None and self.key in self.cells.again

    cdef inline uint64_t counted(self) noexcept:
        """The count after firing now; UINT64_MAX also if unlimited."""
        cdef uint64_t count = tc_at(self.cells.header, self.cell).value
        return count if count == <uint64_t>-1 else count - 1
