"""The only thread of a mount that accesses the memory of other processes.

    loop ──jobs──▶ this thread ──results, posts──▶ loop

**Why a thread:** a page may have to be loaded first, by another file system, a program (userfaultfd), or this
very mount. That may take forever; meanwhile the loop serves reads and writes, and the page of our own file.
**Why one:** the data of address spaces needs no lock. Jobs run in order, but urgent ones (bits, which a
switching user waits for) before others, and within a long one where it allows that (`run_urgent`).

A job that hangs delays registrations, and bits, of others until its process is killed; after HANG_S a warning
is logged. The thread is a daemon thread, so the mount's process can end in any case.
"""

import collections
import errno
import functools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from utracefs.mount.channel import Resume
from utracefs.mount.operation import Wait

logger = logging.getLogger("utracefs.mount")

HANG_S: Final = 2.0
"""After that time a job counts as hanging."""


class MemoryThread:
    """`fileno` becomes readable when `on_ready` has work. Starts with the first job."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Resume | None] | None] = queue.SimpleQueue()
        self._urgent: collections.deque[tuple[Callable[[], Any], Resume]] = collections.deque()
        self._done: collections.deque[Callable[[], object]] = collections.deque()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.thread: threading.Thread | None = None
        self._under_way: tuple[str, float] | None = None
        """Description and start time of the present job."""
        self._said: tuple[str, float] | None = None
        self._closed = False

    def fileno(self) -> int:
        return self._eventfd

    def submit(self, job: Callable[[], Any], resume: Resume, *, is_urgent: bool = False) -> None:
        """Run `job` in the thread, then `resume` in the loop with its result or OSError."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name="utracefs-memory", daemon=True)
            self.thread.start()
        if is_urgent:
            self._urgent.append((job, resume))
            self._jobs.put((self.run_urgent, None))  # it may have been run before another job by then
        else:
            self._jobs.put((job, resume))
        self._look_for_hang()

    def __call__(self, job: Callable[..., Any], *args: Any) -> Wait:
        """The same for the steps of an operation, which wait for it (operation.py)."""
        return Wait(lambda resume: self.submit(lambda: job(*args), resume))

    def run_urgent(self) -> None:
        """Run the waiting urgent jobs now; a long job calls it. They may change data that this job has
        read."""
        while self._urgent:
            job, resume = self._urgent.popleft()
            result, error = _outcome(job)
            self.post(functools.partial(resume, result, error))

    def post(self, call: Callable[[], object]) -> None:
        """From a job: `call` in the loop, before the job's own `resume`."""
        self._done.append(call)
        os.eventfd_write(self._eventfd, 1)

    def on_ready(self) -> None:
        """Resume finished jobs, in order."""
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return
        while self._done:
            self._done.popleft()()

    def close(self, timeout_s: float = 1.0) -> None:
        """Wait for pending jobs, at most that long; a job that takes longer ends with the process. May be
        called twice."""
        if self._closed:
            return
        self._closed = True
        if self.thread is not None:
            self._jobs.put(None)
            self.thread.join(timeout_s)
            if self.thread.is_alive():
                return  # it may still write to the eventfd
        os.close(self._eventfd)

    def _run(self) -> None:
        while (one := self._jobs.get()) is not None:
            job, resume = one
            self._under_way = (getattr(job, "__qualname__", str(job)), self._clock())
            self.run_urgent()
            result, error = _outcome(job)
            self._under_way = None
            if resume is not None:
                self.post(functools.partial(resume, result, error))

    def _look_for_hang(self) -> None:
        under_way = self._under_way
        if under_way is not None and under_way != self._said and under_way[1] + HANG_S < self._clock():
            self._said = under_way
            logger.warning(
                "the memory of a process has not answered for %.0f s; registrations wait for that"
                " (a busy machine, or a page that userfaultfd or another file system has to bring?)",
                HANG_S,
            )


def _outcome(job: Callable[[], Any]) -> tuple[Any, OSError | None]:
    try:
        return job(), None
    except OSError as failure:
        return None, failure
    except Exception as failure:
        logger.exception("unexpected exception; the caller gets EIO")
        return None, OSError(errno.EIO, str(failure))
