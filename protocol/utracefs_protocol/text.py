"""Bytes as str and back: names, paths and texts of events, which need not be UTF-8.

The kernel uses bytes, Python programs use str: valid UTF-8 is decoded, and each other byte becomes a
surrogate escape, so that the conversion back gives the same bytes.
"""


def text_of(data: bytes) -> str:
    """As str; `bytes_of` gives the same bytes again."""
    return data.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """The inverse of `text_of`. UnicodeEncodeError for a surrogate that stands for no byte."""
    return text.encode("utf-8", "surrogateescape")


def clean(text: str) -> str:
    """For formats that are UTF-8 only, not reversible: U+FFFD for each byte that is not UTF-8."""
    return text if text.isascii() else bytes_of(text).decode("utf-8", "replace")


def escaped(data: bytes) -> str:
    """For people, not reversible: `\\xff` for a byte that is not UTF-8."""
    return data.decode("utf-8", "backslashreplace")


def shown(data: bytes) -> str:
    """A name in a message: quoted, control characters and broken UTF-8 escaped."""
    text = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in escaped(data)
    )
    return f"'{text}'"
