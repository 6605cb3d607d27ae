# cython: boundscheck=False, wraparound=False
"""One producer's data ring: shared memory that its process writes, and that is hostile for us.

What a producer claims is not believed: positions and lengths are bounded before they are used, the payload is
copied before it is looked at, the thread must belong to the process that the kernel named as the peer. A ring
whose memory is invalid is `corrupt`; its connection is ended.

Losses: a producer that finds its ring full counts there, in all and per write_index. Those counts are read
before anything else happens to an event and go into its `emitted` and into `lost` of every probe that is
attached: the record was emitted, and no consumer got it.

Single-threaded, with the GIL. protocol/utracefs_protocol/include/data_ring.h tells how producers and the
daemon use the shared memory at the same time.
"""

import fcntl
import os

cimport cython
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memset
from posix.unistd cimport close as close_fd

from utracefs_protocol.data_ring cimport *
from utracefsd.events._tracepoint cimport LOST, Probe, Tracepoint
from utracefsd.intake.journal cimport jr_done

from utracefsd.machine.closing import close_foreign

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

cdef enum:
    LOOKUPS_IN_A_ROUND = 32
    UNKNOWN_NS = 1000000000


cdef object what_is_foreign(int fd, int doorbell):
    """Which of the two is no memory, or no eventfd; None: both are what they should be."""
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return "the first descriptor is not a memfd"
    if not os.readlink(f"/proc/self/fd/{doorbell}").startswith("anon_inode:[eventfd"):
        return "the second descriptor is not an eventfd"
    return None


@cython.final
cdef class DataRing:
    """One producer's ring. The memfd and the doorbell (an eventfd) belong to it and are closed with it.

    pid: The peer's process, by SO_PEERCRED.
    new_thread: Called with a thread id when it is first seen, while the thread's name can still be read.
    dead: The connection is gone: take in what is there, step over what will never be committed.
    corrupt: The shared memory is invalid: end the connection with EPROTO.
    taken: Records taken in, those refused included.
    size: Bytes of the data area.
    lost_to_death: Records that were reserved and never committed, because the producer died.
    pending_bytes: Bytes reserved and not yet taken in, as the producer's memory says; not to be trusted.
    """

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
        # Not os.close: at the interpreter's end the module may be gone before its objects.
        if self.fd >= 0:
            close_fd(self.fd)
        if self.doorbell >= 0:
            close_fd(self.doorbell)

    @staticmethod
    def create(IndexTable table not None, int pid, uint64_t size):
        """A new ring with a data area of `size` bytes.

        ValueError: not a power of two from 64 KiB to 64 MiB. OSError: no memory or descriptor for it.
        """
        cdef DataRing ring = DataRing.__new__(DataRing)
        if not dr_valid_size(size):
            raise ValueError("the size of a data ring is a power of two from 64 KiB to 64 MiB")
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
        """A ring that an earlier daemon made; owns both descriptors from now on, also when it fails.

        ValueError, with what is wrong: not a memfd, not sealed, an invalid size, another magic or version,
        invalid positions. The next round takes in what the ring still holds.
        """
        cdef DataRing ring
        cdef uint64_t size
        wrong = what_is_foreign(fd, doorbell)
        if wrong:
            close_foreign((fd, doorbell))  # any file there is, and its close may block
            raise ValueError(wrong)
        ring = DataRing.__new__(DataRing)
        ring.fd = fd
        ring.doorbell = doorbell
        ring.table = table
        ring.pid = pid
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if seals & SEALS != SEALS:
            raise ValueError("the ring's memory is not sealed against shrinking, growing and sealing")
        # Sealed: the length cannot change any more, so no access to the mapping can fault.
        length = os.fstat(fd).st_size
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
        # The daemon before counted what was lost before. Reading it now keeps it out of our counts.
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
        return self.holes

    @property
    def pending_bytes(self):
        """Bytes reserved and not yet taken in, as the producer's memory says; not to be trusted."""
        return (dr_head(&self.c) - self.c.tail) & (2 * <uint64_t>self.c.ring.size - 1)

    def key(self):
        """(st_dev, st_ino) of its memory: the same whatever process and descriptor the ring comes by."""
        found = os.fstat(self.fd)
        return found.st_dev, found.st_ino

    def want_wakeup(self, bint wanted):
        """Ask this ring's producer to ring the doorbell, or not to."""
        dr_want_wakeup(&self.c, wanted)

    cdef bint refill(self) noexcept:
        """The next record of this round into `head`. False: none."""
        cdef int state
        cdef uint64_t before
        self.has_head = False
        if self.corrupt:
            return False
        # A record never reaches past the head that it was found below. So tail stops at limit exactly, or
        # beyond it when records behind it were found below a later head: then the distance is negative.
        if <long long>(self.limit - self.c.tail) <= 0:
            return False
        before = self.c.tail
        state = dr_next(&self.c, &self.head, self.copy, DR_MAX_PAYLOAD, self.dead, &self.holes)
        if state == DR_CORRUPT:
            self.corrupt = True
            return False
        if self.c.tail != before:
            jr_done(self.slot, self.c.tail)     # what was stepped over is zero already
            self.judged = False
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
                        probe.counts[LOST] += delta

    cdef int32_t checked_tid(self, uint32_t tid, uint64_t now):
        """The claimed thread id if it is a thread of the peer, else the peer's process id.

        Asking /proc costs a hundred times what a record does. So an answer of no holds for a while, too (a
        producer in another pid namespace never names a thread that we can see), and a round asks a bounded
        number of times.
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
        """The threads whose records were taken in last, at most a few dozen."""
        return [tid for tid in self.known[:KNOWN_TIDS] if tid]
