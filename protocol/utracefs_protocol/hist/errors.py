"""Why the definition of a histogram or synthetic event is refused: an errno, and entries for `error_log`.

TraceError
└── HistError       the errno of the write; `entries` are the kernel's log entries before that, in
                    its order; several, or none.
"""

import errno as errno_numbers

from utracefs_protocol.errors import TraceError
from utracefs_protocol.text import shown


class HistError(TraceError):
    """A definition was refused. entries: (message, column in `command`) for each entry of `error_log`."""

    def __init__(self, errno: int, text: str, entries: tuple[tuple[str, int], ...], command: bytes) -> None:
        super().__init__(errno, text)
        self.entries = entries
        self.command = command


class Log:
    """The log entries that the kernel would make for one command, which is shown and searched for positions.

    command: for a histogram with `hist:` before it, as last_cmd_set() of trace_events_hist.c keeps it.
    """

    def __init__(self, command: bytes) -> None:
        self.command = command
        self.entries: list[tuple[str, int]] = []

    def add(self, message: str, at: bytes = b"") -> None:
        """Add an entry that points at the first occurrence of `at` in the command; at its beginning if there
        is none (errpos())."""
        self.entries.append((message, max(0, self.command.find(at))))

    def fault(self, message: str, at: bytes = b"", errno: int = errno_numbers.EINVAL) -> HistError:
        """The error to raise: the entries so far, and one more."""
        self.add(message, at)
        return self.refused(f"{message}: {shown(at)}" if at else message, errno)

    def refused(self, text: str, errno: int = errno_numbers.EINVAL) -> HistError:
        """The error to raise: the entries so far. text: for the user who wrote the command."""
        return HistError(errno, text, tuple(self.entries), self.command)
