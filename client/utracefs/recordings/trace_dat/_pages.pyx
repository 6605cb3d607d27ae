# cython: boundscheck=False, wraparound=False
"""The pages of a recording: those of a stream ring, and how many records they have."""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from utracefs_protocol.events._line cimport load32, load64
from utracefs_protocol.memory cimport zeroed
from utracefs_protocol.pages._stream_ring cimport StreamRing
from utracefs_protocol.pages._subbuf cimport (
    COMMIT_BITS,
    DATA_MAX,
    RECORD,
    PageCursor,
    find_record,
    open_page,
)
from utracefs_protocol.pages.stream_ring cimport SS_PAGE, ss_record

cdef extern from "fcntl.h" nogil:
    int fallocate(int fd, int mode, long long offset, long long length)
    int FALLOC_FL_COLLAPSE_RANGE

cdef enum:
    # The ids of ftrace's own records (kernel/trace/trace_entries.h) end below.
    FIRST_EVENT = 20


def count_events(page: bytes | bytearray | memoryview) -> int:
    """Number of records of events in a sub-buffer, without ftrace's own (markers), up to an invalid one."""
    cdef Py_buffer view
    PyObject_GetBuffer(page, &view, PyBUF_SIMPLE)
    try:
        return count_in(<const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef uint64_t count_in(const uint8_t *page, uint64_t size) except? -1:
    cdef PageCursor cursor
    cdef uint64_t n = 0, step
    cdef uint32_t usual
    try:
        open_page(&cursor, page, size)
    except ValueError:
        return 0
    while find_record(&cursor) == RECORD:
        n += cursor.length >= 2 and is_event(page + cursor.data)
        # Records like this one without find_record(): it cannot tell where the next one is before it has read
        # this one's size, which a comparison lets the processor predict (1 ns instead of 3.7).
        usual = load32(page + cursor.data - 4) & 31
        step = 4 + usual * 4
        if 0 < usual <= DATA_MAX and cursor.at == cursor.data - 4 + step:
            while cursor.at + step <= cursor.end and (load32(page + cursor.at) & 31) == usual:
                n += is_event(page + cursor.at + 4)
                cursor.at += step
    return n


def unknown_ids(
    pages: bytes | bytearray | memoryview, size_t page_size, known: Iterable[int]
) -> dict[int, int]:
    """Ids of events that are not in `known`, to their number of records in these sub-buffers, of each up to
    an invalid record."""
    cdef Py_buffer view
    cdef PageCursor cursor
    cdef const uint8_t *page
    cdef uint16_t id
    cdef bytearray is_known = bytearray(1 << 16)
    cdef dict found = {}
    for id in known:
        is_known[id] = 1
    PyObject_GetBuffer(pages, &view, PyBUF_SIMPLE)
    try:
        for at in range(0, view.len - view.len % page_size, page_size):
            page = <const uint8_t *>view.buf + <size_t>at
            try:
                open_page(&cursor, page, page_size)
            except ValueError:
                continue
            while find_record(&cursor) == RECORD:
                if cursor.length >= 2 and is_event(page + cursor.data):
                    memcpy(&id, page + cursor.data, 2)
                    if not is_known[id]:
                        found[id] = found.get(id, 0) + 1
        return found
    finally:
        PyBuffer_Release(&view)


cdef inline bint is_event(const uint8_t *entry) noexcept:
    cdef uint16_t id
    memcpy(&id, entry, 2)
    return id >= FIRST_EVENT


def take_out(int fd, long long offset, long long size) -> None:
    """Remove a part of a file, whose rest moves up. OSError: the file system cannot, ..."""
    cdef int code
    with nogil:
        code = fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, offset, size)
    if code < 0:
        raise OSError(errno, os.strerror(errno))


def gather_pages(
    StreamRing ring not None, uint8_t[::1] into not None: bytearray | mmap.mmap, size_t page_size,
    uint32_t nr_cpus
) -> list[tuple[int, int, int, int]]:
    """Copy the pages of the ring's present batch into `into`, those of a cpu one after the other.

    Returns (cpu, begin, end, records of events) of each run: pages that are at least half full, or one page
    that is not. ValueError: a page of another size or cpu, or more than fit.
    """
    cdef uint64_t at = ring.begin, first = 0, end
    cdef uint8_t *to = &into[0]
    cdef uint64_t *place = <uint64_t *>zeroed(nr_cpus + 1, sizeof(uint64_t))
    cdef ss_record *record
    cdef uint32_t cpu
    found = []
    try:
        while at != ring.end:
            record = ring.record_at(at)
            at += record.size
            if record.kind == SS_PAGE:
                if record.length != page_size or record.cpu >= nr_cpus:
                    raise ValueError(f"a page of {record.length} bytes of cpu {record.cpu}")
                place[record.cpu + 1] += page_size
        for cpu in range(nr_cpus):
            place[cpu + 1] += place[cpu]
        if place[nr_cpus] > <uint64_t>into.shape[0]:
            raise ValueError(f"{place[nr_cpus]} bytes of pages")
        at = ring.begin
        while at != ring.end:
            record = ring.record_at(at)
            at += record.size
            if record.kind == SS_PAGE:
                memcpy(to + place[record.cpu], record.entry, page_size)
                place[record.cpu] += page_size
        for cpu in range(nr_cpus):      # place is the end of each now
            while first < place[cpu]:
                end = first + page_size
                records = count_in(to + first, page_size)
                if is_half_full(to + first, page_size):
                    while end < place[cpu] and is_half_full(to + end, page_size):
                        records += count_in(to + end, page_size)
                        end += page_size
                found.append((cpu, first, end, records))
                first = end
    finally:
        free(place)
    return found


cdef inline bint is_half_full(const uint8_t *page, size_t size) noexcept:
    return (load64(page + 8) & COMMIT_BITS) * 2 > size
