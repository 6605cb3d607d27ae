"""Idle events: kept only by lines of standing_events, and removed first when there is no space for another.

The line `user_events:*` in standing_events enables events of programs that come and go. An event that it
enabled has a probe, and so a reference: it stays when its program is gone, is enabled when the next one
registers it, and counts for its user's limit. Two users whose programs invent names could fill the table, and
then no other user could register an event. So when there is no space, the event that was idle for the longest
time is removed: one of the registering user's, if that user's share is full, else one of the user with most
such events. The line enables it again when it is registered again.

After a restart this may be any event whose program has not come back yet. Events that an administrator, a
plug-in or a perf event enabled are never removed.
"""

import heapq
from itertools import islice
from typing import Protocol

from utracefsd.events.event import Event

_MAX_ASKED = 64
"""Events of a user to examine for one that may be removed. The others move to the end of the search order."""

_MAX_USERS = 8
"""Users whose events are examined, those with most of them."""


class Subscriber(Protocol):
    """A consumer with lines for events that are registered later."""

    def would_attach(self, event: Event) -> bool:
        """Whether its probe is attached, and would be if the event were registered now."""

    def let_go(self, event: Event) -> None:
        """Detach it, and drop everything kept for the event."""


class IdleEvents:
    """The idle events of one event table, which calls `note` when references change."""

    def __init__(self) -> None:
        self.subscribers: list[Subscriber] = []
        self.gone = 0
        """How many events were removed for space."""
        self._by_user: dict[int, dict[Event, None]] = {}
        """By user, longest idle first."""

    def note(self, event: Event) -> None:
        """The references of the event have changed."""
        if 0 < event.references == len(event.tracepoint.probes) + event.awaited and not event.persistent:
            self._by_user.setdefault(event.owner_uid, {}).setdefault(event)
        else:
            self.forget(event)

    def forget(self, event: Event) -> None:
        """It is in use, or removed; may be called again."""
        events = self._by_user.get(event.owner_uid)
        if events is not None and event in events:
            del events[event]
            if not events:
                del self._by_user[event.owner_uid]

    def let_one_go(self, owner_uid: int | None) -> Event | None:
        """Detach everything from the longest idle event of that user, or for None of the user with most of
        them, and return it. None: there is none."""
        if owner_uid is not None:
            users = [owner_uid]
        else:
            users = heapq.nlargest(_MAX_USERS, self._by_user, key=lambda uid: len(self._by_user[uid]))
        for uid in users:
            events = self._by_user.get(uid, {})
            for event in list(islice(events, _MAX_ASKED)):
                attached = [one for one in self.subscribers if one.would_attach(event)]
                if len(attached) + event.awaited == event.references:
                    for one in attached:
                        one.let_go(event)
                    self.forget(event)
                    self.gone += 1
                    return event
                del events[event]
                events[event] = None
        return None
