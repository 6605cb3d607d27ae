# cython: boundscheck=False, wraparound=False
"""The intake: merges all data rings by time into the tracepoints.

Each connection may have one ring. `Intake.take_in` repeatedly takes the oldest record of all rings and hands
it to its tracepoint. No Python code runs per record.

A call takes records up to the moment at which it began. Records committed later, while it looks at one ring
after the other, wait for the next call: taken now, they would overtake older records of rings that it had
already looked at. (A record committed before the call has a time before it, so it is taken.)

Bounded: one call takes at most the records reserved when it began; with a `budget` at most so many of them,
and for ROUND_NS. A request waits for a call without, so rings must not stay full (`narrow`). A producer's
claims are not trusted (`DataRing`); here: the write_index is looked up in the table of its own connection,
the time stamp may not be in the future, the cpu must exist.

If the daemon is killed at any point in here, the next one takes in every committed record exactly once, for
each instance that keeps it: include/journal.h has the argument.

Single-threaded, with the GIL.
"""

import errno
import os
from collections.abc import Callable

cimport cython
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport PyObject
from libc.stdint cimport UINT64_MAX, int32_t, uint32_t, uint64_t
from libc.stdlib cimport free
from posix.time cimport CLOCK_MONOTONIC
from posix.unistd cimport usleep

from utracefs_protocol.memory cimport resized
from utracefs_protocol.pages.data_ring cimport *
from utracefs_protocol.pages.record cimport Record
from utracefsd.consumers.ftrace.buffer._ring_buffer cimport PageReader, nr_holding
from utracefsd.consumers.ftrace.event._sink cimport FtraceProbe
from utracefsd.consumers.ftrace.event._trigger_cells cimport Cells
from utracefsd.events._tracepoint cimport RECORDED, Probe, Tracepoint, emit_deferred, nr_deferred
from utracefsd.intake._data_ring cimport DataRing
from utracefsd.intake._giving_back cimport GivingBack
from utracefsd.intake._journal cimport Journal
from utracefsd.intake._writers cimport KNOWN_TIDS, Lookups
from utracefsd.intake.journal cimport JR_JUDGED, JR_SKIPPING, jr_done, jr_has_taken, jr_slot
from utracefsd.machine._machine cimport both_clocks, clock_ns
from utracefsd.machine.tsc_clock cimport (
    tsc_clock,
    tsc_clock_known_rate,
    tsc_clock_look,
    tsc_clock_ns,
)

from utracefsd.intake._writers import AllWriters

cdef enum:
    # Give space back to the producer about this often, so that it can write to a full ring during a round.
    PUBLISH_BYTES = 65536
    # Longest round, until requests are answered.
    ROUND_NS = 4000000
    # Bytes, of all rings, that wait for longer than after a burst: a millisecond's work. See `narrow`.
    STANDING_BYTES = 2 << 20
    STANDING_NS = 20000000
    # Bytes that all narrow rings have together: first more than STANDING_BYTES, to see that they are still
    # full; twice that after each STANDING_NS in which less waited; in the end their whole size.
    NARROWEST_BYTES = 4 << 20
    WHOLE_BYTES = 64 << 20
    # A narrow ring has at least so many bytes, until nothing was lost in it for so long.
    NARROW_BYTES = 128 << 10
    NARROW_NS = 100000000
    # A ring that takes more memory than this gives it back when it had no more than QUIET_BYTES for so long.
    LARGE_BYTES = 2 << 20
    QUIET_BYTES = 512 << 10
    QUIET_NS = 1000000000
    # A ring of which no event is on keeps no more: header, counters, and 64 KiB of its area.
    KEPT_BYTES = 128 << 10
    # Checking that known threads are still the peer's reads /proc for each.
    KNOWN_NS = 1000000000
    # Producers get a rate of the TSC again when it changed by more than 1 ppm: 2^11 of some 2^31.
    RATE_BITS = 11
    # A ring that is removed waits so long for a thread that takes two milliseconds.
    GIVING_BACK_MS = 20


@cython.final
cdef class Intake:
    """All data rings of a daemon. `nr_cpus` bounds the cpu number that a record may claim.

    tsc: Producers may stamp with the time stamp counter. False where the counter is not trusted.
    journal: Has the previous daemon's clock, and keeps this one's for the next.
    give_back: Runs it, perhaps in a thread.
    looked_ns: CLOCK_MONOTONIC of the last take_in: records before it have been taken in.
    clock_jumped: Counter and clock diverged since this was last set to False.
    has_off: An event was switched off: `take_in` looks for rings without one that is on.
    """

    cdef readonly list rings  #: list[DataRing]
    cdef readonly int nr_cpus
    cdef readonly bint has_more     # a record was seen and left for the next call
    cdef readonly bint is_behind    # the last call ended at its budget, or found a ring half full
    cdef bint is_standing           # more than STANDING_BYTES waited in the last call
    cdef uint64_t changed_ns        # since when all calls found that, or drew the consequence
    cdef uint64_t together          # bytes of all narrow rings; WHOLE_BYTES: none is narrow
    cdef readonly int nr_narrow     # rings that have less than their size
    cdef bint may_tsc
    cdef public bint clock_jumped
    cdef public bint has_off
    cdef object give_back
    cdef tsc_clock clock
    cdef uint64_t told_rate         # of the clock, to all rings
    cdef Journal journal

    def __init__(
        self,
        int nr_cpus,
        bint tsc=False,
        Journal journal=None,
        give_back: Callable[[GivingBack], None] = GivingBack.run,
    ):
        self.rings = []
        self.nr_cpus = nr_cpus
        self.may_tsc = tsc
        self.journal = journal
        self.give_back = give_back
        if journal is not None:
            journal.resume_clock(&self.clock)
        self.together = WHOLE_BYTES
        self.look_at_clock()

    @property
    def looked_ns(self) -> int:
        return self.clock.to.ns

    @property
    def tsc(self) -> bool:
        return self.may_tsc

    @tsc.setter
    def tsc(self, bint may):
        cdef DataRing ring
        self.may_tsc = may
        for ring in self.rings:
            self.set_clock(ring)

    cdef void set_clock(self, DataRing ring) noexcept:
        if self.may_tsc:
            dr_set_clock(&ring.c, DR_CLOCK_TSC, self.told_rate)
        else:
            dr_set_clock(&ring.c, DR_CLOCK_MONOTONIC, 0)

    cdef void look_at_clock(self) noexcept:
        cdef uint64_t rate
        cdef DataRing ring
        if tsc_clock_look(&self.clock, both_clocks()):
            self.clock_jumped = True
        rate = tsc_clock_known_rate(&self.clock)
        if rate >> RATE_BITS != self.told_rate >> RATE_BITS:
            self.told_rate = rate
            for ring in self.rings:
                self.set_clock(ring)
        if self.journal is not None:
            self.journal.note_clock(&self.clock)

    def add(self, DataRing ring not None) -> None:
        if ring.writers is None:
            ring.writers = AllWriters().of(ring.pid)
        self.rings.append(ring)
        self.set_clock(ring)

    def remove(self, DataRing ring not None) -> None:
        """Forget a ring whose records were taken in. Losses since then stay in its memory, for the next
        daemon: the counts of this one may be written down already."""
        self.rings.remove(ring)
        ring.c.withheld = 0
        for _ in range(GIVING_BACK_MS):
            if ring.is_giving_back():
                with nogil:
                    usleep(1000)
        if not ring.is_giving_back():
            dr_publish(&ring.c)
        ring.mark_lost(UINT64_MAX)  # its last losses come before any next record

    def want_wakeup(self, bint wanted) -> None:
        """Ask every producer to ring its doorbell, or to stop that. Call take_in once more before
        sleeping."""
        cdef DataRing ring
        for ring in self.rings:
            if wanted:
                self.widen(ring)
            dr_want_wakeup(&ring.c, wanted)

    def take_in(self, Py_ssize_t budget=1 << 62) -> int:
        """Take in the records committed before this call, oldest first over all rings; returns how many.

        At most `budget` records, for ROUND_NS. Rings found `corrupt` are ignored from then on.
        """
        cdef Py_ssize_t n = PyList_GET_SIZE(self.rings), i, live = 0, done = 0
        cdef DataRing ring, best
        cdef PyObject **heads
        cdef uint64_t now, until, waiting = 0
        cdef bint is_round = budget < 1 << 62, is_much = False
        self.has_more = self.is_behind = False
        self.look_at_clock()    # before any ring, so that all rings are read up to this moment
        if n == 0:
            return 0
        heads = <PyObject **>resized(NULL, n * sizeof(PyObject *))
        try:
            now = self.clock.to.ns
            # Rings with a record form a heap. For each user the one whose threads were checked longest ago.
            for i in range(n):
                ring = <DataRing>PyList_GET_ITEM(self.rings, i)
                ring.writers.begin_round()
                ring.waits_for_room = False
                if dr_look(&ring.c) == DR_CORRUPT:
                    ring.corrupt = True
                else:
                    # (as its producer sees it, who rings the doorbell only when it gets fuller than this)
                    is_much = is_much or ring.c.head - ring.c.published > dr_much(&ring.c.ring)
                if self.next_of(ring, now):
                    waiting += ring.c.head - ring.c.tail
                    heads[live] = <PyObject *>ring
                    live += 1
                    best = ring.writers.lookups.stalest
                    if now - ring.known_since > KNOWN_NS and (
                        best is None or ring.known_since < best.known_since
                    ):
                        ring.writers.lookups.stalest = ring
            # Checking the threads of a ring reads /proc, so only one of each user is in a round.
            for i in range(live):
                ring = <DataRing>heads[i]
                if ring.writers.lookups.stalest is ring:
                    ring.writers.lookups.stalest = None
                    ring.known_since = now
                    ring.writers.check_known()
                    ring.ask_names()
            self.narrow(now, waiting)
            for i in range(live // 2 - 1, -1, -1):
                sift(heads, i, live)
            while live and done < budget:
                # Records come from the ring with the oldest one until that of another ring is older.
                best = <DataRing>heads[0]
                until = <uint64_t>-1
                for i in range(1, min(live, 3)):
                    until = min(until, (<DataRing>heads[i]).head.time)
                while True:
                    self.dispatch(best, now)
                    done += 1
                    # The order is the journal's (journal.h): consumed, then zeroed, then given back.
                    jr_done(best.slot, best.c.tail + best.head.bytes)
                    if nr_deferred:
                        emit_deferred()
                    dr_advance(&best.c, best.head.bytes)
                    if best.c.tail - best.c.published >= PUBLISH_BYTES + best.c.withheld:
                        best.publish()
                        if is_round and clock_ns(CLOCK_MONOTONIC) - now > ROUND_NS:
                            budget = done
                    if not self.next_of(best, now):
                        live -= 1
                        heads[0] = heads[live]
                        break
                    if best.head.time > until or done >= budget:
                        break
                sift(heads, 0, live)
            # Also rings without a record now: space that was stepped over goes back to the producer.
            self.is_behind = live > 0 or (is_much and done > 0)
            if self.has_off:
                self.empty_unused()
            for i in range(n):
                ring = <DataRing>PyList_GET_ITEM(self.rings, i)
                ring.publish()
                self.skip(ring, now)
        finally:
            free(heads)
        return done

    cdef void narrow(self, uint64_t now, uint64_t waiting) noexcept:
        """Give programs that are too fast, and lose records, less of their rings.

        A large ring is for bursts. If it stays full it loses as much as a small one, and every request, and
        each record of another ring, waits until all of it is taken in. They get all of it back while little
        waits, whatever they lose meanwhile: a narrow ring is sooner full when the daemon has no cpu.
        """
        cdef DataRing ring
        cdef uint64_t size = self.together // <uint64_t>max(self.nr_narrow, 1)
        size = max(size, <uint64_t>NARROW_BYTES)
        # (not since the look before: without a cpu for a while, the daemon finds much that will not last)
        if (waiting > STANDING_BYTES) != self.is_standing:
            self.is_standing = not self.is_standing
            self.changed_ns = now
        elif now - self.changed_ns > STANDING_NS:
            self.together = min(2 * self.together, <uint64_t>WHOLE_BYTES)
            if self.is_standing:
                self.together = NARROWEST_BYTES
            self.changed_ns = now
        self.nr_narrow = 0
        for ring in self.rings:
            if ring.has_lost:
                ring.has_lost = False
                ring.narrow_until = now + NARROW_NS
            ring.c.withheld = 0
            if self.together < WHOLE_BYTES and now < ring.narrow_until:
                self.nr_narrow += 1
                if size < ring.c.ring.size:
                    ring.c.withheld = ring.c.ring.size - size

    cdef int empty_unused(self) except -1:
        """Let rings whose events are all off give all of their memory back: three skips, from a place in the
        first half to the second, to the beginning, and over the first half."""
        cdef DataRing ring
        self.has_off = False
        for ring in self.rings:
            if (
                ring.c.ring.size >= 2 * DR_LOW
                and not ring.corrupt
                and not ring.table.has_on()
                and os.fstat(ring.fd).st_blocks * 512 > KEPT_BYTES
            ):
                ring.nr_due = 3
        return 0

    cdef int skip(self, DataRing ring, uint64_t now) except -1:
        """Let a ring that is empty begin again at its beginning, or, after a flood, give its memory back
        ("Memory" in data_ring.h)."""
        cdef uint64_t tail = ring.c.tail
        cdef uint32_t size = ring.c.ring.size, bytes
        cdef bint gives_back
        cdef Lookups user = ring.writers.lookups
        if size < 2 * DR_LOW or ring.c.withheld or ring.corrupt or ring.is_giving_back():
            return 0
        if tail - ring.active_tail > QUIET_BYTES:
            ring.active_tail = tail
            ring.active_ns = now
            if tail - ring.skipped_to > LARGE_BYTES:
                ring.nr_due = 2
        gives_back = ring.nr_due and now - ring.active_ns >= QUIET_NS and (
            user.giving_back is None or user.giving_back.is_done()
        )
        bytes = dr_skip_bytes(&ring.c, tail)
        if not gives_back and ((tail + bytes) & (size - 1) or ring.nr_due == 1):
            return 0
        if gives_back:
            ring.nr_due -= 1    # also in vain: what prevents it now may do so for long
        if tail != ring.c.head:
            return 0
        jr_done(ring.slot, tail | JR_SKIPPING)
        if dr_skip(&ring.c, bytes):
            if gives_back:
                try:
                    giving_back = GivingBack(ring.fd, size, tail, bytes)
                    self.give_back(giving_back)
                    ring.giving_back = user.giving_back = giving_back
                except (MemoryError, OSError):  # no more threads: it stays
                    pass
            ring.skipped_to = ring.c.tail
            ring.active_tail += bytes
        jr_done(ring.slot, ring.c.tail)
        return ring.publish()

    @property
    def has_large(self) -> bool:
        """A ring takes the memory of a flood: call take_in again and again until it has given that back."""
        cdef DataRing ring
        for ring in self.rings:
            if ring.nr_due or ring.is_giving_back():
                return True
        return False

    cdef int widen(self, DataRing ring) except -1:
        """Give back all of it: programs, and the next daemon, find in its memory how far it is consumed."""
        ring.c.withheld = 0
        return ring.publish()

    cdef inline bint next_of(self, DataRing ring, uint64_t now) noexcept:
        """Load the next record that this call may take into the ring's `head`, with its time by the clock."""
        cdef int state
        cdef uint64_t before = ring.c.tail
        if ring.corrupt:
            return False
        state = dr_next(&ring.c, &ring.head, ring.copy, DR_MAX_PAYLOAD, ring.dead, &ring.holes)
        if state == DR_CORRUPT:
            ring.corrupt = True
            return False
        if ring.c.tail != before:
            jr_done(ring.slot, ring.c.tail)     # space that was stepped over is zero already
            ring.judged = False
        if state != DR_RECORD:
            return False
        if ring.head.flags & DR_TSC:
            ring.head.time = tsc_clock_ns(&self.clock, ring.head.time)
        if ring.head.time > now and ring.head.time <= clock_ns(CLOCK_MONOTONIC):
            self.has_more = True
            return False
        if (
            ring.is_early
            and not ring.dead
            and ring.head.write_index & ~DR_REFUSED >= <uint32_t>PyList_GET_SIZE(ring.table.tracepoints)
        ):
            return False    # its registration comes after it, over the socket
        if nr_holding and ring.wait_us and self.must_wait(ring):
            ring.waits_for_room = self.has_more = True
            return False
        return True     # also one with a future time: a producer's wrong clock must not block its ring

    cdef bint must_wait(self, DataRing ring) noexcept:
        """Whether an instance that gets its next record has a lossless reader without room."""
        cdef list tracepoints = ring.table.tracepoints
        cdef PageReader reader
        if ring.head.write_index < <uint32_t>PyList_GET_SIZE(tracepoints):
            for probe in (<Tracepoint>PyList_GET_ITEM(tracepoints, ring.head.write_index))._probes:
                if isinstance(probe, FtraceProbe):
                    reader = (<FtraceProbe>probe).sink.page_reader
                    if reader is not None and reader.holds:
                        return True
        return False

    cdef inline int dispatch(self, DataRing ring, uint64_t now) except -1:
        cdef Record r
        cdef int error
        cdef dr_taken *head = &ring.head
        cdef bint is_named = head.flags & DR_NAMED
        cdef list tracepoints = ring.table.tracepoints
        cdef int cpu
        cdef bint again = ring.judged
        ring.judged = False
        ring.taken += 1
        if ring.c.tail + head.bytes > ring.marked_at:
            ring.mark_lost(ring.c.tail + head.bytes)
        if head.write_index >= <uint32_t>PyList_GET_SIZE(tracepoints):
            if is_named:
                # A name is sent once, perhaps with this refused record.
                ring.writers.find(head.tid, head.comm, now)
            if not ring.table.count_refusal(head.write_index, ring.copy, head.length):
                ring.table.refuse(
                    errno_enoent, -1 if head.write_index > 0x7fffffff else <long long>head.write_index
                )
            return 0
        r.ts_ns = head.time if head.time <= now else now
        r.cpu = head.cpu if head.cpu < self.nr_cpus else 0
        # (a variable for the Writers would count references)
        if ring.writers.known[head.tid % KNOWN_TIDS] == head.tid and head.tid != 0 and not is_named:
            r.pid = <int32_t>head.tid
        else:
            r.pid = ring.writers.find(head.tid, head.comm if is_named else NULL, now)
        r.tgid = ring.pid
        r.payload = ring.copy
        r.size = head.length
        r.origin = ring.slot.number
        r.origin_at = ring.c.tail
        if again:
            error = emit_again(<Tracepoint>PyList_GET_ITEM(tracepoints, head.write_index), &r, ring)
        else:
            error = (<Tracepoint>PyList_GET_ITEM(tracepoints, head.write_index)).emit(&r)
        if error:
            ring.table.refuse(-error, head.write_index)
        return 0


cdef void sift(PyObject **heads, Py_ssize_t i, Py_ssize_t n) noexcept:
    """Move ring `i` down to its place in a heap of `n`: the first has the oldest record."""
    cdef PyObject *ring = heads[i]
    cdef Py_ssize_t child = 2 * i + 1
    while child < n:
        if child + 1 < n and (<DataRing>heads[child + 1]).head.time < (<DataRing>heads[child]).head.time:
            child += 1
        if (<DataRing>ring).head.time <= (<DataRing>heads[child]).head.time:
            break
        heads[i] = heads[child]
        i = child
        child = 2 * i + 1
    heads[i] = ring


cdef int emit_again(Tracepoint tracepoint, Record *r, DataRing ring) except? 1:
    """Dispatch a record again that was being dispatched when a daemon died, to all probes that had not taken
    it.

    Probes with triggers get it in any case: they store it only if they do not have it, and run the triggers
    that had not fired.
    """
    cdef tuple probes = tracepoint._probes
    cdef bint marked = ring.slot.tail & JR_JUDGED
    cdef Cells cells = (<Journal>ring.journal).cells if ring.journal is not None else None
    cdef list have = [
        probe
        for probe in probes
        if marked and isinstance(probe, FtraceProbe)
        and jr_has_taken(ring.slot, (<FtraceProbe>probe).sink.number)
    ]
    cdef list done = [probe for probe in have if (<FtraceProbe>probe)._triggers is None]
    cdef int error = 0
    if cells is not None:
        cells.again = ring.fired
    for probe in have:
        (<FtraceProbe>probe).has_it = True
    try:
        if len(done) < len(probes) or not probes:
            tracepoint.set_probes(tuple([probe for probe in probes if probe not in done]))
            error = tracepoint.emit(r)
            tracepoint.set_probes(probes)
        else:
            tracepoint.emitted += 1
            tracepoint.payload_bytes += r.size
    finally:
        for probe in have:
            (<FtraceProbe>probe).has_it = False
        if cells is not None:
            cells.again = None
    if not error:
        for probe in done:
            (<Probe>probe).counts[RECORDED] += 1
    if ring.fired is not None:
        ring.fired = None
        (<Journal>ring.journal).fired.pop(ring.key, None)
    return error


cdef int errno_enoent = errno.ENOENT
