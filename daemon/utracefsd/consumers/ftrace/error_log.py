"""`error_log`: reasons why the last writes to filter, trigger and hist files failed, with a caret under the
command."""

from collections.abc import Callable

from utracefs_protocol.filter import FilterError
from utracefs_protocol.hist.errors import HistError
from utracefsd.consumers.ftrace.settings import Settings

_ENTRIES = 8
"""TRACING_LOG_ERRS_MAX of kernel/trace/trace.c."""

_COMMAND_COLUMN = len("  Command: ")


class ErrorLog:
    """The error log of one instance. now_ns: CLOCK_MONOTONIC."""

    def __init__(self, settings: Settings, now_ns: Callable[[], int]) -> None:
        self._settings = settings
        self._now_ns = now_ns

    def add(self, location: str, message: str, command: bytes, position: int) -> None:
        """Add an entry; the oldest of more than 8 is dropped. position: the column of the caret."""
        seconds, rest_ns = divmod(self._now_ns(), 1_000_000_000)
        caret = b" " * (_COMMAND_COLUMN + position) + b"^"
        entry = b"[%5d.%06d] %s: error: %s\n  Command: %s\n%s\n" % (
            seconds,
            rest_ns // 1000,
            location.encode(),
            message.encode(),
            command,
            caret,
        )
        self._settings.error_log = (*self._settings.error_log, entry)[-_ENTRIES:]

    def add_filter(self, text: bytes, error: FilterError) -> None:
        """append_filter_err() of kernel/trace/trace_events_filter.c: `Error` for an error without a text."""
        self.add("event filter parse error", error.message or "Error", text, error.position or 0)

    def add_all(self, location: str, error: HistError) -> None:
        for message, position in error.entries:
            self.add(location, message, error.command, position)

    def text(self) -> bytes:
        """`error_log`, oldest first."""
        return b"".join(self._settings.error_log)

    def clear(self) -> None:
        """Truncating the file calls this."""
        self._settings.error_log = ()
