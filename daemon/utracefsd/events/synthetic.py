"""Synthetic events: events that actions of hist triggers generate; no program writes them.

    synthetic_events      NAME TYPE FIELD[; TYPE FIELD]...      one a line; !NAME removes
    dynamic_events        s:[synthetic/]NAME TYPE FIELD...      the same

Their system is `synthetic`. A record has a slot of 64 bits for each field, 256 bytes for a fixed string, and
behind the slots the texts of dynamic strings, to which their location words point (struct synth_trace_event).
Parsing and messages follow kernel/trace/trace_events_synth.c.
"""

import errno

from utracefs_protocol.events.declaration import INTEGERS, Declaration, Field, FieldKind
from utracefs_protocol.events.event_format import format_text
from utracefs_protocol.hist.errors import Log
from utracefs_protocol.limits import ENTRY_HEADER_SIZE
from utracefs_protocol.text import any_base, shown
from utracefsd.events.event import Event

MAX_FIELDS = 64
"""SYNTH_FIELDS_MAX."""

STRING_BYTES = 256
"""STR_VAR_LEN_MAX: size of a fixed string, whatever its length."""

BAD_COMMAND = "Command must be of the form: <name> field[;field] ..."
"""Message for a line without a definition."""

BAD_DYNAMIC_COMMAND = "Command must be of the form: s or -:[synthetic/]<name> field[;field] ..."
"""The same in dynamic_events, for another system."""

_SLOT = 8

_SIZES = {name: size for name, size in INTEGERS.items() if not name.endswith(b"short")} | {
    b"long": 8,
    b"unsigned long": 8,
    b"bool": 1,
    b"pid_t": 4,
    b"gfp_t": 4,
}

_CONVERSIONS = {name: b"%u" for name in INTEGERS if name.startswith(b"u")} | {
    b"s64": b"%lld",
    b"u64": b"%llu",
    b"long": b"%ld",
    b"unsigned long": b"%lu",
    b"gfp_t": b"%x",
}
"""synth_field_fmt(); `%d` for other numbers."""

_ALPHA = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_ALPHANUMERIC = _ALPHA | frozenset(b"0123456789")


def is_good_name(name: bytes) -> bool:
    """A name of the C language (is_good_name())."""
    return bool(name) and name[0] in _ALPHA and _ALPHANUMERIC.issuperset(name)


def split_command(command: bytes) -> tuple[bytes, bytes | None]:
    """Name and fields of a line, without blanks before either; None: there are no fields."""
    for at, byte in enumerate(command):
        if byte in b" \t":
            return command[:at], command[at:].lstrip()
    return command, None


def parse_synthetic(name: bytes, fields_text: bytes, command: bytes, *, exists: bool = False) -> Declaration:
    """Parse a definition (check_command(), __create_synth_event()). Between two `;` there may be several
    fields, or none. command: the whole line, for positions. HistError: EINVAL; EEXIST."""
    log = Log(command)
    if not name or b";" in name or len(fields_text.partition(b";")[0].split()) < 2:
        raise log.fault(BAD_COMMAND)
    if not is_good_name(name):
        raise log.fault("Illegal name", name)
    if exists:
        raise log.fault("Event already exists", name, errno.EEXIST)
    fields: list[Field] = []
    offset = ENTRY_HEADER_SIZE
    for text in fields_text.split(b";"):
        words = text.split()
        while words:
            field, words = _parse_field(words, offset, log)
            if len(fields) == MAX_FIELDS:
                raise log.fault("Too many fields")
            fields.append(field)
            offset += STRING_BYTES if field.kind is FieldKind.CHAR_ARRAY else _SLOT
    return Declaration(name, tuple(fields))


def _parse_field(words: list[bytes], offset: int, log: Log) -> tuple[Field, list[bytes]]:
    """The first field, and the words behind it (parse_synth_field())."""
    prefix, type_, *rest = b"", *words
    if type_ == b"unsigned":
        if len(words) < 3:
            raise log.fault("Incomplete type", type_)
        prefix, type_, *rest = b"unsigned ", *rest
    if not rest:
        raise log.fault("Invalid field", type_)
    declared, *rest = rest
    name, bracket, array = declared.partition(b"[")
    if not is_good_name(name):
        raise log.fault("Illegal name", declared)
    full = prefix + type_ + bracket + array
    signed = not full.startswith(b"u") and full != b"gfp_t"
    if (size := _SIZES.get(full)) is not None:
        return Field(full, name, offset, size, signed, FieldKind.INTEGER), rest
    if b"char[" in full:
        length = _string_length(full)
        if length is None:
            message = "Invalid array specification" if bracket else "Invalid type"
            raise log.fault(message, declared if bracket else type_)
        if length:
            return Field(full, name, offset, length, signed, FieldKind.CHAR_ARRAY), rest
        return Field(b"__data_loc " + full, name, offset, _SLOT, True, FieldKind.DATA_LOC), rest
    if b"long[" in full:
        log.add("Invalid type", type_)
        raise log.refused(f"field {shown(name)}: there is no stack of the kernel here; leave it out")
    raise log.fault("Invalid type", type_)


def _string_length(type_: bytes) -> int | None:
    """N of `char[N]`, 0 of `char[]`; None: there is no such string (synth_field_string_size())."""
    digits, bracket, rest = type_.partition(b"char[")[2].partition(b"]")
    if not bracket or rest or len(digits) > 3:
        return None
    length = any_base(digits) if digits else 0
    return length if length is not None and length <= STRING_BYTES else None


def slots_bytes(fields: tuple[Field, ...]) -> int:
    """Bytes of all slots, the minimum size of a payload."""
    return sum(STRING_BYTES if field.kind is FieldKind.CHAR_ARRAY else _SLOT for field in fields)


def declared_text(event: Event) -> bytes:
    """Its line in `synthetic_events`, without the newline."""
    fields = (
        field.type.removeprefix(b"__data_loc ") + b" " + field.name for field in event.declaration.fields
    )
    return event.name + b"\t" + b"; ".join(fields)


def format_of(event: Event) -> bytes:
    """The file `format` of an event, synthetic or not."""
    fields = event.declaration.fields
    return format_text(
        event.tracepoint_name, event.id, fields, print_fmt(fields) if event.synthetic else None
    )


def print_fmt(fields: tuple[Field, ...]) -> bytes:
    """The text behind `print fmt:` in `format` (__set_synth_event_print_fmt())."""
    text = b", ".join(field.name + b"=" + _conversion(field) for field in fields)
    arguments = b"".join(
        b", __get_str(%s)" % field.name if field.is_loc else b", REC->" + field.name for field in fields
    )
    return b'"%s"%s' % (text, arguments)


def _conversion(field: Field) -> bytes:
    if field.kind is not FieldKind.INTEGER:
        return b"%.*s"
    return _CONVERSIONS.get(field.type, b"%d")
