"""From wishes to what a host does: standing lines for its instance, the filter and sampling of each event.

Wishes that name the same event are joined: a record leaves once, if one of their filters passes it, and of
their samplings the most frequent holds. A standing filter of the daemon belongs to a glob, not to an event,
so for globs that may match the same event, with different filters, it is none: an event that registers then
is unfiltered until the agent has looked (agent.LOOK_S). More records leave than are wanted, never fewer.
"""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

import attrs

from utracefs.fleet.wish import Wish
from utracefs.tree.event_names import EventName, is_glob, matches
from utracefs_protocol.events.declaration import Field
from utracefs_protocol.filter import FilterError, parse_filter
from utracefs_protocol.text import bytes_of

__all__ = ["MAX_WISHES", "NO_FILTER", "Choice", "Limits", "Plan", "choose"]

MAX_WISHES: Final = 32
"""That a host obeys: with 8 events each, a quarter of the lines that a standing file takes."""

NO_FILTER: Final = "0"
"""Clears a filter."""

MAX_FILTER: Final = 4096
"""Bytes of the joined filter of an event: a page, as the kernel has it."""

_SYSTEMS: Final = ("user_events", "user_events_multi", "synthetic")
"""That events can have; a word without a colon may be one."""

_WORD: Final = re.compile(r"\w+")
_LITERAL: Final = re.compile(r"[^*?\[]*")


@attrs.frozen
class Limits:
    """Of a host's policy."""

    events: tuple[str, ...] = ("*:*",)
    """Globs of events that may leave."""
    max_wish_s: float = 86400.0
    hidden: frozenset[str] = frozenset()
    """Fields that the policy redacts or hashes: a filter on one would tell its value."""


@attrs.frozen
class Choice:
    """The wishes that select a host, judged."""

    obeyed: Mapping[str, Wish]
    refused: Mapping[str, str]
    """Name to reason."""


def choose(wishes: Mapping[str, Wish], limits: Limits) -> Choice:
    """wishes: by name, the ones to prefer first."""
    obeyed: dict[str, Wish] = {}
    refused = {}
    for name, wish in wishes.items():
        if wish.duration_s > limits.max_wish_s:
            reason = (
                f"its {wish.duration_s:.0f} s are above max_wish_s of the policy, {limits.max_wish_s:.0f}"
            )
        elif not any(_may_meet(word, allowed) for word in wish.events for allowed in limits.events):
            reason = "the policy allows none of its events to leave the host"
        elif hidden := limits.hidden.intersection(_WORD.findall(wish.filter)):
            reason = f"the policy hides the field {min(hidden)}, so no filter may use it"
        elif len(obeyed) == MAX_WISHES:
            reason = f"the host obeys {MAX_WISHES} older wishes already"
        else:
            obeyed[name] = wish
            continue
        refused[name] = reason
    return Choice(obeyed, refused)


class Plan:
    """Of the obeyed wishes."""

    def __init__(self, wishes: Iterable[Wish]) -> None:
        self._wishes: Final = list(wishes)
        words = dict.fromkeys(word for wish in self._wishes for word in wish.events)
        self.events: Final = sorted(words, key=lambda word: not is_glob(word))
        """Lines of standing_events."""
        self.filters: Final = [f"{word} {self._standing_filter(word)}" for word in self.events]
        """Lines of standing_filters; names behind globs, since the last line that matches holds."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._wishes == other._wishes

    __hash__ = None  # type: ignore[assignment]

    def wants(self, event: EventName) -> bool:
        return any(matches(word, event) for word in self.events)

    def sample(self, event: EventName) -> int:
        """0: it is not wanted."""
        return min((wish.sample for wish in self._of(event)), default=0)

    def filter(self, event: EventName, fields: Iterable[Field]) -> tuple[str, str]:
        """For its file `filter`, and why a filter of a wish cannot be used. A filter that is invalid for the
        event means that the event is left out."""
        known = list(fields)
        valid: list[str] = []
        invalid: list[str] = []
        reason = ""
        for text in dict.fromkeys(wish.filter for wish in self._of(event)):
            try:
                if text:
                    parse_filter(bytes_of(text), known)
                valid.append(text)
            except FilterError as error:
                invalid.append(text)
                reason = reason or f"{text!r}: {error.text}"
        return (_joined(valid) if valid else invalid[0]), reason

    def _of(self, event: EventName) -> list[Wish]:
        return [wish for wish in self._wishes if any(matches(word, event) for word in wish.events)]

    def _standing_filter(self, word: str) -> str:
        filters = dict.fromkeys(
            wish.filter for wish in self._wishes if any(_may_meet(word, other) for other in wish.events)
        )
        return (next(iter(filters)) if len(filters) == 1 else "") or NO_FILTER


def _joined(filters: list[str]) -> str:
    """Records that pass any of them."""
    if "" in filters:
        return NO_FILTER
    text = filters[0] if len(filters) == 1 else " || ".join(f"({one})" for one in filters)
    return text if len(bytes_of(text)) < MAX_FILTER else NO_FILTER


def _may_meet(one: str, other: str) -> bool:
    """Whether an event may match both. Only the texts in front of their first wildcards are compared."""
    return any(
        _parts_may_meet(system, other_system) and _parts_may_meet(name, other_name)
        for system, name in _meanings(one)
        for other_system, other_name in _meanings(other)
    )


def _meanings(word: str) -> list[tuple[str, str]]:
    """Globs of system and name."""
    system, colon, name = word.partition(":")
    if colon:
        return [(system or "*", name or "*")]
    return [("*", word), *((one, "*") for one in _SYSTEMS if fnmatchcase(one, word))]


def _parts_may_meet(one: str, other: str) -> bool:
    begin, other_begin = _LITERAL.match(one)[0], _LITERAL.match(other)[0]  # type: ignore[index]
    if begin == one and other_begin == other:
        return one == other
    if begin == one:
        return one.startswith(other_begin)
    if other_begin == other:
        return other.startswith(begin)
    return begin.startswith(other_begin) or other_begin.startswith(begin)
