# cython: boundscheck=False, wraparound=False
"""The threads of one process: thread id and name for each of its records.

A producer claims a thread id and, for a new thread, its name (data_ring.h). /proc of the process that the
kernel named as the peer decides:

| /proc has the thread | the record's thread | name |
|---|---|---|
| in the process | as claimed | from /proc; the claimed one if the thread has just ended |
| in another process | the process itself | |
| no more | as claimed, under the two conditions below; else the process itself | the claimed one |

A claimed thread that /proc does not have is accepted on two conditions: the record carries its name or the
thread is known as the process's, and its number is not known as another process's. So a claim never names a
thread of another process, not even an ended one. A process in another pid namespace uses numbers that mean
nothing here, and its claims are never accepted; of one that ended before its connection was accepted, only
that its first thread wrote.

A look into /proc costs a hundred times as much as a record. So results are cached; that a thread is missing
or has ended only for a while, since thread ids are reused. The number of looks is limited for each user
(Lookups). Records beyond that count as the process's.

Single-threaded, with the GIL.
"""

import os

cimport cython
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memset

from utracefs_protocol.pages.data_ring cimport DR_COMM
from utracefsd.machine.procfs import is_in_our_namespace
#: from utracefsd.machine.comms import CommTable, Task

cdef enum:
    UNKNOWN_NS = 1000000000
    # A burst, for a program that begins with hundreds of threads; then a tenth of the time: one lookup takes
    # 13 us for a thread that has ended, 30 us for one that lives.
    LOOKUPS_AT_ONCE = 512
    LOOKUP_NS = 300000


@cython.final
cdef class Lookups:
    """Limits the lookups in /proc for new threads of one user's processes: tokens that refill with time, at
    most LOOKUPS_AT_ONCE. Also selects the one ring per round whose known threads are checked: the check may
    be due in each of a thousand rings at once."""

    def __init__(self):
        self.left = LOOKUPS_AT_ONCE

    cdef bint take(self, uint64_t now) noexcept:
        cdef uint64_t more
        if now > self.since:
            more = (now - self.since) // LOOKUP_NS
            if more >= LOOKUPS_AT_ONCE - <uint64_t>self.left:
                self.left = LOOKUPS_AT_ONCE
                self.since = now
            else:
                self.left += <int>more
                self.since += more * LOOKUP_NS
        if self.left == 0:
            return False
        self.left -= 1
        return True


class AllWriters:
    """Makes the Writers of each process. comms: the names (`CommTable`); None: names are not needed."""

    def __init__(self, comms: CommTable | None = None):
        self._comms = comms
        self._lookups = {}

    def of(
        self, int pid, start_time: int = 0, share: int = 0, lives: Callable[[], Task | None] | None = None
    ) -> Writers:
        """The Writers of process `pid`. share: the user charged for the lookups. lives: reads its first
        thread, if `pid` still is that process (`Peer.lives`); None: it is."""
        return Writers(pid, start_time, share, lives, self._comms, self._lookups.setdefault(share, Lookups()))


@cython.final
cdef class Writers:
    """The writing threads of a process; made by `AllWriters.of`."""

    def __init__(
        self, int pid, start_time: int, share: int, lives: Callable[[], Task | None] | None,
        comms: CommTable | None, Lookups lookups not None
    ):
        self.pid = pid
        self.lookups = lookups
        self.ended = []
        self._start_time = start_time
        self._share = share
        self._lives = lives
        self._comms = comms
        # (without a start time it had ended before, and another process may have its number)
        self.is_here = comms is not None and start_time > 0 and is_in_our_namespace(pid)
        self.is_gone = (
            comms is not None and pid > 0 and not self.is_here and not os.path.exists(f"/proc/{pid}")
        )

    cdef int32_t find(self, uint32_t tid, const unsigned char *comm, uint64_t now) except? -1:
        """The thread id for a record that claims `tid`, and the name `comm` if that is not NULL."""
        cdef uint32_t slot = tid % KNOWN_TIDS
        cdef bint is_known = self.known[slot] == tid and tid != 0
        if is_known and comm == NULL:
            return <int32_t>tid
        if now - self.unknown_since > UNKNOWN_NS:
            memset(self.unknown, 0, sizeof(self.unknown))
            self.unknown_since = now
        if not is_known and (self.unknown[slot] == tid or not 0 < tid < 0x7fffffff):
            return self.pid
        if not self.lookups.take(now):
            return <int32_t>tid if is_known else self.pid
        name = b"" if comm == NULL else comm[:DR_COMM - 1].partition(b"\0")[0]
        if is_known and (not name or self._comms is None or self._comms.last_comm(tid) == name):
            return <int32_t>tid
        if self.is_thread(tid):
            if self._comms is not None:
                self._comms.remember(tid, self.pid, name, self._first if tid == <uint32_t>self.pid else None)
        elif (self.is_here or (self.is_gone and tid == <uint32_t>self.pid)) and self.has_ended(
            tid
        ) and self._comms.has_ended(
            tid, self.pid, self._start_time, self._share, name
        ):
            self.ended.append(slot)
        elif not is_known:
            self.unknown[slot] = tid
            return self.pid
        self.known[slot] = tid
        return <int32_t>tid

    cdef bint is_thread(self, uint32_t tid):
        """Whether it is a thread of the peer, and not of a later process with the peer's pid."""
        if tid == <uint32_t>self.pid and self._lives is not None:
            return self.is_of_peer()
        return self.has_thread(tid) and self.is_of_peer()

    cdef bint has_thread(self, uint32_t tid):
        return not self.is_gone and os.path.exists(f"/proc/{self.pid}/task/{tid}")

    cdef bint has_ended(self, uint32_t tid):
        return tid == <uint32_t>self.pid or not os.path.exists(f"/proc/{tid}")

    cdef bint is_of_peer(self):
        if self._lives is None:
            return True
        self._first = self._lives()
        return self._first is not None

    cpdef begin_round(self):  #: None
        """Check ended threads again: their numbers may have been reused."""
        if self.ended:
            for slot in self.ended:
                self.known[slot] = 0
            self.ended = []

    cpdef check_known(self):  #: None
        """Forget thread ids that ended and were given to another process. An unused one stays known: records
        in the ring may be from it."""
        cdef bint is_of_peer = self.is_of_peer()
        for slot in range(KNOWN_TIDS):
            tid = self.known[slot]
            if tid and not (is_of_peer and self.has_thread(tid)) and os.path.exists(f"/proc/{tid}"):
                self.known[slot] = 0

    def threads(self) -> list[int]:
        """The threads of the last records that were taken in, at most a few dozen."""
        return [tid for tid in self.known[:KNOWN_TIDS] if tid]
