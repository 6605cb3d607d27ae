"""Select events by a word: the words of `set_event` and the globs of `standing_events`.

    set_event         SYS:EV  SYS:*  SYS:  *:EV  :EV  EV  SYS  *:*      no globs: `*` is a whole part
    standing_events   the same, and globs in every part: `user_events:http_*`, `*_begin`

utracefs_protocol.events.event_names defines globs. `!` before either undoes. As in the kernel
(kernel/trace/trace_events.c, `ftrace_set_clr_event()`) one write is one word: the rest is left for the next
write, and the short count says so. Shells and stdio loop over it.
"""

import errno
import re
from collections.abc import Callable, Iterable
from fnmatch import translate

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events import event_names
from utracefsd.events.event import Event

_SEPARATORS = b" \t\n\v\f\r\0"


def first_word(data: bytes) -> tuple[bytes, int]:
    """The first word of one write, empty for blanks, and how many bytes it uses, with blanks before it and
    one separator after it. EINVAL: 128 bytes or more."""
    start = len(data) - len(data.lstrip())
    end = start
    while end < len(data) and data[end] not in _SEPARATORS:
        end += 1
    word = data[start:end]
    event_names.check_length(word)
    return word, min(end + 1, len(data))


def select(word: bytes, events: Iterable[Event], find: Callable[[bytes, bytes], Event | None]) -> list[Event]:
    """The events that match a word of `set_event` (without `!`), in the order of `events`. find: the event of
    a system and a name, so that the common case `SYS:EV` looks at no other. EINVAL: no match."""
    system, name = event_names.split(word)
    if system is None:
        found = [event for event in events if word in (event.tracepoint_name, event.system)]
    elif system not in (b"", b"*") and name not in (b"", b"*"):
        event = find(system, name)
        found = [] if event is None else [event]
    else:
        any_system, any_name = system in (b"", b"*"), name in (b"", b"*")
        found = [
            event
            for event in events
            if (any_system or event.system == system) and (any_name or event.tracepoint_name == name)
        ]
    if not found:
        raise TraceError(
            errno.EINVAL,
            f"no event is called {word.decode('utf-8', 'backslashreplace')!r}; available_events lists them",
        )
    return found


def glob_matches(glob: bytes, event: Event) -> bool:
    """Whether a line of `standing_events` matches this event. A bare word may match the name or the
    system."""
    return event_names.matches(glob, event.system, event.tracepoint_name)


def check_glob(glob: bytes) -> None:
    """EINVAL for a glob that is too long or can never match: more parts than system and name, or a broken
    bracket expression."""
    event_names.check_length(glob)
    try:
        re.compile(translate(glob.decode("latin-1")))
    except re.error as error:
        raise TraceError(errno.EINVAL, f"not a glob: {error}") from None
    if glob.count(b":") > 1 or not glob:
        raise TraceError(errno.EINVAL, "a glob is SYSTEM:NAME, or one part that matches either")
