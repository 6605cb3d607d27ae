# cython: boundscheck=False, wraparound=False
"""Names of writing threads, for filters that compare COMM.

Reading /proc costs as much as hundreds of records. So a thread's name is read at its first record that a
filter compares, and again at the first record more than REFRESH_NS later.

    slots       256 names by thread id, found with one comparison
    _known      up to 4,096 names, where a slot had to be given to another thread
    read        /proc: at most 32 times in REFRESH_NS for the threads of one process, and 1,024 times in all

Beyond these limits (a program that writes from thousands of threads in turn) filters compare the last known
name, that of the thread's first record, and `<...>` without one, which `trace` shows for unknown threads.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_MONOTONIC

from utracefs_protocol.pages.record cimport COMM_SIZE, Record
from utracefsd.machine._machine cimport clock_ns

cdef enum:
    REFRESH_NS = 100000000
    MAX_KNOWN = 4096
    MAX_ASKED_BY_ONE = 32
    MAX_ASKED_IN_ALL = 1024

cdef bytes UNKNOWN = b"<...>"


cdef class WriterNames(Names):
    """The names of all writing threads; one for a daemon.

    read: The name of a thread, at most 15 bytes of it, or its last known name (`CommTable.comm`).
    last: The last known name, without reading /proc; None: none is known.
    lookups: Number of calls of `read`.
    faults: Number of exceptions of `read`; the name is `<...>` then.
    """

    def __init__(self, read: Callable[[int], bytes], last: Callable[[int], bytes | None] = lambda pid: None):
        self._read = read
        self._last = last
        self._known = {}
        self._asked = {}

    cdef const char *name_of(self, const Record *r) noexcept:
        cdef Slot *slot = &self._slots[<uint32_t>r.pid % SLOTS]
        if slot.pid == r.pid and r.ts_ns < slot.until_ns:
            return slot.name
        try:
            self.fill(slot, r)
        except Exception:  # nothing here may stop the record
            self.faults += 1
            set_name(slot, UNKNOWN)
            slot.until_ns = 0
        return slot.name

    cdef int fill(self, Slot *slot, const Record *r) except -1:
        cdef uint64_t now
        cdef uint64_t until = 0
        cdef int32_t pid = r.pid
        cdef bytes name = None
        found = self._known.get(pid)
        if found is not None:
            until = found[1]
        if r.ts_ns >= until:
            now = clock_ns(CLOCK_MONOTONIC)
            if self.may_ask(r.tgid, now):
                self.lookups += 1
                name = self._read(pid)
            elif found is None:
                name = self._last(pid)
            if name is not None:
                until = now + REFRESH_NS
                found = name, until
                self._known.pop(pid, None)
                self._known[pid] = found
                if len(self._known) > MAX_KNOWN:
                    del self._known[next(iter(self._known))]
        slot.pid = pid
        slot.until_ns = until
        set_name(slot, UNKNOWN if found is None else <bytes>found[0])
        return 0

    cdef bint may_ask(self, int32_t tgid, uint64_t now) except -1:
        if now - self._asked_since_ns >= REFRESH_NS:
            self._asked.clear()
            self._asked_in_all = 0
            self._asked_since_ns = now
        asked = self._asked.get(tgid, 0)
        if asked >= MAX_ASKED_BY_ONE or self._asked_in_all >= MAX_ASKED_IN_ALL:
            return False
        self._asked[tgid] = asked + 1
        self._asked_in_all += 1
        return True

    def name(self, int pid, *, int tgid, ts_ns: int) -> bytes:
        """The name that a record of this thread is judged by. ts_ns: when it was written."""
        cdef Record r
        memset(&r, 0, sizeof(r))
        r.pid = pid
        r.tgid = tgid
        r.ts_ns = ts_ns
        return <bytes>self.name_of(&r)


cdef void set_name(Slot *slot, bytes name) noexcept:
    cdef Py_ssize_t size = min(PyBytes_GET_SIZE(name), COMM_SIZE - 1)
    memset(slot.name, 0, COMM_SIZE)
    memcpy(slot.name, PyBytes_AS_STRING(name), size)
