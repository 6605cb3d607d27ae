"""The events that a name on a command line means, among those that a file of the tree lists.

What a word means is `utracefs_protocol.event_names`, by which the daemon reads the lines of
`standing_events`, too: what is true for the events that exist is true for those that come later.
"""

from collections.abc import Iterable
from typing import NamedTuple

from utracefs_protocol import event_names
from utracefs_protocol.text import bytes_of, text_of

__all__ = [
    "ALL_USER_EVENTS",
    "EventName",
    "is_glob",
    "matches",
    "no_such_event",
    "parse_event_list",
    "select",
]

ALL_USER_EVENTS = text_of(event_names.ALL_USER_EVENTS)
"""What is meant where no event is named."""


_NAMES_SAID = 8
"""In a line that says what there is."""


class EventName(NamedTuple):
    """One event as `available_events` lists it."""

    system: str
    name: str
    """Tracepoint name: `NAME.<hex>` for multi-format events."""

    def __str__(self) -> str:
        return f"{self.system}:{self.name}"

    @property
    def directory(self) -> str:
        """Its path in the tree."""
        return f"events/{self.system}/{self.name}"


def is_glob(pattern: str) -> bool:
    """Whether it can mean events that do not exist yet besides one of that very name."""
    return event_names.is_glob(bytes_of(pattern))


def matches(pattern: str, event: EventName) -> bool:
    """Whether `pattern` means `event`."""
    return event_names.matches(bytes_of(pattern), bytes_of(event.system), bytes_of(event.name))


def select(patterns: Iterable[str], events: Iterable[EventName]) -> list[EventName]:
    """The events that any of the patterns means, in their own order."""
    patterns = list(patterns)
    return [event for event in events if any(matches(pattern, event) for pattern in patterns)]


def parse_event_list(text: bytes) -> list[EventName]:
    """`available_events` or `set_event`: one SYSTEM:NAME a line."""
    found = []
    for line in text.split(b"\n"):
        system, name = event_names.split(line)
        if system is not None:
            found.append(EventName(text_of(system), text_of(name)))
    return found


def no_such_event(word: str, events: Iterable[EventName]) -> str:
    """What to say of a word that means none of the events of a recording: which there are, but for ftrace's
    own."""
    names = sorted(event.name for event in events if event.system != "ftrace")
    there = ", ".join(names[:_NAMES_SAID]) + (", ..." if len(names) > _NAMES_SAID else "")
    return f"no such event: {word}" + (f"; it has {there}" if names else "")
