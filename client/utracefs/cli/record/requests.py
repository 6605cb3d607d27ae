"""Requests to a flight recorder to write its records, by a second, small instance NAME-dump of the daemon:

    trigger of the recorder   `snapshot if EXPR` is the filter of the event there
    utracefs dump             writes the marker `dump ID`; the recorder answers with the marker `done ID TEXT`

The recorder reads that `trace`, and takes the snapshot itself. A trigger that took it could take another one
while the recorder still reads the first, and swap half-read records back. Requests that come while one is
carried out are one further request.

Access is that of the tree, and nobody sends a signal to a process number that may be another process's.
"""

import os
import re
from collections.abc import Iterable
from typing import Final

from utracefs.cli.event_options import Wanted, WantedEvents, any_filter
from utracefs.cli.instance_option import Place
from utracefs.tree.event_names import EventName, matches
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.text import bytes_of, text_of

__all__ = ["SUFFIX", "Requests", "answer_to", "ask", "is_snapshot"]

SUFFIX: Final = "-dump"
"""Of the instance's name."""

_MARKER: Final = "tracing_mark_write"
_LINE: Final = re.compile(r"\[\d+\] \S+ +[\d.]+: ([^\s:]+): ?(.*)$")
"""Name of an event or _MARKER, and text."""
_TRIGGER: Final = re.compile(r"snapshot(?::(\d+))?(?:\s+if\s+(.+))?", re.DOTALL)
_ID: Final = r"[0-9a-f]{16}"


def is_snapshot(trigger: str) -> bool:
    return _TRIGGER.fullmatch(trigger) is not None


class Requests:
    """The recorder's side."""

    def __init__(self, tree: Tracefs, place: Place, triggers: Iterable[Wanted]) -> None:
        """triggers: only `snapshot` ones; their filters are not used. place: a new instance."""
        self._tree = tree
        self._place = place
        self._seen: set[str] = set()
        self._left: dict[str, int] = {}
        """How often the events of a pattern may still ask."""
        self._unfiltered: set[str] = set()
        """Events that EXPR does not fit. They ask for nothing; else each of their records would."""
        tree.write_file(place.path("buffer_size_kb"), b"1\n")
        self.wanted = WantedEvents(tree, place, [self._asking(one) for one in triggers if one.triggers])

    def _asking(self, wanted: Wanted) -> Wanted:
        found = [match for trigger in wanted.triggers if (match := _TRIGGER.fullmatch(trigger))]
        if all(match[1] for match in found):
            self._left[wanted.pattern] = sum(int(match[1]) for match in found)
        return Wanted(wanted.pattern, any_filter([match[2] or "" for match in found]))

    def read(self) -> list[str] | None:
        """The ids of new requests, an empty list for a trigger; None: there are no requests. Also checks
        events registered since."""
        self.wanted.check()
        self._unfiltered.update(
            event.name for event, *_ in self.wanted.refused if isinstance(event, EventName)
        )
        lines = text_of(self._tree.read_file(self._place.path("trace"))).splitlines()
        new = [line for line in lines if line not in self._seen]
        self._seen = set(lines)
        ids: list[str] = []
        events: set[str] = set()
        for found in filter(None, map(_LINE.search, new)):
            if found[1] != _MARKER:
                events.add(found[1])
            elif asked := re.fullmatch(f"dump ({_ID})", found[2]):
                ids.append(asked[1])
        asking = {event for event in events if self._may_ask(event)}
        return ids if ids or asking else None

    def _may_ask(self, name: str) -> bool:
        if name in self._unfiltered:
            return False
        found = [pattern for pattern in self._left if matches(pattern, EventName("user_events", name))]
        if not found:
            return True
        self._left[found[-1]] -= 1
        return self._left[found[-1]] >= 0

    def answer(self, ids: Iterable[str], text: str) -> None:
        for one in ids:
            self._tree.write_file(self._place.path("trace_marker"), bytes_of(f"done {one} {text}"[:500]))


def ask(tree: Tracefs, place: Place) -> str:
    """Ask the recorder of that instance; returns the id."""
    request = os.urandom(8).hex()
    tree.write_file(Place(place.name + SUFFIX).path("trace_marker"), b"dump " + request.encode())
    return request


def answer_to(tree: Tracefs, place: Place, request: str) -> str | None:
    """The recorder's answer; None: not yet."""
    text = text_of(tree.read_file(Place(place.name + SUFFIX).path("trace")))
    found = re.search(rf": {_MARKER}: done {request} (.*)$", text, re.MULTILINE)
    return found[1] if found else None
