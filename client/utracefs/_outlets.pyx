"""Where records leave the process: through a data ring, or through a FIFO and the session's socket.

| outlet | an emit | afterwards |
|---|---|---|
| RingOutlet | reserves in shared memory, fills, commits | nothing: no system call, no thread of ours |
| Fifo | appends to a bounded FIFO of bytes | the session thread sends them |

A session has one Fifo for its whole life and at most one RingOutlet at a time. Each Event holds a reference
to the one that it writes to (see _event.pyx), so a ring stays mapped until no event leads there.

Everything here except `Fifo.pump_until` runs with the GIL held, and `reserve` and `commit` are called one
right after the other with no Python code between them: for every other thread, for a signal handler and for
fork they are one step.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EBADF, EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset, strerror

from utracefs._descriptors cimport (
    Descriptor,
    ut_bell_close,
    ut_bell_init,
    ut_bell_is_ours,
    ut_bell_open,
    ut_bell_ring,
    ut_bell_silence,
    ut_descriptor,
    ut_is_ours,
)
from utracefs_protocol.data_ring cimport (
    DR_COMM,
    DR_NAMED,
    DR_NO_NAMES,
    DR_REFUSED,
    dr_commit,
    dr_count_lost,
    dr_file_bytes,
    dr_has_room,
    dr_is_closed,
    dr_map,
    dr_unmap,
)

cdef extern from *:
    # GCC's builtins, under names that a class does not mangle.
    int ACQUIRE "__ATOMIC_ACQUIRE"
    int RELEASE "__ATOMIC_RELEASE"
    int RELAXED "__ATOMIC_RELAXED"
    int ACQ_REL "__ATOMIC_ACQ_REL"
    uint64_t load "__atomic_load_n"(const uint64_t *p, int order) noexcept nogil
    void store "__atomic_store_n"(uint64_t *p, uint64_t value, int order) noexcept nogil
    uint32_t load32 "__atomic_load_n"(const uint32_t *p, int order) noexcept nogil
    uint32_t exchange32 "__atomic_exchange_n"(uint32_t *p, uint32_t value, int order) noexcept nogil

cdef extern from "<poll.h>" nogil:
    ctypedef struct pollfd "struct pollfd":
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout)
    short POLLIN, POLLOUT, POLLHUP, POLLERR, POLLNVAL

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned microseconds)

cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void *data, size_t size, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL


cdef class Counts:
    """Records of one session in this process, whichever way they went.

    records_in: committed since the beginning. lost: given up, because there was no room or because their
    event could not be registered again. dropped: those among the lost that had been committed before.
    """

    def __reduce__(self):
        raise TypeError("counts belong to one process")


cdef class Outlet:
    """Where an Event's records go.

    reserve: room for a payload of `size` bytes under `write_index`, or NULL when there is none (the caller
    counts it). commit: what was reserved last is filled in. take_over: write a record of `size` bytes behind
    its bin header, which stays its thread's; False: there is no room.
    """

    cdef unsigned char *reserve(self, uint32_t write_index, size_t size) noexcept:
        return NULL

    cdef void commit(self) noexcept:
        pass

    cdef bint take_over(self, uint32_t write_index, const unsigned char *record, uint32_t size) noexcept:
        return False

    def __reduce__(self):
        raise TypeError("an outlet belongs to one process")


# --------------------------------------------------------------------------------------------- the data ring

cdef class RingOutlet(Outlet):
    """A data ring, mapped (docs/protocol.md section 5, data_ring.h).

    fifo: of the session. memory, doorbell: memfd and eventfd as the daemon sent them; they stay the caller's,
    and without the doorbell the daemon is not woken. size: bytes of the data area, which the file must have.
    OSError when it cannot be mapped.
    """

    def __cinit__(self, Fifo fifo not None, Descriptor memory not None, Descriptor doorbell not None,
                  uint32_t size):
        cdef int error = dr_map(&self.ring, memory.own.fd, size)
        if error:
            raise OSError(-error, strerror(-error).decode())
        self.counts = fifo.counts
        self.fifo = fifo
        self.doorbell = doorbell

    def __dealloc__(self):
        dr_unmap(&self.ring)

    @property
    def size(self):
        """Bytes of the data area."""
        return self.ring.size

    cdef unsigned char *reserve(self, uint32_t write_index, size_t size) noexcept:
        cdef dr_record *record = ut_reserve(&self.ring, write_index, <uint32_t>size, &self.half)
        self.reserved = record
        if record == NULL:
            if not dr_is_closed(&self.ring):
                return NULL
            # The daemon has let it go: the FIFO holds the record for the next connection.
            self.fifo.held = True
            self.fifo.want()
            return self.fifo.reserve(write_index, size)
        self.reserved_size = <uint32_t>size
        return record.payload

    cdef void commit(self) noexcept:
        if self.reserved == NULL:
            self.fifo.commit()
            return
        self.counts.records_in += 1
        if dr_commit(&self.ring, self.reserved, self.reserved_size) or self.half:
            self.ring_doorbell()

    cdef bint take_over(self, uint32_t write_index, const unsigned char *record, uint32_t size) noexcept:
        cdef bin_record taken = bin_take_apart(record, size)
        cdef uint32_t tid = taken.tid if taken.tid else ut_tid()
        if not dr_has_room(&self.ring, taken.size + (DR_COMM if taken.comm != NULL else 0)):
            return False
        self.reserved = ut_reserve_for(
            &self.ring, write_index, taken.size, &self.half, tid, taken.cpu, taken.comm
        )
        if self.reserved == NULL:
            return False  # closed in this moment
        self.reserved_size = taken.size
        memcpy(self.reserved.payload, taken.payload, taken.size)
        self.commit()
        return True

    cdef void ring_doorbell(self) noexcept:
        if ut_is_ours(&self.doorbell.own):
            ut_ring_bell(self.doorbell.own.fd)
        else:
            self.fifo.want()  # the program has closed it: the session thread sees to that


cdef class LostOutlet(Outlet):
    """Of a forked child that cannot reach the daemon: each record is lost, and counted in its parent's ring,
    where the daemon finds the number."""

    def __cinit__(self, RingOutlet parents not None):
        self.parents = parents
        self.counts = parents.counts

    cdef unsigned char *reserve(self, uint32_t write_index, size_t size) noexcept:
        if not write_index & DR_REFUSED:  # of that nothing is lost
            dr_count_lost(&self.parents.ring, write_index)
        return NULL


def ring_file_bytes(uint32_t size):
    """Bytes of the memory of a data ring whose data area has `size`: with the header and the counters."""
    return dr_file_bytes(size)


def forget_thread_id():
    """In a forked child: the thread that lives on has another id than in the parent."""
    ut_forget_tid()


# -------------------------------------------------------------------------------------------------- the FIFO

cdef enum:
    # What `pump` returns: why it came back. F_QUIET stays within.
    F_READABLE = 1
    F_WANTED = 2
    F_CONTROL_SENT = 4
    F_BROKEN = 8
    F_LOST = 16
    F_QUIET = 32

READABLE, WANTED, CONTROL_SENT, BROKEN, LOST = F_READABLE, F_WANTED, F_CONTROL_SENT, F_BROKEN, F_LOST

cdef enum:
    # What one send takes at most: some socket buffers' worth, so that control messages do not wait for a
    # whole FIFO.
    SEND_BYTES = 256 * 1024
    # While records keep coming, how long the sender lets them gather.
    GATHER_MS = 1
    # In a sandbox that refuses poll(2): what keeps the session thread from spinning.
    NO_POLL_US = 100_000

cdef uint64_t NO_WRAP = 0xffffffffffffffffU


cdef inline unsigned char *place_of(Fifo fifo, uint64_t position) noexcept nogil:
    return fifo.memory + (position & (fifo.capacity - 1))


cdef inline size_t record_size(Fifo fifo, uint64_t position) noexcept nogil:
    """Bytes of the record at `position`, its bin header included."""
    cdef uint32_t data = 0
    cdef unsigned header = bin_get_header(place_of(fifo, position), BIN_MAX_HEADER, &data)
    return header + data


cdef inline int64_t quiet_end(int quiet_ms) noexcept nogil:
    """When so many ms from now are over, in ns; -1: never, for a negative number."""
    return -1 if quiet_ms < 0 else <int64_t>ut_now_ns() + quiet_ms * <int64_t>1_000_000


cdef inline int left_ms(int64_t until) noexcept nogil:
    """What is left until then for poll(2), rounded up."""
    cdef int64_t left
    if until < 0:
        return -1
    left = until - <int64_t>ut_now_ns()
    return <int>((left + 999_999) // 1_000_000) if left > 0 else 0


cdef inline uint64_t lap_end(Fifo fifo, uint64_t position) noexcept nogil:
    return (position | (fifo.capacity - 1)) + 1


cdef class Fifo(Outlet):
    """A bounded FIFO of records in their wire form (`bin` of u32 write_index and payload), and its sender.

        memory      |....rrrrrrrrrrrrrrrr~~|        . free   r record bytes   ~ unused end of a lap
                         ^tail          ^head

    Positions count bytes from the beginning and only grow; a position modulo the capacity is a place in
    memory. A record is never split: where it does not fit before the end of the memory, `wrap_at` notes where
    this lap's data end and the record begins the next lap. There is at most one such note ahead of `tail`,
    because a second one would need more room than there is.

    | position | written by | read by |
    |---|---|---|
    | head, wrap_at | emit, under the GIL; release | sender; acquire |
    | boundary: begin of the oldest record not wholly sent | sender; release | emit; acquire |
    | tail: first byte not yet sent, within the record at boundary | sender | sender |

    What lies before the boundary is free.

    The sender is the session thread, and it also sends its requests here, between two records. It sleeps
    until it is woken by its bell: `need_wakeup` is set and cleared under the GIL, so no fence is needed
    between it and head. `wanted` says that the thread is wanted for something else than records.
    `half_woken_at` is head when the thread was woken because half of the room was taken: so once per half,
    not once per record.

    Where the daemon takes that (`sign`), a record says its thread and cpu, and once the thread's name.

    capacity: bytes, a power of two; allocated by the first record.
    """

    def __cinit__(self, size_t capacity):
        if capacity < 4096 or capacity & (capacity - 1):
            raise ValueError("the capacity must be a power of two, at least 4096")
        self.counts = Counts()
        self.capacity = capacity
        self.wrap_at = NO_WRAP
        ut_bell_init(&self.bell)

    def __dealloc__(self):
        free(self.memory)

    # -- producing

    cdef unsigned char *reserve(self, uint32_t write_index, size_t size) noexcept:
        cdef uint32_t data = <uint32_t>size + 4
        cdef bint is_signed = self.names != 0 and data + BIN_SIGNATURE + BIN_MAX_HEADER <= BIN_MAX_OBJECT
        cdef int has_said
        cdef uint32_t tid
        cdef bint is_named = False
        cdef size_t need
        cdef uint64_t head = self.head
        cdef size_t at = head & (self.capacity - 1)
        cdef size_t skipped = 0
        cdef unsigned char *place
        if is_signed:
            data += BIN_SIGNATURE
            tid = ut_tid_said(self.names, &has_said)
            is_named = not has_said and data + DR_COMM + BIN_MAX_HEADER <= BIN_MAX_OBJECT
            if is_named:
                data += DR_COMM
        need = bin_header_size(data) + data
        if at + need > self.capacity:
            skipped = self.capacity - at
            at = 0
        if head + skipped + need - load(&self.boundary, ACQUIRE) > self.capacity:
            self.wake_if_half_full(head)
            return NULL
        if self.memory == NULL:
            self.memory = <unsigned char *>malloc(self.capacity)
            if self.memory == NULL:
                return NULL
        if skipped:
            store(&self.wrap_at, head, RELAXED)
        self.reserved_end = head + skipped + need
        place = self.memory + at
        place += bin_put_header(place, data)
        if not is_signed:
            ut_put(place, write_index, 4)
            return place + 4
        if is_named:
            memset(place + data - DR_COMM, 0, DR_COMM)
            ut_say_name(place + data - DR_COMM, self.names)
        return place + bin_put_signature(place, write_index, tid, ut_cpu(), DR_NAMED if is_named else 0)

    cdef void commit(self) noexcept:
        self.counts.records_in += 1
        store(&self.head, self.reserved_end, RELEASE)
        if self.need_wakeup:
            self.need_wakeup = False
            ut_bell_ring(&self.bell)
        elif self.reserved_end - self.half_woken_at >= self.capacity // 2:
            self.wake_if_half_full(self.reserved_end)

    cdef bint take_over(self, uint32_t write_index, const unsigned char *record, uint32_t size) noexcept:
        cdef bin_record taken = bin_take_apart(record, size)
        cdef uint32_t names = self.names
        cdef bint is_signed = names != 0 and size + BIN_MAX_HEADER <= BIN_MAX_OBJECT
        cdef unsigned char *place
        self.names = 0  # the signature is there already
        place = self.reserve(write_index, size - 4 if is_signed else taken.size)
        self.names = names
        if place == NULL:
            return False
        if is_signed:
            memcpy(place - 4, record, size)
            ut_put(place - 4 + bin_index_at(record, size), write_index, 4)
        else:
            memcpy(place, taken.payload, taken.size)
        self.commit()
        return True

    cdef unsigned char *sign_record(self, unsigned char *record, size_t size, bint named) noexcept:
        """For `take_over`, by its thread: sign a record with a payload of `size` bytes, and its name behind
        them if it is `named`. Where the payload is."""
        cdef unsigned char *end = record + BIN_SIGNATURE + 4 + size
        if named:
            memset(end, 0, DR_COMM)
            ut_say_name(end, DR_NO_NAMES)
        return record + bin_put_signature(record, 0, ut_tid(), ut_cpu(), DR_NAMED if named else 0)

    cdef void wake_if_half_full(self, uint64_t head) noexcept:
        if head - self.half_woken_at >= self.capacity // 2:
            self.half_woken_at = head
            if head - load(&self.boundary, RELAXED) >= self.capacity // 2:
                ut_bell_ring(&self.bell)

    # -- what is in it

    cdef unsigned char *next_record(self, uint64_t *position, unsigned *header, size_t *size) noexcept:
        """The record at *position, which is moved behind it; NULL at head. *header: bytes of its bin header.
        *size: of all of it. The sender may go on meanwhile: what lies behind a boundary that was read under
        the GIL stays as it is while the GIL is held, because only an emit overwrites."""
        cdef unsigned char *place
        cdef uint32_t data = 0
        if position[0] < self.head and position[0] == self.wrap_at:
            position[0] = lap_end(self, position[0])
        if position[0] >= self.head:
            return NULL
        place = place_of(self, position[0])
        header[0] = bin_get_header(place, BIN_MAX_HEADER, &data)
        size[0] = header[0] + data
        position[0] += size[0]
        return place

    @property
    def position(self):
        """Where the next record will begin; for `set_control`."""
        return self.head

    @property
    def pending_bytes(self):
        return self.head - load(&self.boundary, ACQUIRE)

    def pending(self):
        """Records not wholly sent, counted one by one."""
        cdef uint64_t position = load(&self.boundary, ACQUIRE)
        cdef unsigned header
        cdef size_t size
        cdef Py_ssize_t count = 0
        while self.next_record(&position, &header, &size) != NULL:
            count += 1
        return count

    def totals(self):
        """(emitted, sent, pending, lost) of the session at one moment: emitted = sent + pending + lost."""
        cdef Py_ssize_t pending = self.pending()
        kept = self.counts.records_in - self.counts.dropped
        return kept + self.counts.lost, kept - pending, pending, self.counts.lost

    # -- between threads

    cdef void want(self) noexcept nogil:
        if not exchange32(&self.wanted, 1, ACQ_REL):
            ut_bell_ring(&self.bell)

    def wake(self):
        """The session thread has something to do: registrations, flush, close. From any thread."""
        self.want()

    def open_bell(self):
        """Make what the session thread is woken by, if it is not there. OSError."""
        cdef int error = ut_bell_open(&self.bell)
        if error:
            raise OSError(-error, strerror(-error).decode())
        self.need_wakeup = False
        if self.wanted or self.head != self.boundary:
            ut_bell_ring(&self.bell)

    def close_bell(self):
        """There is no thread any more. Twice is harmless."""
        ut_bell_close(&self.bell)

    @property
    def has_bell(self):
        """Whether the bell is there and still ours."""
        return ut_bell_is_ours(&self.bell)

    # -- sending: by the session thread only

    @property
    def control_pending(self):
        """Bytes of control messages that are not sent yet."""
        return self.control_left

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

    def begin_stream(self):
        """A new connection: begin with whole records, forget control messages of the old one. Records are
        held until `_event.move` has given them the write_index that they have here."""
        self.held = True
        self.tail = self.boundary
        self.control = None
        self.control_left = 0

    def sign(self, bint wanted):
        """Whether records say who wrote them from now on. Each thread says its name on each connection."""
        self.names = <uint32_t>(ut_now_ns() >> 10) & 0x7fffffff | 1 if wanted else 0

    def pump(self, Descriptor sock, int timeout_ms=-1):
        """As `pump_until`; sock None: there is no connection, so nothing is sent."""
        cdef int happened
        cdef ut_descriptor *polled = NULL if sock is None else &sock.own
        with nogil:
            happened = self.pump_until(polled, timeout_ms)
        return happened

    cdef int pump_until(self, const ut_descriptor *sock, int timeout_ms) noexcept nogil:
        """Send until there is something else to do, or, without a socket, until timeout_ms are over. With one
        it sleeps without timers while there is nothing.

        Returns READABLE (the socket has bytes or is at its end), WANTED (`wake`), CONTROL_SENT, BROKEN, LOST
        (the program has closed the bell), or several; 0: the time is over.
        """
        cdef int flags
        while True:
            if sock == NULL:
                flags = self.send_until(NULL, timeout_ms, False)
                break
            flags = self.send_until(sock, -1 if self.held else GATHER_MS, False)
            if flags == F_QUIET and not self.held:
                # Under the GIL no emit can come between looking at head and asking to be woken.
                with gil:
                    self.need_wakeup = self.head == self.boundary
                if not self.need_wakeup:
                    continue
                flags = self.send_until(sock, -1, False)
                self.need_wakeup = False
            if flags != F_QUIET:
                break
        if flags & F_WANTED:
            exchange32(&self.wanted, 0, ACQ_REL)
        return flags & ~F_QUIET

    cdef int pump_held(self, const ut_descriptor *sock, int timeout_ms) noexcept nogil:
        """As `pump_until` while records are held, but for timeout_ms at most, with a socket, too; 0: the time
        is over, a signal came, or they are not held any more."""
        cdef int flags
        if sock != NULL and not self.held:
            return 0
        flags = self.send_until(sock, timeout_ms, True)
        if flags & F_WANTED:
            exchange32(&self.wanted, 0, ACQ_REL)
        return flags & ~F_QUIET

    cdef int send_until(self, const ut_descriptor *sock, int quiet_ms, bint until_signal) noexcept nogil:
        """Send and gather until nothing came for quiet_ms (F_QUIET), or until the thread is wanted. -1: until
        woken. While records are held nothing is gathered: after quiet_ms it is F_QUIET, whatever waits.
        until_signal: also F_QUIET when a signal came. Otherwise signals do not make the time longer."""
        cdef pollfd fds[2]
        cdef int sent, ready
        cdef int64_t until = quiet_end(quiet_ms)
        fds[0].fd = -1 if sock == NULL else sock.fd
        fds[1].events = POLLIN
        while True:
            fds[1].fd = self.bell.near_end.fd
            sent = 0 if sock == NULL else self.send_some(sock)
            if sent == -EAGAIN:
                fds[0].events = POLLIN | POLLOUT
                ready = poll(fds, 2, left_ms(until) if self.held else -1)
            elif sent < 0:
                return F_BROKEN
            elif sent & F_CONTROL_SENT:
                return F_CONTROL_SENT
            else:
                fds[0].events = POLLIN
                ready = poll(fds, 2, left_ms(until))
            if ready < 0:
                if errno == EINTR and until_signal:
                    return F_QUIET
                if errno == EINTR:
                    continue
                usleep(NO_POLL_US)
                return F_BROKEN
            if ready == 0:
                if sock == NULL or self.held:
                    return F_QUIET
                if self.boundary == load(&self.head, ACQUIRE) and not self.control_left:
                    return F_QUIET
                until = quiet_end(quiet_ms)
                continue
            if fds[1].revents & ~POLLIN:
                return F_LOST
            if fds[1].revents:
                ut_bell_silence(&self.bell)
                if load32(&self.wanted, ACQUIRE):
                    return F_WANTED
                if quiet_ms < 0:
                    # Woken by a record: let its followers gather from now on.
                    return F_QUIET
            if fds[0].revents & (POLLIN | POLLHUP | POLLERR | POLLNVAL):
                return F_READABLE

    cdef int send_some(self, const ut_descriptor *sock) noexcept nogil:
        """Send what is there, in as many calls as it takes: 0 all gone, F_CONTROL_SENT, or -errno."""
        cdef uint64_t end
        cdef size_t size
        cdef ssize_t sent
        cdef bint mid_record
        while True:
            mid_record = self.tail != self.boundary
            if self.control_left and not mid_record and self.tail >= self.control_after:
                if not ut_is_ours(sock):
                    return -EBADF
                sent = send(sock.fd, self.control_at, self.control_left, MSG_DONTWAIT | MSG_NOSIGNAL)
                if sent < 0:
                    if errno == EINTR:
                        continue
                    return -errno
                self.control_at += sent
                self.control_left -= sent
                if not self.control_left:
                    return F_CONTROL_SENT
                continue
            end = load(&self.head, ACQUIRE)
            if self.tail == end or self.held:
                return 0
            if not mid_record and self.tail == load(&self.wrap_at, RELAXED):
                self.tail = lap_end(self, self.tail)
                store(&self.boundary, self.tail, RELEASE)
                continue
            # All of these ends are boundaries between records.
            end = min(end, lap_end(self, self.tail))
            if self.tail < load(&self.wrap_at, RELAXED):
                end = min(end, load(&self.wrap_at, RELAXED))
            if self.control_left:
                if self.tail < self.control_after:
                    end = min(end, self.control_after)
                else:
                    end = self.boundary + record_size(self, self.boundary)
            size = end - self.tail
            if size > SEND_BYTES:
                size = SEND_BYTES
            if not ut_is_ours(sock):
                return -EBADF
            sent = send(sock.fd, place_of(self, self.tail), size, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent < 0:
                if errno == EINTR:
                    continue
                return -errno
            self.tail += sent
            if self.tail == end:
                store(&self.boundary, end, RELEASE)
            else:
                self.follow_boundary()

    cdef void follow_boundary(self) noexcept nogil:
        """Move the boundary over the records that are wholly sent."""
        cdef uint64_t position = self.boundary
        cdef size_t size
        while position < self.tail:
            size = record_size(self, position)
            if position + size > self.tail:
                break
            position += size
        store(&self.boundary, position, RELEASE)

    # -- a new connection, a new process

    cdef void begin_with(self, unsigned char *memory, uint64_t filled) noexcept:
        """The FIFO holds bytes 0 to `filled` of `memory`, which is its own from now on; NULL: of the memory
        it has."""
        if memory != NULL:
            free(self.memory)
            self.memory = memory
        self.tail = 0
        self.boundary = 0
        self.head = filled
        self.wrap_at = NO_WRAP
        self.half_woken_at = 0

    def start_child(self):
        """In a forked child: what is pending is the parent's, and so are the counters and the bell."""
        self.begin_with(NULL, 0)
        self.counts.records_in = 0
        self.counts.lost = 0
        self.counts.dropped = 0
        ut_bell_close(&self.bell)
        self.wanted = 0
        self.control = None
        self.control_left = 0
        self.need_wakeup = False
        self.held = False
