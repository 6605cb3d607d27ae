from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from utracefs_protocol.pages.record cimport Record
from utracefsd.machine._writer_names cimport WriterNames
from utracefsd.events._tracepoint cimport Tracepoint

cdef extern from "hist_table.h" nogil:
    enum:
        HT_MAX_KEY
    cdef struct ht_redo:
        uint64_t element
    cdef struct ht_taken:
        uint64_t valid, value
        unsigned char *key
    cdef struct ht_header:
        uint32_t bits, key_size, nr_words
        uint64_t hits, drops, entries
        ht_redo redo
        ht_taken taken
    cdef struct ht:
        ht_header *header
        uint64_t *image
        size_t element_bytes
    cdef struct ht_place:
        uint64_t element, slot
    size_t ht_first_bytes(uint32_t key_size, uint32_t nr_words)
    void ht_attach(ht *t, void *memory)
    bint ht_is_used(const void *memory)
    size_t ht_bytes(uint32_t bits, uint32_t key_size, uint32_t nr_words)
    bint ht_is_possible(uint32_t bits, uint32_t key_size, uint32_t nr_words)
    void ht_make(ht *t, void *memory, uint32_t bits, uint32_t key_size, uint32_t nr_words, uint64_t seed)
    bint ht_adopt(ht *t, void *memory, size_t bytes, uint32_t bits, uint32_t key_size, uint32_t nr_words)
    uint64_t *ht_words(const ht *t, uint64_t element)
    unsigned char *ht_key(const ht *t, uint64_t element)
    void ht_find(const ht *t, const uint64_t *key, ht_place *place)
    void ht_begin(ht *t, uint64_t who, uint64_t serial)
    void ht_count(ht *t, const ht_place *place, const uint64_t *key)
    void ht_change(ht *t, uint64_t element)
    void ht_drop(ht *t, uint64_t who, uint64_t serial)
    void ht_take(ht *t, uint64_t value)
    bint ht_takes(const ht *t, uint64_t who, uint64_t serial)
    bint ht_is_full(const ht *t)
    void ht_clear(ht *t)
    bint ht_has_taken(const ht *t, uint64_t who, uint64_t serial)

cpdef enum Op:
    # The operation of a Step. Operands come before it, and those up to REF push a number:
    CONST           # `value`
    FIELD           # the integer of `size` bytes at `offset` of the payload, extended by its sign if `signed`
    TYPE            # common_type
    PID             # common_pid
    CPU
    TIMESTAMP       # in microseconds if `value`
    REF             # the value of reference number `value`
    LOG2            # round up to a power of two, and take its logarithm
    BUCKET          # round down to a multiple of `value`
    ADD
    SUB
    MULT
    DIV             # all ones for a division by 0
    DIV_CONST       # by `value`, which is small and no power of two: rounded as in `expressions.divided`
    NEGATE

cpdef enum KeyKind:
    # How a key is stored in the table.
    NUMBER          # eight bytes, the result of its steps
    FIXED_STRING    # up to the first NUL
    DATA_LOC        # a dynamic string; its location word counts from the beginning of the entry
    REL_LOC         # the same, counted from the end of its location word
    NOTHING         # zeros: there is no stack
    COMM            # the name of the writing thread; a variable only

cpdef enum When:
    # When a Slot is set.
    ALWAYS          # with each record
    SAVED           # when an action saves it
    TRACKED         # by the action that tracks it

cdef struct Step:
    int op
    bint signed
    uint32_t size
    uint64_t offset
    uint64_t value

cdef struct Key:
    int kind
    uint32_t offset
    uint32_t size
    uint64_t at
    uint64_t length
    int first               # of its steps
    int end

cdef struct Slot:
    # A variable, or another value that an entry keeps: see program.Variable.
    int when
    int first               # of its steps
    int end
    Key key                 # of a string
    int word
    int string_word         # -1: it is a number

cdef struct Resolved:
    # The value of a reference, for one record.
    uint64_t value
    const uint8_t *string   # NULL: it is a number

cdef class Emission:
    # A synthetic event that an action records.
    cdef readonly Tracepoint tracepoint
    cdef tuple params
    cdef int size

cdef class Link:
    # A variable of another histogram that this one reads.
    cdef readonly Hist hist
    cdef int slot
    cdef bint once

cdef class HistTable:
    cdef ht c
    cdef void *memory
    cdef size_t bytes
    cdef readonly str path  #: str | None
    cdef readonly bint has_memory
    cdef public object check_room  #: Callable[[HistTable], None] | None

    cdef int map(self, int fd) except -1
    cdef bint take_memory(self) noexcept
    cdef int leave_file(self, error) except -1

cdef class Hist:
    cdef readonly HistTable table
    cdef WriterNames names
    cdef object owner
    cdef uint64_t *pending      # memory of the owner; NULL: none
    cdef public bint clock_is_ns
    cdef Step *steps
    cdef Key *keys
    cdef int nr_keys
    cdef int *value_ends        # one past the last step of each value
    cdef int nr_values
    cdef uint64_t key[63]       # HT_MAX_KEY bytes
    cdef Slot *slots
    cdef int nr_slots
    cdef int mask_word
    cdef Resolved *resolved
    cdef tuple links            # of Link
    cdef tuple actions          # (tracker, is onmax, subject, saves, takes a snapshot, Emission or None)

    cdef bint resolve(self) noexcept
    cdef void set_slots(self, int when, const Record *r, uint64_t ts) noexcept
    cdef int act(self, const Record *r, uint64_t ts) except -1
    cdef void end_reads(self, uint64_t *key, uint64_t who, uint64_t serial) noexcept
    cdef int emit(self, Emission emission, const Record *r) except -1

    cdef bint add(self, const Record *r, uint64_t ts, uint64_t who, uint64_t serial) noexcept
    cdef uint64_t evaluate(self, int first, int end, const Record *r, uint64_t ts) noexcept
    cdef void make_key(self, const Record *r, uint64_t ts) noexcept
