"""Replaces characters of names and record fields before they are printed."""

import re

_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    """Replace by `?`: control characters (C0 but tab and newline, DEL, C1), Unicode line ends and
    direction marks, surrogates (bytes that are not UTF-8)."""
    return _STEERS.sub("?", text)


def in_one_line(text: str) -> str:
    """Replace LF and CR by `?`: what follows one would look like another record, also in a pipe."""
    return text.replace("\n", "?").replace("\r", "?")
