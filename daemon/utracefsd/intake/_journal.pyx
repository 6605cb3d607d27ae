# cython: boundscheck=False, wraparound=False
"""The journal of the data rings: what a daemon killed at any instruction leaves for its successor."""

import contextlib
import os
import stat

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, munmap
from posix.mman cimport mmap as map_file
from posix.unistd cimport close as close_fd

from utracefs_protocol.data_ring cimport DR_LOST_BYTES, dr_advance, dr_head, dr_publish
from utracefsd.consumers.ftrace._ring_buffer cimport RingBuffer, rb_forget_origin, rb_has_taken
from utracefsd.intake._data_ring cimport DataRing
from utracefsd.intake.journal cimport (
    JR_JUDGED,
    JR_MAGIC,
    JR_MAX_BUFFERS,
    JR_SLOT_BYTES,
    JR_TAKEN_WORDS,
    JR_VERSION,
    jr_free_slot,
    jr_give_slot,
    jr_header,
    jr_judge,
    jr_renumber,
    jr_slot,
)

cdef enum:
    # More data rings than a process has descriptors for in practice; the file grows by the page.
    JOURNAL_SLOTS = 65536
    SLOTS_A_PAGE = 32


cdef int forget_origins(RingBuffer buffer) except -1:
    cdef int cpu
    for cpu in range(buffer.nr_cpus):
        rb_forget_origin(&buffer.cpus[cpu])
    return 0


@cython.final
cdef class Journal:
    """How far each data ring is consumed, in the file `path`, where a successor finds it (include/journal.h).

    Each ring has one slot in it. What a dead daemon left there is kept for rings that are adopted later.
    `buffers` are the ring buffers that were taken over, by instance number: they tell whether they have the
    record that was under way when that daemon died. OSError: the file cannot be opened or made.

    Beside it, in `path`.lost, stands what each ring's producer had counted as lost when this was last added
    to the numbers of its events (DR_LOST_COUNTERS for each slot; the file is sparse). So a successor adds
    what was lost since: while nobody looked, too. There is no order to keep: the numbers that it was added to
    die with the daemon. Without room for the file a successor adds what was added before.

    refused: What was wrong with the file that was there and has been replaced; None if nothing.
    """

    cdef readonly object path
    cdef readonly object refused        # str or None
    cdef dict waiting                   # (st_dev, st_ino) -> slot: left by a dead daemon, not yet adopted
    cdef list unused
    cdef int fd
    cdef unsigned char *map
    cdef size_t map_bytes
    cdef Py_ssize_t slots               # in the file
    cdef int lost_fd
    cdef set with_losses                # slots that have something in the file of losses
    cdef uint64_t numbers               # given to data rings so far; see include/journal.h

    def __cinit__(self):
        self.fd = self.lost_fd = -1

    def __init__(self, path, buffers=()):
        cdef Py_ssize_t i
        cdef jr_slot *slot
        if self.fd >= 0:
            raise RuntimeError("made already")
        self.path = os.fspath(path)
        self.waiting = {}
        self.unused = []
        self.with_losses = set()
        self.map_bytes = (1 + <size_t>JOURNAL_SLOTS) * JR_SLOT_BYTES
        self.refused = self.open_old()
        if self.fd < 0:
            self.make_new()
        self.open_losses()
        buffers = dict(buffers)
        for i in range(self.slots):
            slot = self.at(i)
            key = (slot.dev, slot.ino)
            if slot.used != 1 or key in self.waiting:
                jr_free_slot(slot)
                self.unused.append(i)
                continue
            self.judge(slot, buffers)
            self.waiting[key] = i
        for buffer in buffers.values():
            forget_origins(buffer)      # the slots know it now, and data rings get new numbers
        self.unused.reverse()

    cdef int judge(self, jr_slot *slot, dict buffers) except -1:
        cdef uint64_t taken[JR_TAKEN_WORDS]
        cdef RingBuffer buffer
        cdef int number, cpu
        memset(taken, 0, sizeof(taken))
        for number, buffer in buffers.items():
            for cpu in range(buffer.nr_cpus if 0 <= number < JR_MAX_BUFFERS else 0):
                if rb_has_taken(&buffer.cpus[cpu], slot.number, slot.tail & ~JR_JUDGED):
                    taken[number >> 6] |= <uint64_t>1 << (number & 63)
        jr_judge(slot, taken)
        jr_renumber(slot, 0)            # 0 is none of the numbers that are given from now on
        return 0

    def __dealloc__(self):
        if self.map != NULL:
            munmap(self.map, self.map_bytes)
        if self.fd >= 0:
            close_fd(self.fd)
        if self.lost_fd >= 0:
            close_fd(self.lost_fd)

    def __len__(self):
        """How many slots belong to a ring, one that is here or one still to be adopted."""
        return self.slots - len(self.unused)

    cdef inline jr_slot *at(self, Py_ssize_t i) noexcept:
        return <jr_slot *>(self.map + (1 + i) * JR_SLOT_BYTES)

    cdef object open_old(self):
        """Open and map the file that is there. None, or why it cannot be used."""
        cdef jr_header *header
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        found = os.fstat(fd)
        slots = found.st_size // JR_SLOT_BYTES - 1
        whole = stat.S_ISREG(found.st_mode) and found.st_size % JR_SLOT_BYTES == 0
        if not whole or not 0 <= slots <= JOURNAL_SLOTS:
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
        """Make an empty journal; rename(2) puts it in its place as a whole."""
        cdef jr_header *header
        new = f"{self.path}.new"
        try:
            os.unlink(new)
        except FileNotFoundError:
            pass
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, JR_SLOT_BYTES)
            self.map_it(fd)
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd
        header = <jr_header *>self.map
        header.magic = JR_MAGIC
        header.version = JR_VERSION
        header.slot_bytes = JR_SLOT_BYTES
        os.rename(new, self.path)
        return 0

    cdef int open_losses(self) except -1:
        cdef long long at = 0, end
        path = f"{self.path}.lost"
        try:
            if self.slots == 0:             # a new journal: what stands there is of another
                os.unlink(path)
            self.lost_fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            end = os.fstat(self.lost_fd).st_size
            while at < end:
                at = os.lseek(self.lost_fd, at, os.SEEK_DATA)
                self.with_losses.add(at // DR_LOST_BYTES)
                at = (at // DR_LOST_BYTES + 1) * DR_LOST_BYTES
        except OSError:
            pass                            # not there; ENXIO: no more data; else as without room for it
        return 0

    def keep_lost(self, DataRing ring not None):
        """What the ring's producer has counted as lost is in the numbers of its events."""
        cdef Py_ssize_t i = self.index_of(ring)
        try:
            if self.lost_fd < 0:            # made with the first loss
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                self.lost_fd = os.open(f"{self.path}.lost", flags, 0o600)
            os.pwrite(self.lost_fd, <bytes>(<char *>ring.lost_seen_of)[:DR_LOST_BYTES], i * DR_LOST_BYTES)
            self.with_losses.add(i)
        except OSError:
            pass

    cdef int resume_lost(self, DataRing ring, Py_ssize_t i) except -1:
        cdef bytes counts = b""
        if i in self.with_losses:
            with contextlib.suppress(OSError):
                counts = os.pread(self.lost_fd, DR_LOST_BYTES, i * DR_LOST_BYTES)
        memset(ring.lost_seen_of, 0, DR_LOST_BYTES)
        memcpy(ring.lost_seen_of, <const char *>counts, min(len(counts), <Py_ssize_t>DR_LOST_BYTES))
        ring.lost_seen = <uint64_t>-1       # look at each
        return 0

    cdef int forget_lost(self, Py_ssize_t i) except -1:
        if i in self.with_losses:
            with contextlib.suppress(OSError):
                os.pwrite(self.lost_fd, bytes(DR_LOST_BYTES), i * DR_LOST_BYTES)
        return 0

    cdef int map_it(self, int fd) except -1:
        # For the largest size that it may reach, so that slots never move; only what the file has is touched.
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
                os.posix_fallocate(self.fd, (1 + self.slots) * JR_SLOT_BYTES, more * JR_SLOT_BYTES)
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
        self.forget_lost(i)
        jr_give_slot(self.at(i), key[0], key[1], ring.c.tail, self.numbers)
        ring.journal = self
        ring.slot = self.at(i)
        return 0

    def begin(self, DataRing ring not None):
        """Keep account of a ring that was just made. OSError, MemoryError: there is no room for it."""
        key = ring.key()
        i = self.waiting.pop(key, None)     # of a memfd that is gone, whose inode number is used again
        self.give(ring, key, self.unused_slot() if i is None else i)

    def resume(self, DataRing ring not None):
        """Go on in an adopted ring where the daemon before was; call it before anything is taken in.

        Errors as in `begin`.
        """
        cdef Py_ssize_t i
        cdef uint64_t tail, told = ring.c.tail
        cdef jr_slot *slot
        key = ring.key()
        if key not in self.waiting:
            self.give(ring, key, self.unused_slot())
            return
        i = self.waiting.pop(key)
        slot = self.at(i)
        tail = slot.tail & ~JR_JUDGED
        # The first bound is our own. The other side may change head between two looks at it, so head alone
        # would not keep dr_advance within the mapping.
        if tail & 7 or tail - told > ring.c.ring.size or tail - told > dr_head(&ring.c) - told:
            self.give(ring, key, i)         # not as we left it: believe the ring's own memory then
            return
        self.numbers += 1
        jr_renumber(slot, self.numbers)
        ring.journal = self
        ring.slot = slot
        ring.judged = slot.tail & JR_JUDGED
        self.resume_lost(ring, i)
        # Consumed, but perhaps not zeroed to the end. Producers get this space back only here.
        dr_advance(&ring.c, <uint32_t>(tail - told))
        dr_publish(&ring.c)

    def end(self, DataRing ring not None):
        """The ring is given up: free its slot. From now on its own memory says how far it is consumed."""
        if ring.journal is self:
            self.unused.append(self.index_of(ring))
            jr_free_slot(ring.slot)
            self.detach(ring)

    def leave(self, DataRing ring not None):
        """Take in nothing more from the ring; its slot waits until this daemon or a later one adopts it."""
        if ring.journal is self:
            self.waiting[ring.key()] = self.index_of(ring)
            self.detach(ring)

    cdef Py_ssize_t index_of(self, DataRing ring) noexcept:
        return ((<unsigned char *>ring.slot) - self.map) // JR_SLOT_BYTES - 1

    cdef int detach(self, DataRing ring) except -1:
        ring.slot = &ring.no_slot
        ring.journal = None
        return 0
