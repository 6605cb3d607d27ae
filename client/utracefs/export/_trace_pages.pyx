# cython: boundscheck=False, wraparound=False
"""Pages of a trace.dat that is converted from another file.

    RecordPages    new pages, of selected records
    WholePages     unchanged pages of a trace.dat

subbuf.py describes the layout of a page.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from utracefs.recordings._records cimport HEADER, Raw, Records, comm_of
from utracefs.recordings.trace_dat._merge cimport MergedPages, Stream
from utracefs_protocol.pages._subbuf cimport (
    DATA_MAX,
    DELTA_BITS,
    END,
    HEADER_SIZE,
    MISSED_BIT,
    RECORD,
    STAMP_BITS_MASK,
    STORED_BIT,
    TIME_EXTEND,
    TIME_STAMP,
    Found,
    PageCursor,
    find_record,
    missed_before,
    open_page,
)

cdef enum:
    COUNT_SIZE = 8
    STAMP_SIZE = 8
    MOST_MORE = 32          # bytes of a record besides its entry: its header, a stamp, a lost count

cdef uint64_t DELTA_MASK = (1 << DELTA_BITS) - 1


def extent_of(Records records not None) -> tuple[int, int]:
    """(number of cpus, bytes of the largest entry) of all records, up to an error."""
    cdef Raw raw
    cdef uint64_t cpus = 0
    cdef size_t largest = 0
    try:
        while records.next_original(&raw) is not None:
            cpus = max(cpus, <uint64_t>raw.cpu + 1)
            largest = max(largest, raw.size)
    except ValueError:
        pass
    return cpus, largest


cdef class _Page:
    """The unfinished page of one cpu. Its memory grows with its content."""

    cdef bytearray page
    cdef size_t used        # of it, with the header
    cdef uint32_t cpu
    cdef uint64_t begin
    cdef uint64_t ts
    cdef int64_t lost       # in front of it; -1: not counted

    def __cinit__(self):
        self.page = bytearray()
        self.used = HEADER_SIZE


cdef class RecordPages:
    """Iterates over (cpu, page) of `records`; concatenate those of a cpu.

    page_size: bytes. comms: thread id to name, of writing threads. ValueError at invalid data, or at an entry
    too large for a page, after all pages with records before it.
    """

    cdef Records _records
    cdef readonly dict comms  #: dict[int, str]
    cdef size_t _size
    cdef dict _pages          # cpu to _Page
    cdef _Page _page
    cdef int32_t _tid         # of the record before

    def __init__(self, Records records not None, size_t page_size):
        self._records = records
        self._size = page_size
        self.comms = {}
        self._pages = {}

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        cdef _Page page
        error = None
        try:
            while (done := self._fill()) is not None:
                yield done
        except ValueError as raised:
            error = raised
        for _, page in sorted(self._pages.items()):
            if page.used > HEADER_SIZE:
                yield self._take(page)
        if error is not None:
            raise error

    cdef tuple _fill(self):
        """(cpu, page) of a full page; None at the end."""
        cdef Raw raw
        cdef _Page page
        cdef tuple done
        cdef bint full
        while self._records.next_original(&raw) is not None:
            page = self._page_of(raw.cpu)
            if raw.tid != self._tid or not self.comms:
                self.comms.setdefault(raw.tid, self._records.comm(raw.tid))
                self._tid = raw.tid
            if raw.size > self._size - HEADER_SIZE - STAMP_SIZE:
                raise ValueError(f"entry of {raw.size} bytes is too large for a page of {self._size}")
            done = None
            if raw.lost:
                if page.used > HEADER_SIZE:
                    done = self._take(page)
                page.lost = raw.lost
            # A page has its lost count behind its records.
            full = page.lost > 0 and page.used > HEADER_SIZE and self._size - page.used < raw.size + MOST_MORE
            if full or not self._add(page, &raw):
                done = self._take(page)
                self._add(page, &raw)
            if done is not None:
                return done
        return None

    cdef _Page _page_of(self, uint32_t cpu):
        if self._page is None or self._page.cpu != cpu:
            found = self._pages.get(cpu)
            if found is None:
                found = self._pages[cpu] = _Page.__new__(_Page)
                (<_Page>found).cpu = cpu
            self._page = <_Page>found
        return self._page

    cdef bint _add(self, _Page page, const Raw *raw) except -1:
        """False, and nothing changes, if it does not fit."""
        cdef bint is_first = page.used == HEADER_SIZE
        cdef bint is_back = not is_first and raw.time_ns < page.ts
        cdef uint64_t delta = 0 if is_first else raw.time_ns - page.ts
        cdef size_t stamp = 0, header = 4, data = (raw.size + 3) & ~<size_t>3, end
        cdef char *to
        if raw.size > DATA_MAX * 4:
            header = 8
        elif data == 8:
            data = 12       # a record must be able to become a time extend and padding of 8 bytes each
        if is_back or delta > DELTA_MASK:
            stamp = STAMP_SIZE
        end = page.used + stamp + header + data
        if end > self._size:
            return False
        if end > <size_t>PyByteArray_GET_SIZE(page.page):
            PyByteArray_Resize(page.page, min(2 * end, self._size))
        to = PyByteArray_AS_STRING(page.page) + page.used
        if is_first:
            page.begin = raw.time_ns
        elif stamp:
            if is_back or delta > STAMP_BITS_MASK:
                # Backwards, or more than the 59 bits of a time extend: an absolute time, no delta.
                put_time(to, TIME_STAMP, raw.time_ns & STAMP_BITS_MASK)
            else:
                put_time(to, TIME_EXTEND, delta)
            delta = 0
            to += stamp
        if header == 4:
            put_word(to, <uint32_t>(data // 4) | <uint32_t>(delta << 5))
        else:
            put_word(to, <uint32_t>(delta << 5))
            put_word(to + 4, <uint32_t>data + 4)
        memcpy(to + header, raw.entry, raw.size)
        memset(to + header + raw.size, 0, data - raw.size)
        page.ts = raw.time_ns
        page.used = end
        return True

    cdef tuple _take(self, _Page page):
        """Take (cpu, page); begins another one."""
        cdef uint64_t word = page.used - HEADER_SIZE
        cdef bytes whole = PyBytes_FromStringAndSize(NULL, self._size)
        cdef char *to = PyBytes_AS_STRING(whole)
        memset(to + page.used, 0, self._size - page.used)
        memcpy(to + HEADER_SIZE, PyByteArray_AS_STRING(page.page) + HEADER_SIZE, page.used - HEADER_SIZE)
        if page.lost:
            word |= MISSED_BIT
            if page.lost > 0 and self._size - page.used >= COUNT_SIZE:
                word |= STORED_BIT
                memcpy(to + page.used, &page.lost, COUNT_SIZE)
        memcpy(to, &page.begin, 8)
        memcpy(to + 8, &word, 8)
        page.used = HEADER_SIZE
        page.lost = 0
        return page.cpu, whole


cdef inline void put_word(char *to, uint32_t word) noexcept:
    memcpy(to, &word, 4)


cdef inline void put_time(char *to, uint32_t type_len, uint64_t value) noexcept:
    put_word(to, <uint32_t>((value & DELTA_MASK) << 5) | type_len)
    put_word(to + 4, <uint32_t>(value >> DELTA_BITS))


cdef class WholePages:
    """Iterates over (cpu, page) of all pages of an otherwise unread source, unchanged.

    sound: the pages are regular: one buffer, one page size, each cpu once, complete records with all common
    fields. Else use RecordPages.
    records, lost, lost_uncounted, comms: as in Records and RecordPages. nr_cpus, page_size: of all.
    """

    cdef MergedPages _source
    cdef dict _names
    cdef readonly dict comms  #: dict[int, str]
    cdef readonly bint sound
    cdef readonly uint64_t records
    cdef readonly uint64_t lost
    cdef readonly bint lost_uncounted
    cdef readonly uint64_t nr_cpus
    cdef readonly uint64_t page_size

    def __init__(self, MergedPages source not None):
        self._source = source
        self._names = source.comms
        self.comms = {}
        self.nr_cpus = 1
        self.sound = self._look()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        cdef Stream *stream
        cdef uint64_t at
        cdef Py_ssize_t i
        for i in range(self._source._count):
            stream = &self._source._streams[i]
            for at in range(stream.next_page, stream.end, stream.page_size):
                self._source.read_bytes += stream.page_size
                yield stream.cpu, PyBytes_FromStringAndSize(
                    <const char *>self._source._file.buf + at, stream.page_size
                )

    cdef bint _look(self) except -1:
        cdef Stream *stream
        cdef uint64_t at
        cdef Py_ssize_t i, first = -1
        cpus = set()
        for i in range(self._source._count):
            stream = &self._source._streams[i]
            if stream.next_page == stream.end:
                continue
            if first < 0:
                first = i
            if (
                stream.cpu in cpus
                or stream.buffer != self._source._streams[first].buffer
                or stream.page_size != self._source._streams[first].page_size
            ):
                return False
            cpus.add(stream.cpu)
            self.nr_cpus = max(self.nr_cpus, <uint64_t>stream.cpu + 1)
            self.page_size = stream.page_size
            for at in range(stream.next_page, stream.end, stream.page_size):
                if not self._look_at(<const char *>self._source._file.buf + at, stream.page_size):
                    return False
        return first >= 0

    cdef bint _look_at(self, const void *page, uint64_t size) except -1:
        cdef PageCursor cursor
        cdef Found found
        cdef int64_t missed
        cdef int32_t tid = 0, before = 0
        cdef uint64_t records = 0
        try:
            open_page(&cursor, <const unsigned char *>page, size)
        except ValueError:
            return False
        missed = missed_before(&cursor)
        while (found := find_record(&cursor)) == RECORD:
            if cursor.length < HEADER:
                return False
            memcpy(&tid, cursor.page + cursor.data + 4, 4)
            if tid != before or not records:
                self.comms.setdefault(tid, comm_of(self._names, tid))
                before = tid
            records += 1
        self.records += records
        if missed < 0:
            self.lost_uncounted = True
        else:
            self.lost += missed
        return found == END and records > 0
