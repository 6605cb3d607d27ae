"""The Cython face of client/c/src/binding.h: what libutracefs has for bindings."""

from libc.stdint cimport uint32_t, uint64_t

cdef extern from "binding.h" nogil:
    unsigned char PENDING "UTRACEFS_IS_PENDING"

    ctypedef struct utracefs_event "struct utracefs_event":
        const unsigned char *state

    ctypedef struct utb_session "struct utb_session":
        pass

    ctypedef struct dr_record "struct dr_record":
        pass

    ctypedef struct dr_header "struct dr_header":
        pass

    ctypedef struct utb_reserved "struct utb_reserved":
        dr_record *record
        dr_header *header
        bint half
        bint needs_place

    ctypedef struct ut_moment "struct ut_moment":
        uint64_t time
        uint64_t rate

    ctypedef struct utb_stats "struct utb_stats":
        bint is_connected
        uint32_t ring_bytes

    ctypedef struct ut_refusal "struct ut_refusal":
        uint64_t count
        int error

    ctypedef struct utb_event_stats "struct utb_event_stats":
        uint64_t lost
        uint64_t pending
        uint64_t unwanted
        uint32_t write_index
        unsigned nr_refusals
        ut_refusal refusals[4]
        int error
        char text[160]

    ctypedef int (*utb_interrupted)(void *arg) noexcept nogil

    utb_session *utb_process_session()
    utb_session *utb_session_new(const char *directory, uint64_t buffer_bytes)
    void utb_session_free(utb_session *session)
    int utb_attach(utb_session *session, utracefs_event *event)
    void utb_event_init(utracefs_event *event, const char *command, unsigned flags)
    void utracefs_detach(utracefs_event *event)
    int utracefs_is_wanted(const utracefs_event *event)
    int utb_find_place(
        utracefs_event *event, uint32_t size, uint64_t *until, utb_interrupted interrupted, void *arg
    )
    int utb_flush(utb_session *session, uint64_t timeout_ns, utb_interrupted interrupted, void *arg)
    void utb_close(utb_session *session)
    void utb_stats_of "utb_stats"(utb_session *session, utb_stats *stats)
    void utb_event_stats_of "utb_event_stats"(const utracefs_event *event, utb_event_stats *stats)
    int utb_pause()
    void utb_resume()
    void utb_end()
    int utb_next_warning(char *text, size_t size)
    void utb_on_warning(void (*hook)() noexcept nogil)
    int utb_standard_error()
    void utb_say(const char *text)

    unsigned char *utb_reserve(utracefs_event *event, uint32_t flag, uint32_t size, utb_reserved *r)
    void utb_commit(const utb_reserved *r)
    uint64_t ut_now_ns()
    ut_moment ut_moment_of(const dr_header *header, const dr_record *record)
    uint64_t ut_duration_ns(ut_moment begin, const dr_record *end)
    uint64_t utracefs_new_span_id()
    void ut_put(unsigned char *at, uint64_t value, unsigned size)

cdef extern from "Python.h":
    # (Not cpython.exc's: an exception stays set, for the caller of what waits.)
    int check_signals "PyErr_CheckSignals"()
    void *exception_that_is_set "PyErr_Occurred"()


cdef inline int run_handlers(void *_) noexcept nogil:
    """In a thread that waits: the program's signal handlers. Not 0: one has raised an exception."""
    with gil:
        return check_signals()


cdef inline int raise_what_is_set() except -1:
    return -1 if exception_that_is_set() != NULL else 0
