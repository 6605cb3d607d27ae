"""The thread that Python does not know, a wait that nobody has patched, and what a fork makes of both.

gevent and eventlet replace what `_thread` and `threading` offer: a thread would be a greenlet of the one
thread that blocks, and waiting for a lock would switch to another one. What is here is the C library's.

**The thread** waits in C (`Fifo.pump_until`), without the GIL and without a Python thread state; only for a
step of the session it takes the GIL. So it can end without the GIL when it is told to, and nothing of Python
counts it (`threading.enumerate`, `sys._current_frames`).

**`drive`** carries out the same steps in the thread that waits for what they bring, before there is a thread
at all: starting one, and handing the GIL to and fro, would be half of a forked child's first emit. Only where
the calling thread is Python's only one. Python would run the program's signal handlers in the middle of a
step, and what they raise would seem to be ours: signals are blocked during a step, and handlers run between
two of them. Whoever else needs the thread meanwhile (such a handler, a thread that it starts) calls
`end_drive`.

**fork.** Before it the threads end, after it they are there again; what they wait for is kept in objects, not
on their stacks. Python 3.12 and later warn when a process with several threads forks. Some of them (3.13.0)
count after the hooks for the parent, so the threads are started by a pending call: the interpreter makes it
when os.fork() has returned to the frame that called it, before the next instruction there. While that frame
is not the current one, hooks of others are being run; then the call is put off, for some milliseconds at
most. Pending calls are made by the main thread, which may wait for long while another one forks: then there
are two threads anyway, the warning comes with or without ours, and it is started at once. So it is in a
process that was forked by another than the main thread, and its children: Python 3.13.0 goes on asking the
thread of the parent there for pending calls, so none is ever made. Python 3.11 does
not warn, and must not have this: in a program that is traced (coverage, a debugger) it never comes back from
a pending call that runs Python while another one waits (DO_TRACING in ceval.c).
"""

import os

from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.version cimport PY_VERSION_HEX
from libc.stdint cimport int64_t, uint32_t

from utracefs._descriptors cimport Descriptor, ut_descriptor
from utracefs._outlets cimport Fifo

cdef extern from "native_thread.h" nogil:
    ctypedef int (*ut_wait)(void *) noexcept nogil
    ctypedef int (*ut_step)(void *, int) noexcept nogil
    ctypedef struct ut_thread "struct ut_thread":
        void *owner
        ut_wait wait
        ut_step step
        uint32_t state
    int64_t ut_monotonic_ns()
    int ut_thread_start(ut_thread *t)
    void ut_thread_ask_to_stop(ut_thread *t)
    int ut_thread_await_end(ut_thread *t, int64_t until_ns)
    bint ut_thread_is_current(ut_thread *t)
    void ut_thread_forget(ut_thread *t)
    int UT_NONE
    ctypedef struct sigset_t:
        pass
    void ut_block_signals(sigset_t *before)
    void ut_restore_signals(const sigset_t *before)

cdef extern from *:
    """
    /* Whether the main thread forks: of this thread, so that the child knows it of the one that it has. */
    static __thread int is_main_thread_forking;
    /* Whether this thread waits: then what asks is a signal handler of the program's. */
    static __thread int is_here_waiting;
    """
    int is_main_thread_forking
    int is_here_waiting

cdef extern from "<unistd.h>" nogil:
    int getpid()
    int gettid()

cdef extern from "Python.h" nogil:
    ctypedef void *PyThread_type_lock
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    int PyThread_acquire_lock(PyThread_type_lock lock, int wait)
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long timeout_us, int interruptible)
    void PyThread_release_lock(PyThread_type_lock lock)

cdef extern from "Python.h":
    void PyErr_SetObject(object kind, object value)
    void PyErr_WriteUnraisable(object about)
    void *PyEval_GetFrame()
    void *PyInterpreterState_Get()
    void *PyInterpreterState_ThreadHead(void *interpreter)
    void *PyThreadState_Next(void *thread)
    int Py_AddPendingCall(int (*function)(void *) noexcept, void *arg)

cdef enum:
    # How long hooks of others may put our threads off. They take microseconds.
    HOOKS_NS = 10_000_000
    # Until the next step after one that failed.
    FAULT_MS = 1000
    # How long a drive waits in one go. A signal ends it, too.
    TURN_MS = 5


def is_waiting():
    """Whether the calling thread is in `wait_here` already: a signal handler is asking."""
    return is_here_waiting != 0


def wait_here(call):
    """What `call()` returns. No handler runs between its end and the moment when `is_waiting` is false."""
    global is_here_waiting
    cdef int before = is_here_waiting
    is_here_waiting = 1
    try:
        return call()
    finally:
        is_here_waiting = before


cdef class Waiter:
    """One thread waits, another one releases it, once, before or after.

    wait: whether it was released within timeout_s; less than 0 is 0. Without the GIL; signal handlers are run
    meanwhile, and what they raise comes out. release: RuntimeError the second time.
    """

    cdef PyThread_type_lock lock
    cdef bint released

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError
        PyThread_acquire_lock(self.lock, 0)

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    def wait(self, double timeout_s):
        cdef int64_t until = ut_monotonic_ns() + <int64_t>(min(max(timeout_s, 0.0), 1e9) * 1e9)
        cdef int64_t left
        cdef PyLockStatus status
        while True:
            left = max((until - ut_monotonic_ns()) // 1000, 0)
            with nogil:
                status = PyThread_acquire_lock_timed(self.lock, left, 1)
            if status == PY_LOCK_ACQUIRED:
                return True
            if status != PY_LOCK_INTR:
                return False
            PyErr_CheckSignals()

    def release(self):
        if self.released:
            raise RuntimeError("released before")
        self.released = True
        PyThread_release_lock(self.lock)


cdef int wait_of(NativeThread self) noexcept nogil:
    return self.fifo.pump_until(self.polled, self.timeout_ms)


cdef int step_of(NativeThread self, int happened) noexcept with gil:
    return take_step(self, happened)


cdef bint take_step(NativeThread self, int happened) noexcept:
    """One step, and what to wait for then; False: it was the last."""
    cdef Descriptor sock
    if not self.is_wanted:
        return False
    try:
        wanted = self.call(happened)
    except BaseException as error:
        # Said and tried again: in a thread like this SystemExit must not end the process, and no fault the
        # thread.
        PyErr_SetObject(type(error), error)
        PyErr_WriteUnraisable(self.call)
        self.sock, self.polled, self.timeout_ms = None, NULL, FAULT_MS
        return True
    if wanted is None:
        self.is_wanted = False
        return False
    sock, self.timeout_ms = wanted
    self.sock = sock
    self.polled = NULL if sock is None else &sock.own
    return True


cdef bint is_only_thread() noexcept:
    """Whether Python knows no thread but the calling one."""
    return PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())) == NULL


cdef class NativeThread:
    """A thread that turns between `fifo.pump_until` and `step`.

    step(happened): what the pump said, 0 at first; runs in the thread and returns the (socket or None,
    timeout_ms) to pump next, or None when it was the last. What it raises is unraisable, and the next step
    comes after a second. To wake the thread one wakes the FIFO.
    """

    cdef ut_thread thread
    cdef Fifo fifo
    cdef object call
    cdef Descriptor sock
    cdef ut_descriptor *polled
    cdef int timeout_ms
    cdef readonly bint is_wanted
    """Whether there is to be a thread, though a fork may have sent it away for a moment."""
    cdef bint held
    cdef bint driven
    cdef int driver
    """In a step of `drive`: the id of the thread."""

    def __cinit__(self, Fifo fifo not None, step):
        self.fifo = fifo
        self.call = step
        self.thread.owner = <void *>self
        self.thread.wait = <ut_wait>wait_of
        self.thread.step = <ut_step>step_of

    @property
    def is_current(self):
        """Whether the calling thread is it, or carries out a step of its."""
        return ut_thread_is_current(&self.thread) or (self.driver != 0 and self.driver == gettid())

    @property
    def is_running(self):
        return self.thread.state != UT_NONE

    @property
    def is_in_driven_step(self):
        """Whether a thread of the program's carries out a step now."""
        return self.driver != 0

    def start(self):
        """There is to be a thread: start it, unless it is there or a fork is under way, after which it starts
        by itself. False: none can be had."""
        self.is_wanted = True
        self.driven = False
        # (In the middle of a step: at its end.)
        return nr_forking != 0 or self.driver != 0 or self.run()

    def end_drive(self):
        """The thread is needed, by another than the one that may be carrying out its steps now."""
        if self.driven:
            self.start()

    def drive(self, double time_s, done):
        """As `start`, but first carry out the steps in the calling thread, until `done()` or until time_s are
        over. At once where that may not be: there is a thread, or Python has others.

        What a signal handler raises comes out.
        """
        cdef int64_t until = ut_monotonic_ns() + <int64_t>(time_s * 1e9)
        cdef int64_t left_ms
        cdef int happened = 0
        if self.is_wanted or nr_forking != 0 or self.thread.state != UT_NONE or not is_only_thread():
            return self.start()
        self.is_wanted = self.driven = True
        try:
            while self.take_guarded_step(happened) and self.driven and not done():
                left_ms = (until - ut_monotonic_ns()) // 1_000_000
                if left_ms <= 0:
                    break
                happened = self.wait_held(min(left_ms, TURN_MS))
        finally:
            started = not self.is_wanted or not self.driven or self.start()
        return started

    cdef bint take_guarded_step(self, int happened) except -1:
        """A step without signal handlers in the middle of it."""
        cdef sigset_t before
        cdef bint goes_on
        ut_block_signals(&before)
        try:
            PyErr_CheckSignals()  # those that came before
            self.driver = gettid()
            goes_on = take_step(self, happened)
            self.driver = 0
            if goes_on and not self.driven and self.thread.state == UT_NONE and nr_forking == 0:
                self.run()  # somebody asked for the thread meanwhile
            return goes_on
        finally:
            ut_restore_signals(&before)

    cdef int wait_held(self, int64_t most_ms):
        cdef int timeout_ms = self.timeout_ms
        if timeout_ms < 0 or timeout_ms > most_ms:
            timeout_ms = <int>most_ms
        with nogil:
            return self.fifo.pump_held(self.polled, timeout_ms)

    cdef bint run(self):
        if not self.held:
            # The thread's own reference, given back by those who see that it has ended.
            self.held = True
            Py_INCREF(self)
        if ut_thread_start(&self.thread) == 0:
            return True
        self.is_wanted = False
        self.let_go()
        return False

    def stop(self, double timeout_s):
        """There is to be no thread any more. Whether it has ended within this time; never when called from
        it. A step that is under way is finished."""
        self.is_wanted = False
        return self.end(timeout_s)

    def pause(self, double timeout_s):
        """As `stop`, but it is still wanted."""
        self.end(timeout_s)

    cdef bint end(self, double timeout_s):
        cdef int64_t until = ut_monotonic_ns() + <int64_t>(timeout_s * 1e9)
        cdef bint ended
        if self.driver != 0:
            return False
        if self.thread.state != UT_NONE:
            if ut_thread_is_current(&self.thread):
                return False
            ut_thread_ask_to_stop(&self.thread)
            self.fifo.want()
        # (Also when it says that it is gone: another thread may be waiting for the kernel to forget it.)
        with nogil:
            ended = ut_thread_await_end(&self.thread, until)
        if ended:
            self.let_go()
        return ended

    cdef void let_go(self):
        if self.held and self.thread.state == UT_NONE:
            self.held = False
            Py_DECREF(self)

    def forget(self):
        """In a forked child: the thread is not there."""
        self.is_wanted = self.driven = False
        self.driver = 0
        self.sock = None
        ut_thread_forget(&self.thread)
        self.let_go()

    def __reduce__(self):
        raise TypeError("a thread belongs to one process")


# ---------------------------------------------------------------------------------------------------- fork

cdef int nr_forking = 0
cdef void *forking_frame = NULL
cdef int64_t forked_at_ns = 0
cdef bint makes_pending_calls = PY_VERSION_HEX >= 0x030C0000
cdef object call_before = None
cdef object call_in_parent = None
cdef object call_in_child = None


def _before_fork():
    global nr_forking, forking_frame, is_main_thread_forking
    nr_forking += 1
    is_main_thread_forking = gettid() == getpid()
    call_before()
    # Not held: it is only compared with.
    forking_frame = PyEval_GetFrame()


def _after_fork_in_parent():
    global nr_forking, forked_at_ns
    nr_forking = max(nr_forking - 1, 0)
    if nr_forking:
        return  # one fork of several threads: the last of them starts ours
    forked_at_ns = ut_monotonic_ns()
    if not makes_pending_calls or gettid() != getpid() or Py_AddPendingCall(start_again, NULL) != 0:
        call_in_parent()


cdef int start_again(void *_) noexcept:
    if nr_forking:
        return 0
    if PyEval_GetFrame() != forking_frame and ut_monotonic_ns() - forked_at_ns < HOOKS_NS:
        if Py_AddPendingCall(start_again, NULL) == 0:
            return 0
    call_in_parent()
    return 0


def _after_fork_in_child():
    global nr_forking, makes_pending_calls, is_here_waiting
    nr_forking = is_here_waiting = 0
    if PY_VERSION_HEX >= 0x030D0000 and not is_main_thread_forking:
        makes_pending_calls = False
    call_in_child()


def install_fork_hooks(before, in_parent, in_child):
    """Have these called at every fork from now on: before it; in the parent, when threads may be started; in
    the child. Once."""
    global call_before, call_in_parent, call_in_child
    call_before, call_in_parent, call_in_child = before, in_parent, in_child
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
