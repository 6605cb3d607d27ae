"""Trace event ids: the lowest free one, as in the kernel (ida_alloc_range() in kernel/trace/trace_output.c).

One difference: no event gets the id of a removed one while a ring buffer may hold records with it, since they
would get another meaning. Such an id is kept for the same event (system, name and fields), so a program's old
records are readable again when the program is back.

            allocate                free, never recorded
    free ──────────────> in use ─────────────────────────> free
                          ^  │ free, recorded
                 the same │  v
                    event └─ kept ───────────────────────> free
                               no buffer may hold records of removed events (each `check`);
                               none holds its records (when there is no other id)
"""

import errno
from collections.abc import Collection
from hashlib import blake2b
from typing import Protocol

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import Declaration
from utracefs_protocol.limits import MAX_EVENT_ID
from utracefsd.events.event import Event
from utracefsd.events.lowest_free import LowestFree
from utracefsd.machine.shares import Resource, Shares

_REFUSALS_BEFORE_RESCAN = 16
"""Refusals until the next search of all ring buffers."""


class Records(Protocol):
    """The ring buffers, as users of event ids (`Instances`)."""

    def of_removed(self) -> bool:
        """Whether there may be records of removed events."""

    def event_ids(self) -> set[int]:
        """Ids in the records of removed events, perhaps with others. Slow."""


class EventIds:
    """The ids of one event table. first: the lowest one."""

    def __init__(self, first: int, shares: Shares) -> None:
        self.first = first
        self.records: Records | None = None
        self._shares = shares
        self._numbers = LowestFree(first, MAX_EVENT_ID)
        self._kept: dict[int, tuple[bytes, int | None]] = {}
        """The identity of its event, and the user charged for it; None: no user."""
        self._kept_for: dict[bytes, int] = {}
        """The same ids by event."""
        self._again: set[int] = set()
        """Ids in use of which there may be older records, of the same event."""
        self._refusals_left = 0

    def restore(self, used: Collection[int], recorded: Collection[int]) -> None:
        """Initial ids: those of the previous daemon's events, and those in records of its buffers. `first`
        may have been lower there."""
        self._numbers.reserve(event_id for event_id in {*used, *recorded} if event_id >= self.first)
        self._kept = {event_id: (b"", None) for event_id in recorded if event_id not in used}
        self._again = {event_id for event_id in used if event_id in recorded}

    def check(self, identity: bytes, owner_uid: int, *, privileged: bool) -> None:
        """ENODEV: there is no id for this event; EMFILE: the user's share is full."""
        if (self._kept or self._again) and (self.records is None or not self.records.of_removed()):
            self._stop_keeping(but=())
        if identity in self._kept_for:
            return
        try:
            self._check_left(owner_uid, privileged)
        except TraceError:
            if self._refusals_left:
                self._refusals_left -= 1
                raise
            self._refusals_left = _REFUSALS_BEFORE_RESCAN
            self._stop_keeping(but=() if self.records is None else self.records.event_ids())
            self._check_left(owner_uid, privileged)
            self._refusals_left = 0

    def _check_left(self, owner_uid: int, privileged: bool) -> None:
        self._shares.check(Resource.OLD_IDS, owner_uid, privileged=privileged)
        if self._numbers.full:
            raise TraceError(
                errno.ENODEV,
                f"no trace event id is free: ring buffers hold records of {len(self._kept)} removed events;"
                " clear them",
            )

    def allocate(self, identity: bytes) -> int:
        """The id for this event, after `check`."""
        event_id = self._kept_for.get(identity)
        if event_id is None:
            event_id = self._numbers.allocate()
            assert event_id is not None
        else:
            self._take(event_id)
            self._again.add(event_id)
        return event_id

    def free(self, event: Event) -> None:
        """The event is removed, and its records are marked as such (`Records.of_removed`)."""
        if event.id not in self._numbers:  # it was restored from below `first`
            return
        if not event.was_recorded and event.id not in self._again:
            self._numbers.free(event.id)
            return
        self._again.discard(event.id)
        identity = identity_of(event.system, event.tracepoint_name, event.declaration)
        self._kept[event.id] = identity, event.owner_uid
        self._kept_for[identity] = event.id
        self._shares.add(Resource.OLD_IDS, event.owner_uid)

    def _take(self, event_id: int) -> None:
        identity, owner_uid = self._kept.pop(event_id)
        self._kept_for.pop(identity, None)
        if owner_uid is not None:
            self._shares.drop(Resource.OLD_IDS, owner_uid)

    def _stop_keeping(self, *, but: Collection[int]) -> None:
        self._again.intersection_update(but)
        for event_id in [one for one in self._kept if one not in but]:
            self._take(event_id)
            if event_id in self._numbers:
                self._numbers.free(event_id)


def identity_of(system: bytes, tracepoint_name: bytes, declaration: Declaration) -> bytes:
    """Equal for events whose records have the same meaning; short, since thousands are kept."""
    text = b"\0".join((system, tracepoint_name, declaration.canonical()))
    return blake2b(text, digest_size=16).digest()
