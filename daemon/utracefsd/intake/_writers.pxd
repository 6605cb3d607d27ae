"""The threads of a process, for DataRing and IndexTable, which ask for the thread of a record."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from utracefsd.intake._giving_back cimport GivingBack

cdef enum:
    KNOWN_TIDS = 64

cdef class Lookups:
    cdef int left
    cdef uint64_t since
    # The ring whose known threads were checked longest ago, in this round.
    cdef object stalest
    # The last one of its rings: one at a time, since a thread may hang in that.
    cdef GivingBack giving_back

    cdef bint take(self, uint64_t now) noexcept

cdef class Writers:
    cdef readonly int pid               # the process, by SO_PEERCRED
    cdef readonly Lookups lookups
    cdef object _lives                  # the first thread, if `pid` still is the process that connected
    cdef object _first                  # as it was last read
    cdef object _comms
    cdef object _start_time
    cdef object _share
    cdef bint is_gone                       # the process had ended already
    cdef bint is_here                   # its pid namespace is ours
    cdef uint32_t known[KNOWN_TIDS]     # thread ids found to be of the process
    cdef uint32_t unknown[KNOWN_TIDS]   # thread ids found not to be, since unknown_since
    cdef uint64_t unknown_since
    cdef list ended                     # slots of those among `known` that no thread had any more

    cdef int32_t find(self, uint32_t tid, const unsigned char *comm, uint64_t now) except? -1
    cdef bint is_thread(self, uint32_t tid)
    cdef bint has_thread(self, uint32_t tid)
    cdef bint has_ended(self, uint32_t tid)
    cdef bint is_of_peer(self)
    cpdef begin_round(self)
    cpdef check_known(self)
