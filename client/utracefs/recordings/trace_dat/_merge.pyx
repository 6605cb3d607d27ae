# cython: boundscheck=False, wraparound=False
"""Merges the records of a file by time: one stream per cpu and buffer, and a heap of them; equal times in the
order of the streams.

A stream's own records keep their order, even if times of an invalid file go back. Most records are followed
by one of the same cpu, which costs two comparisons.

A page is read in place in the (mapped) file, without copies; nothing is kept of finished pages.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from utracefs.recordings._heap cimport Entry, order, sift_down
from utracefs.recordings._records cimport HEADER, Raw, RecordSource
from utracefs_protocol.memory cimport zeroed
from utracefs_protocol.pages._subbuf cimport END, RECORD, Found, broken, find_record, missed_before, open_page


cdef class MergedPages(RecordSource):
    """The records of a trace.dat.

    file: the whole file. extents: (buffer, cpu, offset, size, page_size) of each stream; `buffer` is a number
    of the caller.

    offset_ns: added to all times. tgids: thread id to process id. A page has no process ids: without an entry
    here the thread's id is used.
    recover: skip the rest of a page behind an invalid record, as an unknown number of lost records.
    size_bytes: of all pages. read_bytes: of those opened so far.

    ValueError: an extent outside of the file or not of whole pages; while iterating, an invalid page, after
    all before it in its stream. Then the iteration has ended.
    """

    def __cinit__(
        self, file: mmap.mmap | bytes, extents: Iterable[tuple[int, int, int, int, int]], *,
        offset_ns: int = 0, tgids: Mapping[int, int] | None = None, bint recover=False
    ):
        cdef Py_ssize_t i
        cdef Stream *stream
        extents = list(extents)
        self._recover = recover
        self._offset = offset_ns & 0xFFFF_FFFF_FFFF_FFFF
        self._tgids = dict(tgids) if tgids else None
        self.keeps_comms = True
        PyObject_GetBuffer(file, &self._file, PyBUF_SIMPLE)
        self._streams = <Stream *>zeroed(len(extents) + 1, sizeof(Stream))
        self._heap = <Entry *>zeroed(len(extents) + 1, sizeof(Entry))
        self._count = len(extents)
        for i, (buffer, cpu, offset, size, page_size) in enumerate(extents):
            if offset + size > self._file.len or page_size <= 0 or size % page_size:
                raise ValueError(f"cpu {cpu} has {size} bytes at {offset} of a file of {self._file.len}")
            stream = &self._streams[i]
            stream.buffer = buffer
            stream.cpu = cpu
            stream.next_page = offset
            stream.end = offset + size
            stream.page_size = page_size
            self.size_bytes += size

    def __dealloc__(self):
        free(self._streams)
        free(self._heap)
        PyBuffer_Release(&self._file)

    cdef bint next(self, Raw *raw) except -1:
        cdef Stream *stream = self._next()
        if stream == NULL:
            return False
        raw.time_ns = stream.page.ts + self._offset
        raw.lost = stream.lost
        raw.cpu = stream.cpu
        raw.buffer = stream.buffer
        raw.recording = 0
        raw.entry = stream.page.page + stream.page.data
        raw.size = stream.page.length
        raw.tid = 0
        if raw.size >= HEADER:
            memcpy(&raw.tid, raw.entry + 4, 4)
        raw.pid = raw.tid
        if self._tgids is not None:
            if raw.tid != self._last_tid:
                self._last_pid = self._tgids.get(raw.tid, raw.tid)
                self._last_tid = raw.tid
            raw.pid = self._last_pid
        return True

    cdef Stream *_next(self) except? NULL:
        """The stream with the next record; NULL at the end. Invalidates the present record."""
        cdef Stream *stream
        try:
            if not self._begun:
                self._begin()
            elif self._count:
                stream = &self._streams[self._heap[0].number]
                if self._advance(stream):
                    self._heap[0].time = stream.page.ts
                else:
                    self._count -= 1
                    self._heap[0] = self._heap[self._count]
                sift_down(self._heap, self._count, 0)
        except ValueError:
            self._count = 0
            raise
        return &self._streams[self._heap[0].number] if self._count else NULL

    cdef int _begin(self) except -1:
        cdef Py_ssize_t i, count = 0
        self._begun = True
        for i in range(self._count):
            if self._advance(&self._streams[i]):
                self._heap[count].time = self._streams[i].page.ts
                self._heap[count].number = i
                count += 1
        self._count = count
        order(self._heap, count)
        return 0

    cdef bint _advance(self, Stream *stream) except -1:
        """Advance; whether the stream has another record."""
        cdef Found found = END
        cdef int64_t missed
        cdef bint after_broken = False
        cdef uint64_t at = stream.next_page - stream.page_size
        stream.lost = 0
        if stream.page.page != NULL:
            found = find_record(&stream.page)
        while True:
            try:
                while found == END and stream.next_page < stream.end:
                    at = stream.next_page
                    stream.next_page += stream.page_size
                    self.read_bytes += stream.page_size
                    open_page(&stream.page, <const uint8_t *>self._file.buf + at, stream.page_size)
                    missed = missed_before(&stream.page)
                    stream.lost = -1 if missed < 0 or stream.lost < 0 else stream.lost + missed
                    found = find_record(&stream.page)
                if found > END:
                    broken(&stream.page, found)
            except ValueError as error:
                if not self._recover:
                    raise ValueError(f"cpu {stream.cpu}, page at {at}: {error}") from None
                after_broken = True
                found = END
                continue
            if after_broken:
                stream.lost = -1
            return found == RECORD
