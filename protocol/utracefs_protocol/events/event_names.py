"""Matching events by words, with the rules of set_event, perf and trace-cmd. Client and daemon share them.

    user_events:http_request   one event
    user_events:http_*         globs, in either part
    user_events:, :NAME        an empty part is any
    http_request, http_*       a bare word is an event's name or a system's

Where only whole names match (`set_event`), `*` alone stands for any part; the caller decides that.

Words and names are bytes: `?` and a bracket expression match one byte.
"""

import errno
from fnmatch import fnmatchcase
from typing import Final

from utracefs_protocol.errors import TraceError

ALL_USER_EVENTS: Final = b"user_events*:*"
"""The word for all events of both systems, user_events and user_events_multi."""

MAX_WORD: Final = 127
"""Longest word of set_event and standing_events in bytes: EVENT_BUF_SIZE of kernel/trace/trace_events.c is
128, with the NUL. Longer: EINVAL."""


def check_length(word: bytes) -> None:
    """EINVAL if the word is too long."""
    if len(word) > MAX_WORD:
        raise TraceError(errno.EINVAL, f"a word has at most {MAX_WORD} bytes, not {len(word)}")


def split(word: bytes) -> tuple[bytes | None, bytes]:
    """System and name of SYSTEM:NAME, either may be empty; None and the word for a bare one."""
    system, colon, name = word.partition(b":")
    return (system, name) if colon else (None, word)


def is_glob(word: bytes) -> bool:
    """Whether it can match other names than itself."""
    return any(byte in b"*?[" for byte in word) or b"" in split(word)


def matches(word: bytes, system: bytes, name: bytes) -> bool:
    """Whether a word, its parts taken as globs, means the event of that system and (tracepoint) name."""
    wanted_system, wanted_name = split(word)
    if wanted_system is None:
        return fnmatchcase(name, word) or fnmatchcase(system, word)
    return fnmatchcase(system, wanted_system or b"*") and fnmatchcase(name, wanted_name or b"*")
