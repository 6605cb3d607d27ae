"""One call of `flush` that waits for the session thread."""

import _thread

__all__ = ["Flush"]


class Flush:
    """Made by the thread that waits, on a lock that no other thread waits on; ended by the session thread,
    once."""

    def __init__(self, records: int) -> None:
        self.records = records
        """Records that had been emitted when the call began."""
        self.done = False
        """Whether the daemon has them all; to be read after `wait`."""
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def wait(self, timeout_s: float) -> None:
        self._lock.acquire(timeout=max(timeout_s, 0))

    def end(self, done: bool) -> None:
        self.done = done
        self._lock.release()
