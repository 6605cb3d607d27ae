"""Carries out the plan in the daemon: a private instance, whose lines enable events and set filters and
triggers.

Its ring buffer records nothing (`tracing_on` is 0): the forwarder's stream takes the records that the
instance's filters pass. The instance is removed with the connection (`remove_on_close`), so a forwarder that
is gone costs the host's programs nothing.
"""

import os
from typing import Final

from utracefs.fleet.plan import NO_FILTER, Plan
from utracefs.tree.event_names import EventName, parse_event_list
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_format import parse_format
from utracefs_protocol.text import bytes_of

_ANSWER_S: Final = 10.0
_SMALL_KB: Final = b"8\n"


def instance_name() -> str:
    """Name of this process's instance."""
    return f"fleet-{os.getpid()}"


class PlannedInstance:
    """The instance that carries out a plan. Used by one thread. OSError from all methods: the daemon has
    ended or refuses; make another object."""

    def __init__(self, directory: str | None) -> None:
        self.events: list[EventName] = []
        """Events that were registered at the last `look`."""
        self.enabled: list[EventName] = []
        self.refused: dict[EventName, dict[str, str]] = {}
        """Event to its invalid filters and triggers, with reasons."""
        self._tree: Final = Tracefs(directory, timeout_s=_ANSWER_S)
        self._plan = Plan(())
        self._seen: set[EventName] = set()
        self._unfit: set[EventName] = set()
        """Whether a trigger was refused: it may name an event that is not registered yet."""
        try:
            is_left_over = False
            try:
                self._tree.mkdir(f"instances/{instance_name()}")
            except FileExistsError:
                is_left_over = True
            self._tree.open(self._path("remove_on_close"), os.O_WRONLY)
            if is_left_over:
                self._clear()
            self._tree.write_file(self._path("tracing_on"), b"0\n")
            self._tree.write_file(self._path("buffer_size_kb"), _SMALL_KB)
        except BaseException:
            self._tree.close()
            raise

    def close(self) -> None:
        self._tree.close()

    def _clear(self) -> None:
        """The instance exists: it belongs to a former PlannedInstance and the forwarder's stream holds it, or
        to a killed process with this pid. Its plan is unknown."""
        for file in ("standing_events", "standing_filters", "standing_triggers", "set_event"):
            self._tree.write_file(self._path(file), b"")
        events = parse_event_list(self._tree.read_file("available_events"))
        for file, empty, cleared in (("trigger", b"#", ""), ("filter", b"none", NO_FILTER)):
            texts = self._tree.read_files(self._path(f"{event.directory}/{file}") for event in events)
            for event, text in zip(events, texts, strict=True):
                if isinstance(text, bytes) and not text.startswith(empty):
                    self._tree.write_file(self._path(f"{event.directory}/{file}"), bytes_of(cleared))

    def apply(self, plan: Plan) -> None:
        before, self._plan = self._plan, plan
        self._seen.clear()
        self.refused.clear()
        for line in plan.filters:
            self._append("standing_filters", line)
        for line in before.filters:
            if line not in plan.filters:
                self._append("standing_filters", f"!{line}")
        if plan.triggers != before.triggers:  # their order matters
            for line in before.triggers:
                self._append("standing_triggers", f"!{line}")
            for line in plan.triggers:
                self._append("standing_triggers", line)
        self._remove_triggers(before)
        self._set_all()
        for word in before.events:
            if word not in plan.events:
                self._append("standing_events", f"!{word}")
        for word in plan.events:
            if word not in before.events:
                self._append("standing_events", word)
        enabled = self._list("set_event")
        for event in enabled:
            if not plan.wants(event):
                self._write_event(event, "enable", "0\n")
                self._write_event(event, "filter", NO_FILTER)
        for event in set(self.events).difference(enabled):
            if plan.wants(event):  # the end of a trigger `disable_event` that had fired has disabled it
                self._write_event(event, "enable", "1\n")
        self.look()

    def look(self) -> bool:
        """Find events that were registered or removed since the last call; returns whether there were any."""
        before = self.events, self.enabled
        self._set_all()
        self.enabled = self._list("set_event")
        return before != (self.events, self.enabled)

    def _remove_triggers(self, before: Plan) -> None:
        for event in parse_event_list(self._tree.read_file("available_events")):
            wanted = self._plan.triggers_of(event)[0]
            for text in before.triggers_of(event)[0]:
                if text not in wanted:
                    self._write_event(event, "trigger", f"!{text}\n")

    def _set_all(self) -> None:
        self.events = parse_event_list(self._tree.read_file("available_events"))
        self._seen.intersection_update(self.events)
        if not self._seen.issuperset(self.events):
            self._seen -= self._unfit
        for event in self.events:
            if event not in self._seen:
                self._seen.add(event)
                if self._plan.wants(event):
                    self._set(event)

    def _set(self, event: EventName) -> None:
        try:
            format = parse_format(self._tree.read_file(f"{event.directory}/format"))
        except (FileNotFoundError, TraceError):
            return
        text, refused = self._plan.filter(event, format.fields)
        # If it is invalid, it is kept as such: the stream leaves the event out.
        self._write_event(event, "filter", text)
        triggers, left_out = self._plan.triggers_of(event)
        refused |= left_out
        self._unfit.discard(event)
        for text in triggers if self._plan.may_trigger(event, format) else ():
            error = self._write_event(event, "trigger", f"{text}\n")
            # (a standing line has set it, or an earlier look)
            if error is not None and not isinstance(error, FileExistsError):
                refused[text] = f"trigger {text!r}: {error.strerror}"
                self._unfit.add(event)
        self.refused.pop(event, None)
        if refused:
            self.refused[event] = refused

    def _write_event(self, event: EventName, file: str, text: str) -> OSError | None:
        path = self._path(f"{event.directory}/{file}")
        return self._tree.refusal(path, bytes_of(text), truncate=file == "filter")

    def _append(self, file: str, line: str) -> None:
        self._tree.write_file(self._path(file), bytes_of(line) + b"\n", truncate=False)

    def _list(self, file: str) -> list[EventName]:
        return parse_event_list(self._tree.read_file(self._path(file)))

    def _path(self, file: str) -> str:
        return f"instances/{instance_name()}/{file}"
