"""Errors that carry an errno, and their effect.

    Exception
    └── TraceError          one operation failed; its [errno, text] is the reply; the connection continues
        └── ProtocolError   a peer's bytes are malformed or too large, and so the rest cannot be parsed: the
                            connection ends (EPROTO or EMSGSIZE)

Logic raises them; the edge turns them into a reply. The errnos are the kernel's. `text` says what is wrong
and what to do about it.
"""

import errno as errno_numbers

TOO_OLD = "this daemon does not have what its client uses; upgrade utracefsd"
"""Advice for methods and members that a later version may have added."""


class TraceError(Exception):
    """An operation failed with an errno, like a system call, and with a reason.

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
    """The rest of a peer's stream cannot be parsed: EPROTO (malformed) or EMSGSIZE (over a limit)."""
