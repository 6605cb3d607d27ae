# cython: boundscheck=False, wraparound=False
"""One producer's data ring: shared memory that its process writes, and that is treated as hostile.

Nothing that a producer claims is trusted: positions and lengths are bounded before use, the payload is copied
before it is read, the thread must belong to the process that the kernel named as the peer (_writers.pyx). A
ring whose memory is invalid is `corrupt`; its connection is ended.

Losses: a producer that finds its ring full counts that in the ring, in all and per write_index. The daemon
takes these counters before anything else happens to an event and adds them to the event's `emitted` and to
`lost` of every attached probe: the record was emitted, and no consumer got it. The last counter is shared by
all write_indexes from its own on; where a table has more than one of these, its count goes to the table's
`total_unknown` and to no event.

Position of a loss: the producer need not store it. A ring is full only when head is within a record of
`published + size`, where `published` is the tail last published to producers. So the counters are taken each
time after a new tail is published (some 20 times a lap, never per record), and the losses until then belong
before the first record that ends behind the old `published + size`, or that begins at the present head,
whichever comes first. Ftrace's ring buffers get a mark there. The number is exact, the position almost
always; it is wrong

- by the length of a record, when a large one was lost and smaller ones still fitted;
- by the space just published, when producers fill it before the counters are taken. The other order would be
  worse: losses between taking and publishing, with the ring still full, would be placed a lap too late.

Single-threaded, with the GIL. protocol/utracefs_protocol/include/data_ring.h describes how producers and the
daemon use the shared memory concurrently.
"""

import fcntl
import os

cimport cython
from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport UINT64_MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from posix.unistd cimport close as close_fd

from utracefs_protocol.memory cimport resized
from utracefs_protocol.pages.data_ring cimport *
from utracefsd.consumers.ftrace.event._sink cimport FtraceSink

from utracefsd.machine._machine import monotonic_ns
from utracefsd.machine.closing import close_foreign

COUNTER = 0xFFFFFFFF
"""A producer's counters of losses have 32 bits."""

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

cdef enum:
    MARKS_A_LAP = 32

# A higher sum is invented: no producer loses so many between two looks.
cdef uint64_t MOST_LOST = 1 << 40
cdef int64_t HALF_A_LAP = 1 << 31

# Generations with which rings ask for names: unique among all rings, also those of earlier daemons.
cdef uint32_t last_asked = monotonic_ns() >> 10 & 0xffffffff


cdef object seals_of(int fd):
    """None: it is not a memfd. Ask before anything else: stat(2) of another file may wait for its server."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return None


def key_of(int fd) -> tuple[int, int] | None:
    """`DataRing.key` of the ring in this memory; None: it is not a memfd."""
    if seals_of(fd) is None:
        return None
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


cdef int check(int fd, int doorbell) except -1:
    """ValueError: not a sealed memfd, or not an eventfd (-1: none is given)."""
    seals = seals_of(fd)
    if seals is None:
        raise ValueError("the first descriptor is not a memfd")
    if doorbell >= 0 and not os.readlink(f"/proc/self/fd/{doorbell}").startswith("anon_inode:[eventfd"):
        raise ValueError("the second descriptor is not an eventfd")
    if seals & SEALS != SEALS:
        raise ValueError("the ring's memory is not sealed against shrinking, growing and sealing")
    return 0


cdef int add_numbers(dict to, dict numbers) except -1:
    for key, n in numbers.items():
        to[key] = to.get(key, 0) + n
    return 0


@cython.final
cdef class DataRing:
    """One producer's ring. The memfd and the doorbell (an eventfd) belong to it and are closed with it.

    key: (st_dev, st_ino) of its memory: the same in every process and for every descriptor of the ring.
    pid: The peer's process, by SO_PEERCRED.
    writers: Its threads.
    waits_for_room: The next record waits for room in the ring of a lossless reader.
    is_early: Records with an unknown write_index wait for its registration, unless the process is gone.
    dead: The process is gone: take in committed records, step over the others.
    corrupt: The shared memory is invalid: end the connection with EPROTO.
    taken: Records taken in, refused ones included.
    size: Bytes of the data area.
    pending_bytes: Bytes reserved and not yet taken in, by the producer's memory; not to be trusted.
    """

    def __cinit__(self):
        self.fd = self.doorbell = -1
        self.slot = &self.no_slot
        self.copy = <unsigned char *>resized(NULL, DR_MAX_PAYLOAD)
        self.marks = []
        self.marked_at = UINT64_MAX
        self.known_since = monotonic_ns()

    def __dealloc__(self):
        dr_unmap(&self.c.ring)
        free(self.copy)
        # Not os.close: at interpreter exit the module may be gone before its objects.
        if self.fd >= 0:
            close_fd(self.fd)
        if self.doorbell >= 0:
            close_fd(self.doorbell)

    @staticmethod
    def adopt(IndexTable table not None, int pid, int fd, int doorbell, share: int) -> DataRing:
        """A ring that a program made; owns both descriptors from now on, also when it fails.

        doorbell: -1 for a ring without one, which nobody can ring. share: the user charged for them, for
        `close_foreign`.
        ValueError, saying what is wrong: not a memfd, not sealed, an invalid size, another magic or version,
        invalid positions. The next round takes in the records that the ring still holds.
        """
        cdef DataRing ring
        cdef uint64_t size
        try:
            check(fd, doorbell)
            ring = DataRing.__new__(DataRing)
        except BaseException:
            # It can be any kind of file, and closing it may block.
            close_foreign([one for one in (fd, doorbell) if one >= 0], share)
            raise
        ring.fd = fd
        ring.doorbell = doorbell
        ring.table = table
        ring.pid = pid
        ring.has_unfolded = True
        # Sealed: the length cannot change any more, so no access to the mapping can fault.
        length = ring.identify()
        size = <uint64_t>max(0, length - <long>DR_HEADER_BYTES - <long>DR_LOST_BYTES)
        if not dr_valid_size(size) or length != dr_file_bytes(<uint32_t>size):
            raise ValueError("the ring's memory has an invalid length")
        ring.map_it(<uint32_t>size)
        header = ring.c.ring.header
        if (
            header.magic != DR_MAGIC
            or header.version != DR_VERSION
            or header.record_header != DR_RECORD_HEADER
        ):
            raise ValueError("the memory is not a data ring of this version")
        if header.size != size or dr_consumer_start(&ring.c) != 0:
            raise ValueError("the ring's positions are invalid")
        dr_close(&ring.c, False)
        ring.ask_names()
        return ring

    def start_again(self) -> None:
        """Before anything is taken in: another object of this ring has given space back since `adopt`."""
        self.corrupt = dr_consumer_start(&self.c) != 0

    @property
    def has_rest(self) -> bool:
        """Whether records, or losses, may wait to be taken in."""
        return self.pending_bytes or self.has_unfolded or dr_has_lost(&self.c)

    cdef int64_t identify(self) except -1:
        """Returns the length of its memory."""
        found = os.fstat(self.fd)
        self.key = found.st_dev, found.st_ino
        return found.st_size

    cdef int map_it(self, uint32_t size) except -1:
        error = dr_map(&self.c.ring, self.fd, size)
        if error:
            raise OSError(-error, os.strerror(-error))
        return 0

    cdef void ask_names(self) noexcept:
        """Ask each thread to write its name with its next record."""
        global last_asked
        last_asked += 1
        if last_asked == 0 or last_asked == DR_NO_NAMES:
            last_asked = 1
        dr_ask_names(&self.c, last_asked)

    @property
    def size(self) -> int:
        """Bytes of the data area."""
        return self.c.ring.size

    @property
    def pending_bytes(self) -> int:
        """Bytes reserved and not yet taken in, by the producer's memory; not to be trusted."""
        return (dr_head(&self.c) - self.c.tail) & (2 * <uint64_t>self.c.ring.size - 1)

    def close(self) -> None:
        """Stop the producer from reserving: nobody would read records behind the last look."""
        dr_close(&self.c, True)

    def set_wait(self, uint32_t wait_us) -> None:
        """How long producers may wait for room; 0: not at all."""
        self.wait_us = wait_us
        dr_set_wait(&self.c, wait_us)

    def set_behind(self, bint is_behind) -> None:
        """Whether forked children of the producer shall wait before they connect."""
        dr_set_behind(&self.c, is_behind)

    def want_wakeup(self, bint wanted) -> None:
        """Ask this ring's producer to ring the doorbell, or to stop that."""
        dr_want_wakeup(&self.c, wanted)

    cdef bint is_giving_back(self) noexcept:
        """Whether a thread gives a part of its memory back, in front of which tail stays."""
        if self.giving_back is not None and self.giving_back.is_done():
            self.giving_back = None
        return self.giving_back is not None

    cdef int publish(self) except -1:
        """Give the consumed space back to the producers, and take their counts of losses."""
        cdef uint64_t full_at = self.c.published + self.c.ring.size
        cdef uint64_t lost
        if not self.is_giving_back():
            dr_publish(&self.c)
        lost = dr_take_lost(&self.c)
        if lost:
            self.has_lost = True
            self.not_found += <int64_t>min(lost, MOST_LOST)
        if lost or (
            self.has_unfolded
            and (not self.is_early or PyList_GET_SIZE(self.table.tracepoints) > self.folded_to)
        ):
            self.fold_lost(min(full_at, dr_head(&self.c)))
        return 0

    cdef int fold_lost(self, uint64_t position) except -1:
        """Count the producer's losses since the last call, which happened at `position`. If a killed daemon
        had counted them, they get only their marks."""
        cdef uint32_t i, n, counted, before, size = <uint32_t>PyList_GET_SIZE(self.table.tracepoints)
        cdef int64_t laps
        cdef dict missing = {}, counts = {}
        cdef bint is_missed
        self.has_unfolded = False
        for i in range(DR_LOST_COUNTERS):
            n = dr_lost_of(&self.c, i)
            if n == 0:
                continue
            if self.is_early and i >= size:
                self.has_unfolded = True    # the registration is still to come
                break
            counted = dr_counted_of(&self.c, i)
            if counted and i >= <uint32_t>self.folded_to:
                before = min(counted, n)
                counted = before if self.table.miss(i, before, missing) else 0
                dr_set_counted(&self.c, i, counted)
                if counted:
                    counts[i] = counted
                else:
                    dr_forget_lost_of(&self.c, i, before)
                    n -= before
            n -= counted
            if n == 0:
                continue
            self.not_found -= n
            is_missed = False
            if i >= size or (i == DR_LOST_COUNTERS - 1 and size > DR_LOST_COUNTERS):
                self.table.total_unknown += n
            else:
                is_missed = self.table.lose(i, n, self.pid, missing)
            if is_missed:
                # For the next daemon; at once, since streams have these losses already.
                dr_set_counted(&self.c, i, counted + n)
                counts[i] = counts.get(i, 0) + n
            else:
                dr_forget_lost_of(&self.c, i, n)
        # A number of an event has passed zero. (Less is between a producer's two additions, or invented.)
        if not self.has_unfolded and self.not_found >= HALF_A_LAP:
            laps = (self.not_found + HALF_A_LAP) // (2 * HALF_A_LAP)
            self.not_found -= laps * 2 * HALF_A_LAP
            self.table.total_unknown += <uint64_t>(laps * 2 * HALF_A_LAP)
        self.folded_to = size
        self.add_marks(position, missing, counts)
        return 0

    cdef int add_marks(self, uint64_t position, dict missing, dict counts) except -1:
        """Add a mark, or add to the last one if that is near: each mark begins a page. So there are at most
        MARKS_A_LAP per lap, even for a producer that always claims losses."""
        if not missing:
            return 0
        if self.marks:
            last, more, more_counts = self.marks[len(self.marks) - 1]
            if position < last + self.c.ring.size // MARKS_A_LAP:
                add_numbers(more, missing)
                add_numbers(more_counts, counts)
                return 0
        self.marks.append((position, missing, counts))
        self.marked_at = self.marks[0][0]
        return 0

    cdef int mark_lost(self, uint64_t upto) except -1:
        """The next record ends at `upto`: mark the losses before it, on its cpu.

        A kill between the two loops makes the next daemon mark them again: between them are no system calls.
        """
        cdef uint32_t n
        while self.marks and self.marks[0][0] < upto:
            _, missing, counts = self.marks.pop(0)
            for sink, lost in missing.items():
                (<FtraceSink>sink).mark_lost(self.head.cpu, lost)
            for write_index, lost in counts.items():
                n = <uint32_t>(lost & COUNTER)
                dr_set_counted(&self.c, write_index, dr_counted_of(&self.c, write_index) - n)
                dr_forget_lost_of(&self.c, write_index, n)
        self.marked_at = self.marks[0][0] if self.marks else UINT64_MAX
        return 0
