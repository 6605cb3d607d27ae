# cython: boundscheck=False, wraparound=False
"""A stream on the record path: records of many events, or the pages of a ring buffer, into one ring that a
reader maps.

    StreamSink      the ring and its doorbell; one for each stream
    StreamProbe     one event of it: the filter, the format until it is written, lost records
    StreamPages     or a ring buffer: its pages

include/stream_ring.h describes the ring. Of the memory that the reader may change, only its tail is read, and
it decides how much may be written, never where; so a reader that stalls, or writes nonsense, loses only its
own records.
"""

import os

from libc.errno cimport EFAULT
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset
from posix.time cimport CLOCK_MONOTONIC
from posix.unistd cimport close as close_fd
from posix.unistd cimport write as c_write

from utracefs_protocol.filter._program cimport Filter
from utracefs_protocol.pages.record cimport COMM_SIZE, Record, common_word
from utracefs_protocol.pages.stream_ring cimport *
from utracefsd.consumers.ftrace.buffer._ring_buffer cimport (
    PageReader,
    rb_cpu,
    rb_cpu_number,
    rb_has_full_page,
    rb_is_empty,
    rb_read_page,
)
from utracefsd.machine._machine cimport clock_ns
from utracefsd.machine._writer_names cimport WriterNames
from utracefsd.events._tracepoint cimport FILTERED, LOST, RECORDED, Probe
from utracefsd.machine._sealed_memory cimport SealedMemory

from utracefs_protocol.pages.status_page import StatusBit

cdef enum:
    SENT_NAMES = 256
    # In a long round, new records are published to a reader that is awake after this many bytes.
    STEP_BYTES = 65536
    # How long an old name may be used for a thread that renames itself.
    NAME_NS = 1000000000

cdef struct SentName:
    int32_t tid
    uint64_t until_ns           # for a record after this time, look the name up again
    char name[16]


cdef class StreamSink:
    """The ring of one stream, in memory that the reader maps, and its doorbell.

    size: bytes of the data area, a power of two. watermark: bytes that wait for the reader before the
    doorbell rings; at least 1. Both are checked where they came in (StreamAttr). names: of the threads that
    write; None: names are not written. OSError: no memory, no descriptors.

    lost: lost records of all events. bell_fd: the reader's end of a pipe: a byte whenever there is something
    new and the watermark is reached, end of file with the sink. A pipe, because its two ends have separate
    flags: the reader of an eventfd could make our write to it block.
    """

    cdef SealedMemory memory
    cdef ss_header *header      # NULL once it is closed
    cdef uint8_t *area
    cdef uint64_t size
    cdef uint64_t head          # private; the copy in the header is for the reader
    cdef uint64_t published     # that copy
    cdef uint64_t step          # bytes after which the copy is updated within a round
    cdef uint64_t limit         # how far head may go, by the last tail that was read
    cdef readonly uint64_t lost
    cdef uint64_t lost_published
    cdef readonly uint64_t watermark
    cdef int bell               # a pipe to write to
    cdef readonly int bell_fd   # the reader's end of it
    cdef WriterNames names
    cdef SentName sent_names[SENT_NAMES]
    cdef list losing            # probes with lost records that were not reported yet

    def __cinit__(self, *args, **kwargs):
        self.bell = self.bell_fd = -1
        self.header = NULL
        self.losing = []
        memset(self.sent_names, 0, sizeof(self.sent_names))

    def __init__(self, uint64_t size, *, uint64_t watermark=1, WriterNames names=None):
        self.memory = SealedMemory("utracefs-stream", SS_DATA_OFFSET + size, SS_DATA_OFFSET)
        self.memory.hurry()
        self.bell_fd, self.bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.header = <ss_header *>self.memory.map
        self.area = self.memory.map + SS_DATA_OFFSET
        self.size = size
        self.watermark = watermark
        self.step = min(<uint64_t>STEP_BYTES, size // 4)
        self.names = names
        self.header.magic = SS_MAGIC
        self.header.version = SS_VERSION
        self.header.data_offset = SS_DATA_OFFSET
        self.header.size = <uint32_t>size

    @property
    def memory_fd(self) -> int:
        return self.memory.fd

    def close(self) -> None:
        """Store nothing more; the reader's mapping stays. A second call is harmless."""
        if self.header == NULL:
            return
        self.make_known()
        self.header = NULL
        self.memory.close()
        for fd in (self.bell, self.bell_fd):
            os.close(fd)
        self.bell = self.bell_fd = -1

    def __dealloc__(self):
        # Not os.close: at interpreter exit the module may be gone before its objects.
        if self.bell >= 0:
            close_fd(self.bell)
            close_fd(self.bell_fd)

    def publish(self) -> None:
        """Publish the records of a step to the reader, and write SS_LOST entries if there is space."""
        cdef StreamProbe probe
        if self.header == NULL:
            return
        if self.losing:
            still = []
            for probe in self.losing:
                probe.is_losing = not probe.report_lost(0)
                if probe.is_losing:
                    still.append(probe)
            self.losing = still
        if self.head != self.published or self.lost != self.lost_published:
            self.make_known()

    @property
    def position(self) -> int:
        """End of the written entries: bytes since the beginning."""
        return self.head

    def ring_bell(self) -> None:
        """Wake the reader for another reason."""
        c_write(self.bell, b"!", 1)

    def is_filled(self) -> bool:
        """Whether the reader has work: the watermark is reached, or records were lost."""
        if self.header == NULL:
            return True
        return bool(self.losing) or self.head - ss_load(&self.header.tail) >= self.watermark

    cdef void make_known(self) noexcept:
        cdef uint64_t waiting = self.head - ss_load(&self.header.tail)
        self.published = self.head
        self.lost_published = self.lost
        ss_store(&self.header.lost, self.lost)
        ss_store(&self.header.head, self.head)
        if waiting >= self.watermark or self.losing:
            c_write(self.bell, b"!", 1)     # a pipe that is full has rung

    cdef uint64_t look(self, uint64_t wanted) noexcept:
        """How far head may go by the reader's tail; an invalid tail is ignored. In the first lap memory is
        allocated for `wanted` bytes."""
        cdef uint64_t tail = ss_load(&self.header.tail)
        if self.head - tail <= self.size:
            self.limit = tail + self.size
        if self.memory.has < self.memory.size:
            self.memory.take(SS_DATA_OFFSET + self.head + wanted)
            if self.memory.has < self.memory.size:
                self.limit = min(self.limit, <uint64_t>self.memory.has - SS_DATA_OFFSET)
        return self.limit

    cdef ss_record *reserve(self, uint16_t kind, uint64_t length, uint64_t time_ns, uint16_t id) noexcept:
        """Reserve an entry of `length` bytes, with its header filled in; NULL: no space. The next
        make_known() publishes it."""
        cdef uint64_t need = (SS_RECORD_HEADER + length + 7) & ~<uint64_t>7
        cdef uint64_t at = self.head & (self.size - 1)
        cdef uint64_t left = self.size - at
        cdef uint64_t wanted = need if need <= left else left + need
        cdef ss_record *record
        if need > self.size or self.header == NULL:
            return NULL
        if self.limit - self.head < wanted and self.look(wanted) - self.head < wanted:
            return NULL
        record = <ss_record *>(self.area + at)
        if need > left:
            record.size = <uint32_t>left
            record.kind = SS_PAD
            record.cpu = 0
            self.head += left
            record = <ss_record *>self.area
        self.head += need
        (<uint64_t *>record)[need // 8 - 1] = 0         # the padding
        record.size = <uint32_t>need
        record.kind = kind
        record.cpu = 0
        record.time_ns = time_ns
        record.pid = 0
        record.length = <uint32_t>length
        (<uint64_t *>record.entry)[0] = common_word(id, 0)
        return record

    cdef bint put(self, uint16_t kind, const void *data, uint64_t length, uint64_t ns, uint16_t id) noexcept:
        """Write an entry of these bytes. False: no space."""
        cdef ss_record *record = self.reserve(kind, SS_COMMON + length, ns, id)
        if record == NULL:
            return False
        memcpy(record.entry + SS_COMMON, data, length)
        return True

    cdef bint send_name(self, Record *r) noexcept:
        """Whether the reader knows the name of the thread, possibly by an entry written now."""
        cdef SentName *sent = &self.sent_names[<uint32_t>r.pid % SENT_NAMES]
        cdef ss_record *record
        cdef const char *name = self.names.name_of(r)
        if self.header == NULL:
            return False        # looking it up may run Python
        if sent.until_ns == 0 or sent.tid != r.pid or memcmp(sent.name, name, COMM_SIZE) != 0:
            record = self.reserve(SS_COMM, SS_COMMON + SS_COMM_SIZE, r.ts_ns, 0)
            if record == NULL:
                return False
            record.pid = r.tgid
            (<uint64_t *>record.entry)[0] = common_word(0, r.pid)
            memcpy(record.entry + SS_COMMON, name, COMM_SIZE)
            sent.tid = r.pid
            memcpy(sent.name, name, COMM_SIZE)
        sent.until_ns = r.ts_ns + NAME_NS
        return True


cdef class StreamPages(PageReader):
    """Moves the pages of a ring buffer into the ring, behind the formats of their events. Pages that do not
    fit stay in the buffer, to be moved later or overwritten."""

    cdef readonly StreamSink sink
    cdef list undescribed       # (event id, text of its SS_FORMAT)
    cdef uint64_t lossless_ns, full_since_ns, full_at

    def __init__(self, StreamSink sink not None, uint64_t lossless_ns=0):
        """lossless_ns: how long the intake is held where the reader makes no room; 0: not at all."""
        self.sink = sink
        self.undescribed = []
        self.lossless_ns = lossless_ns
        self.full_at = <uint64_t>-1

    cdef void be_full(self) noexcept:
        cdef uint64_t tail, now
        if self.lossless_ns and self.sink.header != NULL:
            tail, now = ss_load(&self.sink.header.tail), clock_ns(CLOCK_MONOTONIC)
            if tail != self.full_at:
                self.full_at, self.full_since_ns = tail, now
            self.set_holds(now - self.full_since_ns < self.lossless_ns)

    def describe(self, uint16_t id, bytes text not None) -> None:
        """Write an SS_FORMAT, at the latest before the next page. Too large a text is left out."""
        if SS_RECORD_HEADER + SS_COMMON + len(text) <= <Py_ssize_t>self.sink.size // 4:
            self.undescribed.append((id, text))

    cdef bint write_formats(self) noexcept:
        """Whether the ring had room for all."""
        cdef bytes text
        while self.undescribed:
            id, text = self.undescribed[0]
            if not self.sink.put(SS_FORMAT, <const char *>text, len(text), 0, id):
                return False
            del self.undescribed[0]
        return True

    cdef void take(self, rb_cpu *b, bint all_of_them) noexcept:
        cdef StreamSink sink = self.sink
        cdef ss_record *record
        cdef uint64_t before
        if self.undescribed and not self.write_formats():
            self.be_full()
            return
        while rb_has_full_page(b) or (all_of_them and not rb_is_empty(b)):
            before = sink.head
            record = sink.reserve(SS_PAGE, b.subbuf_size, 0, 0)
            if record == NULL:
                self.be_full()
                return
            record.cpu = <uint16_t>rb_cpu_number(b)
            if rb_read_page(b, b.subbuf_size, record.entry) <= 0:
                sink.head = before
                return
            # At once: the buffer does not have it any more.
            ss_store(&sink.header.head, sink.head)
            if sink.head - sink.published >= sink.step:
                sink.make_known()


cdef class StreamProbe(Probe):
    """One event of a stream; sets StatusBit.OTHER. describe: returns the text of SS_FORMAT; called at the
    first record. unreported: lost records that are not reported to the reader yet."""

    cdef readonly StreamSink sink
    cdef readonly uint16_t id
    cdef readonly Filter filter  #: Filter | None
    cdef object describe        # returns the text of SS_FORMAT; None once it was written
    cdef readonly uint64_t unreported
    cdef bint is_losing         # in the sink's list

    def __init__(
        self, StreamSink sink not None, str consumer not None, uint16_t id, describe: Callable[[], bytes],
        Filter filter=None
    ):
        Probe.__init__(self, consumer, StatusBit.OTHER)
        self.sink = sink
        self.id = id
        self.describe = describe
        self.filter = filter

    def fail(self, uint64_t n) -> None:
        """Count `n` recorded ones as lost after all."""
        n = min(n, self.counts[RECORDED])
        self.counts[RECORDED] -= n
        self.counts[LOST] += n

    cdef int take(self, Record *r) noexcept:
        cdef Filter filter = self.filter    # a reference: looking up a name may run Python
        if filter is not None and not filter.matches(r):
            return FILTERED
        if not r.valid:
            return -EFAULT
        if self.store(r):
            return RECORDED
        self.lose_some(1)
        return LOST

    cdef bint lose(self, uint64_t n) noexcept:
        self.counts[LOST] += n
        self.lose_some(n)
        return True

    cdef void lose_some(self, uint64_t n) noexcept:
        if not self.is_losing:
            try:
                self.sink.losing.append(self)
                self.is_losing = True
            except MemoryError:
                pass            # reported with the next record of the event
        self.unreported += n
        self.sink.lost += n
        if self.sink.header != NULL:
            ss_store(&self.sink.header.lost, self.sink.lost)

    cdef bint store(self, Record *r) noexcept:
        cdef StreamSink sink = self.sink
        cdef SentName *sent = &sink.sent_names[<uint32_t>r.pid % SENT_NAMES]
        cdef ss_record *record
        cdef uint64_t length = SS_COMMON + <uint64_t>r.size
        if self.describe is not None and not self.send_format(r.ts_ns):
            return False
        if self.unreported and not self.report_lost(r.ts_ns):
            return False
        if sink.names is not None and (sent.tid != r.pid or r.ts_ns >= sent.until_ns):
            if not sink.send_name(r):
                return False
        record = sink.reserve(SS_RECORD, length, r.ts_ns, r.id)
        if record == NULL:
            return False
        record.cpu = <uint16_t>r.cpu
        record.pid = r.tgid
        (<uint64_t *>record.entry)[0] = common_word(r.id, r.pid)
        memcpy(record.entry + SS_COMMON, r.payload, r.size)
        ss_store(&sink.header.written, sink.head)   # for a reader whose daemon is killed now
        if sink.head - sink.published >= sink.step:
            sink.make_known()
        return True

    cdef bint send_format(self, uint64_t time_ns) noexcept:
        cdef bytes text
        try:
            text = self.describe()
        except Exception:
            return False
        if not self.sink.put(SS_FORMAT, <const char *>text, len(text), time_ns, self.id):
            return False
        self.describe = None
        return True

    cdef bint report_lost(self, uint64_t time_ns) noexcept:
        """Whether all losses are reported to the reader."""
        if self.unreported:
            if self.describe is not None and not self.send_format(time_ns):
                return False
            if not self.sink.put(SS_LOST, &self.unreported, 8, time_ns, self.id):
                return False
            self.unreported = 0
        return True
