"""Which events a name on a command line means, as perf and trace-cmd have it.

    user_events:http_request   one event
    user_events:http_*         globs, in either part
    http_request, http_*       a bare word is an event's name or a system's
    user_events, user_events:  a whole system

The daemon reads lines of `standing_events` by the same rules, so that what is true for the events that exist is true
for those that come later.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

__all__ = ["EventName", "is_glob", "matches", "parse_event_list", "select"]


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
    """Whether it could mean events that do not exist yet besides one of that very name."""
    system, colon, name = pattern.partition(":")
    return any(c in pattern for c in "*?[") or (bool(colon) and not name) or (bool(colon) and not system)


def matches(pattern: str, event: EventName) -> bool:
    """Whether `pattern` means `event`."""
    system, colon, name = pattern.partition(":")
    if not colon:
        return fnmatchcase(event.name, pattern) or fnmatchcase(event.system, pattern)
    return fnmatchcase(event.system, system or "*") and fnmatchcase(event.name, name or "*")


def select(patterns: Iterable[str], events: Iterable[EventName]) -> list[EventName]:
    """The events that any of the patterns means, in their own order."""
    patterns = list(patterns)
    return [event for event in events if any(matches(pattern, event) for pattern in patterns)]


def parse_event_list(text: bytes) -> list[EventName]:
    """`available_events` or `set_event`: one SYSTEM:NAME a line."""
    found = []
    for line in text.decode("utf-8", "surrogateescape").split("\n"):
        system, colon, name = line.partition(":")
        if colon:
            found.append(EventName(system, name))
    return found
