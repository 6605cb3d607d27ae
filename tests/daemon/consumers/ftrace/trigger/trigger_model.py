"""Triggers of two events in one instance, slowly and plainly: what kernel/trace/trace_events_trigger.c,
trace_event_buffer_lock_reserve() and __event_trigger_test_discard() do, on lists of numbers."""

from __future__ import annotations

import attrs

SLOTS = {"traceon": "tracing", "traceoff": "tracing", "enable_event": "event", "disable_event": "event"}


@attrs.define(eq=False)
class ModelTrigger:
    """One trigger."""

    name: str
    target: str
    count: int
    """Negative: unlimited."""
    wanted: int | None
    """The v that it fires for; None: any."""

    def slot(self) -> tuple[str, str]:
        return SLOTS.get(self.name, self.name), self.target

    def waits(self) -> bool:
        return self.wanted is not None or self.name in ("traceoff", "stacktrace")

    def line(self) -> bytes:
        name = f"{self.name}:user_events:{self.target}" if self.target else self.name
        count = "unlimited" if self.count < 0 else f"count={self.count}"
        condition = "" if self.wanted is None else f" if v == {self.wanted}"
        return f"{name}:{count}{condition}".encode()


class Model:
    """One instance; events are called a and b, records are their v."""

    def __init__(self) -> None:
        self.on = True
        self.stored = {"a": False, "b": False}
        """Enabled, and not soft-disabled."""
        self.references = {"a": 0, "b": 0}
        self.filters: dict[str, int | None] = {"a": None, "b": None}
        """Records with a larger v pass."""
        self.triggers: dict[str, list[ModelTrigger]] = {"a": [], "b": []}
        self.live: list[int] = []
        self.spare: list[int] | None = None

    def attach(self, event: str, trigger: ModelTrigger) -> str:
        if any(other.slot() == trigger.slot() for other in self.triggers[event]):
            return "EEXIST"
        self.triggers[event].insert(0, trigger)
        self.references[event] += 1
        if trigger.target:
            self.references[trigger.target] += 1
        if trigger.name == "snapshot" and self.spare is None:
            self.spare = []
        return ""

    def remove(self, event: str, trigger: ModelTrigger) -> None:
        for other in self.triggers[event]:
            if other.slot() == trigger.slot():
                self.triggers[event].remove(other)
                self.references[event] -= 1
                if other.target:
                    self.references[other.target] -= 1
                return

    def enable_text(self, event: str) -> bytes:
        return b"%d%s" % (self.stored[event], b"*" if self.references[event] else b"")

    def emit(self, event: str, v: int) -> None:
        triggers = self.triggers[event]
        if not self.stored[event] and not self.references[event]:
            return
        buffer = self.live
        if not any(trigger.waits() for trigger in triggers):
            for trigger in triggers:
                self._act(trigger)
            if self.on and self._passes(event, v):
                self.live.append(v)
            return
        aside = not self.stored[event] or self.filters[event] is not None
        has_place = self.on
        later = []
        for trigger in triggers:
            if trigger.wanted not in (None, v):
                continue
            if trigger.name in ("traceoff", "stacktrace"):
                later.append(trigger)
            else:
                self._act(trigger)
        if self._passes(event, v) and (self.on if aside else has_place):
            buffer.append(v)
        for trigger in later:
            self._act(trigger)

    def _passes(self, event: str, v: int) -> bool:
        least = self.filters[event]
        return self.stored[event] and (least is None or v > least)

    def _act(self, trigger: ModelTrigger) -> None:
        turns_on = trigger.name in ("traceon", "enable_event")
        is_tracing, is_event = (trigger.slot()[0] == kind for kind in ("tracing", "event"))
        if is_tracing and self.on == turns_on:
            return
        if is_event and self.stored[trigger.target] == turns_on:
            return
        if trigger.count == 0:
            return
        trigger.count -= trigger.count > 0
        if is_tracing:
            self.on = turns_on
        elif is_event:
            self.stored[trigger.target] = turns_on
        elif trigger.name == "snapshot":
            assert self.spare is not None
            self.live, self.spare = self.spare, self.live
