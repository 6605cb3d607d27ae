"""Events that nothing but standing lines keeps: the first to go where there is no room for another.

Who has a standing line `user_events:*` wants the events of programs that come and go. What the line enabled
has a probe, and so a reference: it stays when its program is gone, is found enabled by the next one, and
counts as its user's. Two users whose programs invent names would fill the table, and nobody else could
register anything. So the event that has been idle for the longest goes when there is no room: of the user who
asks, if it is his share that is full, else of the one with most of them. The line enables it again when it is
registered again.

After a restart that may be any event whose program has not come back yet: first those that lines enabled,
then those that nobody enabled. A program that comes back registers it again.

What was enabled by hand, or by a plug-in or a perf event, is nobody's to take away.
"""

import heapq
from itertools import islice
from typing import Protocol

from utracefsd.events.event import Event

__all__ = ["IdleEvents", "Subscriber"]

_MAX_ASKED = 64
"""Events of a user that are looked at for one that may go. Those that may not are looked at last the next
time."""

_MAX_USERS = 8
"""Users whose events are looked at, those with most of them."""


class Subscriber(Protocol):
    """Who has lines for events that are registered later."""

    def would_attach(self, event: Event) -> bool:
        """A probe of its own is attached, and would be if the event were registered now."""

    def let_go(self, event: Event) -> None:
        """Detach it, with all that it has for the event."""


class IdleEvents:
    """Of one event table, which says when references have changed."""

    def __init__(self) -> None:
        self.subscribers: list[Subscriber] = []
        self.gone = 0
        """How many events have gone so."""
        self._by_user: dict[int, dict[Event, None]] = {}
        """The one that has been idle for the longest first."""

    def note(self, event: Event) -> None:
        """Its references are others than before."""
        if 0 < event.references == len(event.tracepoint.probes) + event.held and not event.persistent:
            self._by_user.setdefault(event.owner_uid, {}).setdefault(event)
        else:
            self.forget(event)

    def forget(self, event: Event) -> None:
        """It is in use, or gone; nothing if that was known."""
        events = self._by_user.get(event.owner_uid)
        if events is not None and event in events:
            del events[event]
            if not events:
                del self._by_user[event.owner_uid]

    def let_one_go(self, owner_uid: int | None) -> Event | None:
        """The event that has been idle for the longest, to which nobody is attached any more now: of that
        user, or for None of the one who has most of them. None: there is none."""
        if owner_uid is not None:
            users = [owner_uid]
        else:
            users = heapq.nlargest(_MAX_USERS, self._by_user, key=lambda uid: len(self._by_user[uid]))
        for uid in users:
            events = self._by_user.get(uid, {})
            for event in list(islice(events, _MAX_ASKED)):
                attached = [one for one in self.subscribers if one.would_attach(event)]
                if len(attached) + event.held == event.references:
                    for one in attached:
                        one.let_go(event)
                    self.forget(event)
                    self.gone += 1
                    return event
                del events[event]
                events[event] = None
        return None
