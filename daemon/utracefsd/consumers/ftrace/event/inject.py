"""`inject`: a record of an event from text, as parse_entry() of kernel/trace/trace_events_inject.c makes it.

    count=3 name="some text" common_pid=17

Fields that are not named are 0 or empty; the last value of a repeated field counts. Text longer than its
array is cut.
"""

import errno
import re
import struct
from collections.abc import Sequence

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import NUMBER_SIZES, Field
from utracefs_protocol.events.event_format import COMMON_FIELDS
from utracefs_protocol.limits import ENTRY_HEADER_SIZE
from utracefs_protocol.text import shown, unsigned_of

_MAX_TEXT = 256
"""MAX_FILTER_STR_VAL: text of so many bytes or more is EINVAL."""

_GENERIC = frozenset(
    (b"CPU", b"cpu", b"common_cpu", b"COMM", b"comm", b"STACKTRACE", b"stacktrace", b"common_stacktrace")
)
"""Fields of filters that no record has."""

_WHITE = rb"[ \t\n\v\f\r\xa0]*"
_NAME = re.compile(_WHITE + rb"(\w+)")
_EQUALS = re.compile(_WHITE + b"=" + _WHITE)
_NUMBER = re.compile(rb"-?\w*")
_TEXT = re.compile(rb"""(['"])((?:\\.|(?!\1)[^\\]|\\$)*)\1""", re.DOTALL)


@attrs.frozen
class Injected:
    """A record made from text."""

    common: bytes
    """Its first 8 bytes."""
    payload: bytes


def parse_entry(command: bytes, fields: Sequence[Field], event_id: int, pid: int) -> Injected:
    """The record that `command` describes, by the thread `pid`. TraceError: ENOENT (no such field), EINVAL
    (other syntax errors), ERANGE (a number of more than 64 bits)."""
    by_name: dict[bytes, Field] = {field.name: field for field in (*COMMON_FIELDS, *fields)}
    entry = bytearray(max((field.offset + field.size for field in fields), default=ENTRY_HEADER_SIZE))
    # As in the kernel there is a NUL between the fixed part and the texts.
    struct.pack_into("<HBBi", entry, 0, event_id, 0, 0, pid)
    for one in fields:
        if _is_dynamic_text(one):
            _put_loc(entry, one, len(entry) & 0xFFFF, 0)
    entry.append(0)
    position = 0
    while position < len(command):
        name, position = _name(command, position)
        field = by_name.get(name)
        if field is None and name not in _GENERIC:
            raise TraceError(errno.ENOENT, f"the event has no field {shown(name)}")
        equals = _EQUALS.match(command, position)
        if equals is None:
            raise TraceError(errno.EINVAL, f"write {shown(name)} as FIELD=VALUE")
        position = equals.end()
        first = command[position : position + 1]
        is_text = field is not None and (_is_dynamic_text(field) or _is_array_of_text(field))
        if first in (b"'", b'"'):
            found = _TEXT.match(command, position)
            if found is None or field is None or not is_text or len(found[2]) >= _MAX_TEXT:
                raise TraceError(errno.EINVAL, f"{shown(name)} takes no such text")
            _put_text(entry, field, found[2])
            position = found.end()
            continue
        end = _NUMBER.match(command, position)
        assert end is not None
        behind = command[end.end() : end.end() + 1]
        if (not first.isdigit() and first != b"-") or is_text or behind.strip():
            raise TraceError(errno.EINVAL, f"the value of {shown(name)} is neither number nor quoted text")
        if field is None or field.size not in NUMBER_SIZES:
            raise TraceError(errno.EINVAL, f"{shown(name)} is not a number")
        value = _integer(end[0], signed=field.signed) & ((1 << 8 * field.size) - 1)
        entry[field.offset : field.offset + field.size] = value.to_bytes(field.size, "little")
        position = end.end()
    return Injected(bytes(entry[:ENTRY_HEADER_SIZE]), bytes(entry[ENTRY_HEADER_SIZE:]))


def _name(command: bytes, position: int) -> tuple[bytes, int]:
    found = _NAME.match(command, position)
    if found is None:
        raise TraceError(errno.EINVAL, "write FIELD=VALUE pairs with blanks between them")
    return found[1], found.end()


def _integer(text: bytes, *, signed: bool) -> int:
    value = unsigned_of(text.removeprefix(b"-"))
    if text[:1] == b"-" and not signed:
        raise TraceError(errno.EINVAL, f"{shown(text)} is not a number that this field can have")
    value = -value if text[:1] == b"-" else value
    if signed and not -(1 << 63) <= value < 1 << 63:
        raise TraceError(errno.ERANGE, f"{shown(text)} has more than 64 bits")
    return value


def _is_dynamic_text(field: Field) -> bool:
    """filter_assign_type() of kernel/trace/trace_events_filter.c: FILTER_DYN_STRING, FILTER_RDYN_STRING."""
    return field.type.startswith((b"__data_loc ", b"__rel_loc ")) and b"char" in field.type


def _is_array_of_text(field: Field) -> bool:
    """FILTER_STATIC_STRING of the same."""
    dynamic = field.type.startswith((b"__data_loc ", b"__rel_loc "))
    return not dynamic and b"[" in field.type and b"char" in field.type


def _put_text(entry: bytearray, field: Field, text: bytes) -> None:
    if _is_dynamic_text(field):
        _put_loc(entry, field, len(entry) & 0xFFFF, len(text) + 1)
        entry += text + b"\0"
    else:
        text = text[: field.size - 1]
        entry[field.offset : field.offset + len(text) + 1] = text + b"\0"


def _put_loc(entry: bytearray, field: Field, position: int, size: int) -> None:
    if field.type.startswith(b"__rel_loc "):
        position -= field.offset + field.size
    struct.pack_into("<I", entry, field.offset, size << 16 | position & 0xFFFF)
