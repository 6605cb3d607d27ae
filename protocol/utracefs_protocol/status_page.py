"""The status page: one byte of shared memory per event that says who wants it.

    byte      0   never given out, always 0: "not registered"
    byte 1..n-1   status byte of the event with that status_index

         7     6     5     4     3     2     1     0
      +-----+-----+-----+-----+-----+-----+-----+-----+
      |other|           always 0          |perf |ftrace|
      +-----+-----+-----+-----+-----+-----+-----+-----+

The daemon alone writes it, a whole byte at a time, after a probe is in place and after it is gone; every client
maps the same file read-only (`mmap_status`). A byte is advice: a few records more or less around a change are
legal, and nothing has to be ordered by it, so a plain load is enough. The layout is that of the kernel's first
user_events (5.18, `user_events_status` mapped): programs test for non-zero.
"""

import enum
import errno
import mmap
from typing import Final

from utracefs_protocol.errors import TraceError

__all__ = ["FIRST_INDEX", "PAGE_SIZE", "StatusBit", "StatusPage", "check_size", "size_for", "usable_events"]

PAGE_SIZE: Final = 4096
"""The file's size is a multiple of this; one page is the default and holds 4095 events."""

FIRST_INDEX: Final = 1
"""The lowest status_index: 0 is reserved so that programs may use it for "not registered"."""


class StatusBit(enum.IntFlag):
    """Who is attached to an event."""

    FTRACE = 0x01
    PERF = 0x02
    OTHER = 0x80
    """Any consumer that is neither: plug-ins."""

    def names(self) -> list[str]:
        """The words of user_events_status, in its order: `# Used by ftrace perf other`."""
        return [
            word
            for bit, word in (
                (StatusBit.FTRACE, "ftrace"),
                (StatusBit.PERF, "perf"),
                (StatusBit.OTHER, "other"),
            )
            if self & bit
        ]


def usable_events(size: int) -> int:
    """Events that a status file of `size` bytes has room for: all bytes but the first."""
    return size - FIRST_INDEX


def size_for(events: int) -> int:
    """Bytes of the smallest status file for so many events: whole pages, at least one."""
    pages = -(-(events + FIRST_INDEX) // PAGE_SIZE)
    return max(pages, 1) * PAGE_SIZE


def check_size(size: int) -> None:
    """EINVAL for a size that no status file has (the kernel's rule for mapping it, too)."""
    if size <= 0 or size % PAGE_SIZE:
        raise TraceError(errno.EINVAL, f"status page of {size} bytes; it must be a multiple of {PAGE_SIZE}")


class StatusPage:
    """Reads a mapped status file. The mapping stays the caller's, who closes it."""

    def __init__(self, mapping: mmap.mmap | bytearray | bytes | memoryview) -> None:
        check_size(len(mapping))
        self._mapping = mapping

    @property
    def size(self) -> int:
        return len(self._mapping)

    def __getitem__(self, status_index: int) -> StatusBit:
        """Who is attached now. IndexError for 0, negative ones and those past the end: they belong to no event."""
        if not FIRST_INDEX <= status_index < len(self._mapping):
            raise IndexError(f"status_index {status_index}; this page has 1 to {len(self._mapping) - 1}")
        return StatusBit(self._mapping[status_index])

    def is_enabled(self, status_index: int) -> bool:
        """Whether anybody listens."""
        return bool(self[status_index])
