"""An event, its form in the daemon's state, and the number of its records. Only EventTable makes and changes
events.

`stats` of an event counts its records from 0 in each daemon, and ends with the event. A consumer that was
detached for a while computes how many records it missed from the difference of two counts. So EmittedCounts
continues after the event's removal, and after a restart. The last count of a killed daemon is unknown, since
writing it down would cost a store per record. So a count has an epoch:

    removed, registered again          the count continues
    the daemon ended in order          the counts continue
    the daemon was killed              the events that it had begin another epoch
    too many removed events            the oldest of the user with the most is forgotten: if it is registered
                                       again, in another epoch

The difference of two counts of one name is exact if they have one epoch.
"""

import errno
import secrets
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Self

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import (
    REG_MULTI_FORMAT,
    REG_PERSIST,
    Declaration,
    check_command_length,
    normalized,
    parse_fields,
    split_name,
)
from utracefs_protocol.pages.status_page import StatusBit
from utracefsd.events._tracepoint import Tracepoint

SYSTEM = b"user_events"
SYSTEM_MULTI = b"user_events_multi"
SYSTEM_SYNTHETIC = b"synthetic"

FLAG_SYNTHETIC = 1 << 15
"""In `flags`, beside those of a registration: made by synthetic_events."""

MAX_REMOVED = 4096
"""Removed events with a count. Programs choose the names."""


@attrs.frozen
class Emitted:
    """A number of records."""

    count: int
    epoch: int
    owner_uid: int = attrs.field(default=0, eq=False)
    """The event's."""


@attrs.define(eq=False)
class Event:
    declaration: Declaration
    """Registered name and fields."""
    tracepoint_name: bytes
    """NAME, or NAME.<hex> for multi-format: the directory under `system`, and the name in traces."""
    system: bytes
    """b"user_events", b"user_events_multi" or b"synthetic"."""
    id: int
    """Trace event id: common_type of its records, unique while the event exists."""
    status_index: int
    """Its byte in the status page, at least 1; 0: none, since no program writes the event."""
    flags: int
    """REG_PERSIST and REG_MULTI_FORMAT, or FLAG_SYNTHETIC; fixed when it is made."""
    tracepoint: Tracepoint
    owner_uid: int
    """The user whose limit counts it; 0 for events made through dynamic_events."""
    before: Emitted = Emitted(0, 0)
    """Records of earlier events of this name, and of this event in earlier daemons."""
    references: int = 0
    """Connections, enablers and probes that refer to it, without a persistent event's reference to itself."""
    awaited: bool = False
    """One of the references is kept for its programs, which may come back after a restart of the daemon."""
    was_recorded: bool = False
    """A ring buffer may hold records of it; never reset."""
    removed: bool = False
    """It is out of the table: acquiring it is ENODEV."""
    fields_text: bytes = attrs.field(init=False)
    """Its fields as text: equal to that of each CommandString that declares them."""

    @fields_text.default
    def _fields_text(self) -> bytes:
        return self.declaration.fields_text()

    @property
    def name(self) -> bytes:
        return self.declaration.name

    @property
    def full_name(self) -> bytes:
        """SYSTEM:NAME."""
        return b"%s:%s" % (self.system, self.tracepoint_name)

    @property
    def emitted(self) -> Emitted:
        """Records since the counts of its name began, also without a consumer."""
        count = self.before.count + self.tracepoint.emitted + self.tracepoint.missed
        return Emitted(count, self.before.epoch, self.owner_uid)

    @property
    def persistent(self) -> bool:
        return bool(self.flags & (REG_PERSIST | FLAG_SYNTHETIC))

    @property
    def multi_format(self) -> bool:
        return bool(self.flags & REG_MULTI_FORMAT)

    @property
    def synthetic(self) -> bool:
        return bool(self.flags & FLAG_SYNTHETIC)

    @property
    def status(self) -> StatusBit:
        """The kinds of attached consumers."""
        return StatusBit(self.tracepoint.status)

    @property
    def busy(self) -> bool:
        """It has references other than its own: it cannot be deleted (EBUSY)."""
        return self.references > 0 or not self.persistent


@attrs.frozen(slots=False)
class CommandString:
    """A command string `NAME [FIELDS]`. Its fields are parsed only for a new event (user_event_match())."""

    name: bytes
    args: bytes
    """The text of the fields."""
    fields_text: bytes = attrs.field(init=False)
    """The same in the spelling of Event.fields_text."""

    @fields_text.default
    def _fields_text(self) -> bytes:
        return normalized(self.args)

    @classmethod
    @lru_cache(2048)  # processes of one program register the same texts again and again
    def parse(cls, text: bytes) -> Self:
        """Split the text of a registration. EINVAL: more than 511 bytes, a NUL byte, or a bad name."""
        check_command_length(text)
        if b"\0" in text:
            raise TraceError(
                errno.EINVAL, "the command string has a NUL byte; send it without its terminator"
            )
        return cls(*split_name(text))

    @cached_property
    def declaration(self) -> Declaration:
        """EINVAL: the fields do not parse."""
        return Declaration(self.name, parse_fields(self.args))


@attrs.frozen
class SavedEvent:
    """An event in the daemon's state."""

    id: int
    status_index: int
    """In the previous status file; kept if the new one has space for all."""
    flags: int
    owner_uid: int
    tracepoint_name: bytes
    command: bytes
    """A command string that declares it."""


@attrs.frozen
class SavedCounts:
    """The counts in the daemon's state."""

    origin: str
    """Id of the state, random: counts of two states have nothing in common."""

    epoch: int
    """The latest epoch."""

    first_epoch: int
    """Epoch of names without a count."""


class EmittedCounts:
    """The counts of all events of a table, which calls `begin` and `end`."""

    def __init__(self) -> None:
        self.saved = SavedCounts(secrets.token_hex(8), 0, 0)
        self._removed: dict[bytes, Emitted] = {}
        self._removed_of: dict[int, dict[bytes, None]] = {}
        """Their names by user, oldest first."""

    def restore(
        self, saved: SavedCounts, counts: Mapping[bytes, Emitted], events: Iterable[Event], *, killed: bool
    ) -> None:
        """Continue with the counts of the previous daemon. events: the ones taken over."""
        for name, total in counts.items():
            self._keep(name, total)
        self.saved = attrs.evolve(saved, epoch=saved.epoch + 1) if killed else saved
        for event in events:
            self.begin(event)
            if killed:
                event.before = attrs.evolve(event.before, epoch=self.saved.epoch)
        self._forget()

    def begin(self, event: Event) -> None:
        """Start the count of a new event."""
        event.before = self._drop(event.full_name) or Emitted(0, self.saved.first_epoch)

    def end(self, event: Event) -> None:
        """Keep the count of a removed event."""
        total = event.emitted
        if self.is_known(total):
            self._keep(event.full_name, total)
            self._forget()

    def totals(self, events: Iterable[Event]) -> Iterator[tuple[bytes, Emitted]]:
        """Also of the removed ones; a name that is left out has 0 in `first_epoch`."""
        for event in events:
            if self.is_known(total := event.emitted):
                yield event.full_name, total
        yield from self._removed.items()

    def is_known(self, total: Emitted) -> bool:
        """Whether it differs from the count of names that are not listed."""
        return total != Emitted(0, self.saved.first_epoch)

    def _keep(self, name: bytes, total: Emitted) -> None:
        self._removed[name] = total
        self._removed_of.setdefault(total.owner_uid, {})[name] = None

    def _drop(self, name: bytes) -> Emitted | None:
        total = self._removed.pop(name, None)
        if total is not None:
            names = self._removed_of[total.owner_uid]
            del names[name]
            if not names:
                del self._removed_of[total.owner_uid]
        return total

    def _forget(self) -> None:
        while len(self._removed) > MAX_REMOVED:
            most = max(self._removed_of.values(), key=len)
            self._drop(next(iter(most)))
            epoch = self.saved.epoch + 1
            self.saved = attrs.evolve(self.saved, epoch=epoch, first_epoch=epoch)
