"""From a command string to an Event: what `utracefs.event` does before a daemon is asked.

A declaration is checked here and now, by the rules that the daemon has, so that a mistake in it is a
ValueError at the line that made it, whether or not a daemon is there. What only the daemon can know (another
program declared other fields under this name, there are too many events) turns up later as `Event.error`.
"""

from __future__ import annotations

from utracefs._event import KINDS, Event
from utracefs._outlets import Fifo
from utracefs_protocol.declaration import Declaration, FieldKind, check_command_length, parse
from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import ENTRY_HEADER_SIZE, MAX_COMMAND_STRING, MAX_PAYLOAD
from utracefs_protocol.text import bytes_of

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from typing import Any

__all__ = ["MULTI_FORMAT", "PERSIST", "check_declaration", "make_event", "name_args"]

_INTEGER = KINDS["INTEGER"]

# REG_PERSIST and REG_MULTI_FORMAT of utracefs_protocol.messages, which is not needed before a daemon answers.
PERSIST = 0x1
MULTI_FORMAT = 0x2


def check_declaration(text: bytes) -> Declaration:
    """Parse a command string; ValueError for what DIAG_IOCSREG would refuse with EINVAL, in the same
    words."""
    try:
        check_command_length(text)
        declaration = parse(text)
    except TraceError as error:
        raise ValueError(f"{text.decode('utf-8', 'backslashreplace')!r}: {error.text}") from None
    return declaration


def make_event(session: Any, fifo: Fifo, declaration: Declaration, flags: int) -> Event:
    """An Event that is off and unknown to any daemon. session: what Event asks of it is said there."""
    fields = [
        (field.name, _INTEGER, field.offset - ENTRY_HEADER_SIZE, field.size, field.signed, False)
        if field.kind is FieldKind.INTEGER  # most are, and thousands of events may be declared at start-up
        else (
            field.name,
            KINDS[field.kind.name],
            field.payload_offset,
            field.size,
            field.signed,
            field.is_string,
        )
        for field in declaration.fields
    ]
    return Event(session, fifo, declaration.name, declaration.canonical(), flags, fields, MAX_PAYLOAD)


def name_args(event: Event) -> bytes:
    """The command string to register with: the canonical spelling, because every spelling of the same fields
    matches it, while some cannot be matched again, not even by themselves (user_fields_match in
    kernel/trace/trace_events_user.c). It may be longer than what was declared, by the spaces after `;`:
    without them where it would not fit."""
    text = bytes_of(event.declaration)
    return text if len(text) <= MAX_COMMAND_STRING else text.replace(b"; ", b";")
