"""Checks of a declaration without a daemon.

A declaration is checked at once, by the daemon's rules, so that an error in it is a ValueError at the line
that made it, with or without a daemon. Errors that only the daemon can detect (another program declared other
fields under this name, there are too many events) are reported later as `Event.error`.
"""

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import Declaration, check_command_length, parse
from utracefs_protocol.text import bytes_of


def command_bytes(declaration: str | bytes) -> bytes:
    """TypeError for anything else; ValueError: a str is not UTF-8 (surrogate escapes stand for bytes)."""
    if isinstance(declaration, bytes):
        return declaration
    if isinstance(declaration, str):
        return bytes_of(declaration)
    kind = type(declaration).__name__
    raise TypeError(f"a declaration is str or bytes, not {kind}; for functions there is @utracefs.define")


def check_declaration(text: bytes) -> Declaration:
    """Parse a command string; ValueError for what DIAG_IOCSREG would refuse with EINVAL, in the same
    words."""
    try:
        check_command_length(text)
        declaration = parse(text)
    except TraceError as error:
        raise ValueError(f"{text.decode('utf-8', 'backslashreplace')!r}: {error.text}") from None
    return declaration
