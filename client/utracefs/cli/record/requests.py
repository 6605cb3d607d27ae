"""Requests to a flight recorder to write its records, by small instances of the daemon:

    NAME-dump       `utracefs dump` writes the marker `dump ID`; the recorder answers with the marker
                    `done ID TEXT`
    NAME-trigger    `snapshot if EXPR` of --trigger is the filter of the event there

Two, since frequent records would overwrite the markers, and a text in a record could look like one.

The recorder reads each `trace`, and takes the snapshot itself. A trigger that took it could take another one
while the recorder still reads the first, and swap half-read records back. Requests that come while one is
carried out are one further request.

Everybody who may write to the tree may make a request. No signal is sent, so a reused pid cannot receive one.
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

SUFFIX: Final = "-dump"
"""Suffix of the instance that takes the requests of `utracefs dump`."""
TRIGGER_SUFFIX: Final = "-trigger"
"""Likewise."""

_MARKER: Final = "tracing_mark_write"
_LINE: Final = re.compile(r"\[\d+\] \S+ +[\d.]+: ([^\s:]+): ?(.*)$")
"""Name of an event or _MARKER, and text."""
_TRIGGER: Final = re.compile(r"snapshot(?::(\d+))?(?:\s+if\s+(.+))?", re.DOTALL)
_ID: Final = r"[0-9a-f]{16}"


def is_snapshot(trigger: str) -> bool:
    return _TRIGGER.fullmatch(trigger) is not None


class Requests:
    """The recorder's side."""

    def __init__(
        self, tree: Tracefs, place: Place, trigger_place: Place | None, triggers: Iterable[Wanted]
    ) -> None:
        """triggers: only `snapshot` ones; their filters are not used. Both places: new instances. None:
        there are no triggers."""
        self._tree = tree
        self._places = [one for one in (place, trigger_place) if one is not None]
        self._seen: list[set[str]] = [set() for _ in self._places]
        self._left: dict[str, int] = {}
        """For each pattern: the number of requests that its events may still make."""
        self._unfiltered: set[str] = set()
        """Events for which EXPR is invalid. They make no requests; otherwise each of their records would."""
        for one in self._places:
            tree.write_file(one.path("buffer_size_kb"), b"1\n")
        wanted = [self._asking(one) for one in triggers if one.triggers]
        self.wanted = WantedEvents(tree, self._places[-1], wanted)

    def _asking(self, wanted: Wanted) -> Wanted:
        found = [match for trigger in wanted.triggers if (match := _TRIGGER.fullmatch(trigger))]
        if all(match[1] for match in found):
            self._left[wanted.pattern] = sum(int(match[1]) for match in found)
        return Wanted(wanted.pattern, any_filter([match[2] or "" for match in found]))

    def read(self) -> list[str] | None:
        """The ids of new requests, an empty list for a trigger; None: there are no requests. Also checks
        events registered since."""
        lines = [self._new(number) for number in range(len(self._places))]
        # After that: an event that declared itself meanwhile is in `lines`, and its filter may be refused.
        self.wanted.check()
        self._unfiltered.update(
            event.name for event, *_ in self.wanted.refused if isinstance(event, EventName)
        )
        markers = [found[2] for found in lines[0] if found[1] == _MARKER]
        ids = [asked[1] for text in markers if (asked := re.fullmatch(f"dump ({_ID})", text))]
        events = {found[1] for of_triggers in lines[1:] for found in of_triggers}
        asking = {event for event in events if self._may_ask(event)}
        return ids if ids or asking else None

    def _new(self, number: int) -> list[re.Match[str]]:
        """Lines of that place since the last call."""
        lines = text_of(self._tree.read_file(self._places[number].path("trace"))).splitlines()
        new = [line for line in lines if line not in self._seen[number]]
        self._seen[number] = set(lines)
        return list(filter(None, map(_LINE.search, new)))

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
            self._tree.write_file(self._places[0].path("trace_marker"), bytes_of(f"done {one} {text}"[:500]))


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
