"""Replaces characters of names and record fields that control a terminal; drops output that cannot be
written at the exit."""

import contextlib
import os
import re
import select
import sys
from typing import IO, Any

_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    """Replace by `?`: control characters (C0 but tab and newline, DEL, C1), Unicode line ends and
    direction marks, surrogates (bytes that are not UTF-8)."""
    return _STEERS.sub("?", text)


def in_one_line(text: str) -> str:
    """Replace LF and CR by `?`: what follows one would look like another record, also in a pipe."""
    return text.replace("\n", "?").replace("\r", "?")


def drop_unwritten(*, at_once: bool = False) -> None:
    """Call it before the exit. Otherwise Python would try again to write output that cannot be written (a
    full disk, a closed pipe), and change the exit status to 120. at_once: nor wait for a reader that takes
    nothing now."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            if at_once and not _takes_more(stream.fileno()):
                discard(stream)
            getattr(stream, "wrapped", stream).flush()  # click hides a closed pipe behind a wrapper
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):  # one without a descriptor
                discard(stream)


def discard(stream: IO[Any]) -> None:
    """From now on nothing that is written to it arrives, and no write waits."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def _takes_more(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))
