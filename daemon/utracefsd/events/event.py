"""An event as its table, its connections and its consumers see it, and its form in the daemon's state.

Only EventTable makes and changes events; all others read them.
"""

import errno
from typing import Self

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import (
    REG_MULTI_FORMAT,
    REG_PERSIST,
    Declaration,
    check_command_length,
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


@attrs.define(eq=False)
class Event:
    """One event. Made, changed and removed by the EventTable."""

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
    """Its compiled part: fields to check, probes, counts."""
    owner_uid: int
    """The user whose limit counts it; 0 for events made through dynamic_events."""
    references: int = 0
    """Connections, enablers and probes that refer to it, without a persistent event's reference to itself."""
    held: bool = False
    """One of the references is kept for its programs, which may come back after a restart of the daemon."""
    was_recorded: bool = False
    """A ring buffer may hold records of it; never reset."""
    removed: bool = False
    """It is out of the table: acquiring it is ENODEV."""
    matched_args: bytes | None = None
    """The last argument text found to match. Processes of one program repeatedly register with the same
    text, and comparing tokens takes five times as long as all the rest."""

    @property
    def name(self) -> bytes:
        return self.declaration.name

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

    def matches(self, args: bytes) -> bool:
        """Whether a registration's argument text has this event's fields (user_event_match())."""
        if args == self.matched_args:
            return True
        if self.declaration.matches(args):
            self.matched_args = args
            return True
        return False


@attrs.frozen
class CommandString:
    """A command string `NAME [FIELDS]`, split. Its fields are not parsed yet: as in the kernel, the text is
    compared with an existing event first."""

    name: bytes
    args: bytes
    """The text of the fields."""

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Of a registration. EINVAL: more than 511 bytes, a NUL byte, or a bad name."""
        check_command_length(text)
        return cls.split(text)

    @classmethod
    def split(cls, text: bytes) -> Self:
        """Of any length. EINVAL: a NUL byte, or a bad name."""
        if b"\0" in text:
            raise TraceError(
                errno.EINVAL, "the command string has a NUL byte; send it without its terminator"
            )
        return cls(*split_name(text))

    def declaration(self) -> Declaration:
        """EINVAL: the fields do not parse."""
        return Declaration(self.name, parse_fields(self.args))


@attrs.frozen
class SavedEvent:
    """An event in the daemon's state."""

    id: int
    """Trace event id: the ring buffer may hold records with it."""
    status_index: int
    """Its index in the previous status file; kept if the new one has space for all."""
    flags: int
    """REG_PERSIST and REG_MULTI_FORMAT."""
    owner_uid: int
    """The user whose limit counts it."""
    tracepoint_name: bytes
    """NAME, or NAME.<hex> for multi-format."""
    command: bytes
    """A command string that declares it."""


def shown(text: bytes) -> str:
    """For messages: quoted, without control characters, at most 200 bytes."""
    readable = text[:200].decode("utf-8", "backslashreplace")
    return "'" + "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in readable) + "'"
