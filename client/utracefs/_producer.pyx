"""The compiled half of the client: what runs once per event.

An Event is a status pointer and a packing plan. `if event:` reads the one byte the pointer leads to; `emit` turns its
arguments into C values, and only when all of them are good does it ask the sink for room, fill it and commit.

The status pointer leads to one of three places:

| place | byte | meaning |
|---|---|---|
| OFF | 0 | nobody can be listening: no daemon, refused, closed |
| PENDING | 0x40, never a status | look again: the slow path finds out what is true and moves the pointer |
| a byte of a StatusMap | the daemon's | 0 nobody listens, else bits 0 ftrace, 1 perf, 7 other |

Who protects what: everything here except `SocketSink._send_until` runs with the GIL held and, from the first write to
shared state to the last, calls no Python code. So an emit is one step for every other thread, for a signal handler and
for fork, without any lock that could be found locked. An emit can be entered again only while it still converts its
arguments (`__index__` of an argument is Python code), and then it has touched nothing. For the same reason a status map
may be unmapped as soon as no pointer leads into it: nobody is between loading the pointer and loading the byte.

The sink is where records go. With a data ring (shared memory, protocol.md section 5) an emit reserves there, fills and
commits, and nothing else happens: no system call, no thread of ours. Without one they go into a bounded FIFO of bytes:
emits append at `head` under the GIL, one sender thread takes away at `tail` without the GIL.
"""

from sys import intern

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset, strerror

from utracefs_protocol.data_ring cimport (
    data_ring,
    dr_commit,
    dr_map,
    dr_record,
    dr_reserve,
    dr_unmap,
    dr_walk,
)

cdef extern from *:
    """
    #include <endian.h>
    #include <poll.h>
    #include <sched.h>
    #include <stddef.h>
    #include <stdint.h>
    #include <sys/mman.h>
    #include <sys/socket.h>
    #include <time.h>
    #include <unistd.h>

    /* The two places of the status pointer that are no daemon's. Read like the mapped bytes, never written. */
    static const unsigned char ut_off_byte = 0;
    static const unsigned char ut_pending_byte = 0x40;

    /* When this process was forked from one that had sessions, CLOCK_MONOTONIC in ns; 0 if it was not. */
    static uint64_t ut_forked_at_ns = 0;
    static inline void ut_set_forked_at(uint64_t ns) { ut_forked_at_ns = ns; }

    static inline uint64_t ut_load_acquire(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline uint64_t ut_load_relaxed(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
    static inline void ut_store_release(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static inline void ut_store_relaxed(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
    static inline uint32_t ut_load32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static inline uint32_t ut_exchange(uint32_t *p, uint32_t v) { return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL); }

    static inline uint64_t ut_now_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }

    /* The thread id without a system call per record. The forked child's one thread forgets it (ut_forget_tid). */
    static __thread uint32_t ut_tid_known = 0;
    static inline uint32_t ut_tid(void) {
        if (!ut_tid_known) ut_tid_known = (uint32_t)gettid();
        return ut_tid_known;
    }
    static inline void ut_forget_tid(void) { ut_tid_known = 0; }
    /* rseq or the vDSO: no system call either. */
    static inline uint16_t ut_cpu(void) { int cpu = sched_getcpu(); return cpu < 0 ? 0 : (uint16_t)cpu; }

    /* Little-endian stores of 1, 2, 4 or 8 bytes at any address. */
    static inline void ut_put(unsigned char *at, uint64_t value, unsigned size) {
        switch (size) {
        case 1: at[0] = (unsigned char)value; break;
        case 2: { uint16_t v = htole16((uint16_t)value); memcpy(at, &v, 2); break; }
        case 4: { uint32_t v = htole32((uint32_t)value); memcpy(at, &v, 4); break; }
        default: { uint64_t v = htole64(value); memcpy(at, &v, 8); break; }
        }
    }
    static inline uint32_t ut_get_le32(const unsigned char *at) { uint32_t v; memcpy(&v, at, 4); return le32toh(v); }

    /* Ring the bell of a thread that polls `fd` (an eventfd). It can only fail by being rung already. */
    static inline void ut_ring(int fd) {
        const uint64_t one = 1;
        if (fd >= 0 && write(fd, &one, sizeof one) < 0) { }
    }
    static inline void ut_unring(int fd) {
        uint64_t count;
        if (fd >= 0 && read(fd, &count, sizeof count) < 0) { }
    }

    /* The bin header (MessagePack) for `size` bytes; returns its own length. */
    static inline unsigned ut_bin_header_size(size_t size) { return size < 256 ? 2 : size < 65536 ? 3 : 5; }
    static inline unsigned ut_put_bin_header(unsigned char *at, size_t size) {
        if (size < 256) { at[0] = 0xc4; at[1] = (unsigned char)size; return 2; }
        if (size < 65536) { at[0] = 0xc5; at[1] = (unsigned char)(size >> 8); at[2] = (unsigned char)size; return 3; }
        at[0] = 0xc6; at[1] = (unsigned char)(size >> 24); at[2] = (unsigned char)(size >> 16);
        at[3] = (unsigned char)(size >> 8); at[4] = (unsigned char)size; return 5;
    }
    /* Header and payload length of the record at `at`, which one of the above wrote. */
    static inline size_t ut_record_size(const unsigned char *at, unsigned *header) {
        if (at[0] == 0xc4) { *header = 2; return 2 + (size_t)at[1]; }
        if (at[0] == 0xc5) { *header = 3; return 3 + ((size_t)at[1] << 8 | at[2]); }
        *header = 5;
        return 5 + ((size_t)at[1] << 24 | (size_t)at[2] << 16 | (size_t)at[3] << 8 | at[4]);
    }
    """
    const unsigned char ut_off_byte
    const unsigned char ut_pending_byte
    uint64_t ut_forked_at_ns
    void ut_set_forked_at(uint64_t ns) noexcept nogil
    uint64_t ut_load_acquire(const uint64_t *p) noexcept nogil
    uint64_t ut_load_relaxed(const uint64_t *p) noexcept nogil
    void ut_store_release(uint64_t *p, uint64_t v) noexcept nogil
    void ut_store_relaxed(uint64_t *p, uint64_t v) noexcept nogil
    uint32_t ut_load32(const uint32_t *p) noexcept nogil
    uint32_t ut_exchange(uint32_t *p, uint32_t v) noexcept nogil
    uint64_t ut_now_ns() noexcept nogil
    void ut_put(unsigned char *at, uint64_t value, unsigned size) noexcept nogil
    uint32_t ut_get_le32(const unsigned char *at) noexcept nogil
    uint32_t ut_tid() noexcept nogil
    void ut_forget_tid() noexcept nogil
    uint16_t ut_cpu() noexcept nogil
    void ut_ring(int fd) noexcept nogil
    void ut_unring(int fd) noexcept nogil
    unsigned ut_bin_header_size(size_t size) noexcept nogil
    unsigned ut_put_bin_header(unsigned char *at, size_t size) noexcept nogil
    size_t ut_record_size(const unsigned char *at, unsigned *header) noexcept nogil

    ctypedef struct pollfd "struct pollfd":
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout) noexcept nogil
    short POLLIN, POLLOUT, POLLHUP, POLLERR
    ssize_t send(int fd, const void *data, size_t size, int flags) noexcept nogil
    int MSG_DONTWAIT, MSG_NOSIGNAL
    void *mmap(void *at, size_t size, int protection, int flags, int fd, long offset) noexcept nogil
    int munmap(void *at, size_t size) noexcept nogil
    int PROT_READ, MAP_SHARED
    void *MAP_FAILED

cdef extern from "Python.h":
    int PyLong_Check(PyObject *o)
    long long PyLong_AsLongLong(PyObject *o)
    unsigned long long PyLong_AsUnsignedLongLong(PyObject *o)
    PyObject *PyErr_Occurred()
    int PyErr_ExceptionMatches(object kind)
    void PyErr_Clear()
    const char *PyUnicode_AsUTF8AndSize(object o, Py_ssize_t *size) except NULL
    object PyNumber_Index(object o)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *o)
    PyObject *PyTuple_GET_ITEM(PyObject *o, Py_ssize_t i)
    object PyDescr_NewMethod(type owner, PyMethodDef *method)
    void PyType_Modified(type t)
    ctypedef PyObject *(*PyCFunction)(PyObject *, PyObject *)
    ctypedef struct PyMethodDef:
        const char *ml_name
        PyCFunction ml_meth
        int ml_flags
        const char *ml_doc
    ctypedef struct PyTypeObject:
        PyObject *tp_dict
    int METH_FASTCALL, METH_KEYWORDS


# ------------------------------------------------------------------------------------------------ status

cdef class StatusMap:
    """The daemon's status file, mapped shared and read-only.

    fd: of the status file, stays the caller's. size: bytes, as `mmap_status` answered. OSError when it cannot be mapped.

    Mapped here and not with the mmap module, which keeps a duplicate of the descriptor for its whole life. Every Event
    whose pointer leads into the map holds a reference to it, so it is unmapped when the last pointer has left.
    """

    cdef const unsigned char *bytes
    cdef readonly size_t size

    def __cinit__(self, int fd, size_t size):
        cdef void *at = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0)
        if at == MAP_FAILED:
            raise OSError(errno, strerror(errno).decode())
        self.bytes = <const unsigned char *>at
        self.size = size

    def __dealloc__(self):
        if self.bytes != NULL:
            munmap(<void *>self.bytes, self.size)

    def __reduce__(self):
        raise TypeError("a status map belongs to one process")


# ------------------------------------------------------------------------------------------------ sinks

cdef class Sink:
    """Where the records of a session go. Both calls are made with the GIL held, one right after the other.

    reserve: room for a payload of `size` bytes under `write_index`, or NULL when there is none (the caller counts it).
    commit: what was reserved last is filled in.
    """

    cdef readonly uint64_t records_in
    """Records committed since the beginning (of this process)."""
    cdef readonly uint64_t lost
    """Records given up: no room, or their event could not be registered again."""
    cdef readonly uint64_t dropped
    """Those among the lost that had been committed before."""

    cdef unsigned char *reserve(self, uint32_t write_index, size_t size) noexcept:
        return NULL

    cdef void commit(self) noexcept:
        pass


READABLE = 1
WOKEN = 2
CONTROL_SENT = 4
BROKEN = 8

cdef enum:
    F_READABLE = 1
    F_WOKEN = 2
    F_CONTROL_SENT = 4
    F_BROKEN = 8
    F_QUIET = 16

cdef enum:
    # What one send takes at most: some socket buffers' worth, so that control messages do not wait for a whole FIFO.
    SEND_BYTES = 256 * 1024
    # While records keep coming, how long the sender lets them gather.
    GATHER_MS = 1

cdef uint64_t NO_WRAP = 0xffffffffffffffffU


cdef class SocketSink(Sink):
    """A bounded FIFO of records in their wire form (`bin` of u32 write_index and payload), and its sender.

        memory      |....rrrrrrrrrrrrrrrr~~|        . free   r record bytes   ~ unused end of a lap
                         ^tail          ^head

    Positions count bytes from the beginning and only grow; a position modulo the capacity is a place in memory. A
    record is never split: where it does not fit before the end of the memory, `wrap_at` notes where this lap's data
    end and the record begins the next lap. There is at most one such note ahead of `tail`, because a second one would
    need more room than there is.

    | position | written by | read by |
    |---|---|---|
    | head, wrap_at | emit, under the GIL; release | sender; acquire |
    | boundary: begin of the oldest record not wholly sent | sender; release | emit; acquire: what lies before it is free |
    | tail: first byte not yet sent, within the record at boundary | sender | sender |

    capacity: bytes, a power of two; allocated by the first record.
    """

    cdef unsigned char *memory
    cdef readonly size_t capacity
    cdef uint64_t head
    cdef uint64_t wrap_at
    cdef uint64_t boundary
    cdef uint64_t tail
    cdef uint64_t reserved_end
    cdef uint64_t half_rung_at
    """head when the bell was rung because half of the room was taken; so once per half, not once per record."""
    cdef bint need_wakeup
    """The sender sleeps until rung. Set and cleared under the GIL, so no fence is needed between it and head."""
    cdef uint32_t wishes
    """The session thread is wanted for something else than records."""
    cdef readonly int wake_fd
    cdef object control
    cdef const char *control_at
    cdef size_t control_left
    cdef bint held
    cdef uint64_t control_after
    cdef data_ring ring
    """Mapped while header is not NULL; records go there while use_ring is set."""
    cdef bint use_ring
    cdef int doorbell
    cdef dr_record *reserved
    cdef uint32_t reserved_size
    cdef int half

    def __cinit__(self, size_t capacity):
        if capacity < 4096 or capacity & (capacity - 1):
            raise ValueError("the capacity must be a power of two, at least 4096")
        self.capacity = capacity
        self.wrap_at = NO_WRAP
        self.wake_fd = -1
        self.doorbell = -1

    def __dealloc__(self):
        free(self.memory)
        dr_unmap(&self.ring)

    def __reduce__(self):
        raise TypeError("a sink belongs to one process")

    # -- producing

    cdef unsigned char *reserve(self, uint32_t write_index, size_t size) noexcept:
        cdef size_t data = size + 4
        cdef size_t need = ut_bin_header_size(data) + data
        cdef uint64_t head = self.head
        cdef size_t at = head & (self.capacity - 1)
        cdef size_t skipped = 0
        cdef unsigned char *place
        if self.use_ring:
            return self.reserve_in_ring(write_index, size)
        if at + need > self.capacity:
            skipped = self.capacity - at
            at = 0
        if head + skipped + need - ut_load_acquire(&self.boundary) > self.capacity:
            self.ring_if_half_full(head)
            return NULL
        if self.memory == NULL:
            self.memory = <unsigned char *>malloc(self.capacity)
            if self.memory == NULL:
                return NULL
        if skipped:
            ut_store_relaxed(&self.wrap_at, head)
        self.reserved_end = head + skipped + need
        place = self.memory + at
        place += ut_put_bin_header(place, data)
        ut_put(place, write_index, 4)
        return place + 4

    cdef inline unsigned char *reserve_in_ring(self, uint32_t write_index, size_t size) noexcept:
        cdef dr_record *record = dr_reserve(&self.ring, write_index, <uint32_t>size, &self.half)
        if record == NULL:
            return NULL
        record.ts_ns = ut_now_ns()
        record.tid = ut_tid()
        record.cpu = ut_cpu()
        record.zero = 0
        self.reserved = record
        self.reserved_size = <uint32_t>size
        return record.payload

    cdef void commit(self) noexcept:
        self.records_in += 1
        if self.use_ring:
            if dr_commit(&self.ring, self.reserved, self.reserved_size) or self.half:
                ut_ring(self.doorbell)
            return
        ut_store_release(&self.head, self.reserved_end)
        if self.need_wakeup:
            self.need_wakeup = False
            ut_ring(self.wake_fd)
        elif self.reserved_end - self.half_rung_at >= self.capacity // 2:
            self.ring_if_half_full(self.reserved_end)

    cdef void ring_if_half_full(self, uint64_t head) noexcept:
        if head - self.half_rung_at >= self.capacity // 2:
            self.half_rung_at = head
            if head - ut_load_relaxed(&self.boundary) >= self.capacity // 2:
                ut_ring(self.wake_fd)

    # -- sending: by the session thread only

    @property
    def position(self):
        """Where the next record will begin; for `set_control`."""
        return self.head

    @property
    def pending_bytes(self):
        return self.head - ut_load_acquire(&self.boundary)

    @property
    def control_pending(self):
        """Bytes of control messages that are not sent yet."""
        return self.control_left

    def pending(self):
        """Records not wholly sent, counted one by one.

        The sender may go on meanwhile; what lies behind the boundary read here stays as it is, because only an emit
        overwrites and emits need the GIL.
        """
        cdef uint64_t position = ut_load_acquire(&self.boundary)
        cdef unsigned header
        cdef Py_ssize_t count = 0
        while position < self.head:
            if position == self.wrap_at:
                position = self.lap_end(position)
                continue
            position += ut_record_size(self.memory + (position & (self.capacity - 1)), &header)
            count += 1
        return count

    def counts(self):
        """(emitted, sent, pending, lost) of one moment: emitted = sent + pending + lost."""
        cdef Py_ssize_t pending = self.pending()
        kept = self.records_in - self.dropped
        return kept + self.lost, kept - pending, pending, self.lost

    def wake(self):
        """The session thread has something to do: registrations, flush, close. From any thread."""
        if not ut_exchange(&self.wishes, 1):
            ut_ring(self.wake_fd)

    def set_wake_fd(self, int fd):
        """The eventfd that the session thread polls; -1 while there is no thread. Stays the caller's."""
        self.wake_fd = fd
        self.need_wakeup = False
        if fd >= 0 and (self.wishes or self.head != self.boundary):
            ut_ring(fd)

    def set_control(self, bytes data, uint64_t after):
        """Control messages to send between two records, once everything before position `after` is sent.

        One batch at a time: only when `control_pending` is 0.
        """
        if self.control_left:
            raise RuntimeError("control messages are still being sent")
        self.control = data
        self.control_at = PyBytes_AS_STRING(data)
        self.control_left = PyBytes_GET_SIZE(data)
        self.control_after = after

    def start_stream(self, bint held):
        """A new connection: begin with whole records, forget control messages of the old one.

        held: records wait until `take_over` has given them the write_index they have here.
        """
        self.held = held
        self.use_ring = False
        self.tail = self.boundary
        self.control = None
        self.control_left = 0

    def wait(self, int timeout_ms):
        """Sleep until rung or for timeout_ms: no connection, so nothing is sent. Returns whether there is a wish."""
        cdef pollfd fds[1]
        fds[0].fd = self.wake_fd
        fds[0].events = POLLIN
        with nogil:
            if not ut_load32(&self.wishes):
                poll(fds, 1, timeout_ms)
            ut_unring(self.wake_fd)
        return ut_exchange(&self.wishes, 0) != 0

    def pump(self, int sock):
        """Send until there is something else to do; sleeps without the GIL and, while there is nothing, without timers.

        Returns READABLE (the socket has bytes or is at its end), WOKEN (a wish), CONTROL_SENT, BROKEN, or several.
        """
        cdef int flags
        while True:
            if self.held:
                with nogil:
                    flags = self._send_until(sock, -1)
                if flags == F_QUIET:
                    continue
                break
            with nogil:
                flags = self._send_until(sock, GATHER_MS)
            if flags != F_QUIET:
                break
            # Under the GIL: no emit can come between looking at head and asking to be rung.
            if self.head != self.boundary:
                continue
            self.need_wakeup = True
            with nogil:
                flags = self._send_until(sock, -1)
            self.need_wakeup = False
            if flags != F_QUIET:
                break
        if flags & F_WOKEN:
            ut_exchange(&self.wishes, 0)
        return flags & ~F_QUIET

    cdef int _send_until(self, int sock, int quiet_ms) noexcept nogil:
        """Send and gather until nothing came for quiet_ms (F_QUIET), or until the thread is wanted. -1: until rung."""
        cdef pollfd fds[2]
        cdef int sent, ready
        fds[0].fd = sock
        fds[1].fd = self.wake_fd
        fds[1].events = POLLIN
        while True:
            sent = self._send_some(sock)
            if sent == -EAGAIN:
                fds[0].events = POLLIN | POLLOUT
                ready = poll(fds, 2, -1)
            elif sent < 0:
                return F_BROKEN
            elif sent & F_CONTROL_SENT:
                return F_CONTROL_SENT
            else:
                fds[0].events = POLLIN
                ready = poll(fds, 2, quiet_ms)
            if ready < 0:
                continue
            if ready == 0:
                if self.boundary == ut_load_acquire(&self.head) and not self.control_left:
                    return F_QUIET
                continue
            if fds[1].revents:
                ut_unring(self.wake_fd)
                if ut_load32(&self.wishes):
                    return F_WOKEN
                if quiet_ms < 0:
                    # Rung by a record: let its followers gather from now on.
                    return F_QUIET
            if fds[0].revents & (POLLIN | POLLHUP | POLLERR):
                return F_READABLE

    cdef int _send_some(self, int sock) noexcept nogil:
        """Send what is there, in as many calls as it takes: 0 all gone, F_CONTROL_SENT, or -errno."""
        cdef uint64_t end
        cdef size_t size
        cdef ssize_t sent
        cdef unsigned header
        cdef bint mid_record
        while True:
            mid_record = self.tail != self.boundary
            if self.control_left and not mid_record and self.tail >= self.control_after:
                sent = send(sock, self.control_at, self.control_left, MSG_DONTWAIT | MSG_NOSIGNAL)
                if sent < 0:
                    if errno == EINTR:
                        continue
                    return -errno
                self.control_at += sent
                self.control_left -= sent
                if not self.control_left:
                    return F_CONTROL_SENT
                continue
            end = ut_load_acquire(&self.head)
            if self.tail == end or self.held:
                return 0
            if not mid_record and self.tail == ut_load_relaxed(&self.wrap_at):
                self.tail = self.lap_end(self.tail)
                ut_store_release(&self.boundary, self.tail)
                continue
            # All of these ends are boundaries between records.
            end = min(end, self.lap_end(self.tail))
            if self.tail < ut_load_relaxed(&self.wrap_at):
                end = min(end, ut_load_relaxed(&self.wrap_at))
            if self.control_left:
                if self.tail < self.control_after:
                    end = min(end, self.control_after)
                else:
                    end = self.boundary + ut_record_size(self.place(self.boundary), &header)
            size = end - self.tail
            if size > SEND_BYTES:
                size = SEND_BYTES
            sent = send(sock, self.place(self.tail), size, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent < 0:
                if errno == EINTR:
                    continue
                return -errno
            self.tail += sent
            if self.tail == end:
                ut_store_release(&self.boundary, end)
            else:
                self.follow_boundary()

    cdef void follow_boundary(self) noexcept nogil:
        """Move the boundary over the records that are wholly sent."""
        cdef uint64_t position = self.boundary
        cdef size_t size
        cdef unsigned header
        while position < self.tail:
            size = ut_record_size(self.place(position), &header)
            if position + size > self.tail:
                break
            position += size
        ut_store_release(&self.boundary, position)

    cdef inline unsigned char *place(self, uint64_t position) noexcept nogil:
        return self.memory + (position & (self.capacity - 1))

    cdef inline uint64_t lap_end(self, uint64_t position) noexcept nogil:
        return (position | (self.capacity - 1)) + 1

    # -- a new connection, a new process

    @property
    def ring_size(self):
        """Bytes of the data ring that is mapped, 0 without one."""
        return self.ring.size

    def map_ring(self, int fd, int doorbell, uint32_t size):
        """Map the daemon's ring; both descriptors stay the caller's. It is used after the next `take_over`. OSError."""
        cdef data_ring ring
        cdef int error = dr_map(&ring, fd, size)
        if error:
            raise OSError(-error, strerror(-error).decode())
        self.use_ring = False
        dr_unmap(&self.ring)
        self.ring = ring
        self.doorbell = doorbell

    def drop_ring(self, list by_index):
        """Unmap the ring. What no daemon took out of it yet is lost: it cannot be adopted. by_index as in `take_over`."""
        cdef uint64_t position = 0
        cdef uint32_t index
        cdef Event event
        if self.ring.header != NULL:
            while dr_walk(&self.ring, &position, &index):
                self.lost += 1
                self.dropped += 1
                if index < <uint32_t>len(by_index):
                    event = by_index[index]
                    if event is not None:
                        event.lost += 1
        self.forget_ring()

    def forget_ring(self):
        """Unmap the ring without a look at it: it is the parent's, or the daemon has it."""
        self.use_ring = False
        dr_unmap(&self.ring)
        self.doorbell = -1

    def take_over(self, list moves, list by_old_index):
        """A connection is up: give every event its place there, and what is pending its new write_index. One step.

        moves: of every event registered on the new connection, as in `settle`.
        by_old_index: the Event, or None, that each write_index of the old connection stood for.
        Records of events that have no place any more are lost. Called by the session thread, before it sends.
        """
        cdef Event event
        cdef tuple move
        cdef list old_events = by_old_index
        cdef unsigned char *kept = NULL
        cdef unsigned char *place
        cdef uint64_t position = self.boundary
        cdef uint64_t filled = 0
        cdef uint32_t old
        cdef unsigned header
        cdef size_t size
        check_moves(moves)
        if position != self.head:
            kept = <unsigned char *>malloc(self.capacity)
            if kept == NULL:
                raise MemoryError
        # From here on nothing can fail and no Python code runs.
        for event in old_events:
            if event is not None:
                event.write_index = -1
        for move in moves:
            (<Event>move[0]).settle_on(<StatusMap>move[1], move[2], move[3])
        self.held = False
        self.use_ring = self.ring.header != NULL
        if position == self.head:
            return
        while position < self.head:
            if position == self.wrap_at:
                position = self.lap_end(position)
                continue
            place = self.place(position)
            size = ut_record_size(place, &header)
            position += size
            old = ut_get_le32(place + header)
            event = <Event>old_events[old] if old < <uint32_t>len(old_events) else None
            if event is None or event.write_index < 0:
                self.lost += 1
                self.dropped += 1
                if event is not None:
                    event.lost += 1
                continue
            memcpy(kept + filled, place, size)
            ut_put(kept + filled + header, <uint32_t>event.write_index, 4)
            filled += size
        free(self.memory)
        self.memory = kept
        self._begin_at(filled)

    def give_up(self, list by_index):
        """Count everything pending as lost: the session closes. by_index as in `take_over`."""
        cdef uint64_t position = self.boundary
        cdef unsigned char *place
        cdef Event event
        cdef uint32_t index
        cdef unsigned header
        while position < self.head:
            if position == self.wrap_at:
                position = self.lap_end(position)
                continue
            place = self.place(position)
            position += ut_record_size(place, &header)
            index = ut_get_le32(place + header)
            self.lost += 1
            self.dropped += 1
            if index < <uint32_t>len(by_index):
                event = by_index[index]
                if event is not None:
                    event.lost += 1
        self._begin_at(0)

    def start_child(self):
        """In a forked child: what is pending is the parent's, and so are the counters and the bell."""
        self._begin_at(0)
        self.records_in = 0
        self.lost = 0
        self.dropped = 0
        self.wake_fd = -1
        self.wishes = 0
        self.control = None
        self.control_left = 0
        self.need_wakeup = False
        self.held = False
        self.forget_ring()

    cdef void _begin_at(self, uint64_t head) noexcept:
        """The FIFO holds bytes 0 to head of the memory."""
        self.tail = 0
        self.boundary = 0
        self.head = head
        self.wrap_at = NO_WRAP
        self.half_rung_at = 0


# ------------------------------------------------------------------------------------------------ packing

cdef enum Kind:
    INTEGER = 0
    CHAR_ARRAY = 1
    STRUCT = 2
    DATA_LOC = 3
    REL_LOC = 4

KINDS = {"INTEGER": INTEGER, "CHAR_ARRAY": CHAR_ARRAY, "STRUCT": STRUCT, "DATA_LOC": DATA_LOC, "REL_LOC": REL_LOC}

cdef struct Step:
    # one field of the plan
    uint8_t kind
    uint8_t is_signed
    uint8_t is_string
    uint32_t size
    uint32_t offset     # in the payload
    int32_t loc_base    # what to add to the place of dynamic data in the payload to get the offset to write

cdef union Number:
    uint64_t u
    int64_t s

cdef struct Value:
    # one argument, checked and converted; `text` belongs to the argument or to `held`
    Number number
    const char *text
    size_t length

cdef enum:
    # A command string of 511 bytes has fewer fields than this ("u8 ;" is the shortest).
    MAX_FIELDS = 128

cdef size_t MAX_LOC = 0xffff


cdef class Event:
    """One event of one session. Made by `utracefs.event`, never directly.

    `if event:` is true while somebody listens. `event.emit(...)` writes a record then, and does nothing otherwise.
    """

    cdef const unsigned char *status
    cdef const unsigned char *inherited
    """In a forked child, until its own connection is wanted: the parent's status byte, which holds for it, too."""
    cdef StatusMap status_map
    cdef Sink sink
    cdef readonly object session
    cdef Step *steps
    cdef Py_ssize_t nr_fields
    cdef size_t min_size
    cdef size_t max_size
    cdef tuple keywords
    cdef bint ambiguous
    cdef int64_t write_index
    cdef readonly uint64_t lost
    """Records given up because there was no room for them, or no daemon to send them to any more."""
    cdef readonly uint64_t emitted
    """Records written while the event was on, the lost ones included."""
    cdef readonly str name
    cdef readonly str declaration
    """The command string in the spelling of dynamic_events, without its `u:`."""
    cdef readonly int flags
    """1 persist, 2 multi-format."""
    cdef public object error
    """The TraceError with which the daemon refused the registration, or None."""
    cdef public dict refused
    """Records that the daemon refused: {errno name: count}."""

    def __cinit__(self, object session, Sink sink, bytes name, bytes declaration, int flags, object fields,
                  size_t max_size):
        """fields: of (name: bytes, kind: a value of KINDS, offset in the payload, size, signed, is_string)."""
        cdef Py_ssize_t i = 0
        self.status = &ut_off_byte
        self.write_index = -1
        self.session = session
        self.sink = sink
        self.name = name.decode("utf-8", "surrogateescape")
        self.declaration = declaration.decode("utf-8", "surrogateescape")
        self.flags = flags
        self.refused = {}
        self.max_size = max_size
        self.nr_fields = len(fields)
        if self.nr_fields > MAX_FIELDS:
            raise ValueError(f"{self.nr_fields} fields; at most {MAX_FIELDS} are possible")
        if self.nr_fields:
            self.steps = <Step *>PyMem_Malloc(self.nr_fields * sizeof(Step))
            if self.steps == NULL:
                raise MemoryError
        keywords = []
        for field_name, kind, offset, size, is_signed, is_string in fields:
            keywords.append(intern((<bytes>field_name).decode("utf-8", "surrogateescape")))
            self.steps[i].kind = kind
            self.steps[i].offset = offset
            self.steps[i].size = size
            self.steps[i].is_signed = is_signed
            self.steps[i].is_string = is_string
            # __data_loc counts from the common fields in front of the payload, __rel_loc from behind its own word.
            self.steps[i].loc_base = 8 if kind == DATA_LOC else -<int32_t>(offset + 4)
            self.min_size = offset + size
            i += 1
        self.keywords = tuple(keywords)
        self.ambiguous = self.nr_fields > 1 and len(set(keywords)) < self.nr_fields

    def __dealloc__(self):
        PyMem_Free(self.steps)

    cdef inline bint is_on(self) except -1:
        cdef unsigned char byte = self.status[0]
        if byte == 0:
            return False
        if byte == ut_pending_byte:
            return self.look_again()
        return True

    def __bool__(self):
        return self.is_on()

    @property
    def enabled(self):
        """Whether somebody listens: the same as `bool(event)`."""
        return self.is_on()

    @property
    def fields(self):
        """The names of the fields, in order."""
        return self.keywords

    @property
    def registered(self):
        """Whether the daemon knows the event: no claim about anybody listening."""
        return self.status_map is not None

    @property
    def index(self):
        """write_index on the session's connection, -1 while there is none."""
        return self.write_index

    def __repr__(self):
        if self.error is not None:
            state = f"refused: {self.error}"
        elif self.inherited != NULL:
            state = "on" if self.inherited[0] else "off"
        elif self.status == &ut_pending_byte:
            state = "not settled"
        else:
            state = "on" if self.status[0] else "off"
        return f"<utracefs.Event {self.declaration!r}, {state}>"

    def __reduce__(self):
        from utracefs.declaring import reduce_event
        return reduce_event(self)

    # -- the pointer; all of this is the session's business

    cdef bint look_again(self) except -1:
        """Behind PENDING: find out what is true. Moves the pointer, unless the process was forked a moment ago."""
        if self.inherited != NULL:
            # The parent's byte holds until this process has a connection of its own. It gets one when it first has
            # something to write, or when it turns out to live for a while and must outlive the parent's daemon.
            if self.inherited[0] == 0 and ut_now_ns() - ut_forked_at_ns < 1_000_000_000:
                return False
            self.session._start_in_child()
        else:
            self.session._settle(self)
        return self.status[0] != 0 and self.status != &ut_pending_byte

    cdef void settle_on(self, StatusMap status_map, size_t status_index, int64_t write_index) noexcept:
        """The daemon has answered: follow its byte, which must lie within the map, from now on."""
        self.status = status_map.bytes + status_index
        self.status_map = status_map
        self.inherited = NULL
        self.write_index = write_index
        self.error = None

    def _set_pending(self):
        """A registration is under way: the next look shall wait for it."""
        self._leave_map()
        self.status = &ut_pending_byte

    def _set_off(self):
        self._leave_map()

    cdef void _leave_map(self) noexcept:
        self.status = &ut_off_byte
        self.inherited = NULL
        self.status_map = None

    @property
    def _is_pending(self):
        return self.status == &ut_pending_byte and self.inherited == NULL


cdef int check_moves(list moves) except -1:
    """The daemon's numbers, before anything follows them."""
    cdef tuple move
    cdef StatusMap status_map
    for move in moves:
        status_map = move[1]
        if not 0 < move[2] < status_map.size or not 0 <= move[3] < 0x80000000:
            raise ValueError(f"status_index {move[2]} of {status_map.size}, write_index {move[3]}: out of range")
    return 0


def settle(list moves):
    """Registrations were answered: moves are (event, status map, status_index, write_index).

    ValueError, and nothing done, when a number of the daemon's is out of range.
    """
    cdef tuple move
    check_moves(moves)
    for move in moves:
        (<Event>move[0]).settle_on(<StatusMap>move[1], move[2], move[3])


def set_all_off(list events):
    """Nobody can listen to any of these: one step, as far as any emit can see."""
    cdef Event event
    for event in events:
        event._leave_map()


def set_pending_off(list events):
    """Give up waiting: those that wait for an answer are off until it comes."""
    cdef Event event
    for event in events:
        if event.status == &ut_pending_byte and event.inherited == NULL:
            event._leave_map()


def forget_thread_id():
    """In a forked child: the thread that lives on has another id than in the parent, whoever remembered it there."""
    ut_forget_tid()


def start_child(list events):
    """In a forked child: remember the parent's bytes and begin to count anew."""
    cdef Event event
    for event in events:
        event.lost = 0
        event.emitted = 0
        event.refused = {}
        if event.status == &ut_pending_byte:
            continue
        event.inherited = event.status
        event.status = &ut_pending_byte
    ut_set_forked_at(ut_now_ns())


def use_inherited(list events):
    """The child gets a connection of its own: until that is up the parent's bytes are good enough, without detour."""
    cdef Event event
    for event in events:
        if event.inherited != NULL:
            event.status = event.inherited
            event.inherited = NULL


# ------------------------------------------------------------------------------------------------ emit

cdef object emit(PyObject *self, PyObject *const *args, Py_ssize_t nr_args, PyObject *keyword_names):
    """Event.emit, called by the vectorcall protocol: no tuple, no dict."""
    cdef Event event = <Event>self
    cdef unsigned char byte = event.status[0]
    cdef PyObject *ordered[MAX_FIELDS]
    cdef Value values[MAX_FIELDS]
    cdef PyObject *const *given = args
    cdef unsigned char *payload
    cdef Step *step
    cdef Value *value
    cdef size_t size
    cdef Py_ssize_t i
    cdef list held = None
    if byte == 0 or (byte == ut_pending_byte and not event.look_again()):
        return None
    if keyword_names != NULL:
        sort_arguments(event, ordered, args, nr_args, keyword_names)
        given = ordered
    elif nr_args != event.nr_fields:
        raise TypeError(
            f"{event.name}: {nr_args} values for {event.nr_fields} fields ({', '.join(event.keywords)})"
        )
    size = event.min_size
    for i in range(event.nr_fields):
        step = &event.steps[i]
        value = &values[i]
        if step.kind == INTEGER:
            if step.is_signed:
                value.number.s = PyLong_AsLongLong(given[i])
                if value.number.s == -1 and PyErr_Occurred() != NULL:
                    raise_number_error(event, i, given[i])
                if step.size < 8 and value.number.s != sign_extended(value.number.s, step.size):
                    raise_range_error(event, i, given[i])
            else:
                if PyLong_Check(given[i]):
                    value.number.u = PyLong_AsUnsignedLongLong(given[i])
                else:
                    value.number.u = index_number(event, i, given[i])
                if value.number.u == NO_NUMBER and PyErr_Occurred() != NULL:
                    raise_number_error(event, i, given[i])
                if step.size < 8 and value.number.u >> (8 * step.size):
                    raise_range_error(event, i, given[i])
            continue
        if PyBytes_Check(<object>given[i]):
            value.text = PyBytes_AS_STRING(<object>given[i])
            value.length = PyBytes_GET_SIZE(<object>given[i])
        else:
            copy = convert_text(event, i, value, <object>given[i])
            if copy is not None:
                if held is None:
                    held = []
                held.append(copy)
        if step.kind == DATA_LOC or step.kind == REL_LOC:
            if value.length + step.is_string > MAX_LOC or <int64_t>size + step.loc_base > <int64_t>MAX_LOC:
                raise ValueError(
                    f"{event.name}: field {event.keywords[i]!r}: {value.length} bytes behind {size} others; "
                    f"a location word holds at most {MAX_LOC} each"
                )
            size += value.length + step.is_string
        elif step.kind == CHAR_ARRAY:
            if value.length > step.size:
                raise ValueError(
                    f"{event.name}: field {event.keywords[i]!r} has room for {step.size} bytes, not {value.length}"
                )
        elif value.length != step.size:
            raise ValueError(
                f"{event.name}: field {event.keywords[i]!r} takes exactly {step.size} bytes, not {value.length}"
            )
    if size > event.max_size:
        raise ValueError(f"{event.name}: a record of {size} bytes; at most {event.max_size} are possible")
    # From here on no Python code runs until the record is committed.
    event.emitted += 1
    payload = event.sink.reserve(<uint32_t>event.write_index, size) if event.write_index >= 0 else NULL
    if payload == NULL:
        event.lost += 1
        event.sink.lost += 1
        return None
    fill(event, values, payload)
    event.sink.commit()
    return None


cdef int sort_arguments(Event event, PyObject **ordered, PyObject *const *args, Py_ssize_t nr_args,
                        PyObject *keyword_names) except -1:
    """Positional and keyword arguments into the order of the fields; TypeError like a call of a Python function."""
    cdef Py_ssize_t i, at, nr_keywords = PyTuple_GET_SIZE(keyword_names)
    cdef PyObject *name
    if nr_args > event.nr_fields:
        raise TypeError(f"{event.name}: {nr_args} values for {event.nr_fields} fields")
    for i in range(event.nr_fields):
        ordered[i] = args[i] if i < nr_args else NULL
    for i in range(nr_keywords):
        name = PyTuple_GET_ITEM(keyword_names, i)
        at = find_keyword(event.keywords, name)
        if event.ambiguous and event.keywords.count(<object>name) > 1:
            raise TypeError(f"{event.name}: several fields are called {<object>name!r}; give them by position")
        if at < 0:
            raise TypeError(f"{event.name}: no field {<object>name!r}; there are {', '.join(event.keywords)}")
        if ordered[at] != NULL:
            raise TypeError(f"{event.name}: two values for the field {<object>name!r}")
        ordered[at] = args[nr_args + i]
    for i in range(event.nr_fields):
        if ordered[i] == NULL:
            raise TypeError(f"{event.name}: no value for the field {event.keywords[i]!r}")
    return 0


cdef Py_ssize_t find_keyword(tuple keywords, PyObject *name) except -2:
    """Names in a call are interned, nearly always, and so are these: look at the addresses first."""
    cdef Py_ssize_t i
    for i in range(len(keywords)):
        if PyTuple_GET_ITEM(<PyObject *>keywords, i) == name:
            return i
    for i in range(len(keywords)):
        if keywords[i] == <object>name:
            return i
    return -1


cdef uint64_t NO_NUMBER = 0xffffffffffffffffU


cdef inline int64_t sign_extended(int64_t number, unsigned size) noexcept:
    """`number` after being stored in `size` bytes (1, 2 or 4)."""
    if size == 1:
        return <int8_t>number
    if size == 2:
        return <int16_t>number
    return <int32_t>number


cdef uint64_t index_number(Event event, Py_ssize_t i, PyObject *given) except? 0xffffffffffffffffU:
    """An argument that is no int but may stand for one (`__index__`)."""
    try:
        number = PyNumber_Index(<object>given)
    except TypeError:
        raise TypeError(type_error_text(event, i, given, "an integer")) from None
    if number < 0:
        raise_range_error(event, i, given)
    return PyLong_AsUnsignedLongLong(<PyObject *>number)


cdef int raise_number_error(Event event, Py_ssize_t i, PyObject *given) except -1:
    """Python's own error about a number says neither event nor field."""
    if PyErr_ExceptionMatches(OverflowError):
        PyErr_Clear()
        return raise_range_error(event, i, given)
    if PyErr_ExceptionMatches(TypeError) and not hasattr(type(<object>given), "__index__"):
        PyErr_Clear()
        raise TypeError(type_error_text(event, i, given, "an integer"))
    return -1


cdef int raise_range_error(Event event, Py_ssize_t i, PyObject *given) except -1:
    cdef Step *step = &event.steps[i]
    bits = 8 * step.size
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if step.is_signed else (0, (1 << bits) - 1)
    raise OverflowError(
        f"{event.name}: {PyNumber_Index(<object>given)} does not fit the field {event.keywords[i]!r} ({low} to {high})"
    )


cdef str type_error_text(Event event, Py_ssize_t i, PyObject *given, str wanted):
    return f"{event.name}: field {event.keywords[i]!r} takes {wanted}, not {type(<object>given).__name__}"


cdef object convert_text(Event event, Py_ssize_t i, Value *value, object given):
    """Anything but bytes: str, bytearray, memoryview. Returns what must be held until the record is written."""
    cdef Step *step = &event.steps[i]
    cdef Py_ssize_t length
    copy = None
    if isinstance(given, str) and step.kind != STRUCT:
        try:
            # the str keeps these bytes
            value.text = PyUnicode_AsUTF8AndSize(given, &length)
            value.length = length
            return None
        except UnicodeEncodeError:
            copy = given.encode("utf-8", "surrogateescape")
    elif isinstance(given, (bytearray, memoryview)):
        # A copy: nobody may resize or rewrite it while the other arguments are converted.
        copy = bytes(given)
    else:
        raise TypeError(
            type_error_text(event, i, <PyObject *>given, "bytes" if step.kind == STRUCT else "str or bytes")
        )
    value.text = PyBytes_AS_STRING(copy)
    value.length = PyBytes_GET_SIZE(copy)
    return copy


cdef void fill(Event event, const Value *values, unsigned char *payload) noexcept:
    """Write the payload; dynamic data stand behind the fixed part, in the order of their fields."""
    cdef size_t end = event.min_size
    cdef size_t length
    cdef Py_ssize_t i
    cdef const Step *step
    cdef const Value *value
    for i in range(event.nr_fields):
        step = &event.steps[i]
        value = &values[i]
        if step.kind == INTEGER:
            ut_put(payload + step.offset, value.number.u, step.size)
        elif step.kind == CHAR_ARRAY or step.kind == STRUCT:
            memcpy(payload + step.offset, value.text, value.length)
            memset(payload + step.offset + value.length, 0, step.size - value.length)
        else:
            memcpy(payload + end, value.text, value.length)
            length = value.length
            if step.is_string:
                payload[end + length] = 0
                length += 1
            ut_put(payload + step.offset, length << 16 | (end + step.loc_base), 4)
            end += length


# ------------------------------------------------------------------------------------------------ Event.emit as a method

cdef PyMethodDef emit_method
emit_method.ml_name = b"emit"
emit_method.ml_meth = <PyCFunction><void *>emit
emit_method.ml_flags = METH_FASTCALL | METH_KEYWORDS
emit_method.ml_doc = b"""emit($self, /, *args, **kwargs)
--

Write one record if somebody listens; do nothing otherwise, whatever the arguments.

One value per field, by position or by name: integers; str or bytes for text; bytes for structs (exactly their
size) and for other dynamic data. TypeError: wrong type or number of values. OverflowError: an integer that does not
fit its field. ValueError: text that does not fit its array, a struct of another size, more than 65,529 bytes in all.
After an error nothing was written. Never blocks: what does not fit is counted in `lost`.
"""
# Cython's `def emit(self, *args, **kwargs)` builds a tuple and a dict per call, even to find the event off.
(<dict>(<PyTypeObject *>Event).tp_dict)["emit"] = PyDescr_NewMethod(Event, &emit_method)
PyType_Modified(Event)
