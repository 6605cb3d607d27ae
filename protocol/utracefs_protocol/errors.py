"""The errors that carry an errno, and what becomes of each.

    Exception
    └── TraceError          one operation failed; its [errno, text] is the reply and the connection goes on
        └── ProtocolError   the bytes of a peer are broken or too large; nothing after them can be understood,
                            so the connection ends (EPROTO or EMSGSIZE)

Logic raises these, the edge turns them into a reply: nothing in between catches them. Which errno belongs to
which situation is the kernel's choice (kernel/trace/trace_events_user.c and its neighbours); `text` is ours
and says what is wrong and what to do about it.
"""

import errno as errno_numbers

__all__ = ["ProtocolError", "TraceError"]


class TraceError(Exception):
    """An operation failed as a system call fails: with an errno, and here with a reason.

    >>> raise TraceError(errno.EINVAL, "field 'a': unknown type 'long'; use s64 or u64")
    """

    def __init__(self, errno: int, text: str) -> None:
        super().__init__(errno, text)
        self.errno = errno
        self.text = text

    @property
    def errno_name(self) -> str:
        """`EINVAL` for 22; the number as text where Linux has no name for it."""
        return errno_numbers.errorcode.get(self.errno, str(self.errno))

    def __str__(self) -> str:
        return self.text


class ProtocolError(TraceError):
    """The stream of a peer cannot be followed any further: EPROTO (broken) or EMSGSIZE (over a limit)."""
