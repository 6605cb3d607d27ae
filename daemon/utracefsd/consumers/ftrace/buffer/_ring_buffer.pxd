"""The ring buffer for other compiled modules: append, iterate, consume. All of it runs in one thread."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from "ring_buffer.h":
    struct rb_record:
        uint64_t pos
        uint32_t off
        uint32_t end
        uint64_t ts
        const uint8_t *data
        uint32_t size
    struct rb_control:
        uint32_t nr_cpus
    ctypedef struct rb_cpu:
        rb_control *control
        uint32_t nr
        uint32_t subbuf_size
        uint64_t last_ts
        uint64_t identity
    ctypedef struct rb_place:
        uint8_t *entry
    enum:
        RB_RESERVED
        RB_TOO_LARGE
        RB_AGAIN
    void rb_note_origin(rb_cpu *, uint64_t ring, uint64_t at) nogil
    bint rb_has_taken(const rb_cpu *, uint64_t ring, uint64_t at) nogil
    void rb_forget_origin(rb_cpu *) nogil
    void rb_mark_lost(rb_cpu *, uint64_t n) nogil
    int rb_reserve(rb_cpu *, uint64_t ts, size_t size, rb_place *) nogil
    void rb_fill(const rb_place *, uint64_t common, const void *payload, size_t size) nogil
    void rb_commit(rb_cpu *, const rb_place *) nogil
    size_t RB_MAX_DATA(uint32_t subbuf_size) nogil
    ctypedef struct rb_iter:
        uint32_t overtaken
        uint64_t lost
        uint64_t identity
        rb_record next

cdef extern from "ring_reading.h":
    bint rb_is_empty(const rb_cpu *) nogil
    bint rb_has_full_page(const rb_cpu *) nogil
    uint32_t rb_cpu_number(const rb_cpu *) nogil
    int rb_read_page(rb_cpu *, size_t, uint8_t *) nogil

cdef extern from "spare.h":
    struct spare_header:
        pass
    ctypedef struct spare_map:
        spare_header *header
    bint spare_has_key(const spare_map *, const uint64_t *key) nogil
    enum:
        SPARE_KEY_WORDS

cdef class PageReader:
    # Consume the cpu's pages that the writer has left, as far as there is room for them; all_of_them: also
    # the one that it is on.
    cdef void take(self, rb_cpu *b, bint all_of_them) noexcept
    # It has no room, and the intake keeps back records for this buffer.
    cdef readonly bint holds
    cdef void set_holds(self, bint on) noexcept

cdef int nr_holding     # page readers that do

cdef class RingBuffer:
    cdef rb_cpu *cpus                   # nr_cpus of them, one mapping each
    cdef readonly RingBuffer spare  #: RingBuffer | None  # holds the snapshot; None: there is none
    cdef spare_map map                  # which of the two rings of each cpu is the live one
    cdef readonly int nr_cpus
    cdef readonly int subbuf_size       # bytes of one sub-buffer, 4096 << order
    cdef readonly object folder  #: str | None  # str, or None for anonymous memory

    cdef int allocate(self, int nr_cpus, int subbuf_size, folder) except -1
    cdef int make(self, rb_cpu *b, int cpu, int which, uint32_t n, bint overwrite, folder) except -1
    cdef int install(self, int cpu, int which) except -1
    cdef int make_map(self) except -1
    cdef int range_of(self, int cpu, int *end) except -1
    cdef rb_cpu *one(self, int cpu) except NULL
    cdef int remove_new(self, rb_cpu *made, int spare) except -1
    cdef int adopt_map(self) except -1
    cdef int guess_map(self) except -1
    cdef int adopt_cpu(self, rb_cpu *b, int cpu, int which) except -1
    cdef int replace(self, int first, int end, uint32_t n, bint leave) except -1
    cdef int which(self, int cpu, bint spare) noexcept
    # Swap the spare's rings with the live ones, of one cpu or all (-1). May be called within a record, not
    # between reserve and commit: the rb_cpu at &cpus[cpu] is another ring from then on. key: identifies the
    # caller, see spare.h. False: there is no spare.
    cdef bint swap_rings(self, int cpu, const uint64_t *key) noexcept
    # Whether the last swap had this `key`.
    cdef bint has_swapped(self, const uint64_t *key) noexcept

cdef class Cursor:
    cdef readonly RingBuffer buffer
    cdef readonly bint consume
    cdef readonly bint snapshot         # reads the spare's rings
    cdef int first_cpu                  # cpus first_cpu .. end_cpu - 1 are merged
    cdef int end_cpu
    cdef rb_iter *iters
    cdef uint64_t last_tail             # sub-buffer of the writer at the beginning of the walk; one cpu
    cdef uint8_t *copy                  # owned; one largest record
    cdef bint peeked                    # the fields below show the record at (peek_pos, peek_off) of `cpu`
    cdef uint64_t peek_pos
    cdef uint32_t peek_off
    cdef uint64_t peek_identity
    # The current record, set by a peek() or next() that returned True.
    cdef readonly int cpu
    cdef readonly uint64_t ts           # in the trace clock of its writer
    # The entry, in a copy of this cursor's: valid until its next `peek` or `next`.
    cdef const uint8_t *data
    # Bytes of the entry as stored: rounded up to 4, and 8 become 12 (see rb_record_size).
    cdef readonly uint32_t size
    # Lost records on this cpu just before this one; not consuming: without overwritten ones.
    cdef readonly uint64_t lost
    # Not consuming: whether records on this cpu were overwritten just before this one.
    cdef readonly bint overrun

    cdef rb_cpu *ring(self, int cpu) noexcept

    # Load the next record in (ts, cpu) order. False: none now.
    cdef bint peek(self) noexcept
    # Move to the next record, and consume it if `consume`. After a peek() that returned True this is the same
    # record, if it still exists.
    cdef bint next(self) noexcept
