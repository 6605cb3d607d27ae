"""Matching names of the command line with the events listed in a file of the tree.

The rules are those of `utracefs_protocol.events.event_names`, which the daemon uses for the lines of
`standing_events`, too: so existing and later events are matched in the same way.
"""

import heapq
import operator
from collections.abc import Collection, Iterable
from itertools import takewhile
from typing import NamedTuple

from utracefs_protocol.events import event_names
from utracefs_protocol.text import bytes_of, text_of

ALL_USER_EVENTS = text_of(event_names.ALL_USER_EVENTS)
"""Default pattern."""


_NAMES_SAID = 8
"""Limit of names in a message."""

_NAMES_COMPARED = 32


class EventName(NamedTuple):
    """An event in `available_events`."""

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
    """Whether it can match other names than itself."""
    return event_names.is_glob(bytes_of(pattern))


def matches(pattern: str, event: EventName) -> bool:
    """Whether `pattern` matches `event`."""
    return event_names.matches(bytes_of(pattern), bytes_of(event.system), bytes_of(event.name))


def select(patterns: Iterable[str], events: Iterable[EventName]) -> list[EventName]:
    """The events that match any of the patterns, in their own order."""
    patterns = list(patterns)
    return [event for event in events if any(matches(pattern, event) for pattern in patterns)]


def parse_event_list(text: bytes) -> list[EventName]:
    """`available_events` or `set_event`: one SYSTEM:NAME per line."""
    found = []
    for line in text.split(b"\n"):
        system, name = event_names.split(line)
        if system is not None:
            found.append(EventName(text_of(system), text_of(name)))
    return found


def no_such_event(word: str, events: Collection[EventName]) -> str:
    """The text for a word that matches no event of a recording: lists the events, without ftrace's own."""
    names = sorted(event.name for event in events if event.system != "ftrace")
    there = ", ".join(names[:_NAMES_SAID]) + (", ..." if len(names) > _NAMES_SAID else "")
    return f"no such event: {word}{similar_event(word, events)}" + (f"; it has {there}" if names else "")


def similar_event(word: str, events: Iterable[EventName]) -> str:
    """`did_you_mean` for an event; with a system in `word`, of both. Other systems are of the kernel."""
    if "," in word:  # how perf separates events
        return "; give each event by itself, not separated by commas"
    events = list(events)
    meant = did_you_mean(word, {str(event) if ":" in word else event.name for event in events})
    system, colon, _ = word.partition(":")
    if meant or not colon or is_glob(system) or system in {event.system for event in events}:
        return meant
    return "" if system.startswith("user_events") else "; perf and trace-cmd record events of the kernel"


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """`; did you mean NAME?`, to be appended to an error; empty for globs, and if no name is similar."""
    if is_glob(word):
        return ""
    from difflib import get_close_matches  # only after an error

    def alike(name: str) -> int:
        """Characters of equal beginnings and ends: fast, where difflib would take seconds for 4095 names."""
        pairs = ((word, name), (word[::-1], name[::-1]))
        return sum(sum(takewhile(bool, map(operator.eq, *pair))) for pair in pairs)

    close = get_close_matches(word, heapq.nlargest(_NAMES_COMPARED, names, alike), 1)
    return f"; did you mean {close[0]}?" if close else ""
