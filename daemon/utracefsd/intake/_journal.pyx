# cython: boundscheck=False, wraparound=False
"""The journal of the data rings: it lets the next daemon continue after a kill at any instruction."""

import os

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, munmap
from posix.mman cimport mmap as map_file
from posix.unistd cimport close as close_fd

from utracefs_protocol.pages.data_ring cimport dr_advance, dr_head, dr_skipped
from utracefsd.consumers.ftrace.buffer._ring_buffer cimport RingBuffer, rb_forget_origin, rb_has_taken
from utracefsd.intake._data_ring cimport DataRing
from utracefsd.intake.journal cimport (
    JR_JUDGED,
    JR_MAGIC,
    JR_MAX_BUFFERS,
    JR_SKIPPING,
    JR_SLOT_BYTES,
    JR_TAKEN_WORDS,
    JR_VERSION,
    jr_done,
    jr_free_slot,
    jr_give_slot,
    jr_header,
    jr_judge,
    jr_note_clock,
    jr_renumber,
    jr_slot,
)
from utracefsd.machine import disk
from utracefsd.machine.kept_file import made_whole, open_kept
from utracefsd.machine.tsc_clock cimport tsc_clock, tsc_clock_resume
#: from utracefsd.intake.rings import Key

cdef enum:
    # More than the data rings for which a process has descriptors in practice; the file grows by the page.
    JOURNAL_SLOTS = 65536
    SLOTS_A_PAGE = 32


cdef int forget_origins(RingBuffer buffer) except -1:
    cdef int cpu
    for cpu in range(buffer.nr_cpus):
        rb_forget_origin(&buffer.cpus[cpu])
        if buffer.spare is not None:
            rb_forget_origin(&buffer.spare.cpus[cpu])
    return 0


cdef bint has_taken(RingBuffer buffer, int cpu, uint64_t ring, uint64_t at) noexcept:
    """Whether the ring buffer took the record at `at` of data ring `ring`. A snapshot may have swapped the
    cpu's rings since, so look at both."""
    return rb_has_taken(&buffer.cpus[cpu], ring, at) or (
        buffer.spare is not None and rb_has_taken(&buffer.spare.cpus[cpu], ring, at)
    )


@cython.final
cdef class Journal:
    """How far each data ring is consumed, in the file `path`, where the next daemon finds it
    (include/journal.h).

    Each ring has one slot in it. Slots of the previous daemon wait for rings that are adopted later.
    `buffers` are the ring buffers that were taken over, by instance number: they tell whether they have the
    record that was being dispatched when that daemon died. `cells` say which triggers had fired for it;
    None: there are no triggers. fired: the same for records that the previous daemon had not yet dispatched
    again. OSError: the file cannot be opened or made.

    refused: The error of an old file that has been replaced; None if nothing.
    """

    def __cinit__(self):
        self.fd = -1

    def __init__(
        self, path: str | os.PathLike[str], buffers: Mapping[int, RingBuffer] = (), Cells cells=None,
        fired: Mapping[Key, tuple[int, set[int]]] = ()
    ):
        cdef Py_ssize_t i
        cdef jr_slot *slot
        if self.fd >= 0:
            raise RuntimeError("made already")
        self.path = os.fspath(path)
        self.waiting = {}
        self.unused = []
        self.cells = Cells() if cells is None else cells
        self.fired = dict(fired)
        self.map_bytes = (1 + <size_t>JOURNAL_SLOTS) * JR_SLOT_BYTES
        self.refused = self.open_old()
        if self.fd < 0:
            self.make_new()
        buffers = dict(buffers)
        for i in range(self.slots):
            slot = self.at(i)
            key = (slot.dev, slot.ino)
            if slot.used != 1 or key in self.waiting:
                jr_free_slot(slot)
                self.unused.append(i)
                continue
            self.judge_triggers(slot)
            self.judge(slot, buffers)
            self.waiting[key] = i
        self.cells.end_judging()
        for buffer in buffers.values():
            forget_origins(buffer)      # the slots have the result now, and data rings get new numbers
        self.unused.reverse()

    cdef int judge(self, jr_slot *slot, dict buffers) except -1:
        cdef uint64_t taken[JR_TAKEN_WORDS]
        cdef RingBuffer buffer
        cdef int number, cpu
        memset(taken, 0, sizeof(taken))
        for number, buffer in buffers.items():
            for cpu in range(buffer.nr_cpus if 0 <= number < JR_MAX_BUFFERS else 0):
                if has_taken(buffer, cpu, slot.number, slot.tail & ~JR_JUDGED):
                    taken[number >> 6] |= <uint64_t>1 << (number & 63)
        jr_judge(slot, taken)
        jr_renumber(slot, 0)            # 0 is never given to a data ring
        return 0

    cdef int judge_triggers(self, jr_slot *slot) except -1:
        """Call it before the slot loses its number."""
        key = (slot.dev, slot.ino)
        tail = slot.tail & ~JR_JUDGED
        before = self.fired.pop(key, None)
        fired = self.cells.fired_at(slot.number, tail, slot.dev, slot.ino)
        if before is not None and before[0] == tail:
            fired = before[1] if fired is None else fired
            fired.update(before[1])     # the same set, for triggers that are judged later
        if fired is not None:
            self.fired[key] = (tail, fired)
        return 0

    def __dealloc__(self):
        if self.map != NULL:
            munmap(self.map, self.map_bytes)
        if self.fd >= 0:
            close_fd(self.fd)

    def __len__(self):
        """How many slots belong to a ring that is open or still to be adopted."""
        return self.slots - len(self.unused)

    cdef jr_slot *at(self, Py_ssize_t i) noexcept:
        return <jr_slot *>(self.map + (1 + i) * JR_SLOT_BYTES)

    cdef object open_old(self):
        """Open and map an old file. None, or why it cannot be used."""
        cdef jr_header *header
        opened = open_kept(self.path)
        if opened is None:
            return None
        fd, size = opened
        slots = size // JR_SLOT_BYTES - 1
        if size % JR_SLOT_BYTES or not 0 <= slots <= JOURNAL_SLOTS:
            os.close(fd)
            return "no journal has this length"
        self.map_it(fd)
        header = <jr_header *>self.map
        if header.magic != JR_MAGIC or header.version != JR_VERSION or header.slot_bytes != JR_SLOT_BYTES:
            munmap(self.map, self.map_bytes)
            self.map = NULL
            os.close(fd)
            return "not a journal of this version"
        self.fd = fd
        self.slots = slots
        return None

    cdef int make_new(self) except -1:
        cdef jr_header *header
        with made_whole(self.path, JR_SLOT_BYTES) as fd:
            self.map_it(fd)
            header = <jr_header *>self.map
            header.magic = JR_MAGIC
            header.version = JR_VERSION
            header.slot_bytes = JR_SLOT_BYTES
        self.fd = fd
        return 0

    cdef int map_it(self, int fd) except -1:
        # Maps the largest size that it may reach, so that slots never move; only the file's part is touched.
        cdef void *at = map_file(NULL, self.map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if at == MAP_FAILED:
            raise MemoryError("the journal cannot be mapped")
        self.map = <unsigned char *>at
        return 0

    cdef Py_ssize_t unused_slot(self) except -1:
        if not self.unused:
            if self.slots < JOURNAL_SLOTS:
                # Allocated now: a full /dev/shm is an error here, not a SIGBUS at some record later.
                more = min(SLOTS_A_PAGE, JOURNAL_SLOTS - self.slots)
                disk.posix_fallocate(self.fd, (1 + self.slots) * JR_SLOT_BYTES, more * JR_SLOT_BYTES)
                self.unused.extend(range(self.slots + more - 1, self.slots - 1, -1))
                self.slots += more
            elif self.waiting:
                key = next(iter(self.waiting))
                self.unused.append(self.waiting.pop(key))
            else:
                raise MemoryError("no room in the journal for another data ring")
        return self.unused.pop()

    cdef int give(self, DataRing ring, object key, Py_ssize_t i) except -1:
        self.numbers += 1
        jr_give_slot(self.at(i), key[0], key[1], ring.c.tail, self.numbers)
        ring.journal = self
        ring.slot = self.at(i)
        return 0

    cdef void resume_clock(self, tsc_clock *clock) noexcept:
        """Convert counts to times as the previous daemon did."""
        cdef jr_header *header = <jr_header *>self.map
        tsc_clock_resume(clock, header.clock_first, header.clock_last[header.clock_at & 1])

    cdef void note_clock(self, const tsc_clock *clock) noexcept:
        """Called after each look, for the next daemon."""
        jr_note_clock(<jr_header *>self.map, &clock.first, &clock.to)

    def resume(self, DataRing ring not None) -> None:
        """Give a slot to a ring, or continue where the previous daemon stopped; call it before anything is
        taken in. OSError, MemoryError: no space for a slot."""
        cdef Py_ssize_t i
        cdef uint64_t tail, shared = ring.c.tail
        cdef jr_slot *slot
        key = ring.key
        if key not in self.waiting:
            self.give(ring, key, self.unused_slot())
            if not shared:
                # No daemon had it, so none counted losses: looking for them would allocate all their pages.
                ring.has_unfolded = False
            return
        i = self.waiting.pop(key)
        slot = self.at(i)
        if slot.tail & JR_SKIPPING:
            jr_done(slot, dr_skipped(&ring.c, slot.tail & ~JR_SKIPPING))
        tail = slot.tail & ~JR_JUDGED
        # The first bound is private memory. The other side may change head between two reads of it, so head
        # alone would not keep dr_advance within the mapping.
        if tail & 7 or tail - shared > ring.c.ring.size or tail - shared > dr_head(&ring.c) - shared:
            self.give(ring, key, i)         # not as the last daemon left it: then trust the ring's own memory
            return
        self.numbers += 1
        jr_renumber(slot, self.numbers)
        ring.journal = self
        ring.slot = slot
        if key in self.fired and self.fired[key][0] == tail:
            ring.fired = self.fired[key][1]
        ring.judged = slot.tail & JR_JUDGED or ring.fired is not None
        # Consumed, but perhaps not zeroed to the end. Producers get this space back only here.
        dr_advance(&ring.c, <uint32_t>(tail - shared))
        ring.publish()

    def forget_buffer(self, int number) -> None:
        """The instance with that number is removed: a later one with that number has none of its records."""
        cdef Py_ssize_t i
        if 0 <= number < JR_MAX_BUFFERS:
            for i in range(self.slots):
                self.at(i).taken[number >> 6] &= ~(<uint64_t>1 << (number & 63))

    def end(self, DataRing ring not None) -> None:
        """The ring is given up: free its slot. From now on only the ring's own memory says how far it is
        consumed."""
        if ring.journal is self:
            self.unused.append(self.index_of(ring))
            self.fired.pop(ring.key, None)
            jr_free_slot(ring.slot)
            self.detach(ring)

    def leave(self, DataRing ring not None) -> None:
        """Stop reading the ring; its slot waits until this daemon or a later one adopts the ring."""
        if ring.journal is self:
            self.waiting[ring.key] = self.index_of(ring)
            self.detach(ring)

    cdef Py_ssize_t index_of(self, DataRing ring) noexcept:
        return ((<unsigned char *>ring.slot) - self.map) // JR_SLOT_BYTES - 1

    cdef int detach(self, DataRing ring) except -1:
        ring.slot = &ring.no_slot
        ring.journal = None
        return 0
