"""A session of libutracefs, its warnings, and its thread at Python's forks.

The library (client/c) has one native thread per process, which never needs the GIL. Waiting calls here
release it.

**Warnings.** The library stores the texts. With the first one a thread starts that fetches and logs them, and
ends. So a logging handler of the program may wait for any lock: another thread has it, and releases it. All
signals are blocked in this thread, for they are meant for the program's own. A fork waits for its end, so
that no child inherits a lock of a handler, but not long; so do `close` and the interpreter's exit. Nothing is
logged while standard error would block, since most handlers write there.

**fork.** The library's own fork handlers maintain its state. But Python 3.12 and later warn when a process
with several threads forks, so the thread ends before the fork and starts again afterwards. Some versions
(3.13.0) count the threads after the hooks for the parent, so the thread is started by a pending call: the
interpreter makes it when os.fork() has returned to its caller's frame, before the next instruction there.
While that frame is not the current one, hooks of others are running; then the call is delayed, for some
milliseconds at most. The main thread makes pending calls, and may be waiting long while another thread forks:
then there are two threads anyway, the warning comes with or without ours, and our thread is started at once.
The same applies to a process forked by another than the main thread, and its children: Python 3.13.0 expects
pending calls from the parent's thread there, so none is made.
"""

import atexit
import os
import sys

from cpython.version cimport PY_VERSION_HEX
from libc.errno cimport ENOMEM
from libc.stdint cimport uint64_t

from utracefs.producer._binding cimport (
    raise_what_is_set,
    run_handlers,
    ut_now_ns,
    utb_attach,
    utb_close,
    utb_end,
    utb_flush,
    utb_next_warning,
    utb_on_warning,
    utb_pause,
    utb_process_session,
    utb_resume,
    utb_say,
    utb_session,
    utb_session_free,
    utb_session_new,
    utb_standard_error,
    utb_stats,
    utb_stats_of,
)
from utracefs.producer._event cimport Event

cdef extern from "warning_thread.h" nogil:
    void ut_warning_noted(void *(*run)(void *) noexcept nogil)
    unsigned ut_warnings_noted()
    bint ut_warnings_are_told(unsigned seen)
    void ut_warnings_start_process()
    bint ut_is_warning_thread

cdef extern from "<unistd.h>" nogil:
    int getpid()
    int gettid()
    int usleep(unsigned us)

cdef extern from "Python.h":
    void *PyEval_GetFrame()
    int Py_AddPendingCall(int (*function)(void *) noexcept, void *arg) nogil

cdef enum:
    # How long hooks of others may delay our thread. They take microseconds.
    HOOKS_NS = 10_000_000
    # How long a fork, `close` and the exit wait for logging handlers of the program.
    LOGGING_NS = 500_000_000


cdef class NativeSession:
    """directory: of the daemon's sockets; None: by the environment. buffer_bytes: space for records not yet
    sent; 0: by the environment. Making one starts nothing; the first `declare` does."""

    cdef utb_session *own
    cdef bint is_the_process
    cdef list wanted        # declared, and not attached yet

    def __cinit__(self, bytes directory=None, uint64_t buffer_bytes=0, *, bint of_the_process=False):
        cdef const char *path = NULL
        if directory is not None:
            path = directory
        self.is_the_process = of_the_process
        self.wanted = []
        self.own = utb_process_session() if of_the_process else utb_session_new(path, buffer_bytes)
        if self.own == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.own != NULL and not self.is_the_process:
            utb_session_free(self.own)

    def declare(self, Event event not None) -> bool:
        """Register an event, on this and all later connections. False: the session is closed. If memory is
        short, the event stays off until the next call."""
        cdef Event one
        cdef int error = 0
        self.wanted.append(event)
        while self.wanted and error == 0:
            one = self.wanted[0]
            error = utb_attach(self.own, &one.own)
            if error != -ENOMEM:
                del self.wanted[0]
        return error == 0 or error == -ENOMEM

    def flush(self, double timeout_s) -> bool:
        """Wait until all records emitted before have reached the consumers; False after the timeout. May be
        called from signal handlers; exceptions of signal handlers propagate."""
        cdef uint64_t timeout_ns = <uint64_t>(min(max(timeout_s, 0.0), 1e9) * 1e9)
        cdef int error
        with nogil:
            error = utb_flush(self.own, timeout_ns, run_handlers, NULL)
        raise_what_is_set()
        return error == 0

    def close(self) -> None:
        """Send pending records, within half a second, and end; may be called more than once."""
        with nogil:
            utb_close(self.own)
        await_warnings()

    @property
    def is_connected(self) -> bool:
        """Also updates each event's pending count."""
        cdef utb_stats stats
        utb_stats_of(self.own, &stats)
        return stats.is_connected

    @property
    def ring_bytes(self) -> int:
        """Size of the data ring; 0: there is none now."""
        cdef utb_stats stats
        utb_stats_of(self.own, &stats)
        return stats.ring_bytes


def end() -> None:
    """Called at the interpreter's exit: end all sessions, and start no new ones."""
    with nogil:
        utb_end()
        utb_on_warning(NULL)
    await_warnings()
    if not ut_warnings_noted():
        log_warnings()  # of a thread that could not start


# ------------------------------------------------------------------------------------------------ warnings

cdef object call_with_warning = None
cdef bint are_overdue = False


cdef void note_warning() noexcept nogil:
    ut_warning_noted(run_warning_thread)


cdef void *run_warning_thread(void *_) noexcept nogil:
    cdef unsigned seen
    while True:
        seen = ut_warnings_noted()
        with gil:
            log_warnings_in_thread()
        if ut_warnings_are_told(seen):
            return NULL


cdef void log_warnings_in_thread() noexcept:
    threading = sys.modules.get("threading") if "logging" in sys.modules else None
    try:
        if threading is not None:
            threading.current_thread().name = "utracefs-warn"
        log_warnings()
        if threading is not None:
            # Before Python 3.13 the entry of a thread that threading did not start stays: nobody can join it.
            threading._active.pop(threading.get_ident(), None)
    except BaseException:
        pass  # modules that the program has replaced, or takes apart


cdef object log_warnings():
    cdef char text[400]
    while utb_next_warning(text, sizeof(text)):
        if utb_standard_error() != 0:
            call_with_warning((<bytes>text).decode("utf-8", "replace"))


cdef void await_warnings() noexcept:
    """Wait until all are logged, within LOGGING_NS; signal handlers run later. Not again for handlers that
    took longer."""
    global are_overdue
    cdef uint64_t until = ut_now_ns() + LOGGING_NS
    if not ut_warnings_noted():
        are_overdue = False
    if ut_is_warning_thread or are_overdue:
        return
    with nogil:
        while ut_warnings_noted() and ut_now_ns() < until:
            usleep(500)
    are_overdue = ut_warnings_noted() != 0


def say(text: str) -> None:
    """Print a warning on standard error, if that is still the program's, and does not block."""
    utb_say(text.encode("utf-8", "backslashreplace"))


# ---------------------------------------------------------------------------------------------------- fork

cdef extern from *:
    """
    /* Whether the main thread forks: thread-local, so that the child knows it of its only thread. */
    static __thread int is_main_thread_forking;
    """
    int is_main_thread_forking

cdef void *forking_frame = NULL
cdef uint64_t forked_at_ns = 0
cdef bint makes_pending_calls = True
cdef object hook_multiprocessing = None


def _before_fork():
    """Calls Python code only while there is something to do: in a hook of a fork an exception of a signal
    handler (KeyboardInterrupt) is printed, and lost."""
    global forking_frame, is_main_thread_forking, hook_multiprocessing
    if PY_VERSION_HEX >= 0x030C0000:
        is_main_thread_forking = gettid() == getpid()
        with nogil:
            utb_pause()
        # Not a reference: it is only compared.
        forking_frame = PyEval_GetFrame()
    await_warnings()
    if hook_multiprocessing is not None and "multiprocessing.util" in sys.modules:
        hook_multiprocessing()
        hook_multiprocessing = None


def _after_fork_in_parent():
    global forked_at_ns
    forked_at_ns = ut_now_ns()
    if not makes_pending_calls or gettid() != getpid() or Py_AddPendingCall(start_again, NULL) != 0:
        utb_resume()


cdef int start_again(void *_) noexcept:
    if PyEval_GetFrame() != forking_frame and ut_now_ns() - forked_at_ns < HOOKS_NS:
        if Py_AddPendingCall(start_again, NULL) == 0:
            return 0
    utb_resume()
    return 0


def _after_fork_in_child():
    global makes_pending_calls
    ut_warnings_start_process()
    if PY_VERSION_HEX >= 0x030D0000 and not is_main_thread_forking:
        makes_pending_calls = False


cdef bint is_installed = False


def install(
    tell: Callable[[str], None],
    hook: Callable[[], None],
    in_child: Callable[[], None],
    at_exit: Callable[[], None],
) -> None:
    """tell(text): logs a warning; called in a thread of its own. hook: called before the first fork with
    multiprocessing.util. in_child: called in every child from now on. at_exit: called by atexit. Only the
    first call has an effect. No other thread and no signal handler runs during this, so it happens as a
    whole."""
    global call_with_warning, hook_multiprocessing, is_installed
    if is_installed:
        return
    call_with_warning = tell
    hook_multiprocessing = hook
    ut_warnings_start_process()
    utb_on_warning(note_warning)
    os.register_at_fork(before=_before_fork)
    if PY_VERSION_HEX >= 0x030C0000:
        os.register_at_fork(after_in_parent=_after_fork_in_parent)
    os.register_at_fork(after_in_child=_after_fork_in_child)
    os.register_at_fork(after_in_child=in_child)
    atexit.register(at_exit)
    is_installed = True
