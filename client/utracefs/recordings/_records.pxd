"""The records of any file, one by one, for compiled readers; see _records.pyx."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from utracefs_protocol.events._fields cimport *
from utracefs_protocol.filter._program cimport Filter, Names
from utracefs_protocol.pages.record cimport COMM_SIZE, Record as Judged

cdef enum:
    HEADER = 8            # u16 common_type, u8 common_flags, u8 common_preempt_count, i32 common_pid
    KNOWN_NAMES = 1 << 16 # in a cache
    NR_SLOTS = 256        # events that are found without a dict; a power of two

cdef struct Raw:
    uint64_t time_ns
    int64_t lost          # records lost in front of it; -1 if not counted
    uint32_t cpu
    uint32_t buffer
    int32_t pid
    int32_t tid
    const uint8_t *entry  # valid until the next one
    size_t size
    uint32_t recording    # of several that are merged: its number

cdef struct EventSlot:
    bint known
    uint32_t key          # see event_key
    void *decoder         # borrowed from Records._events; NULL: not selected


@cython.final
cdef class NameCache:
    cdef object _make
    cdef dict _known
    cdef str _last            # mostly that of the record before
    cdef bytes _made

    cdef bytes of(self, str name)


cdef class RecordSource:
    cdef public dict comms  #: dict[int, str]
    cdef int64_t lost_behind  # the last record, once `next` has said that there is no more; -1 if not counted
    cdef bint keeps_comms     # `comms` never change
    cdef bint is_steady       # nor do entries, as long as the source is there
    cdef bint next(self, Raw *raw) except -1
    cdef int original(self, Raw *raw) except -1


cdef class ThreadNames(Names):
    cdef dict _comms          # as of the record at hand
    cdef int32_t _tid
    cdef str _shown           # whose bytes these are
    cdef char _name[COMM_SIZE]


cdef class EventDecoder(Fields):
    cdef public Filter filter  #: Filter | None
    cdef readonly str system
    cdef readonly str name
    cdef readonly tuple paths  #: tuple[tuple[str, ...], ...]
    cdef readonly int opcode
    cdef tuple _json
    cdef uint64_t _least      # bytes of an entry that has the fixed parts of all fields
    cdef bint _has_locs

    cdef bint fits(self, const Raw *raw) noexcept
    cdef dict fields(self, const Raw *raw)


@cython.final
cdef class Records:
    cdef RecordSource _source
    cdef object _find_event
    cdef dict _events
    cdef EventSlot _slots[NR_SLOTS]
    cdef list _instances
    cdef list _places
    cdef list _apart
    cdef int32_t _shift       # of the present record's ids
    cdef dict _labelled
    cdef str _comm            # of the thread `_tid`
    cdef int32_t _tid
    cdef object _pids
    cdef object _cpus
    cdef uint64_t _since
    cdef uint64_t _last
    cdef bint _none          # until_ns is before all times
    cdef bint _takes_all     # of the selected events, but for filters
    cdef EventDecoder _again # all records of the event `_key` are selected; None: not known
    cdef uint32_t _key
    cdef int64_t _pending
    cdef readonly uint64_t count
    cdef readonly uint64_t last_ns
    cdef readonly uint64_t lost
    cdef readonly bint lost_uncounted
    cdef readonly bint is_merged

    cdef bint within(self, const Raw *raw) except -1
    cdef EventDecoder selected(self, const Raw *raw)
    cdef EventDecoder next(self, Raw *raw)
    cdef EventDecoder next_original(self, Raw *raw)
    cdef EventDecoder _selected(self, uint32_t key)
    cdef str comm(self, int32_t tid)
    cdef str instance(self, uint32_t buffer)
    cdef tuple place(self, const Raw *raw)
    cdef bint is_steady(self) noexcept

cdef str comm_of(dict comms, int32_t tid)
cdef bint passes(Filter filter, const Raw *raw, dict comms) except -1


cdef inline uint32_t event_key(const Raw *raw) noexcept nogil:
    """Number of an event in all recordings that are merged. The entry has its header."""
    cdef uint16_t id
    memcpy(&id, raw.entry, 2)
    return raw.recording << 16 | id


cdef inline uint32_t slot_of(uint32_t key) noexcept nogil:
    """A slot for a number with that of its recording in the upper half."""
    return (key ^ (key >> 16) * 37) & (NR_SLOTS - 1)
