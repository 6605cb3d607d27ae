"""What a terminal must not get: text that steers it, which programs choose as names or write into records."""

import re

__all__ = ["harmless"]

_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    """With `?` for what steers a terminal: control characters of seven and eight bits but tab and newline,
    what ends lines or turns their order, and bytes that are no text."""
    return _STEERS.sub("?", text)
