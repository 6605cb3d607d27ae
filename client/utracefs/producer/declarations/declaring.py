"""From a declaration to an Event."""

from __future__ import annotations

from utracefs.producer._event import KINDS, Event
from utracefs_protocol.events.declaration import Declaration, Field, FieldKind
from utracefs_protocol.limits import ENTRY_HEADER_SIZE, MAX_COMMAND_STRING, MAX_PAYLOAD

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from typing import Any


_INTEGER = KINDS["INTEGER"]


def make_event(session: Any, declaration: Declaration, flags: int) -> Event:
    """An Event that is off and not registered. session: see Event."""
    fields = [
        (field.name, _INTEGER, field.offset - ENTRY_HEADER_SIZE, field.size, field.signed, False, 0)
        if field.kind is FieldKind.INTEGER  # most are, and thousands of events may be declared at start-up
        else _other(field)
        for field in declaration.fields
    ]
    canonical = declaration.canonical()
    return Event(session, declaration.name, canonical, name_args(canonical), flags, fields, MAX_PAYLOAD)


def _other(field: Field) -> tuple[bytes, int, int, int, bool, bool, int]:
    element = field.element
    one = element or field
    kind = "FLOAT" if one.is_float else "BOOL" if one.is_bool else one.kind.name
    return (
        field.name,
        KINDS[kind],
        field.payload_offset,
        field.size,
        one.signed and not one.is_bool,
        one.is_string,
        element.size if element else 0,
    )


def name_args(canonical: bytes) -> bytes:
    """The command string to register: the canonical spelling, because every spelling of the same fields
    matches it, while some spellings match nothing, not even themselves (user_fields_match in
    kernel/trace/trace_events_user.c). The spaces after `;` may make it too long: then it has none."""
    return canonical if len(canonical) <= MAX_COMMAND_STRING else canonical.replace(b"; ", b";")
