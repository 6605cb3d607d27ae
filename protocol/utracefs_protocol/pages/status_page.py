"""The status page: one byte of shared memory per event, with the kinds of its consumers.

    byte      0   never assigned, always 0: "not registered"
    byte 1..n-1   status byte of the event with that status_index

         7     6     5     4     3     2     1     0
      +-----+-----+-----+-----+-----+-----+-----+-----+
      |other|           always 0          |perf |ftrace|
      +-----+-----+-----+-----+-----+-----+-----+-----+

The file has whole pages of 4096 bytes. Only the daemon writes it, a whole byte at a time, after a probe is
attached and after it is detached; every client maps it read-only (`mmap_status`). A byte is a hint that
orders no other memory access, so a plain load is enough. The layout is that of the kernel's first user_events
(5.18).
"""

import enum


class StatusBit(enum.IntFlag):
    """The kinds of consumers attached to an event."""

    FTRACE = 0x01
    PERF = 0x02
    OTHER = 0x80
    """All other consumers: plug-ins."""

    def names(self) -> list[str]:
        """The words of user_events_status, in its order: `# Used by ftrace perf other`."""
        return [str(bit.name).lower() for bit in StatusBit if self & bit]
