# cython: boundscheck=False, wraparound=False
"""The ring buffer: per cpu sub-buffers in the page layout of kernel/trace/ring_buffer.c.

The headers in include/ do the work, on one mapping per cpu that also holds all state; this module makes the
mappings (anonymous memory, or files that the next daemon adopts) and merges the cpus for readers. Other calls
may happen between two calls: a cursor therefore keeps positions, never pointers, and a copy of its record.
"""

import contextlib
import errno
import os
from pathlib import Path

from utracefsd.consumers.ftrace.buffer.stats import BufferStats
from utracefsd.machine import disk
from utracefsd.machine.kept_file import made_whole, open_kept, remove

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_MONOTONIC

from utracefs_protocol.memory cimport zeroed
from utracefsd.machine._machine cimport clock_ns

cdef extern from "ring_mapping.h" nogil:
    struct rb_state:
        uint64_t tail, overrun, lost, dropped, late, late_by
    rb_state *rb_state_of "rb_state" (const rb_cpu *)
    uint64_t rb_used(const rb_state *)
    enum:
        RB_MAX_SUBBUFS
        RB_PAGE_HEADER
    size_t rb_map_size(uint32_t, uint32_t)
    int rb_create(rb_cpu *, int fd, uint32_t n, uint32_t size, uint32_t cpu, uint32_t nr_cpus, bint overwrite)
    int rb_adopt(rb_cpu *, int fd, const char **why)
    void rb_unmap(rb_cpu *)
    int rb_append(rb_cpu *, uint64_t ts, uint64_t common, const void *, size_t)
    void rb_clear(rb_cpu *)
    void rb_copy(rb_cpu *, const rb_cpu *)
    uint64_t rb_read(rb_cpu *)
    uint64_t rb_entries(rb_cpu *)
    uint64_t rb_bytes(rb_cpu *)
    uint64_t rb_oldest_ts(rb_cpu *)
    bint rb_overwrite(rb_cpu *)
    void rb_set_overwrite(rb_cpu *, bint)
    void rb_consumed(rb_cpu *, uint32_t, uint64_t, uint64_t)
    void rb_iter_start(rb_cpu *, rb_iter *)
    bint rb_iter_peek(rb_cpu *, rb_iter *)
    void rb_iter_advance(rb_cpu *, rb_iter *)
    bint rb_consume_peek(rb_cpu *, rb_iter *)
    bint rb_iter_page(rb_cpu *, rb_iter *, uint8_t *)

cdef extern from "spare.h" nogil:
    size_t spare_map_size(uint32_t)
    int spare_create(spare_map *, int fd, uint32_t nr_cpus)
    int spare_adopt(spare_map *, int fd, uint32_t nr_cpus)
    void spare_unmap(spare_map *)
    bint spare_allocated(const spare_map *)
    int spare_live(const spare_map *, uint32_t cpu)
    void spare_set_live(const spare_map *, uint32_t cpu, int which)
    void spare_set_allocated(const spare_map *, bint allocated)
    void spare_swap(const spare_map *, rb_cpu *live, rb_cpu *other, int first, int end, const uint64_t *key)


# Space that making a file leaves free in its file system. The journal and the log of the daemon's state
# (state/living.py) are in the same file system, and grow.
cdef enum:
    KEPT_FREE = 1 << 20


cdef int check(int code, what) except -1:
    """0, or the exception for a negative errno."""
    if code == -errno.ENOMEM:
        raise MemoryError(f"no memory for {what}")
    if code < 0:
        raise OSError(-code, os.strerror(-code), what)
    return 0


cdef uint32_t subbufs(object size_kb, uint32_t subbuf_size) except 0:
    """The number of sub-buffers for size_kb: at least 2, as in ring_buffer_resize()."""
    if size_kb < 1:
        raise ValueError(f"buffer size of {size_kb} KiB: at least 1 is needed")
    n = max(2, -(-size_kb * 1024 // (subbuf_size - RB_PAGE_HEADER)))
    if n > RB_MAX_SUBBUFS:
        raise MemoryError(f"buffer size of {size_kb} KiB per cpu: no memory for it")
    return n


cdef str file_of(int cpu, int which):
    return f"cpu{cpu}.b" if which else f"cpu{cpu}"


cdef int remove_file(path) except -1:
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(path)
    return 0


cdef int adopt_ring(rb_cpu *b, str folder, int cpu, int which) except -1:
    """Take over one file. ValueError if it is invalid, OSError."""
    cdef const char *why
    cdef int code
    path = f"{folder}/{file_of(cpu, which)}"
    fd = disk.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        code = rb_adopt(b, fd, &why)
    finally:
        os.close(fd)
    if code == -errno.EINVAL:
        raise ValueError(f"{path}: {why.decode()}")
    return check(code, path)


cdef class PageReader:
    """A consuming reader that gets each page when the writer leaves it."""

    cdef void take(self, rb_cpu *b, bint all_of_them) noexcept:
        pass

    cdef void set_holds(self, bint on) noexcept:
        global nr_holding
        nr_holding += on - self.holds
        self.holds = on

    def go_on(self) -> None:
        """Hold nothing, until there is no room again."""
        self.set_holds(False)


cdef class RingBuffer:
    """A ring of sub-buffers of `subbuf_size` bytes for each of `nr_cpus` cpus.

    With `folder`, the ring of cpu N is the file folder/cpuN, or with a spare cpuN or cpuN.b
    (include/spare.h).

    spare: Another buffer of the same sizes, which a snapshot swaps with this one; made, resized and freed by
    this one.
    """

    def __cinit__(self):
        self.cpus = NULL
        memset(&self.map, 0, sizeof(spare_map))

    def __init__(self, int nr_cpus, size_kb: int, *, int subbuf_size=4096, folder: str | None = None):
        """Make an empty buffer of `size_kb` KiB per cpu; existing cpuN files in `folder` are replaced.

        subbuf_size: 4096 << 0..7. ValueError for size_kb < 1; MemoryError; OSError from `folder`. ENOSPC,
        EDQUOT, EFBIG: no space for the files and a MiB that stays free.
        """
        cdef uint32_t n
        cdef int cpu
        n = subbufs(size_kb, subbuf_size)
        self.allocate(nr_cpus, subbuf_size, None if folder is None else os.fspath(folder))
        try:
            for cpu in range(nr_cpus):
                self.make(&self.cpus[cpu], cpu, 0, n, True, self.folder)
        except BaseException:
            self.remove_new(self.cpus, False)
            raise
        for cpu in range(nr_cpus):
            self.install(cpu, 0)

    cdef int allocate(self, int nr_cpus, int subbuf_size, folder) except -1:
        self.cpus = <rb_cpu *>zeroed(nr_cpus, sizeof(rb_cpu))
        self.nr_cpus = nr_cpus
        self.subbuf_size = subbuf_size
        self.folder = folder
        return 0

    cdef int which(self, int cpu, bint spare) noexcept:
        """Which of its two files has the ring of a cpu: 0 cpuN, 1 cpuN.b."""
        return spare_live(&self.map, cpu) ^ spare

    cdef int make(self, rb_cpu *b, int cpu, int which, uint32_t n, bint overwrite, folder) except -1:
        """A new, empty ring; with a folder in the file cpuN.new or cpuN.b.new until install()."""
        cdef int code, fd = -1
        if folder is None:
            code = rb_create(b, -1, n, self.subbuf_size, cpu, self.nr_cpus, overwrite)
            return check(code, f"cpu {cpu}'s ring buffer")
        path = f"{folder}/{file_of(cpu, which)}.new"
        remove_file(path)
        fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            # Allocated now: a full /dev/shm is an error here, not a SIGBUS at some record later.
            disk.posix_fallocate(fd, 0, rb_map_size(n, self.subbuf_size))
            room = disk.fstatvfs(fd)
            # f_blocks 0: a tmpfs without a limit.
            if room.f_blocks and room.f_bavail * room.f_frsize < KEPT_FREE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            code = rb_create(b, fd, n, self.subbuf_size, cpu, self.nr_cpus, overwrite)
        except BaseException:
            disk.unlink(path)
            raise
        finally:
            os.close(fd)
        if code < 0:
            disk.unlink(path)
        return check(code, path)

    cdef int install(self, int cpu, int which) except -1:
        """Rename the finished file to its name: rename(2) replaces the old one as a whole or not at all."""
        if self.folder is not None:
            path = f"{self.folder}/{file_of(cpu, which)}"
            disk.rename(f"{path}.new", path)
        return 0

    cdef int remove_new(self, rb_cpu *made, int spare) except -1:
        """Remove the .new files of these rings, to free their space."""
        cdef int cpu
        if self.folder is not None:
            for cpu in range(self.nr_cpus):
                if made[cpu].nr:
                    disk.unlink(f"{self.folder}/{file_of(cpu, self.which(cpu, spare))}.new")
        return 0

    # ---- the spare ----

    cdef int make_map(self) except -1:
        cdef spare_map made
        if self.map.header != NULL:
            return 0
        if self.folder is None:
            check(spare_create(&made, -1, self.nr_cpus), "the map of the spare buffer")
        else:
            with made_whole(f"{self.folder}/spare", spare_map_size(self.nr_cpus)) as fd:
                check(spare_create(&made, fd, self.nr_cpus), "the map of the spare buffer")
            os.close(fd)
        self.map = made
        return 0

    def add_spare(self) -> None:
        """Make the spare, empty and of the same sizes. Does nothing if there is one. MemoryError, OSError:
        nothing is changed."""
        cdef RingBuffer spare
        cdef rb_cpu *live
        cdef int cpu, which
        if self.spare is not None:
            return
        self.make_map()
        spare = RingBuffer.__new__(RingBuffer)
        spare.allocate(self.nr_cpus, self.subbuf_size, None)
        try:
            for cpu in range(self.nr_cpus):
                live = &self.cpus[cpu]
                which = self.which(cpu, True)
                self.make(&spare.cpus[cpu], cpu, which, live.nr, rb_overwrite(live), self.folder)
        except BaseException:
            self.remove_new(spare.cpus, True)
            raise
        for cpu in range(self.nr_cpus):
            self.install(cpu, self.which(cpu, True))
        spare_set_allocated(&self.map, True)
        self.spare = spare

    def remove_spare(self) -> None:
        """Free the spare with its records. Does nothing if there is none."""
        cdef int cpu
        if self.spare is None:
            return
        self.spare = None
        spare_set_allocated(&self.map, False)
        if self.folder is not None:
            for cpu in range(self.nr_cpus):
                remove_file(f"{self.folder}/{file_of(cpu, self.which(cpu, True))}")

    cdef bint swap_rings(self, int cpu, const uint64_t *key) noexcept:
        if self.spare is None:
            return False
        if cpu < 0:
            spare_swap(&self.map, self.cpus, self.spare.cpus, 0, self.nr_cpus, key)
        else:
            spare_swap(&self.map, self.cpus, self.spare.cpus, cpu, cpu + 1, key)
        return True

    cdef bint has_swapped(self, const uint64_t *key) noexcept:
        return spare_has_key(&self.map, key)

    def swap(self, int cpu=-1) -> bool:
        """Take a snapshot: swap the live rings, of one cpu or all, with the spare's. After a kill the next
        daemon finds it done for all or for none. False: there is no spare."""
        cdef uint64_t key[SPARE_KEY_WORDS]
        cdef int end
        self.range_of(cpu, &end)
        memset(key, 0, sizeof(key))
        return self.swap_rings(cpu, key)

    cdef int adopt_map(self) except -1:
        """Read which rings of an ended process were the live ones."""
        cdef int code
        path = f"{self.folder}/spare"
        opened = open_kept(path)
        if opened is None:
            if any([os.path.lexists(f"{self.folder}/{file_of(n, 1)}") for n in range(self.nr_cpus)]):
                raise ValueError(f"{path} is missing")
            return 0
        try:
            code = spare_adopt(&self.map, opened[0], self.nr_cpus)
        finally:
            os.close(opened[0])
        if code == -errno.EINVAL:
            raise ValueError(f"{path}: not a map of spare buffers of this version and machine")
        return check(code, path)

    cdef int guess_map(self) except -1:
        """Make a new map. Where a cpu has only one ring, that is the live one."""
        remove(Path(f"{self.folder}/spare"))
        self.make_map()
        there = set(os.listdir(self.folder))
        spare_set_allocated(&self.map, {file_of(n, k) for n in range(self.nr_cpus) for k in (0, 1)} <= there)
        for n in range(self.nr_cpus):
            if file_of(n, 0) not in there:
                spare_set_live(&self.map, n, 1)
        return 0

    def __dealloc__(self):
        cdef int cpu
        spare_unmap(&self.map)
        if self.cpus != NULL:
            for cpu in range(self.nr_cpus):
                rb_unmap(&self.cpus[cpu])
            free(self.cpus)

    @staticmethod
    def adopt(folder: str, *, bint guess=False) -> RingBuffer:
        """Take over the files cpu0, cpu1, ... in `folder` from an ended process. ValueError if they are
        invalid, OSError. guess: of two rings take the one with the later record for the live one."""
        cdef RingBuffer buffer = RingBuffer.__new__(RingBuffer)
        cdef RingBuffer spare
        cdef rb_cpu first
        cdef int cpu, which
        folder = os.fspath(folder)
        # The file cpu0 exists, unless its ring was a spare that was removed.
        adopt_ring(&first, folder, 0, 0 if os.path.lexists(f"{folder}/cpu0") else 1)
        try:
            buffer.allocate(min(first.control.nr_cpus, 1 << 16), first.subbuf_size, folder)
        finally:
            rb_unmap(&first)
        buffer.guess_map() if guess else buffer.adopt_map()
        for cpu in range(buffer.nr_cpus):
            buffer.adopt_cpu(&buffer.cpus[cpu], cpu, buffer.which(cpu, False))
        if spare_allocated(&buffer.map):
            spare = RingBuffer.__new__(RingBuffer)
            spare.allocate(buffer.nr_cpus, buffer.subbuf_size, None)
            for cpu in range(buffer.nr_cpus):
                buffer.adopt_cpu(&spare.cpus[cpu], cpu, buffer.which(cpu, True))
            buffer.spare = spare
            for cpu in range(buffer.nr_cpus):
                if guess and spare.cpus[cpu].last_ts > buffer.cpus[cpu].last_ts:
                    buffer.swap(cpu)
        else:
            for cpu in range(buffer.nr_cpus):  # the process died while it made or removed a spare
                remove_file(f"{folder}/{file_of(cpu, buffer.which(cpu, True))}")
        for cpu in range(buffer.nr_cpus):  # it died while it made rings of another size
            for which in range(2):
                remove_file(f"{folder}/{file_of(cpu, which)}.new")
        # Differs if the process died while it changed this, cpu by cpu.
        buffer.overwrite = bool(rb_overwrite(&buffer.cpus[0]))
        return buffer

    cdef int adopt_cpu(self, rb_cpu *b, int cpu, int which) except -1:
        """Take over one ring of this buffer."""
        adopt_ring(b, self.folder, cpu, which)
        if (
            rb_cpu_number(b) != <uint32_t>cpu
            or b.control.nr_cpus != <uint32_t>self.nr_cpus
            or b.subbuf_size != <uint32_t>self.subbuf_size
        ):
            raise ValueError(f"{self.folder}/{file_of(cpu, which)}: does not belong to the other cpus' files")
        return 0

    cdef int range_of(self, int cpu, int *end) except -1:
        """The range of cpus that `cpu` selects: first and end; -1 is all. IndexError: no such cpu."""
        if cpu < -1 or cpu >= self.nr_cpus:
            raise IndexError(f"no cpu {cpu}: there are {self.nr_cpus}")
        end[0] = self.nr_cpus if cpu < 0 else cpu + 1
        return 0 if cpu < 0 else cpu

    cdef rb_cpu *one(self, int cpu) except NULL:
        if not 0 <= cpu < self.nr_cpus:
            raise IndexError(f"no cpu {cpu}: there are {self.nr_cpus}")
        return &self.cpus[cpu]

    @property
    def overwrite(self) -> bool:
        """Full: True drops the oldest sub-buffer, False refuses the new record."""
        return bool(rb_overwrite(&self.cpus[0]))

    @overwrite.setter
    def overwrite(self, bint on):
        cdef int cpu
        for cpu in range(self.nr_cpus):
            rb_set_overwrite(&self.cpus[cpu], on)
            if self.spare is not None:
                rb_set_overwrite(&self.spare.cpus[cpu], on)

    @property
    def max_entry_size(self) -> int:
        """Bytes of the largest entry, common header included: subbuf_size - 24 (4072 for 4 KiB)."""
        return RB_MAX_DATA(self.subbuf_size)

    # ---- writing ----

    def append(self, int cpu, uint64_t ts, bytes data not None) -> bool:
        """Store one whole entry (common header first). False: dropped and counted.

        ValueError: larger than max_entry_size. IndexError: no such cpu.
        """
        cdef rb_cpu *b = self.one(cpu)
        cdef const char *bytes_of = PyBytes_AS_STRING(data)
        cdef size_t size = PyBytes_GET_SIZE(data)
        cdef uint64_t common
        cdef int code
        if size < 8:
            raise ValueError(f"entry of {size} bytes: it begins with 8 bytes of common fields")
        memcpy(&common, bytes_of, 8)
        code = rb_append(b, ts, common, bytes_of + 8, size - 8)
        if code == RB_TOO_LARGE:
            raise ValueError(f"entry of {size} bytes: at most {self.max_entry_size} fit a sub-buffer")
        return code == RB_RESERVED

    def mark_lost(self, int cpu, uint64_t n) -> None:
        """`n` records of this cpu were lost before they got here. Readers see that at the next record."""
        rb_mark_lost(self.one(cpu), n)

    def clear(self, int cpu=-1) -> None:
        """Drop all records and zero all counters, also the time of the last record."""
        cdef int end, first = self.range_of(cpu, &end), i
        for i in range(first, end):
            rb_clear(&self.cpus[i])

    def resize(self, size_kb: int, int cpu=-1, *, bint in_memory=False) -> None:
        """Change the size, the spare's too; the newest records that fit are kept, the others count as
        overrun. ValueError for size_kb < 1, MemoryError or OSError with the old ring intact.

        in_memory: move every cpu's ring with its records from its file to anonymous memory. The files stay:
        the caller removes them if no other process may adopt them.
        """
        cdef int end, first = self.range_of(cpu, &end)
        self.replace(first, end, subbufs(size_kb, self.subbuf_size), in_memory and self.folder is not None)

    def fit_spare(self) -> None:
        """Resize the spare's rings to the sizes of the live ones. They differ if a process died while it
        resized them."""
        self.replace(0, 0, 0, False)

    def move_to_memory(self) -> None:
        """As resize() does with `in_memory`, also the spare's."""
        self.replace(0, 0, 0, self.folder is not None)

    cdef int replace(self, int first, int end, uint32_t n, bint leave) except -1:
        """Give the cpus first..end-1 n sub-buffers, and all spare rings the number of their live ring; all
        new rings are made before the first is installed. leave: move them all to anonymous memory."""
        cdef uint32_t wanted
        cdef int i, k, rings = 1 if self.spare is None else 2
        cdef rb_cpu *made = <rb_cpu *>zeroed(self.nr_cpus * rings, sizeof(rb_cpu))
        cdef rb_cpu *old
        cdef rb_cpu *new
        folder = None if leave else self.folder
        try:
            for k in range(rings):
                for i in range(self.nr_cpus):
                    old = &self.cpus[i] if k == 0 else &self.spare.cpus[i]
                    wanted = n if first <= i < end else self.cpus[i].nr
                    if leave or old.nr != wanted:
                        new = &made[k * self.nr_cpus + i]
                        self.make(new, i, self.which(i, k), wanted, rb_overwrite(old), folder)
            if leave:
                self.folder = None
            for k in range(rings):
                for i in range(self.nr_cpus):
                    new = &made[k * self.nr_cpus + i]
                    if new.nr == 0:
                        continue
                    old = &self.cpus[i] if k == 0 else &self.spare.cpus[i]
                    rb_copy(new, old)
                    self.install(i, self.which(i, k))
                    rb_unmap(old)
                    old[0] = new[0]
                    new.nr = 0
        except BaseException:
            if not leave:
                for k in range(rings):
                    self.remove_new(made + k * self.nr_cpus, k)
            raise
        finally:
            for i in range(self.nr_cpus * rings):
                if made[i].nr:
                    rb_unmap(&made[i])
            free(made)
        return 0

    # ---- numbers ----

    def size_kb(self, int cpu) -> int:
        """floor(nr_subbufs * (subbuf_size - 16) / 1024), the value of `buffer_size_kb`."""
        return self.one(cpu).nr * (<uint64_t>self.subbuf_size - RB_PAGE_HEADER) // 1024

    def nr_subbufs(self, int cpu) -> int:
        """Sub-buffers in the ring, without the reader page."""
        return self.one(cpu).nr

    def stats(self, int cpu) -> BufferStats:
        cdef rb_cpu *b = self.one(cpu)
        cdef rb_state *s = rb_state_of(b)
        return BufferStats(
            rb_entries(b), s.overrun, 0, rb_bytes(b), rb_oldest_ts(b), s.dropped, rb_read(b), s.late,
            s.late_by,
        )

    def entries(self, int cpu=-1) -> int:
        cdef int end, first = self.range_of(cpu, &end), i
        return sum([rb_entries(&self.cpus[i]) for i in range(first, end)])

    def overruns(self, int cpu=-1) -> int:
        cdef int end, first = self.range_of(cpu, &end), i
        return sum([rb_state_of(&self.cpus[i]).overrun for i in range(first, end)])

    def is_empty(self, int cpu=-1) -> bool:
        cdef int end, first = self.range_of(cpu, &end), i
        return all([rb_is_empty(&self.cpus[i]) for i in range(first, end)])

    def percent_full(self, int cpu) -> int:
        """Percentage of the sub-buffers with unread data beyond the reader page, for `buffer_percent`."""
        # full_hit() and rb_watermark_hit() of the kernel: pages from head to tail, also the one being
        # written; while that is the reader page, nothing counts as full.
        cdef rb_cpu *b = self.one(cpu)
        return 0 if rb_is_empty(b) else 100 * rb_used(rb_state_of(b)) // b.nr

    # ---- reading ----

    def read_page(self, int cpu, Py_ssize_t size) -> bytes | None:
        """Consume like the first read() of an open `trace_pipe_raw`: a page of subbuf_size bytes with as many
        records as fit into size - 16 bytes. b"": `size` is too small for the first record, nothing is
        consumed. None: nothing to read.
        """
        cdef rb_cpu *b = self.one(cpu)
        cdef int code
        if size < 0:
            raise ValueError(f"size {size}")
        page = PyBytes_FromStringAndSize(NULL, self.subbuf_size)
        code = rb_read_page(b, size, <uint8_t *>PyBytes_AS_STRING(page))
        if code > 0:
            return page
        return b"" if code < 0 else None

    def hand_to(self, PageReader reader not None, *, bint all_of_them=False) -> None:
        """Let the reader consume full pages, or all of them, of every cpu."""
        cdef int i
        for i in range(self.nr_cpus):
            reader.take(&self.cpus[i], all_of_them)

    def cursor(self, int cpu=-1, bint consume=False, *, bint snapshot=False) -> Cursor:
        """A reader of one cpu or all. snapshot: reads the spare; is at its end while there is none."""
        return Cursor(self, cpu, consume, snapshot)

    def _bench_append(self, int n, int size) -> float:
        """Nanoseconds per record of `n` appends of a `size`-byte payload in a C loop."""
        cdef int i
        cdef uint64_t start_ns = clock_ns(CLOCK_MONOTONIC)
        cdef uint8_t payload[4096]
        assert n > 0 and 0 <= size <= 4096
        memset(payload, 0x5a, size)
        for i in range(n):
            rb_append(self.cpus, <uint64_t>i * 100, 42 | <uint64_t>4711 << 32, payload, size)
        return (clock_ns(CLOCK_MONOTONIC) - start_ns) / n


cdef class Cursor:
    """Records of one cpu or of all, merged by (time stamp, cpu).

    Not consuming: a walk over the unread records, oldest first, that stays valid whatever happens to the ring
    buffer meanwhile. It skips records that were overwritten, consumed or cleared, and finds appended ones;
    after StopIteration it may be continued. Consuming: every record returned is removed from the buffer.
    """

    def __cinit__(self, RingBuffer buffer not None, int cpu=-1, bint consume=False, bint snapshot=False):
        self.buffer = buffer
        self.consume = consume
        self.snapshot = snapshot
        self.first_cpu = buffer.range_of(cpu, &self.end_cpu)
        # All zero: the first access to the ring calls rb_iter_start(), since its identity differs.
        self.iters = <rb_iter *>zeroed(self.end_cpu - self.first_cpu, sizeof(rb_iter))
        self.copy = <uint8_t *>zeroed(buffer.subbuf_size, 1)
        self.data = self.copy
        for cpu in range(self.first_cpu, self.end_cpu):
            if self.ring(cpu) != NULL:
                rb_iter_start(self.ring(cpu), &self.iters[cpu - self.first_cpu])
                self.last_tail = rb_state_of(self.ring(cpu)).tail

    def __dealloc__(self):
        free(self.iters)
        free(self.copy)

    cdef rb_cpu *ring(self, int cpu) noexcept:
        """The ring to read. NULL: there is no spare.

        Like an iterator of the kernel, a walk stays on its ring when a snapshot swaps that away; a consuming
        cursor reads the ring that has the role for which it was opened.
        """
        cdef RingBuffer spare = self.buffer.spare
        cdef uint64_t identity
        if not self.consume and spare is not None:
            identity = self.iters[cpu - self.first_cpu].identity
            if self.buffer.cpus[cpu].identity == identity:
                return &self.buffer.cpus[cpu]
            if spare.cpus[cpu].identity == identity:
                return &spare.cpus[cpu]
        if not self.snapshot:
            return &self.buffer.cpus[cpu]
        return NULL if spare is None else &spare.cpus[cpu]

    cdef bint peek(self) noexcept:
        cdef int i, best = -1
        cdef rb_cpu *b
        cdef rb_iter *it
        cdef rb_iter *found = NULL
        for i in range(self.first_cpu, self.end_cpu):
            b = self.ring(i)
            if b == NULL:
                continue
            it = &self.iters[i - self.first_cpu]
            if self.consume:
                if not rb_consume_peek(b, it):
                    continue
            elif not rb_iter_peek(b, it):
                continue
            if found == NULL or it.next.ts < found.next.ts:
                found = it
                best = i
        self.peeked = found != NULL
        if found == NULL:
            return False
        self.cpu = best
        self.ts = found.next.ts
        # At most subbuf_size bytes, the size of `copy`: the largest record is smaller than a page, and the
        # page size of a RingBuffer never changes.
        self.size = found.next.size
        memcpy(self.copy, found.next.data, found.next.size)
        self.lost = rb_state_of(self.ring(best)).lost if self.consume else found.lost
        self.overrun = found.overtaken
        self.peek_pos = found.next.pos
        self.peek_off = found.next.off
        self.peek_identity = found.identity
        return True

    cdef bint next(self) noexcept:
        cdef rb_cpu *b
        cdef rb_iter *it
        if self.peeked:
            # Is the record last seen still the next one of its cpu? Another reader may have consumed it, the
            # writer overwritten it, or a snapshot swapped its ring. (A record with an earlier time that
            # arrived on another cpu meanwhile waits.)
            b = self.ring(self.cpu)
            it = &self.iters[self.cpu - self.first_cpu]
            if (
                b == NULL
                or not (rb_consume_peek(b, it) if self.consume else rb_iter_peek(b, it))
                or it.next.pos != self.peek_pos
                or it.next.off != self.peek_off
                or it.identity != self.peek_identity
            ):
                self.peeked = False
        if not self.peeked and not self.peek():
            return False
        b = self.ring(self.cpu)
        it = &self.iters[self.cpu - self.first_cpu]
        if self.consume:
            rb_consumed(b, it.next.end, it.next.ts, 1)
        else:
            rb_iter_advance(b, it)
        self.peeked = False
        return True

    def __iter__(self) -> Cursor:
        return self

    def page(self) -> bytes | None:
        """The next page of one cpu, of the pages at the beginning of the walk; None: no more. ValueError."""
        cdef rb_cpu *b = self.ring(self.first_cpu)
        if self.consume or self.end_cpu != self.first_cpu + 1:
            raise ValueError("only a walk over one cpu that consumes nothing gives pages")
        self.peeked = False
        if b == NULL or not rb_iter_peek(b, self.iters) or self.iters.next.pos > self.last_tail:
            return None
        page = PyBytes_FromStringAndSize(NULL, self.buffer.subbuf_size)
        rb_iter_page(b, self.iters, <uint8_t *>PyBytes_AS_STRING(page))
        return page

    def __next__(self) -> tuple[int, int, bytes, int]:
        """The next record as (cpu, ts, entry, lost)."""
        if not self.next():
            raise StopIteration
        return self.cpu, self.ts, PyBytes_FromStringAndSize(<const char *>self.data, self.size), self.lost
