# cython: boundscheck=False, wraparound=False
"""The write_index table of one data connection: looks up the event of a record, and counts refusals.

A bare record may carry its thread (docs/protocol.md, 3.5); the claim is checked as in a data ring.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport PyObject
from libc.errno cimport EFAULT, EINVAL, ENOENT
from libc.stdint cimport uint16_t
from libc.string cimport memcpy

from utracefs_protocol.pages.data_ring cimport DR_REFUSED
from utracefs_protocol.limits import MAX_DATA_OBJECT as _MAX_DATA_OBJECT

from utracefsd.consumers.ftrace.event._sink cimport FtraceProbe, FtraceSink
from utracefsd.events._tracepoint cimport Probe, emit_deferred, nr_deferred
from utracefsd.machine._machine cimport cpu_now

from utracefsd.machine.procfs import possible_cpus

cdef extern from "bin.h" nogil:
    unsigned bin_get_header(const uint8_t *at, size_t length, uint32_t *size)
    unsigned bin_index_at(const uint8_t *record, uint32_t size)
    unsigned BIN_SIGNATURE
    const uint32_t BIN_LOST, BIN_UNKNOWN
    ctypedef struct bin_record "struct bin_record":
        const uint8_t *comm
        uint32_t size, tid
        uint16_t cpu
    bin_record bin_take_apart(const uint8_t *record, uint32_t size)

cdef uint64_t max_data_object = _MAX_DATA_OBJECT
cdef uint32_t nr_cpus = possible_cpus()

cdef enum:
    MAX_REFUSED_KEYS = 64   # the peer chooses the indexes: bound the memory that they take


# Of a write_index without an event: no consumer ever attaches to it.
cdef Tracepoint NO_EVENT = Tracepoint.__new__(Tracepoint)


cdef class IndexTable:
    """The write_index table of one data connection (one open file of user_events_data)."""

    def __init__(self):
        self.tracepoints = []
        self._refused = {}

    @property
    def refused(self) -> dict[tuple[int, int], int]:
        """How many bare records were refused: (errno, write_index) -> count. The caller removes what it has
        reported.

        write_index is -1 for a record without one. At most 64 keys: further ones count under (errno, -1).
        """
        self.note_again()
        return self._refused

    def append(self, Tracepoint tracepoint=None, index: int = 0) -> int:
        """Add an event, at `index` if that is larger than all others; returns its write_index. None: a
        write_index whose event was refused; its records are, too."""
        if index > len(self.tracepoints):
            self.tracepoints.extend([NO_EVENT] * (index - len(self.tracepoints)))
        self.tracepoints.append(NO_EVENT if tracepoint is None else tracepoint)
        return len(self.tracepoints) - 1

    def __len__(self):
        return len(self.tracepoints)

    def __getitem__(self, write_index: int) -> Tracepoint:
        return self.tracepoints[write_index]

    def event_ids(self) -> list[int]:
        """The trace event ids of its events, by write_index; 0: none."""
        cdef Tracepoint tracepoint
        return [tracepoint.id for tracepoint in self.tracepoints]

    cdef int emit(self, const uint8_t *data, size_t size, Record *r) noexcept:
        """Emit one record in the form that write(2) has; returns its size, or -errno.

        The caller has filled in time, cpu, pid and tgid of `r`.
        """
        cdef int32_t write_index
        cdef Tracepoint tracepoint
        cdef int code
        if size < 4:
            return -EFAULT
        memcpy(&write_index, data, 4)
        if write_index < 0:
            return -EINVAL
        if write_index >= PyList_GET_SIZE(self.tracepoints):
            return -ENOENT
        tracepoint = <Tracepoint>PyList_GET_ITEM(self.tracepoints, write_index)
        r.payload = data + 4
        r.size = <uint32_t>(size - 4)
        code = tracepoint.emit(r)
        if nr_deferred:
            emit_deferred()
        return code if code else <int>size

    cdef int find_writer(self, const uint8_t *record, uint32_t size, Record *r) except -1:
        """Set thread and cpu of a record with a signature; returns its size without signature and name."""
        cdef bin_record taken = bin_take_apart(record, size)
        if self.writers is None:
            self.writers = self.make_writers()
        r.pid = self.writers.find(taken.tid, taken.comm, r.ts_ns)
        if taken.cpu < nr_cpus:
            r.cpu = taken.cpu
        return 4 + taken.size

    cdef void refuse(self, int error, int64_t write_index) noexcept:
        if self.has_no_event(write_index):
            error = ENOENT
        self.total_unknown += error == ENOENT
        if error != self.again_error or write_index != self.again_index:
            self.note_again()
            self.again_error = error
            self.again_index = write_index
        self.again += 1

    cdef bint has_on(self) noexcept:
        """Whether a consumer is attached to an event."""
        cdef Py_ssize_t i
        for i in range(PyList_GET_SIZE(self.tracepoints)):
            if (<Tracepoint>PyList_GET_ITEM(self.tracepoints, i)).status:
                return True
        return False

    cdef bint has_no_event(self, int64_t write_index) noexcept:
        """Whether the registration of this write_index was refused."""
        return 0 <= write_index < PyList_GET_SIZE(self.tracepoints) and (
            PyList_GET_ITEM(self.tracepoints, write_index) == <PyObject *>NO_EVENT
        )

    cdef bint count_refusal(self, uint32_t write_index, const uint8_t *why, size_t size) except -1:
        """True for the client's report that it refused a record itself (data_ring.h), which is then
        counted."""
        cdef uint32_t index = write_index & ~DR_REFUSED
        if not write_index & DR_REFUSED or index >= <uint32_t>PyList_GET_SIZE(self.tracepoints):
            return False
        (<Tracepoint>PyList_GET_ITEM(self.tracepoints, index)).count_refusal(why, size)
        return True

    cdef int lose(self, uint32_t write_index, uint32_t count, int pid, dict missing) except -1:
        """Process `pid` had no room for `count` records. missing: gets how many each ring buffer misses.
        Whether one does."""
        cdef Tracepoint tp = <Tracepoint>PyList_GET_ITEM(self.tracepoints, write_index)
        cdef Probe probe
        cdef int is_missed = 0
        if tp is NO_EVENT:
            self.total_unknown += count
            return 0
        if not tp._probes:
            tp.missed += count
            return 0
        tp.emitted += count
        tp.lost_in_rings += count
        for probe in tp._probes:
            if probe.lose_of(count, pid) and isinstance(probe, FtraceProbe):
                sink = (<FtraceProbe>probe).sink
                missing[sink] = missing.get(sink, 0) + count
                is_missed = 1
        return is_missed

    cdef int miss(self, uint32_t write_index, uint32_t count, dict missing) except -1:
        """`lose` for records that are counted already."""
        cdef Probe probe
        cdef int is_missed = 0
        if write_index < <uint32_t>PyList_GET_SIZE(self.tracepoints):
            for probe in (<Tracepoint>PyList_GET_ITEM(self.tracepoints, write_index))._probes:
                if isinstance(probe, FtraceProbe) and (<FtraceProbe>probe).misses_lost():
                    sink = (<FtraceProbe>probe).sink
                    missing[sink] = missing.get(sink, 0) + count
                    is_missed = 1
        return is_missed

    cdef bint take_lost(
        self, uint32_t write_index, const uint8_t *payload, size_t size, const Record *r
    ) except -1:
        """True for the client's report that it had no room for records (bin.h), which are then counted, and
        marked in front of the next record of this cpu."""
        cdef uint32_t index = write_index & ~BIN_LOST, count
        cdef dict missing = {}
        if not write_index & BIN_LOST or size != 4:
            return False
        memcpy(&count, payload, 4)
        if index == BIN_UNKNOWN:
            self.total_unknown += count
            return True
        if index >= <uint32_t>PyList_GET_SIZE(self.tracepoints):
            return False
        self.lose(index, count, r.tgid, missing)
        for sink, lost in missing.items():
            (<FtraceSink>sink).mark_lost(r.cpu, lost)
        return True

    cdef void note_again(self) noexcept:
        cdef uint64_t again = self.again
        self.again = 0
        if again == 0:
            return
        key = (self.again_error, self.again_index)
        if key not in self._refused and len(self._refused) >= MAX_REFUSED_KEYS:
            key = (self.again_error, -1)
        self._refused[key] = self._refused.get(key, 0) + again

    def write(
        self, bytes record not None, int pid, uint64_t ts_ns, tgid: int | None = None, cpu: int | None = None
    ) -> int:
        """The acknowledged form: returns the size of the record, or -errno. tgid: the process of thread
        `pid`, if different. cpu: the writer's; None: this cpu.

        EFAULT: less than 4 bytes, or an invalid dynamic field. EINVAL: negative write_index, or a payload
        too short. ENOENT: unknown write_index. EBADF: no probe attached.
        """
        cdef Record r
        cdef Py_ssize_t size = PyBytes_GET_SIZE(record)
        if size > 0x7fffffff:
            raise ValueError(f"record of {size} bytes")
        r.ts_ns = ts_ns
        r.cpu = cpu_now() if cpu is None else cpu
        r.pid = pid
        r.tgid = pid if tgid is None else tgid
        r.origin = 0
        return self.emit(<const uint8_t *>PyBytes_AS_STRING(record), size, &r)

    def take_in(
        self, buffer: bytes | bytearray | memoryview, Py_ssize_t offset, int pid, uint64_t ts_ns
    ) -> int:
        """Take in the consecutive complete bare `bin` objects at `offset`; returns the offset behind them.

        They arrived together and get the same time, `ts_ns`, and this cpu. A record that names its writer
        gets that thread and cpu, if valid; where the cpu changes the time is 1 ns later, so that the order
        in `trace` is that of the buffer. Refusals and losses are counted.

        Stops at any other object, at an incomplete one, and at one of more than MAX_DATA_OBJECT bytes, which
        the caller answers with EMSGSIZE. ValueError: offset outside the buffer.
        """
        cdef Py_buffer view
        cdef const uint8_t *data
        cdef size_t at, left
        cdef unsigned head
        cdef uint32_t body, size
        cdef int32_t write_index
        cdef int code
        cdef Record r
        cdef const uint8_t *record
        cdef int32_t cpu = cpu_now(), last_cpu
        cdef bint is_signed, may_be_signed = self.make_writers is not None
        # While this view is held, code called below cannot resize or free the buffer.
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= offset <= view.len:
                raise ValueError(f"offset {offset} in {view.len} bytes")
            data = <const uint8_t *>view.buf
            at = offset
            r.pid = r.tgid = pid
            r.cpu = cpu
            r.origin = 0
            r.ts_ns = ts_ns
            last_cpu = -1
            if self.writers is not None:
                self.writers.begin_round()
            while True:
                # Only complete objects: the rest waits for its bytes, other objects are the caller's.
                left = <size_t>view.len - at
                head = bin_get_header(data + at, left, &body)
                if not head or head + <uint64_t>body > max_data_object or body > left - head:
                    break
                record = data + at + head
                size = body
                # A signature names the writing thread, for programs without a data ring.
                is_signed = may_be_signed and bin_index_at(record, size) != 0
                if is_signed:
                    size = self.find_writer(record, size, &r)
                    record += BIN_SIGNATURE
                if r.cpu != last_cpu:
                    r.ts_ns += last_cpu >= 0
                    last_cpu = r.cpu
                code = self.emit(record, size, &r)
                if is_signed:
                    r.pid = pid
                    r.cpu = cpu
                # A program reports its own refusals and losses as records with these numbers: not errors.
                if code < 0:
                    write_index = -1
                    if size >= 4:
                        memcpy(&write_index, record, 4)
                    if size < 4 or not (
                        self.count_refusal(write_index, record + 4, size - 4)
                        or self.take_lost(write_index, record + 4, size - 4, &r)
                    ):
                        self.refuse(-code, write_index)
                at += head + body
            return <Py_ssize_t>at
        finally:
            PyBuffer_Release(&view)
