"""The part of a data ring that other compiled modules use: Intake reads it, Journal gives it a slot."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from utracefs_protocol.pages.data_ring cimport dr_consumer, dr_taken
from utracefsd.intake._giving_back cimport GivingBack
from utracefsd.intake._index_table cimport IndexTable
from utracefsd.intake._writers cimport Writers
from utracefsd.intake.journal cimport jr_slot

cdef class DataRing:
    cdef dr_consumer c
    cdef readonly int fd
    cdef readonly int doorbell
    cdef readonly tuple key  #: tuple[int, int]
    cdef readonly IndexTable table      # of its connection; alone, once that has ended
    cdef readonly int pid               # the peer's process, by SO_PEERCRED
    cdef public Writers writers         # its threads
    cdef public bint is_early           # records with an unknown write_index wait for its registration
    cdef public bint dead               # the connection is gone: step over uncommitted records
    cdef readonly bint corrupt
    cdef uint32_t wait_us               # how long its producer may wait for room; 0: the ring never waits
    cdef public bint waits_for_room     # its next record waits for room in the ring of a lossless reader
    cdef readonly uint64_t taken        # records taken in, refused ones included
    cdef uint64_t holes                 # written by dr_next: records of a producer that died
    cdef dr_taken head                  # the oldest record not yet dispatched, if it is in a round
    cdef unsigned char *copy            # its payload, where the producer cannot change it
    # (position, {sink: n}, {write_index: n}), in order: n records are missing in that sink's ring buffer
    # before the first record that ends behind the position. marked_at: the first position; UINT64_MAX without
    # any. The sum by write_index is `counted` in the producer's memory.
    cdef list marks
    cdef uint64_t marked_at
    cdef bint has_unfolded              # there may be losses that are not counted yet
    cdef Py_ssize_t folded_to           # size of the table when losses were last counted
    cdef int64_t not_found              # losses in the producer's sum, not yet in its numbers by event
    cdef bint has_lost                  # its producer counted losses since this was last set to False
    cdef uint64_t narrow_until          # by Intake.narrow
    # By Intake.skip: where the last skip ended, the tail when it had last moved by much and when that was,
    # and how many skips are due that give memory back: two after a flood, three when no event is on any more.
    cdef uint64_t skipped_to
    cdef uint64_t active_tail
    cdef uint64_t active_ns
    cdef int nr_due
    cdef public GivingBack giving_back  # the last part whose memory was given back
    cdef uint64_t known_since           # when they were last checked
    cdef jr_slot *slot                  # its place in the journal; without a journal it is `no_slot`
    cdef jr_slot no_slot
    cdef object journal                 # the Journal, which keeps the slot mapped
    # A daemon died while it dispatched the next record: slot.taken says which instances have it (if slot.tail
    # is marked), `fired` has the keys of triggers that have fired for it; None: none has.
    cdef bint judged
    cdef set fired

    cdef int64_t identify(self) except -1
    cdef int map_it(self, uint32_t size) except -1
    cdef bint is_giving_back(self) noexcept
    cdef int publish(self) except -1
    cdef int fold_lost(self, uint64_t position) except -1
    cdef int add_marks(self, uint64_t position, dict missing, dict counts) except -1
    cdef int mark_lost(self, uint64_t upto) except -1
    cdef void ask_names(self) noexcept
