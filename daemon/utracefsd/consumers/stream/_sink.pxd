"""The ring of a stream, written once per record; see _sink.pyx. All of it needs the GIL."""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from utracefs_protocol.filter._program cimport Filter
from utracefs_protocol.pages.record cimport Record
from utracefs_protocol.pages.stream_ring cimport ss_header, ss_record
from utracefsd.consumers.ftrace.buffer._ring_buffer cimport PageReader, rb_cpu
from utracefsd.machine._writer_names cimport WriterNames
from utracefsd.events._tracepoint cimport Probe
from utracefsd.machine._sealed_memory cimport SealedMemory

cdef enum:
    SENT_NAMES = 256

cdef struct SentName:
    int32_t tid
    uint64_t until_ns           # for a record after this time, look the name up again
    char name[16]

cdef class StreamSink:
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

    cdef ss_record *reserve(self, uint16_t kind, uint64_t length, uint64_t time_ns, uint16_t id) noexcept
    cdef uint64_t look(self) noexcept
    cdef bint send_name(self, Record *r) noexcept
    cdef void make_known(self) noexcept

cdef class StreamPages(PageReader):
    cdef readonly StreamSink sink
    cdef list undescribed       # (event id, text of its SS_FORMAT)
    cdef uint64_t lossless_ns, full_since_ns, full_at

    cdef void be_full(self) noexcept

    cdef bint write_formats(self) noexcept

cdef class StreamProbe(Probe):
    cdef readonly StreamSink sink
    cdef readonly uint16_t id
    cdef readonly Filter filter
    cdef object describe        # returns the text of SS_FORMAT; None once it was written
    cdef readonly uint64_t unreported
    cdef bint is_losing         # in the sink's list

    cdef bint store(self, Record *r) noexcept
    cdef bint send_format(self, uint64_t time_ns) noexcept
    cdef bint report_lost(self, uint64_t time_ns) noexcept
    cdef void lose_some(self, uint64_t n) noexcept
