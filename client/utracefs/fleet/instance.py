"""The plan in the daemon: an instance of its own, whose standing lines enable and filter events.

Its ring buffer records nothing (`tracing_on` is 0): the forwarder's stream takes the records that the
instance's filters pass. The instance is removed with the connection (`remove_on_close`), so that a host that
lost its forwarder records nothing for it.
"""

import contextlib
import os
from typing import Final

from utracefs.fleet.plan import NO_FILTER, Plan
from utracefs.tree.event_names import EventName, parse_event_list
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_format import parse_format
from utracefs_protocol.text import bytes_of

__all__ = ["PlannedInstance", "instance_name"]

_ANSWER_S: Final = 10.0
_SMALL_KB: Final = b"8\n"


def instance_name() -> str:
    """Of this process."""
    return f"fleet-{os.getpid()}"


class PlannedInstance:
    """One thread uses it. OSError from all methods: the daemon is away, or refuses; make another one."""

    def __init__(self, directory: str | None) -> None:
        self.events: list[EventName] = []
        """Registered, as of the last `look`."""
        self.enabled: list[EventName] = []
        self.refused: dict[str, str] = {}
        """Event to why a filter does not fit it."""
        self._tree: Final = Tracefs(directory, timeout_s=_ANSWER_S)
        self._plan = Plan(())
        self._seen: set[EventName] = set()
        try:
            with contextlib.suppress(FileExistsError):  # of a process with this number that was killed
                self._tree.mkdir(f"instances/{instance_name()}")
            self._tree.open(self._path("remove_on_close"), os.O_WRONLY)
            self._tree.write_file(self._path("tracing_on"), b"0\n")
            self._tree.write_file(self._path("buffer_size_kb"), _SMALL_KB)
        except BaseException:
            self._tree.close()
            raise

    def close(self) -> None:
        self._tree.close()

    def apply(self, plan: Plan) -> None:
        before, self._plan = self._plan, plan
        self._seen.clear()
        self.refused.clear()
        for line in plan.filters:
            self._append("standing_filters", line)
        for line in before.filters:
            if line not in plan.filters:
                self._append("standing_filters", f"!{line}")
        self._set_filters()
        for word in before.events:
            if word not in plan.events:
                self._append("standing_events", f"!{word}")
        for word in plan.events:
            if word not in before.events:
                self._append("standing_events", word)
        for event in self._list("set_event"):
            if not plan.wants(event):
                with contextlib.suppress(FileNotFoundError):
                    self._tree.write_file(self._path(f"{event.directory}/enable"), b"0\n")
                    self._tree.write_file(self._path(f"{event.directory}/filter"), NO_FILTER.encode())
        self.look()

    def look(self) -> bool:
        """Find events that were registered since; whether there are new ones, or fewer."""
        before = self.events, self.enabled
        self._set_filters()
        self.enabled = self._list("set_event")
        return before != (self.events, self.enabled)

    def _set_filters(self) -> None:
        self.events = parse_event_list(self._tree.read_file("available_events"))
        self._seen.intersection_update(self.events)
        for event in self.events:
            if event not in self._seen:
                self._seen.add(event)
                if self._plan.wants(event):
                    self._set_filter(event)

    def _set_filter(self, event: EventName) -> None:
        try:
            fields = parse_format(self._tree.read_file(f"{event.directory}/format")).fields
        except (FileNotFoundError, TraceError):
            return
        text, reason = self._plan.filter(event, fields)
        if reason:
            self.refused[str(event)] = reason
        try:
            self._tree.write_file(self._path(f"{event.directory}/filter"), bytes_of(text))
        except (ConnectionError, TimeoutError):
            raise
        except OSError:
            pass  # it is invalid, and kept as such: the stream leaves the event out

    def _append(self, file: str, line: str) -> None:
        self._tree.write_file(self._path(file), bytes_of(line) + b"\n", truncate=False)

    def _list(self, file: str) -> list[EventName]:
        return parse_event_list(self._tree.read_file(self._path(file)))

    def _path(self, file: str) -> str:
        return f"instances/{instance_name()}/{file}"
