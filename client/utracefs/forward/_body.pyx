# cython: boundscheck=False, wraparound=False
"""The body of a batch: raw records in the layout of the stream ring (include/stream_ring.h), without SS_PAD,
SS_FORMAT and SS_COMM.

    StreamRing: a batch ─▶ Cutter: bodies of bounded size ─▶ disk ─▶ BodyRecords ─▶ Records
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from utracefs.recordings._records cimport TEXT_VALUE, Raw, RecordSource, kind_of, text_length
from utracefs_protocol.events._fields cimport Place, find_bytes, set_place
from utracefs_protocol.memory cimport resized, zeroed
from utracefs_protocol.pages._stream_ring cimport StreamRing
from utracefs_protocol.pages.stream_ring cimport *
#: from utracefs_protocol.events.declaration import Field

cdef enum:
    NR_IDS = 65536


cdef class Edit:
    """Hides a field in its place. digest: of the value's bytes, to be stored instead, cut to the size of the
    value; None: zeros."""

    cdef Place place
    cdef bint is_text
    cdef object digest

    def __init__(self, field not None: Field, digest: Callable[[bytes], bytes] | None = None):
        set_place(&self.place, field)
        self.is_text = kind_of(field) == TEXT_VALUE
        self.digest = digest


cdef class Cutter:
    """Cuts the batches of a stream ring into bodies of at most max_records records and, unless one record is
    larger, max_bytes bytes. allows: event id to whether its records are kept, or to a tuple of Edit for
    them. sample: event id to n, of which one of n records is kept. Both are called once per batch and event.
    sampled: event id to number of records of the last batch that were left out for that."""

    cdef object _allows
    cdef dict _edits           # by event id: a tuple of Edit
    cdef Py_ssize_t _max_records
    cdef Py_ssize_t _max_bytes
    cdef object _sample
    cdef dict _seen            # event id to number of records since the last one of the sample
    cdef readonly dict sampled  #: dict[int, int]
    cdef uint8_t *_judged      # by event id: 0 unknown, 1 kept, 2 left out, 3 edited
    cdef uint32_t *_counted    # records of the present body, by event id
    cdef uint16_t *_ids        # those whose count is not 0
    cdef Py_ssize_t _nr_ids
    cdef uint8_t *_data        # the body's records before the run, if any; its memory is kept
    cdef Py_ssize_t _size
    cdef Py_ssize_t _capacity
    cdef uint8_t *_run         # records side by side in the ring
    cdef Py_ssize_t _run_size

    def __cinit__(
        self, allows: Callable[[int], bool | tuple[Edit, ...]], Py_ssize_t max_records, Py_ssize_t max_bytes,
        sample: Callable[[int], int] | None = None
    ):
        self._allows = allows
        self._edits = {}
        self._sample = sample
        self._seen = {}
        self.sampled = {}
        self._max_records = max(max_records, 1)
        self._max_bytes = max(max_bytes, 1)
        self._judged = <uint8_t *>zeroed(NR_IDS, 1)
        self._counted = <uint32_t *>zeroed(NR_IDS, sizeof(uint32_t))
        self._ids = <uint16_t *>zeroed(NR_IDS, sizeof(uint16_t))

    def __dealloc__(self):
        free(self._judged)
        free(self._counted)
        free(self._ids)
        free(self._data)

    cdef uint8_t judge(self, uint16_t id) except 0:
        if not self._judged[id]:
            found = self._allows(id)
            self._judged[id] = 2 if found is False else 1 if found is True else 3
            if self._judged[id] == 3:
                self._edits[id] = <tuple?>found
        return self._judged[id]

    cdef int edit(self, uint16_t id, ss_record *record) except -1:
        """Hide fields of a copied record: all of them if one cannot be found."""
        cdef Edit one
        cdef const uint8_t *data = NULL
        cdef size_t length = 0, size
        cdef bytes digest
        for one in <tuple>self._edits[id]:
            if not find_bytes(&one.place, record.entry, record.length, &data, &length):
                memset(record.entry + SS_COMMON, 0, record.length - SS_COMMON)
                return 0
            if one.digest is None:
                memset(<uint8_t *>data, 0, length)
                continue
            size = text_length(data, length) if one.is_text else length
            digest = one.digest(data[:size])
            memset(<uint8_t *>data, 0, length)
            memcpy(<uint8_t *>data, PyBytes_AS_STRING(digest), min(size, <size_t>PyBytes_GET_SIZE(digest)))
        return 0

    cdef bint leaves_out(self, uint16_t id, dict every) except -1:
        """Whether a record of the event is none of the sample."""
        n = every.get(id)
        if n is None:
            n = every[id] = self._sample(id)
        if n <= 1:
            return False
        seen = self._seen.get(id, 0) + 1
        self._seen[id] = seen % n
        if seen >= n:
            return False
        self.sampled[id] = self.sampled.get(id, 0) + 1
        return True

    cdef int copy_run(self) except -1:
        """Append the run to `_data`."""
        cdef Py_ssize_t size = self._size + self._run_size
        if size > self._capacity:
            self._capacity = max(2 * self._capacity, size)
            self._data = <uint8_t *>resized(self._data, self._capacity)
        if self._run_size:
            memcpy(self._data + self._size, self._run, self._run_size)
        self._size = size
        self._run_size = 0
        return 0

    cdef bytes body(self):
        """The records kept so far. Without a gap between them in the ring they are copied once."""
        cdef bytes body
        if not self._size:
            body = PyBytes_FromStringAndSize(<char *>self._run, self._run_size)
        else:
            self.copy_run()
            body = PyBytes_FromStringAndSize(<char *>self._data, self._size)
        self._size = self._run_size = 0
        return body

    cdef dict counts(self):
        """Event id to number of records of the body, which is over."""
        cdef dict found = {}
        cdef Py_ssize_t i
        for i in range(self._nr_ids):
            found[self._ids[i]] = self._counted[self._ids[i]]
            self._counted[self._ids[i]] = 0
        self._nr_ids = 0
        return found

    def cut(
        self, StreamRing ring not None, Py_ssize_t room
    ) -> tuple[list[tuple[bytes, dict[int, int], set[int], int, int]], dict[int, int]]:
        """The ring's present batch: a list of (body, event id to number of records, thread ids, time of the
        first record, of the last), and event id to number of the records above `room`."""
        cdef uint64_t at = ring.begin, first = 0, last = 0
        cdef ss_record *record
        cdef Py_ssize_t size, records = 0, share = ring.end - ring.begin
        cdef uint16_t id
        cdef uint8_t verdict
        cdef int32_t tid, last_tid = 0
        cdef dict refused = {}
        cdef set tids = set()
        cdef dict every = {}
        cdef list found = []
        # Cut bodies of equal size: a small last body would have the fixed cost of a large one.
        share = share // max(-(-share // self._max_bytes), 1)
        self.sampled = {}
        memset(self._judged, 0, NR_IDS)
        self.counts()
        self._size = self._run_size = 0
        while at != ring.end:
            record = ring.record_at(at)
            at += record.size
            if record.kind != SS_RECORD and record.kind != SS_LOST:
                continue
            memcpy(&id, record.entry, 2)
            verdict = self._judged[id] or self.judge(id)
            if verdict == 2:
                continue
            # Records that are left out, and those above the limit.
            if self._sample is not None and record.kind == SS_RECORD and self.leaves_out(id, every):
                continue
            if record.kind == SS_RECORD and not room:
                refused[id] = refused.get(id, 0) + 1
                continue
            # A body with so many bytes or records is complete.
            size = self._size + self._run_size
            if records == self._max_records or (
                records and (size >= share or size + <Py_ssize_t>record.size > self._max_bytes)
            ):
                found.append((self.body(), self.counts(), tids, first, last))
                tids = set()
                records = 0
            # Records that follow one another in the ring are copied at once; one that is edited ends a copy.
            if self._run + self._run_size != <uint8_t *>record:
                self.copy_run()
                self._run = <uint8_t *>record
            self._run_size += record.size
            if verdict == 3 and record.kind == SS_RECORD:
                self.copy_run()
                self.edit(id, <ss_record *>(self._data + self._size - record.size))
                self._run = NULL
            # Losses are in the body, but they are no records of it.
            if record.kind == SS_LOST:
                continue
            memcpy(&tid, record.entry + 4, 4)
            if not records:
                first = record.time_ns
            if not records or tid != last_tid:
                tids.add(tid)
                last_tid = tid
            last = record.time_ns
            if not self._counted[id]:
                self._ids[self._nr_ids] = id
                self._nr_ids += 1
            self._counted[id] += 1
            records += 1
            room -= 1
        body = self.body()  # with losses behind the last record
        if records:
            found.append((body, self.counts(), tids, first, last))
        return found, refused


cdef class BodyRecords(RecordSource):
    """The records of a body. gap: an unknown number was lost in front of it. ValueError: it is no body."""

    cdef bytes _body
    cdef Py_ssize_t _at
    cdef bint _gap

    def __init__(self, bytes body not None, dict comms not None: dict[int, str], bint gap=False):
        self._body = body
        self.comms = comms
        self._gap = gap
        self.is_steady = self.keeps_comms = True

    cdef bint next(self, Raw *raw) except -1:
        cdef Py_ssize_t left
        cdef ss_record *record
        cdef uint64_t n
        raw.lost = -1 if self._gap else 0
        while (left := PyBytes_GET_SIZE(self._body) - self._at) > 0:
            record = <ss_record *>(PyBytes_AS_STRING(self._body) + self._at)
            if (
                left < <Py_ssize_t>(SS_RECORD_HEADER + SS_COMMON)
                or record.size > <size_t>left
                or record.size < SS_RECORD_HEADER + SS_COMMON
                or record.length < SS_COMMON
                or record.length > record.size - SS_RECORD_HEADER
            ):
                raise ValueError(f"no record at byte {self._at} of {PyBytes_GET_SIZE(self._body)}")
            self._at += record.size
            if record.kind == SS_RECORD:
                self._gap = False
                raw.time_ns = record.time_ns
                raw.cpu = record.cpu
                raw.buffer = raw.recording = 0
                raw.pid = record.pid
                memcpy(&raw.tid, record.entry + 4, 4)
                raw.entry = record.entry
                raw.size = record.length
                return True
            if record.kind == SS_LOST and raw.lost >= 0 and record.length >= SS_COMMON + 8:
                memcpy(&n, record.entry + SS_COMMON, 8)
                raw.lost += <int64_t>min(n, <uint64_t>1 << 62)
        self.lost_behind = raw.lost
        return False
