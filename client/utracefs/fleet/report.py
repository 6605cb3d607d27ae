"""A host's report about itself, as JSON in the bucket of hosts. docs/fleet.md lists its members.

A reader trusts none of it: a host may write anything into its own entry.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from utracefs.fleet.wish import name_of
from utracefs.nats.bucket import Value

VERSION: Final = 1

PERIOD_S: Final = 5.0
"""Time between two reports of a host."""

AWAY_S: Final = 3 * PERIOD_S
"""Age of the last report from which on a host counts as away."""

MAX_BYTES: Final = 64 << 10
MAX_NUMBER: Final = 1 << 63
MAX_NAMES: Final = 500
"""Events in a report."""

_LISTS: Final = ("events", "enabled")


def pack(members: Mapping[str, Any]) -> bytes:
    """Encode a report. Lists and maps of events are cut to MAX_NAMES entries, or fewer if the report is too
    long; `left_out` counts omitted entries."""
    limit = MAX_NAMES
    while True:
        cut: dict[str, Any] = {"version": VERSION, **members}
        left_out = 0
        for name in (*_LISTS, "forwarded", "lost", "wishes"):
            value = members.get(name, [])
            left_out += max(0, len(value) - limit)
            cut[name] = dict(list(value.items())[:limit]) if isinstance(value, Mapping) else value[:limit]
        data = json.dumps({**cut, "left_out": left_out}).encode()
        if len(data) <= MAX_BYTES or not limit:
            return data[:MAX_BYTES]
        limit //= 2


@attrs.frozen
class Host:
    """A report that was read."""

    name: str
    seen_s: float
    """The server's time of the report."""
    members: Mapping[str, Any]
    """Members of the report; empty: it is invalid."""

    @classmethod
    def of(cls, value: Value) -> "Host":
        try:
            members = json.loads(value.data[:MAX_BYTES], parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            members = {}
        is_known = isinstance(members, dict) and members.get("version") == VERSION
        return cls(name_of(value.key), value.time_s, members if is_known else {})

    def is_away(self, now_s: float) -> bool:
        return now_s - self.seen_s > AWAY_S

    def text(self, member: str) -> str:
        value = self.members.get(member)
        return value if isinstance(value, str) else ""

    def number(self, member: str) -> float:
        """The value as an integer; 0 if it is no number, or out of range."""
        value = self.members.get(member)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER:
            return value
        return 0

    def names(self, member: str) -> list[str]:
        value = self.members.get(member)
        return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []

    def counts(self, member: str) -> dict[str, int]:
        return {name: count for name, count in self._items(member) if _is_count(count)}

    @property
    def labels(self) -> dict[str, str]:
        return {name: value for name, value in self._items("labels") if isinstance(value, str)}

    @property
    def wishes(self) -> dict[str, str]:
        """Name of a wish to its state on this host: `obeyed`, `ended`, or a text with reasons."""
        return {name: value for name, value in self._items("wishes") if isinstance(value, str)}

    @property
    def lost(self) -> dict[str, int]:
        """By event."""
        found = {}
        for name, causes in self._items("lost"):
            if isinstance(causes, dict):
                found[name] = sum(filter(_is_count, causes.values()))
        return found

    def _items(self, member: str) -> Iterable[tuple[str, Any]]:
        value = self.members.get(member)
        return value.items() if isinstance(value, dict) else ()


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_NUMBER
