# cython: boundscheck=False, wraparound=False
"""Reads the records of a page and their times. subbuf.py describes the layout.

Pages are not trusted. A page is read in place and must not change meanwhile. Times have 64 bits and wrap, as
in the kernel.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from utracefs_protocol.events._line cimport load32, load64

from utracefs_protocol.limits import SUBBUF_HEADER_SIZE as _HEADER_SIZE

MISSED_BIT = <uint64_t>1 << 31
STAMP_BITS_MASK = (<uint64_t>1 << STAMP_BITS) - 1

assert _HEADER_SIZE == HEADER_SIZE

COMMIT_MASK = COMMIT_BITS  #: Final[int]
MISSED_STORED = STORED_BIT  #: Final[int]
MISSED_EVENTS = MISSED_BIT  #: Final[int]
TYPE_TIME_EXTEND = TIME_EXTEND  #: Final[int]
TIME_DELTA_BITS = DELTA_BITS  #: Final[int]
TIME_STAMP_BITS = STAMP_BITS  #: Final[int]


cdef int open_page(PageCursor *cursor, const uint8_t *page, uint64_t size) except -1:
    """ValueError for a page that is smaller than its header says. The caller owns the page."""
    if size < HEADER_SIZE:
        raise ValueError(f"page of {size} bytes; its header alone has {HEADER_SIZE}")
    cursor.page = page
    cursor.size = size
    cursor.timestamp = cursor.ts = load64(page)
    cursor.word = load64(page + 8)
    cursor.at = HEADER_SIZE
    cursor.end = HEADER_SIZE + (cursor.word & COMMIT_BITS)
    if cursor.end > size:
        raise ValueError(
            f"page of {size} bytes says that it holds {cursor.word & COMMIT_BITS} bytes of records"
        )
    return 0


cdef int64_t missed_before(const PageCursor *cursor) noexcept nogil:
    """Records lost in front of the page; -1: unknown."""
    cdef int64_t count
    if not cursor.word & MISSED_BIT:
        return 0
    if not cursor.word & STORED_BIT or cursor.end + 8 > cursor.size:
        return -1
    count = <int64_t>load64(cursor.page + cursor.end)
    return count if count >= 0 else -1


cdef Found find_record(PageCursor *cursor) noexcept nogil:
    """Find the next record. Do not call it again after END or an error."""
    cdef uint64_t at = cursor.at, stamp
    cdef uint32_t word, type_len
    cdef int64_t length
    while at < cursor.end:
        if at + 4 > cursor.size:
            cursor.at = at
            return BROKEN_HEADER
        word = load32(cursor.page + at)
        at += 4
        type_len = word & 31
        if 0 < type_len <= DATA_MAX:
            length = type_len * 4
        else:
            if type_len == PADDING and word >> 5 == 0:
                break
            if at + 4 > cursor.size:
                cursor.at = at
                return BROKEN_HEADER
            length = load32(cursor.page + at)
            if type_len == PADDING:
                cursor.ts += word >> 5
                at += length
                continue
            at += 4
            if type_len:
                stamp = (<uint64_t>length << DELTA_BITS) + (word >> 5)
                cursor.ts = cursor.ts + stamp if type_len == TIME_EXTEND else absolute(cursor.ts, stamp)
                continue
            length -= 4
        cursor.ts += word >> 5
        cursor.length = length
        if length < 0 or at + <uint64_t>length > cursor.end:
            cursor.at = at
            return BROKEN_LENGTH
        cursor.data = at
        cursor.at = at + ((<uint64_t>length + 3) & ~<uint64_t>3)
        return RECORD
    cursor.at = cursor.end
    return END


cdef inline uint64_t absolute(uint64_t ts, uint64_t stamp) noexcept nogil:
    """rb_fix_abs_ts(): take the upper 5 bits, which a stamp does not hold, from the running time."""
    cdef uint64_t upper = ts & ~STAMP_BITS_MASK
    stamp &= STAMP_BITS_MASK
    if not upper:
        return stamp
    stamp |= upper
    return stamp if stamp >= ts else stamp + (<uint64_t>1 << STAMP_BITS)


cdef int broken(const PageCursor *cursor, Found found) except -1:
    """Raise ValueError for an error result of find_record()."""
    if found == BROKEN_HEADER:
        raise ValueError(f"record header at {cursor.at} is cut off; the page ends at {cursor.size}")
    raise ValueError(
        f"record at {cursor.at} has {cursor.length} bytes of data; the page's records end at {cursor.end}"
    )


cdef class iter_records:
    """(ts, offset, length) of the data of each record, in order; `page[offset:offset + length]` is the entry.

    ValueError at once for an invalid page header; for an invalid record after all records before it.
    """

    cdef PageCursor _cursor
    cdef Py_buffer _page

    def __cinit__(self, page: bytes | bytearray | memoryview):
        PyObject_GetBuffer(page, &self._page, PyBUF_SIMPLE)
        open_page(&self._cursor, <const uint8_t *>self._page.buf, self._page.len)

    def __dealloc__(self):
        PyBuffer_Release(&self._page)

    def __iter__(self):
        return self

    def __next__(self) -> tuple[int, int, int]:
        cdef Found found = find_record(&self._cursor)
        if found == RECORD:
            return self._cursor.ts, self._cursor.data, self._cursor.length
        if found != END:
            try:
                broken(&self._cursor, found)
            finally:
                self._cursor.at = self._cursor.end
        raise StopIteration


def page_header(page: bytes | bytearray | memoryview) -> tuple[int, int]:
    """(time stamp, commit word) of a page. ValueError: it is smaller than its header says."""
    cdef iter_records records = iter_records(page)
    return records._cursor.timestamp, records._cursor.word


def commit_of(page: bytes | bytearray | memoryview) -> int:
    """Bytes of records on this page."""
    cdef iter_records records = iter_records(page)
    return records._cursor.word & COMMIT_BITS


def missed_events(page: bytes | bytearray | memoryview) -> int:
    """Number of records lost in front of this page; -1: unknown."""
    cdef iter_records records = iter_records(page)
    return missed_before(&records._cursor)
