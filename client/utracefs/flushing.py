"""One call of `flush` that waits for the session thread."""

from utracefs._native import Waiter

__all__ = ["Flush"]


class Flush:
    """Made by the thread that waits, ended by the session thread, once."""

    def __init__(self, records: int) -> None:
        self.records = records
        """Records that had been emitted when the call began."""
        self.done = False
        """Whether the daemon has them all; to be read after `wait`."""
        self._waiter = Waiter()

    def wait(self, timeout_s: float) -> None:
        self._waiter.wait(timeout_s)

    def end(self, done: bool) -> None:
        self.done = done
        self._waiter.release()
