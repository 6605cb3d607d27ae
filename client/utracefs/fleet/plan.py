"""Turns wishes into standing lines for a host's instance, and into filter, triggers and sampling of its
events.

Wishes for the same event are joined: a record is forwarded once, if any of their filters passes it, and the
event is sampled as often as the most frequent sampling among them demands. A standing filter of the daemon
belongs to a glob, not to an event. So globs that may match the same event and have different filters get no
standing filter: an event that is registered then is unfiltered until the agent sees it (agent.LOOK_S). So
more records than requested may be forwarded, never fewer.

A trigger reveals values of fields, by its filter and its histogram, so it is set only for events that the
policy allows. It becomes a standing line if the policy allows all events that the word may match; otherwise
the agent sets it for each event.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

import attrs

from utracefs.fleet.trigger import has_word, needs, slot
from utracefs.fleet.wish import Wish
from utracefs.forward.policy import Policy
from utracefs.tree.event_names import EventName, is_glob, matches
from utracefs_protocol.events.declaration import Field
from utracefs_protocol.events.event_format import EventFormat
from utracefs_protocol.filter import FilterError, parse_filter
from utracefs_protocol.text import bytes_of, text_of

MAX_WISHES: Final = 32
"""Limit of wishes that a host carries out: with 8 events each, a quarter of the lines of a standing file."""

NO_FILTER: Final = "0"
"""Clears a filter."""

MAX_TRIGGERS: Final = 16
"""Limit of triggers in all wishes of a host: each costs time for every record of its events."""

MAX_FILTER: Final = 4096
"""Bytes of the joined filter of an event: a page, as the kernel has it."""

_SYSTEMS: Final = ("user_events", "user_events_multi", "synthetic")
"""Systems of events; a word without a colon may be one."""

_LITERAL: Final = re.compile(r"[^*?\[]*")


@attrs.frozen
class Choice:
    """The wishes that select a host, judged."""

    obeyed: Mapping[str, Wish]
    refused: Mapping[str, str]
    """Name to reason."""


def choose(wishes: Mapping[str, Wish], policy: Policy) -> Choice:
    """Accept or refuse each wish. wishes: by name; if there are too many, the first ones are accepted."""
    obeyed: dict[str, Wish] = {}
    refused = {}
    left = MAX_TRIGGERS
    for name, wish in wishes.items():
        if reason := _against(wish, policy):
            pass
        elif len(obeyed) == MAX_WISHES:
            reason = f"the host obeys {MAX_WISHES} older wishes already"
        elif len(wish.triggers) > left:
            reason = f"the host has {MAX_TRIGGERS - left} triggers of older wishes already, of {MAX_TRIGGERS}"
        else:
            left -= len(wish.triggers)
            obeyed[name] = wish
            continue
        refused[name] = reason
    return Choice(obeyed, refused)


def _against(wish: Wish, policy: Policy) -> str:
    """The reason of the policy's refusal; empty: none."""
    if wish.duration_s > policy.max_wish_s:
        return f"its {wish.duration_s:.0f} s are above max_wish_s of the policy, {policy.max_wish_s:.0f}"
    if not any(_may_meet(word, allowed) for word in wish.events for allowed in policy.events):
        return "the policy allows none of its events to leave the host"
    for name in sorted(policy.hidden):
        if any(has_word(text, name) for text in (wish.filter, *wish.triggers)):
            return f"the policy hides the field {name}, so no filter or trigger may use it"
    for text in wish.triggers:
        if missing := sorted(needs(text) - policy.triggers):
            return f"the policy allows no trigger with {missing[0][:40]!r}: {text[:80]!r}"
    return ""


class Plan:
    """The standing lines, filters and triggers of all accepted wishes."""

    def __init__(self, wishes: Iterable[Wish], policy: Policy = Policy()) -> None:  # noqa: B008 (frozen)
        self._wishes: Final = list(wishes)
        self._policy: Final = policy
        words = dict.fromkeys(word for wish in self._wishes for word in wish.events)
        self.events: Final = sorted(words, key=lambda word: not is_glob(word))
        """Lines of standing_events."""
        self.filters: Final = [f"{word} {self._standing_filter(word)}" for word in self.events]
        """Lines of standing_filters; names behind globs, since the last line that matches holds."""
        self.triggers: Final = list(
            dict.fromkeys(
                f"{word} {text}"
                for wish in self._wishes
                for word in wish.events
                if self._is_open(word)
                for text in wish.triggers
            )
        )
        """Lines of standing_triggers, each once."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._wishes == other._wishes

    __hash__ = None  # type: ignore[assignment]

    def wants(self, event: EventName) -> bool:
        return any(matches(word, event) for word in self.events)

    def sample(self, event: EventName) -> int:
        """0: it is not wanted."""
        return min((wish.sample for wish in self._of(event)), default=0)

    def filter(self, event: EventName, fields: Iterable[Field]) -> tuple[str, dict[str, str]]:
        """The text for the event's file `filter`, and the unusable filters of wishes with the reason for
        each. If no filter is valid for the event, the text is an invalid one, which excludes the event."""
        known = [field for field in fields if text_of(field.name) not in self._policy.hidden]
        valid: list[str] = []
        invalid: dict[str, str] = {}
        for text in dict.fromkeys(wish.filter for wish in self._of(event)):
            try:
                if text:
                    parse_filter(bytes_of(text), known)
                valid.append(text)
            except FilterError as error:
                invalid[text] = f"{text!r}: {error.text}"
        return (_joined(valid) if valid else next(iter(invalid))), invalid

    def triggers_of(self, event: EventName) -> tuple[list[str], dict[str, str]]:
        """The commands for the event's file `trigger`, and the triggers of wishes that are not set, with the
        reason for each."""
        found: dict[str, str] = {}
        left_out: dict[str, str] = {}
        for wish in self._of(event) if self._policy.allows(event) else ():
            for text in wish.triggers:
                other = found.setdefault(slot(text), text)
                if other != text:
                    left_out[text] = f"trigger {text!r}: there is {other!r} of an older wish"
        return list(found.values()), left_out

    def may_trigger(self, event: EventName, format: EventFormat) -> bool:
        """Whether its records may leave."""
        return self._policy.verdict(event, format) not in (False, None)

    def _is_open(self, word: str) -> bool:
        """Whether the policy allows all events that it may match, and hides nothing of them."""
        known = self._policy.events
        words = [word, *_without_ids(word)]
        if any(_may_meet(one, pattern) for one in words for pattern in self._policy.fields):
            return False
        if "*:*" in known or word in known:
            return True
        system, colon, name = word.partition(":")
        return bool(colon) and not is_glob(word) and self._policy.allows(EventName(system, name))

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


def _without_ids(word: str) -> Iterator[str]:
    """Words for `user_events:NAME`: its table of fields applies to `user_events_multi:NAME.ID`, too."""
    for system, name in _meanings(word):
        if _parts_may_meet(system, "user_events_multi"):
            begin = _LITERAL.match(name)[0]  # type: ignore[index]
            if "." in begin:
                yield f"user_events:{begin.rpartition('.')[0]}"
            if begin != name:
                yield f"user_events:{begin}*"


def _parts_may_meet(one: str, other: str) -> bool:
    begin, other_begin = _LITERAL.match(one)[0], _LITERAL.match(other)[0]  # type: ignore[index]
    if begin == one and other_begin == other:
        return one == other
    if begin == one:
        return one.startswith(other_begin)
    if other_begin == other:
        return other.startswith(begin)
    return begin.startswith(other_begin) or other_begin.startswith(begin)
