"""Which events a word means, as set_event, perf and trace-cmd have it. Both sides go by these rules.

    user_events:http_request   one event
    user_events:http_*         globs, in either part
    user_events:, :NAME        an empty part is any
    http_request, http_*       a bare word is an event's name or a system's

Where only whole names count (`set_event`), `*` alone stands for any part; that choice is the caller's.

A word is bytes and so are names: `?` and a bracket expression mean one byte.
"""

import errno
from fnmatch import fnmatchcase
from typing import Final

from utracefs_protocol.errors import TraceError

__all__ = [
    "ALL_USER_EVENTS",
    "MAX_WORD",
    "check_length",
    "is_glob",
    "matches",
    "split",
]

ALL_USER_EVENTS: Final = b"user_events*:*"
"""The word for all events of both systems, user_events and user_events_multi."""

MAX_WORD: Final = 127
"""Bytes of a word that set_event and standing_events take: EVENT_BUF_SIZE of kernel/trace/trace_events.c is
128, with the NUL. Longer: EINVAL."""


def check_length(word: bytes) -> None:
    """EINVAL for a word that is too long."""
    if len(word) > MAX_WORD:
        raise TraceError(errno.EINVAL, f"a word has at most {MAX_WORD} bytes, not {len(word)}")


def split(word: bytes) -> tuple[bytes | None, bytes]:
    """System and name of SYSTEM:NAME, either may be empty; None and the word for a bare one."""
    system, colon, name = word.partition(b":")
    return (system, name) if colon else (None, word)


def is_glob(word: bytes) -> bool:
    """Whether it can mean events that do not exist yet besides one of that very name."""
    return any(byte in b"*?[" for byte in word) or b"" in split(word)


def matches(word: bytes, system: bytes, name: bytes) -> bool:
    """Whether a word, its parts taken as globs, means the event of that system and (tracepoint) name."""
    wanted_system, wanted_name = split(word)
    if wanted_system is None:
        return fnmatchcase(name, word) or fnmatchcase(system, word)
    return fnmatchcase(system, wanted_system or b"*") and fnmatchcase(name, wanted_name or b"*")
