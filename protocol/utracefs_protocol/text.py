"""Converts names, paths and texts of events, which need not be UTF-8, to str and back; parses times in
options.

The kernel uses bytes, Python programs use str: valid UTF-8 is decoded, and each other byte becomes a
surrogate escape, so that the conversion back gives the same bytes.
"""

TIME_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds of each, as perf has them."""

MAX_SECONDS = 1e9
"""Some 30 years."""


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


def seconds_of(text: str) -> float:
    """A time from 0 to MAX_SECONDS, in seconds or with a unit: 0.5, 90s, 10m, 2h, 1d. ValueError."""
    unit = TIME_UNITS.get(text[-1:])
    seconds = float(text[:-1] if unit else text) * (unit or 1)
    if not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(f"{text} is not a time")
    return seconds
