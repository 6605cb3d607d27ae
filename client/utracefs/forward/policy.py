"""The policy: a TOML file that says what may leave the host.

    events = ["user_events:http_*", "shop_order"]   # SYSTEM:NAME, NAME, or globs; default: all
    max_records_per_s = 50000                       # more are counted as lost; default: no limit

Applied before records reach the spool. Records of other events are dropped uncounted: their names stay here,
too."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import attrs

from utracefs.tree.event_names import EventName, matches

__all__ = ["Policy", "Rate"]

_KEYS: Final = {"events", "max_records_per_s"}


@attrs.frozen
class Policy:
    events: tuple[str, ...] = ("*:*",)
    max_records_per_s: float | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """ValueError: what is wrong in the file. OSError."""
        try:
            told = tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        try:
            return cls._of(told)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def _of(cls, told: Mapping[str, Any]) -> Self:
        if unknown := sorted(told.keys() - _KEYS):
            raise ValueError(f"{unknown[0]!r} is not known; there are: {', '.join(sorted(_KEYS))}")
        events = told.get("events", ["*:*"])
        if not isinstance(events, list) or not all(isinstance(one, str) and one for one in events):
            raise ValueError('`events` is not a list of texts: events = ["user_events:*"]')
        rate = told.get("max_records_per_s")
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or rate <= 0):
            raise ValueError("`max_records_per_s` is not a number above 0")
        return cls(tuple(events), rate)

    def allows(self, event: EventName) -> bool:
        return any(matches(pattern, event) for pattern in self.events)


class Rate:
    """At most per_s records a second, and that many at once after a pause; None: any number."""

    def __init__(self, per_s: float | None, now: float) -> None:
        self._per_s: Final = per_s
        self._left = per_s or 0.0
        self._at = now

    def room(self, now: float) -> int:
        """Records that may pass now."""
        if self._per_s is None:
            return 2**62
        self._left = min(self._per_s, self._left + (now - self._at) * self._per_s)
        self._at = now
        return int(self._left)

    def take(self, records: int) -> None:
        self._left -= records
