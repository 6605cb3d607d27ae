"""Replaces characters of names and record fields that control a terminal; drops output that cannot be
written at the exit."""

import contextlib
import os
import re
import sys

_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    """Replace by `?`: control characters (C0 but tab and newline, DEL, C1), Unicode line ends and
    direction marks, surrogates (bytes that are not UTF-8)."""
    return _STEERS.sub("?", text)


def in_one_line(text: str) -> str:
    """Replace LF and CR by `?`: what follows one would look like another record, also in a pipe."""
    return text.replace("\n", "?").replace("\r", "?")


def drop_unwritten() -> None:
    """Call it before the exit. Otherwise Python would try again to write output that cannot be written (a
    full disk, a closed pipe), and change the exit status to 120."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            getattr(stream, "wrapped", stream).flush()  # click hides a closed pipe behind a wrapper
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())  # fails for a stream without a descriptor
