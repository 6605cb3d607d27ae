"""Converts names, paths and texts of events, which need not be UTF-8, to str and back; parses numbers of the
kernel's files, and times and sizes in options.

Valid UTF-8 is decoded, and each other byte becomes a surrogate escape, so the way back gives the same bytes.
"""

import errno

from utracefs_protocol.errors import TraceError

TIME_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds of each, as perf has them."""

SIZE_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}

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
    """A peer's text in a message, at most 200 bytes: quoted, control characters and broken UTF-8 escaped,
    without the newline that echo appends."""
    text = escaped(data[:200].removesuffix(b"\n"))
    return f"'{visible(text)}'"


def visible(text: str) -> str:
    """An escape sequence of Python for each character that is not printable."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def unsigned_of(text: bytes, base: int = 0) -> int:
    """A number as kstrtoull() of lib/kstrtox.c reads it: digits, perhaps a `+` before and a newline behind
    them. base 0: decimal, 0x hexadecimal or 0 octal.

    TraceError: EINVAL for anything else; ERANGE from 2^64 on, whatever follows the digits.
    """
    digits = text.removeprefix(b"+")
    if base or digits[:1] != b"0":
        base, known = 10, b"0123456789"
    elif digits[1:2] in (b"x", b"X"):
        digits, base, known = digits[2:], 16, b"0123456789abcdefABCDEF"
    else:
        base, known = 8, b"01234567"
    rest = digits.lstrip(known)
    number = digits[: len(digits) - len(rest)]
    if number and int(number, base) >= 1 << 64:
        raise TraceError(errno.ERANGE, f"{shown(text)} is out of range: it has more than 64 bits")
    if not number or rest not in (b"", b"\n"):
        raise TraceError(errno.EINVAL, f"{shown(text)} is not a number: write decimal digits")
    return int(number, base)


def any_base(text: bytes) -> int | None:
    """The same; None: it is no number."""
    try:
        return unsigned_of(text)
    except TraceError:
        return None


def size_of(text: str) -> int:
    """A size in bytes, or with a unit: 500M, 2G. ValueError."""
    digits = text.rstrip("KMGT")
    unit = text[len(digits) :]
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 15 and unit in SIZE_UNITS):
        raise ValueError(f"{text} is not a size")
    return int(digits) << SIZE_UNITS[unit]


def seconds_of(text: str) -> float:
    """A time from 0 to MAX_SECONDS, in seconds or with a unit: 0.5, 90s, 10m, 2h, 1d. ValueError."""
    unit = TIME_UNITS.get(text[-1:])
    seconds = float(text[:-1] if unit else text) * (unit or 1)
    if not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(f"{text} is not a time")
    return seconds
