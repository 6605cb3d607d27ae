"""Bytes as str and back: names, paths and texts of events, which need not be UTF-8.

The kernel knows bytes. Python programs want str: UTF-8 where it is, and a surrogate escape for each byte that
is not, so that nothing is lost on the way there and back.
"""

__all__ = ["bytes_of", "clean", "escaped", "shown", "text_of"]


def text_of(data: bytes) -> str:
    """As str; `bytes_of` gives the same bytes again."""
    return data.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """What `text_of` was given. UnicodeEncodeError for a surrogate that stands for no byte."""
    return text.encode("utf-8", "surrogateescape")


def clean(text: str) -> str:
    """For what takes UTF-8 only, one way: U+FFFD for each byte that is not."""
    return text if text.isascii() else bytes_of(text).decode("utf-8", "replace")


def escaped(data: bytes) -> str:
    """For people, one way only: `\\xff` for a byte that is not UTF-8."""
    return data.decode("utf-8", "backslashreplace")


def shown(data: bytes) -> str:
    """A name in a message: quoted, control characters and broken UTF-8 escaped."""
    text = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in escaped(data)
    )
    return f"'{text}'"
