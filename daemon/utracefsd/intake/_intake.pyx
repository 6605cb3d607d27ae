"""Taking in: the daemon's side of the data rings (protocol.md section 5), merged by time into the probes.

Each connection may have one ring, in memory that its process writes and that is hostile for it. `DataRing` is one of
them, `Intake` all of them: `Intake.take_in` looks at what every ring held when it was called, takes the oldest record
of all again and again, and hands it to its tracepoint. No Python runs per record.

Bounded: one call takes at most what was reserved when it began, and at most `budget` records. What a producer claims is
not believed: the write_index is looked up in its own connection's table, the time stamp may not lie in the future, the
cpu must exist, the thread must belong to the process that the kernel named as the peer. A ring whose memory says what
cannot be is `corrupt`; whoever owns its connection ends it.

Losses: a producer that finds its ring full counts there, in all and per write_index. Those counts are read before
anything else happens to an event and go into its `emitted` and into `lost` of every probe that is attached: the record
was emitted, and nobody got it.

Killed anywhere in here, the daemon leaves a state from which its successor takes in every committed record exactly once:
`Journal` says for each ring how far it was consumed (include/journal.h has the argument).

Single-threaded, with the GIL; the other side of the shared memory is argued in include/data_ring.h.
"""

import errno
import fcntl
import os
import stat

cimport cython
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, munmap
from posix.mman cimport mmap as map_file
from posix.unistd cimport close as close_fd
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from utracefs_protocol.data_ring cimport *

from utracefsd.consumers.ftrace._sink cimport FtraceSink
from utracefsd.events._tracepoint cimport Probe, Record, Tracepoint
from utracefsd.intake._index_table cimport IndexTable
from utracefsd.consumers.ftrace._ring_buffer cimport RingBuffer, rb_cpu

cdef extern from "journal.h" nogil:
    const uint64_t JR_MAGIC
    const uint32_t JR_VERSION
    const uint32_t JR_SLOT_BYTES
    const uint64_t JR_RECORDED
    ctypedef struct jr_header "struct jr_header":
        uint64_t magic
        uint32_t version
        uint32_t slot_bytes
    ctypedef struct jr_slot "struct jr_slot":
        uint64_t used
        uint64_t dev
        uint64_t ino
        uint64_t tail
        uint64_t begun_cpu
    void jr_begin(jr_slot *slot, uint64_t position, uint64_t cpu, uint64_t count)
    void jr_done(jr_slot *slot, uint64_t tail)
    void jr_take_slot(jr_slot *slot, uint64_t dev, uint64_t ino, uint64_t tail)
    void jr_free_slot(jr_slot *slot)
    void jr_judge(jr_slot *slot, uint64_t count)

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

cdef enum:
    KNOWN_TIDS = 64
    LOOKUPS_IN_A_ROUND = 32
    UNKNOWN_NS = 1000000000
    # Give space back to the producer about this often, so that a full ring can go on while we are still taking.
    PUBLISH_BYTES = 65536
    # As many data rings as a process may have descriptors for at most in practice; the file grows by the page.
    JOURNAL_SLOTS = 65536
    SLOTS_A_PAGE = 64


cdef inline uint64_t monotonic_ns() noexcept:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t>t.tv_sec * 1000000000 + <uint64_t>t.tv_nsec


@cython.final
cdef class DataRing:
    """One producer's ring. The memfd and the doorbell (an eventfd) belong to it and are closed with it."""

    cdef dr_consumer c
    cdef readonly int fd
    cdef readonly int doorbell
    cdef readonly IndexTable table
    cdef readonly int pid               # the peer's process, by SO_PEERCRED
    cdef public object new_thread       # told of a thread id when it is first seen, while the thread may still be asked for its name
    cdef public bint dead               # the connection is gone: take what is there, step over what never will be
    cdef readonly bint corrupt
    cdef readonly uint64_t taken        # records, those refused included
    cdef uint64_t holes                 # reserved and never committed by a producer that died
    cdef dr_taken head                  # the oldest record not yet dispatched, if has_head
    cdef bint has_head
    cdef unsigned char *copy            # its payload, out of the producer's reach
    cdef uint64_t limit                 # look no further than this position in this round
    cdef uint64_t lost_seen
    cdef uint32_t *lost_seen_of
    cdef uint32_t known[KNOWN_TIDS]     # thread ids that were found to belong to the process
    cdef uint32_t unknown[KNOWN_TIDS]   # and those that were not, since unknown_since
    cdef uint64_t unknown_since
    cdef int lookups                    # in /proc, in this round
    cdef jr_slot *slot                  # its place in the journal; without a journal it is `no_slot`
    cdef jr_slot no_slot
    cdef Journal journal                # keeps the slot mapped

    def __cinit__(self):
        self.fd = self.doorbell = -1
        self.slot = &self.no_slot
        self.copy = <unsigned char *>PyMem_Malloc(DR_MAX_PAYLOAD)
        self.lost_seen_of = <uint32_t *>PyMem_Malloc(DR_LOST_BYTES)
        if self.copy == NULL or self.lost_seen_of == NULL:
            raise MemoryError
        memset(self.lost_seen_of, 0, DR_LOST_BYTES)

    def __dealloc__(self):
        dr_unmap(&self.c.ring)
        PyMem_Free(self.copy)
        PyMem_Free(self.lost_seen_of)
        # not os.close: at the interpreter's end the module may be gone before its objects
        if self.fd >= 0:
            close_fd(self.fd)
        if self.doorbell >= 0:
            close_fd(self.doorbell)

    @staticmethod
    def create(IndexTable table not None, int pid, uint64_t size):
        """A new ring with a data area of `size` bytes. ValueError: not a power of two from 64 KiB to 64 MiB. OSError."""
        cdef DataRing ring = DataRing.__new__(DataRing)
        if not dr_valid_size(size):
            raise ValueError("a data ring has a power of two from 64 KiB to 64 MiB")
        ring.table = table
        ring.pid = pid
        ring.fd = os.memfd_create("utracefs-data-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(ring.fd, dr_file_bytes(<uint32_t>size))
        fcntl.fcntl(ring.fd, fcntl.F_ADD_SEALS, SEALS)
        ring.doorbell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        ring.map_it(<uint32_t>size)
        dr_init(&ring.c.ring)
        dr_consumer_start(&ring.c)
        return ring

    @staticmethod
    def adopt(IndexTable table not None, int pid, int fd, int doorbell):
        """A ring that an earlier daemon made; takes both descriptors over, also when it fails.

        ValueError, with what is wrong: no memfd, not sealed, a size that cannot be, another magic or version, positions
        that cannot be. What is still in it is taken by the next round.
        """
        cdef DataRing ring = DataRing.__new__(DataRing)
        cdef uint64_t size
        ring.fd = fd
        ring.doorbell = doorbell
        ring.table = table
        ring.pid = pid
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError:
            raise ValueError("the first descriptor is no memfd") from None
        if seals & SEALS != SEALS:
            raise ValueError("the ring's memory is not sealed against shrinking, growing and sealing")
        # Sealed: the length cannot change any more, so no access to the mapping can fault.
        length = os.fstat(fd).st_size
        size = <uint64_t>max(0, length - <long>DR_HEADER_BYTES - <long>DR_LOST_BYTES)
        if not dr_valid_size(size) or length != dr_file_bytes(<uint32_t>size):
            raise ValueError("the ring's memory has a length that no ring has")
        if not os.readlink(f"/proc/self/fd/{doorbell}").startswith("anon_inode:[eventfd"):
            raise ValueError("the second descriptor is no eventfd")
        os.set_blocking(doorbell, False)
        ring.map_it(<uint32_t>size)
        header = ring.c.ring.header
        if header.magic != DR_MAGIC or header.version != DR_VERSION or header.record_header != DR_RECORD_HEADER:
            raise ValueError("the memory is no data ring of this version")
        if header.size != size or dr_consumer_start(&ring.c) != 0:
            raise ValueError("the ring's positions cannot be")
        # What was lost before belongs to the daemon before. Reading it now keeps it out of our counts.
        ring.lost_seen = dr_lost(&ring.c)
        for i in range(DR_LOST_COUNTERS):
            ring.lost_seen_of[i] = dr_lost_of(&ring.c, i)
        return ring

    cdef int map_it(self, uint32_t size) except -1:
        error = dr_map(&self.c.ring, self.fd, size)
        if error:
            raise OSError(-error, os.strerror(-error))
        return 0

    @property
    def size(self):
        """Bytes of the data area."""
        return self.c.ring.size

    @property
    def lost_to_death(self):
        """Records that were reserved and never committed, because the producer died."""
        return self.holes

    @property
    def pending_bytes(self):
        """Bytes reserved and not yet taken, as the producer's memory says; not to be trusted."""
        return (dr_head(&self.c) - self.c.tail) & (2 * <uint64_t>self.c.ring.size - 1)

    def key(self):
        """(st_dev, st_ino) of its memory: whoever passes it on, and under whatever descriptor, it is this ring."""
        found = os.fstat(self.fd)
        return found.st_dev, found.st_ino

    def ring_doorbell_seen(self):
        """Empty the doorbell, so that it wakes again."""
        try:
            os.eventfd_read(self.doorbell)
        except BlockingIOError:
            pass

    def want_wakeup(self, bint wanted):
        """Ask this ring's producer to ring the doorbell, or not to."""
        dr_want_wakeup(&self.c, wanted)

    cdef bint refill(self) noexcept:
        """The next record of this round into `head`. False: none."""
        cdef int state
        self.has_head = False
        if self.corrupt:
            return False
        # A record never reaches past the head that it was found below, so tail stops at limit exactly, or, when records
        # behind it were taken with a later head, beyond: then the distance is negative.
        if <long long>(self.limit - self.c.tail) <= 0:
            return False
        state = dr_next(&self.c, &self.head, self.copy, DR_MAX_PAYLOAD, self.dead, &self.holes)
        if state == DR_CORRUPT:
            self.corrupt = True
            return False
        if self.dead:
            jr_done(self.slot, self.c.tail)     # what was stepped over is zero already
        self.has_head = state == DR_RECORD
        return self.has_head

    cdef void fold_lost(self) noexcept:
        """Add what the producer counted as lost since the last time to its events' numbers."""
        cdef uint64_t now = dr_lost(&self.c)
        cdef uint32_t i, count, delta
        cdef int k
        cdef Tracepoint tp
        cdef Probe probe
        if now == self.lost_seen:
            return
        self.lost_seen = now
        for i in range(DR_LOST_COUNTERS):
            count = dr_lost_of(&self.c, i)
            delta = count - self.lost_seen_of[i]
            if delta == 0:
                continue
            self.lost_seen_of[i] = count
            if i < <uint32_t>PyList_GET_SIZE(self.table.tracepoints):
                tp = <Tracepoint>PyList_GET_ITEM(self.table.tracepoints, i)
                if tp.nr_probes:
                    tp.emitted += delta
                    for k in range(tp.nr_probes):
                        probe = <Probe>tp.probe_array[k]
                        probe.lost += delta

    cdef int32_t checked_tid(self, uint32_t tid, uint64_t now):
        """The claimed thread id if it is a thread of the peer, else the peer's process id.

        Asking /proc costs a hundred times what a record does. So an answer of no holds for a while, too (a producer in another
        pid namespace never names a thread that we can see), and a round asks a bounded number of times.
        """
        cdef uint32_t slot = tid % KNOWN_TIDS
        if self.known[slot] == tid and tid != 0:
            return <int32_t>tid
        if now - self.unknown_since > UNKNOWN_NS:
            memset(self.unknown, 0, sizeof(self.unknown))
            self.unknown_since = now
        if self.unknown[slot] == tid or self.lookups >= LOOKUPS_IN_A_ROUND:
            return self.pid
        self.lookups += 1
        if tid == <uint32_t>self.pid or (
            0 < tid < 0x7fffffff and os.path.exists(f"/proc/{self.pid}/task/{tid}")
        ):
            self.known[slot] = tid
            if self.new_thread is not None:
                self.new_thread(<int32_t>tid)
            return <int32_t>tid
        self.unknown[slot] = tid
        return self.pid

    def threads(self):
        """The threads whose records were taken last, at most a few dozen."""
        return [tid for tid in self.known[:KNOWN_TIDS] if tid]


@cython.final
cdef class Journal:
    """How far each data ring is consumed, in the file `path`, where a successor finds it (include/journal.h).

    What a dead daemon left there is kept for rings that are adopted later; `buffer` is its ring buffer if that was taken
    over, too: then a record that was under way when it died is found in there or not. `refused`: what was wrong with the
    file that stood there, which then was replaced. OSError.
    """

    cdef readonly object path
    cdef readonly object refused
    cdef dict waiting                   # (st_dev, st_ino) -> slot: left by the daemon before, nobody came for it yet
    cdef list unused
    cdef int fd
    cdef unsigned char *map
    cdef size_t map_bytes
    cdef Py_ssize_t slots               # in the file

    def __cinit__(self):
        self.fd = -1

    def __init__(self, path, RingBuffer buffer=None):
        cdef Py_ssize_t i
        cdef jr_slot *slot
        cdef uint64_t cpu
        if self.fd >= 0:
            raise RuntimeError("made already")
        self.path = os.fspath(path)
        self.waiting = {}
        self.unused = []
        self.map_bytes = (1 + <size_t>JOURNAL_SLOTS) * JR_SLOT_BYTES
        self.refused = self.open_old()
        if self.fd < 0:
            self.make_new()
        for i in range(self.slots):
            slot = self.at(i)
            key = (slot.dev, slot.ino)
            if slot.used != 1 or key in self.waiting:
                jr_free_slot(slot)
                self.unused.append(i)
                continue
            cpu = slot.begun_cpu
            jr_judge(slot, buffer.cpus[cpu].appends if buffer is not None and cpu < <uint64_t>buffer.nr_cpus else 0)
            self.waiting[key] = i
        self.unused.reverse()

    def __dealloc__(self):
        if self.map != NULL:
            munmap(self.map, self.map_bytes)
        if self.fd >= 0:
            close_fd(self.fd)

    def __len__(self):
        """Slots that stand for a ring, here or still to be adopted."""
        return self.slots - len(self.unused)

    cdef inline jr_slot *at(self, Py_ssize_t i) noexcept:
        return <jr_slot *>(self.map + (1 + i) * JR_SLOT_BYTES)

    cdef object open_old(self):
        """The file that is there; None, or why it is of no use."""
        cdef jr_header *header
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        found = os.fstat(fd)
        slots = found.st_size // JR_SLOT_BYTES - 1
        if not stat.S_ISREG(found.st_mode) or found.st_size % JR_SLOT_BYTES or not 0 <= slots <= JOURNAL_SLOTS:
            os.close(fd)
            return "its length is that of no journal"
        self.map_it(fd)
        header = <jr_header *>self.map
        if header.magic != JR_MAGIC or header.version != JR_VERSION or header.slot_bytes != JR_SLOT_BYTES:
            munmap(self.map, self.map_bytes)
            self.map = NULL
            os.close(fd)
            return "it is no journal of this version"
        self.fd = fd
        self.slots = slots
        return None

    cdef int make_new(self) except -1:
        """An empty journal, put in place as a whole."""
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

    cdef int map_it(self, int fd) except -1:
        # All of it that there may ever be, so that slots never move; only what the file has by now is touched.
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
        jr_take_slot(self.at(i), key[0], key[1], ring.c.tail)
        ring.journal = self
        ring.slot = self.at(i)
        return 0

    def begin(self, DataRing ring not None):
        """Keep account of a ring that was just made. OSError, MemoryError: there is no room for it."""
        key = ring.key()
        i = self.waiting.pop(key, None)     # a file that is gone, and its number was given again
        self.give(ring, key, self.unused_slot() if i is None else i)

    def resume(self, DataRing ring not None):
        """Go on where the daemon before was in an adopted ring; before anything of it is taken in. Errors as `begin`."""
        cdef Py_ssize_t i
        cdef uint64_t tail, told = ring.c.tail
        cdef jr_slot *slot
        key = ring.key()
        if key not in self.waiting:
            self.give(ring, key, self.unused_slot())
            return
        i = self.waiting.pop(key)
        slot = self.at(i)
        tail = slot.tail & ~JR_RECORDED
        if tail & 7 or tail - told > dr_head(&ring.c) - told:
            self.give(ring, key, i)         # not what we left: then its own memory has to be believed
            return
        ring.journal = self
        ring.slot = slot
        # Consumed, but perhaps not zeroed to the end. The producers did not get it back before it is published here.
        dr_advance(&ring.c, <uint32_t>(tail - told))
        dr_publish(&ring.c)
        if slot.tail & JR_RECORDED:
            if dr_next(&ring.c, &ring.head, ring.copy, DR_MAX_PAYLOAD, False, &ring.holes) == DR_RECORD:
                tail += ring.head.bytes
            jr_done(slot, tail)
            dr_advance(&ring.c, <uint32_t>(tail - ring.c.tail))
            dr_publish(&ring.c)

    def end(self, DataRing ring not None):
        """The ring is given up; its memory says where it stands."""
        if ring.journal is self:
            self.unused.append(((<unsigned char *>ring.slot) - self.map) // JR_SLOT_BYTES - 1)
            jr_free_slot(ring.slot)
            self.leave(ring)

    def leave(self, DataRing ring not None):
        """Nothing more is taken from the ring here; its slot waits for whoever adopts it from a later daemon."""
        ring.slot = &ring.no_slot
        ring.journal = None


@cython.final
cdef class Intake:
    """All data rings of a daemon. `nr_cpus` bounds the cpu number that a record may claim.

    sink: the ftrace instance whose ring buffer a successor takes over: a record that is under way counts as recorded
    when it is in there. None: there is none.
    """

    cdef readonly list rings
    cdef readonly int nr_cpus
    cdef public FtraceSink sink
    cdef rb_cpu *cpus                   # of sink's ring buffer, as long as take_in runs
    cdef int nr_buffers

    def __init__(self, int nr_cpus, FtraceSink sink=None):
        self.rings = []
        self.nr_cpus = nr_cpus
        self.sink = sink

    def add(self, DataRing ring not None):
        self.rings.append(ring)

    def remove(self, DataRing ring not None):
        """Forget a ring, after what it still holds was taken in."""
        self.rings.remove(ring)

    def want_wakeup(self, bint wanted):
        """Ask every producer to ring its doorbell (1), or not to. Call take_in once more before sleeping."""
        cdef DataRing ring
        for ring in self.rings:
            dr_want_wakeup(&ring.c, wanted)

    def take_in(self, Py_ssize_t budget=1 << 62):
        """Take what was committed when this was called, oldest first over all rings; at most `budget` records.

        Returns how many. Rings found `corrupt` are left alone from then on.
        """
        cdef Py_ssize_t n = PyList_GET_SIZE(self.rings), i, live = 0, done = 0
        cdef DataRing ring, best
        cdef PyObject **heads
        cdef uint64_t now, until
        cdef RingBuffer buffer = None       # keeps `cpus` alive
        if n == 0:
            return 0
        if self.sink is not None:
            buffer = self.sink._buffer
            self.cpus = buffer.cpus
            self.nr_buffers = buffer.nr_cpus
        heads = <PyObject **>PyMem_Malloc(n * sizeof(PyObject *))
        if heads == NULL:
            raise MemoryError
        try:
            now = monotonic_ns()
            for i in range(n):
                ring = <DataRing>PyList_GET_ITEM(self.rings, i)
                ring.lookups = 0
                ring.limit = dr_head(&ring.c)
                if ring.limit - ring.c.tail > ring.c.ring.size:
                    ring.corrupt = True     # behind our tail (then it is huge), or further than the ring is long
                if ring.refill():
                    heads[live] = <PyObject *>ring
                    live += 1
            while live and done < budget:
                # The oldest head; a linear look, because few producers write at one moment. It is then taken from until
                # another ring's head is older.
                best = <DataRing>heads[0]
                until = <uint64_t>-1
                at = 0
                for i in range(1, live):
                    ring = <DataRing>heads[i]
                    if ring.head.ts_ns < best.head.ts_ns:
                        until = best.head.ts_ns
                        best = ring
                        at = i
                    elif ring.head.ts_ns < until:
                        until = ring.head.ts_ns
                while True:
                    self.dispatch(best, now)
                    done += 1
                    jr_done(best.slot, best.c.tail + best.head.bytes)
                    dr_advance(&best.c, best.head.bytes)
                    if best.c.tail - best.c.told >= PUBLISH_BYTES:
                        dr_publish(&best.c)
                    if not best.refill():
                        live -= 1
                        heads[at] = heads[live]
                        break
                    if best.head.ts_ns > until or done >= budget:
                        break
            for i in range(n):
                ring = <DataRing>PyList_GET_ITEM(self.rings, i)
                ring.has_head = False
                dr_publish(&ring.c)
                ring.fold_lost()
        finally:
            PyMem_Free(heads)
            self.cpus = NULL
        return done

    cdef inline void dispatch(self, DataRing ring, uint64_t now):
        cdef Record r
        cdef int error
        cdef dr_taken *head = &ring.head
        cdef list tracepoints = ring.table.tracepoints
        cdef int cpu
        ring.taken += 1
        if head.write_index >= <uint32_t>PyList_GET_SIZE(tracepoints):
            ring.table.refuse(errno_enoent, -1 if head.write_index > 0x7fffffff else <long long>head.write_index)
            return
        r.ts_ns = head.ts_ns if head.ts_ns <= now else now
        r.cpu = head.cpu if head.cpu < self.nr_cpus else 0
        if ring.known[head.tid % KNOWN_TIDS] == head.tid and head.tid != 0:
            r.pid = <int32_t>head.tid
        else:
            r.pid = ring.checked_tid(head.tid, now)
        r.tgid = ring.pid
        r.payload = ring.copy
        r.size = head.length
        if self.cpus != NULL:
            cpu = r.cpu if r.cpu < self.nr_buffers else r.cpu % self.nr_buffers     # as FtraceSink.store chooses
            jr_begin(ring.slot, ring.c.tail, cpu, self.cpus[cpu].appends)
        error = (<Tracepoint>PyList_GET_ITEM(tracepoints, head.write_index)).emit(&r)
        if error:
            ring.table.refuse(-error, head.write_index)


cdef int errno_enoent = errno.ENOENT
