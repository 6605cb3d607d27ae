"""Parses the print fmt of a `format` file: a C format string and its arguments, as text and conversions.

    print fmt: "comm=%s prio=%d", REC->comm, REC->prio
                     text `comm=`, STRING of the field comm, text ` prio=`, NUMBER of the field prio

It supports the print fmt of user events and of ftrace's `print` (REC->field, __get_str, __get_rel_str, casts,
symbols). Records of an event with another print fmt are printed as name=value.
"""

import enum
import re
from collections import deque
from collections.abc import Mapping
from typing import Final

import attrs

from utracefs_protocol.events.declaration import NUMBER_SIZES, Field, FieldKind
from utracefs_protocol.events.event_format import EventFormat
from utracefs_protocol.text import text_of


class How(enum.Enum):
    """How a field's bytes are printed."""

    NUMBER = enum.auto()
    """An integer."""
    STRING = enum.auto()
    """Text up to its first NUL."""
    HEX = enum.auto()
    """All bytes in hex."""
    POINTER = enum.auto()
    """An integer as 0x1f."""
    SYMBOL = enum.auto()
    """The name of an address; as a pointer where it has none."""
    FLOAT = enum.auto()
    """A float or double."""
    ARRAY = enum.auto()
    """Its numbers, see `Field.element`, as JSON."""
    CHARACTER = enum.auto()
    """The lowest byte of an integer, as the character of that number."""


@attrs.frozen
class Conversion:
    """A piece of a record's text: text, then a field unless it is the last piece."""

    before: str
    field: Field | None = None
    how: How = How.STRING
    signed: bool = False
    """Integers: whether the topmost bit is a sign."""
    format: str = ""
    """In Python's `%` notation, where it says more than `how`: a width, flags, another base."""


_STRING: Final = re.compile(rb'\s*"((?:[^"\\]|\\.)*)"')
_CONVERSION: Final = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\d{0,3})(?P<precision>\.\d{1,3})?(?P<length>hh|h|ll|l|z|j|t|L|q)?"
    r"(?P<kind>[diuoxXcs%]|p[sSfF]?)"
)
"""Width and precision have three digits at most, so that a file cannot demand much memory."""
_ESCAPES: Final = {"n": "\n", "t": "\t", "\\": "\\", '"': '"', "r": "\r"}
_CAST: Final = re.compile(rb"\((?:unsigned|signed|const|void|char|short|int|long|[us]\d+|\s|\*)+\)\s*")
_MEMBER: Final = re.compile(rb"\(?REC->(?P<name>[^\s,()]+)\)?\Z")
_SMALL_SIGN: Final = re.compile(
    rb"\(\(REC->(?P<name>[^\s,()]+) & \d+\) - \(\(REC->(?P=name) & \d+\) \* 2\)\)\Z"
)
"""The sign of 8 or 16 bits, as recordings have it for other tools (`with_small_signs`)."""
_STRING_CALL: Final = re.compile(rb"__get(?:_rel)?_str\((?P<name>[^()]+)\)\Z")
"""Linear in the length of the text: no two parts of a pattern match the same blanks."""


class _NotUnderstoodError(Exception):
    """A print fmt with unsupported C."""


def conversions(event: EventFormat) -> list[Conversion]:
    """How to print the records of an event; an event without a format is printed by its id."""
    if event.id and not event.print_fmt and not event.fields:
        return [Conversion(f"id {event.id}")]
    try:
        return _read(event)
    except _NotUnderstoodError:
        return [
            _plain(f"{' ' if n else ''}{text_of(field.name)}=", field) for n, field in enumerate(event.fields)
        ]


def _read(event: EventFormat) -> list[Conversion]:
    strings: list[bytes] = []
    end = 0
    while found := _STRING.match(event.print_fmt, end):
        strings.append(found[1])
        end = found.end()
    if not strings:
        raise _NotUnderstoodError
    text = b"".join(strings)
    arguments = deque(argument.strip() for argument in event.print_fmt[end:].split(b","))
    if arguments.popleft():
        raise _NotUnderstoodError
    fields = {field.name: field for field in event.fields}
    pieces: list[Conversion] = []
    format_string = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text_of(text))
    before = ""
    at = 0
    for conversion in _CONVERSION.finditer(format_string):
        before += format_string[at : conversion.start()]
        at = conversion.end()
        if conversion["kind"] == "%":
            before += "%"
        elif not arguments:
            raise _NotUnderstoodError
        else:
            pieces.append(_conversion(before, conversion, _field(arguments.popleft(), fields)))
            before = ""
    if arguments:
        raise _NotUnderstoodError
    return [*pieces, Conversion(before + format_string[at:])]


def _field(argument: bytes, fields: Mapping[bytes, Field]) -> Field:
    """The field that an argument reads."""
    at = 0
    while cast := _CAST.match(argument, at):
        at = cast.end()
    patterns = (_MEMBER, _STRING_CALL, _SMALL_SIGN)
    found = next(filter(None, (pattern.match(argument, at) for pattern in patterns)), None)
    if not found or (name := found["name"].strip()) not in fields:
        raise _NotUnderstoodError
    return fields[name]


def _conversion(before: str, conversion: re.Match[str], field: Field) -> Conversion:
    flags, width, precision = conversion["flags"], conversion["width"], conversion["precision"] or ""
    kind = conversion["kind"]
    text_flags = flags.replace("0", "").replace("#", "")
    as_text = f"%{text_flags}{width}s" if text_flags or width else ""
    if kind == "s" or (field.is_loc and field.is_string):
        if precision:
            as_text = f"%{text_flags}{width}{precision}s"
        return Conversion(before, field, How.STRING, format=as_text)
    if field.element is not None:
        return _plain(before, field)
    if field.is_loc or (field.kind is not FieldKind.INTEGER and field.size not in NUMBER_SIZES):
        return attrs.evolve(_plain(before, field), format=as_text)
    if field.is_float and kind in "diu":
        return Conversion(before, field, How.FLOAT)
    signed = field.signed and kind in "di"
    match kind:
        case "d" | "i" | "u":
            as_number = f"%{flags}{width}{precision}d" if flags or width or precision else ""
            return Conversion(before, field, How.NUMBER, signed, as_number)
        case "c":
            return Conversion(before, field, How.CHARACTER, signed, as_text or "%s")
        case "p":
            return Conversion(before, field, How.POINTER, signed, as_text)
        case "ps" | "pf" | "pS" | "pF":
            return Conversion(before, field, How.SYMBOL, signed, as_text)
        case _:
            return Conversion(before, field, How.NUMBER, signed, f"%{flags}{width}{precision}{kind}")


def _plain(before: str, field: Field) -> Conversion:
    """The default conversion of a field, where the print fmt gives none."""
    if field.kind is FieldKind.INTEGER:
        return Conversion(before, field, How.NUMBER, field.signed)
    if field.kind is FieldKind.CHAR_ARRAY or (field.is_loc and field.is_string):
        return Conversion(before, field, How.STRING)
    if field.element is not None:
        return Conversion(before, field, How.ARRAY)
    return Conversion(before, field, How.FLOAT if field.is_float else How.HEX)
