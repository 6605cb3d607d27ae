"""Converting records to items on tracks; see _track_writer.pyx."""

from libc.stdint cimport int32_t, uint64_t

from utracefs.recordings._records cimport EventDecoder, Raw
from utracefs.export.timelines._placing cimport Nesting, Open, OpenSlices, Track, TrackKind
from utracefs.recordings._output_buffer cimport RecordWriter

cdef enum PartKind:
    POINT_PART
    BEGIN_PART
    END_PART
    SPAN_PART
    COUNT_PART

cdef enum:
    THREAD_SLOTS = 256    # threads found without a dict; a power of two

cdef struct ThreadSlot:
    int32_t pid
    int32_t tid
    void *thread          # borrowed from TrackWriter._threads; NULL: none yet


cdef class Part:
    cdef PartKind kind
    cdef Track track
    cdef uint64_t begin_ns        # the moment of all that is no span
    cdef uint64_t end_ns
    cdef str name
    cdef str system               # of the event that began it
    cdef bint on_thread
    cdef bint bare                # no fields: the record is another one's
    cdef object value


cdef class Thread:
    cdef Track track
    cdef Track process
    cdef str comm
    cdef Nesting nesting
    cdef list lanes


cdef class EventPlan:
    cdef bint is_point            # only
    cdef Py_ssize_t span_name     # place of a span's name of its own, or -1
    cdef list ends                # those of Roles
    cdef list begins
    cdef list durations
    cdef list counters
    cdef str cpu                  # names of arguments that are no fields
    cdef str tid
    cdef str pid
    cdef str instance
    cdef str end
    cdef object text              # the format's own
    cdef tuple names              # of the fields, unique and without what is not UTF-8


cdef class TrackWriter(RecordWriter):
    cdef public Py_ssize_t max_threads
    cdef object _tracks
    cdef OpenSlices _open
    cdef dict _plans
    cdef dict _threads
    cdef dict _processes
    cdef dict _counters
    cdef readonly uint64_t ends_without_begin
    cdef Track lost
    cdef uint64_t _made           # tracks
    cdef uint64_t _latest_ns      # of all records when threads were forgotten
    cdef uint64_t _seen_ns
    cdef ThreadSlot _slots[THREAD_SLOTS]
    # of the present record
    cdef EventPlan plan
    cdef Thread thread
    cdef str instance
    cdef list new                 # tracks to be described in front of it
    cdef list parts               # None: a point

    cdef object text_of_event(self, EventDecoder event, EventPlan plan)
    cdef EventPlan _plan(self, EventDecoder event)
    cdef int _find_thread(self, const Raw *raw) except -1
    cdef int _name_thread(self, const Raw *raw, str comm) except -1
    cdef list _place(self, EventDecoder event, const Raw *raw)
    cdef object _name(self, EventDecoder event, const Raw *raw, name)
    cdef int _begin(self, list parts, Open one, Track track, bint bare) except -1
    cdef int _end(self, list parts, Open one, uint64_t ns) except -1
    cdef int _place_spans(self, list parts, EventDecoder event, const Raw *raw) except -1
    cdef int _place_span(self, list parts, str name, uint64_t begin_ns, uint64_t end_ns) except -1
    cdef tuple _key(self, EventDecoder event, const Raw *raw, number, tuple places)
    cdef Track _track(self, TrackKind kind, str name, Track parent, int32_t pid, int32_t tid)
