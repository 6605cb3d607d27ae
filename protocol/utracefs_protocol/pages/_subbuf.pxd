"""One page, record by record, for compiled readers; see _subbuf.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    HEADER_SIZE = 16
    COMMIT_BITS = (1 << 27) - 1
    STORED_BIT = 1 << 30
    DATA_MAX = 28
    PADDING = 29
    TIME_EXTEND = 30
    TIME_STAMP = 31
    DELTA_BITS = 27
    STAMP_BITS = 59

cdef uint64_t MISSED_BIT
cdef uint64_t STAMP_BITS_MASK

cdef enum Found:
    RECORD            # data, length and ts are set
    END
    BROKEN_LENGTH     # a record of `length` bytes at `at` that does not fit
    BROKEN_HEADER     # a record header at `at` that is cut off

cdef struct PageCursor:
    const uint8_t *page
    uint64_t size          # bytes of the page
    uint64_t timestamp     # of the page
    uint64_t word          # its commit word
    uint64_t at            # where the next record's header is
    uint64_t end           # of the records
    uint64_t ts            # of the last record found
    uint64_t data          # where its entry begins
    int64_t length         # bytes of its entry

cdef int open_page(PageCursor *cursor, const uint8_t *page, uint64_t size) except -1
cdef int64_t missed_before(const PageCursor *cursor) noexcept nogil
cdef Found find_record(PageCursor *cursor) noexcept nogil
cdef int broken(const PageCursor *cursor, Found found) except -1
