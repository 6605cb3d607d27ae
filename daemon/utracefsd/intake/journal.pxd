"""The functions of include/journal.h, which explains the journal and the order of its stores."""

from libc.stdint cimport uint32_t, uint64_t

from utracefsd.machine.tsc_clock cimport tsc_clock_pair

cdef extern from "journal.h" nogil:
    const uint64_t JR_MAGIC
    const uint32_t JR_VERSION
    const uint32_t JR_SLOT_BYTES
    const uint64_t JR_JUDGED
    const uint64_t JR_SKIPPING
    const int JR_MAX_BUFFERS
    enum:
        JR_TAKEN_WORDS
    ctypedef struct jr_header "struct jr_header":
        uint64_t magic
        uint32_t version
        uint32_t slot_bytes
        tsc_clock_pair clock_first
        tsc_clock_pair *clock_last
        uint64_t clock_at
    ctypedef struct jr_slot "struct jr_slot":
        uint64_t used
        uint64_t dev
        uint64_t ino
        uint64_t tail
        uint64_t number
        uint64_t *taken
    void jr_done(jr_slot *slot, uint64_t tail)
    void jr_give_slot(jr_slot *slot, uint64_t dev, uint64_t ino, uint64_t tail, uint64_t number)
    void jr_renumber(jr_slot *slot, uint64_t number)
    void jr_free_slot(jr_slot *slot)
    void jr_judge(jr_slot *slot, const uint64_t *taken)
    void jr_note_clock(jr_header *header, const tsc_clock_pair *first, const tsc_clock_pair *last)
    bint jr_has_taken(const jr_slot *slot, int buffer)
