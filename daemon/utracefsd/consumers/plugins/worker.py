"""The thread of one plug-in: code of a plug-in never runs in the daemon's own thread.

    daemon   record ──> StreamProbe ──> ring ──> doorbell      post: "when you are at this position, do that"
                                         │                       │
    thread                               └──> take(batch) ... <──┘   in the order of positions

So when a plug-in blocks, or computes for long, its ring fills up; records that do not fit are lost for it and
counted. (A plug-in that holds the GIL in C for long delays everything.) Python's threads switch every
sys.getswitchinterval(), which `main` makes short.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from utracefs_protocol.pages._stream_ring import StreamRing
from utracefsd.consumers.stream._sink import StreamSink

SLOW_S: Final = 0.05
"""A batch that takes a plug-in longer than this is logged."""

_BELLS: Final = 4096

T = TypeVar("T")


class Job(Generic[T]):
    """A function to be called by the thread; `result` waits for it."""

    def __init__(self, position: int, do: Callable[[], T]) -> None:
        self.position = position
        self._do = do
        self._done = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._do()
        except Exception as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        except BaseException as error:  # noqa: BLE001 - also for sys.exit(): no thread ends
            self._error = RuntimeError(f"it raised {error!r}")
        self._done.set()

    def wait(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)

    def result(self, timeout_s: float) -> T:
        """Its result, or its exception. TimeoutError: not yet."""
        if not self._done.wait(timeout_s):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class Worker:
    """Reads the ring of `sink` in a thread of its own and calls `take` for each batch, which must not raise.
    `close` ends it.

    slow: called, in that thread or by `look`, with the seconds that a batch took, or has taken so far; once
    for each such batch.
    """

    def __init__(
        self,
        name: str,
        sink: StreamSink,
        take: Callable[[StreamRing], None],
        slow: Callable[[float], None],
        now_ns: Callable[[], int],
    ) -> None:
        self.sink = sink
        self._ring = StreamRing(sink.memory_fd)
        self._bell = os.dup(sink.bell_fd)
        self._take = take
        self._slow = slow
        self._now_ns = now_ns
        self._jobs: deque[Job[Any]] = deque()
        self._busy_since: int | None = None
        self._is_reported = False
        self._telling = threading.Lock()
        """Held briefly: decides which of the two threads reports a batch."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, do: Callable[[], T]) -> Job[T]:
        """Call `do` in the thread, after all records that are in the ring now."""
        self.sink.publish()
        job = Job(self.sink.position, do)
        self._jobs.append(job)
        self.sink.ring_bell()
        return job

    def look(self) -> None:
        """Report a batch that has already taken too long."""
        if self._busy_since is not None:
            with self._telling:
                self._tell_if_slow()

    def close(self, timeout_s: float) -> bool:
        """Close the sink after the last posted jobs, and wait for the thread. False: it is still busy."""
        self.sink.close()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        try:
            over = False
            while not over:
                poll.poll()
                over = not os.read(self._bell, _BELLS)
                self._work()
        finally:
            self._ring.close()
            os.close(self._bell)

    def _work(self) -> None:
        """Take everything that is there now."""
        while True:
            head = self._ring.head  # before looking for the job: records of later posts are behind it
            job = self._jobs[0] if self._jobs else None
            if self._ring.next_batch(head if job is None else min(head, job.position)):
                if self._ring.records:
                    self._take_batch()
            elif job is not None and self._ring.position >= job.position:
                self._jobs.popleft()
                job.run()
            else:
                return

    def _take_batch(self) -> None:
        with self._telling:
            self._is_reported = False
            self._busy_since = self._now_ns()
        self._take(self._ring)
        with self._telling:
            self._tell_if_slow()
            self._busy_since = None

    def _tell_if_slow(self) -> None:
        since = self._busy_since
        if since is not None and not self._is_reported and (took := (self._now_ns() - since) / 1e9) > SLOW_S:
            self._is_reported = True
            self._slow(took)
