"""The declaration of an event: from the command string to fields, and back.

    name[:FLAGS] [field[;field...]]         field = type name [size]

Users depend on how strict the kernel is: single spaces only, any word after `__data_loc `, decimal struct
sizes. `parse` follows kernel/trace/trace_events_user.c (user_event_parse_fields, user_event_parse_field,
user_field_size) step by step. Comparing with an existing event is more lenient: see `normalized`.

Where we differ, always towards EINVAL:

- names that could not be a file name (empty, `.`, `..`, with `/`, NUL or another control character), because
  every event becomes a directory;
- control characters other than tab within a field, because they would forge lines in `format` and
  `dynamic_events`;
- struct sizes of 2^31 and more, which the kernel returns as an error number by accident.
"""

from __future__ import annotations

import errno

from utracefs_protocol.errors import TraceError
from utracefs_protocol.frozen import Frozen
from utracefs_protocol.limits import (
    ENTRY_HEADER_SIZE,
    MAX_ARRAY_LENGTH,
    MAX_ARRAY_TEXT,
    MAX_COMMAND_STRING,
    MAX_STRUCT_SIZE,
)
from utracefs_protocol.text import any_base, escaped, shown

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ClassVar, Final, ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")


REG_PERSIST: Final = 0x1
"""USER_EVENT_REG_PERSIST: keep the event when nothing refers to it."""

REG_MULTI_FORMAT: Final = 0x2
"""USER_EVENT_REG_MULTI_FORMAT: several formats under one name."""

_MOST_REMEMBERED: Final = 2048
_CONTROL: Final = frozenset([*range(0x20), 0x7F])
_CONTROL_BUT_TAB: Final = _CONTROL - {0x09}

# The order is the kernel's: the longer prefix of a pair first.
_TWO_WORD_PREFIXES: Final = (
    b"unsigned ",
    b"struct ",
    b"__data_loc unsigned ",
    b"__data_loc ",
    b"__rel_loc unsigned ",
    b"__rel_loc ",
)

INTEGERS: Final = {
    b"s64": 8,
    b"u64": 8,
    b"s32": 4,
    b"u32": 4,
    b"int": 4,
    b"unsigned int": 4,
    b"s16": 2,
    b"u16": 2,
    b"short": 2,
    b"unsigned short": 2,
    b"s8": 1,
    b"u8": 1,
    b"char": 1,
    b"unsigned char": 1,
}
"""Types of integers, and their bytes."""

NUMBER_SIZES: Final = frozenset(INTEGERS.values())
"""Fields with other sizes are bytes, which no filter, histogram or text takes for a number."""

_FLOATS: Final = {(b"struct double", 8), (b"struct float", 4)}

_ELEMENTS: Final = {name: size for name, size in INTEGERS.items() if name[1:].isdigit()} | {
    b"float": 4,
    b"double": 8,
    b"bool": 1,
}
"""Types of the elements of arrays, and their bytes."""

_INSTEAD: Final = {
    b"long": "use s64 or u64",
    b"unsigned long": "use s64 or u64",
    b"bool": "write 'struct bool NAME 1'",
    b"float": "write 'struct float NAME 4'",
    b"double": "write 'struct double NAME 8'",
    b"f32": "write 'struct float NAME 4'",
    b"f64": "write 'struct double NAME 8'",
    b"unsigned": "write 'unsigned int' or u32",
    b"string": "use '__rel_loc char[]'",
    b"str": "use '__rel_loc char[]'",
}


class FieldKind:
    """How a field's bytes are to be read: one object for each, since importing enum takes time."""

    __slots__ = ("name",)

    INTEGER: ClassVar[FieldKind]
    """Little-endian, `size` bytes, `signed`."""
    CHAR_ARRAY: ClassVar[FieldKind]
    """`size` bytes of text, ended by the first NUL if there is one."""
    STRUCT: ClassVar[FieldKind]
    """`size` opaque bytes; but see `Field.is_float`, `Field.is_bool` and `Field.element`."""
    DATA_LOC: ClassVar[FieldKind]
    """Location word: size << 16 | offset, the offset counted from the beginning of the entry."""
    REL_LOC: ClassVar[FieldKind]
    """Location word whose offset counts from the byte after the word itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        setattr(FieldKind, name, self)

    def __repr__(self) -> str:
        return f"FieldKind.{self.name}"


for _kind in ("INTEGER", "CHAR_ARRAY", "STRUCT", "DATA_LOC", "REL_LOC"):
    FieldKind(_kind)


class Field(Frozen):
    """One typed member of an event."""

    type: bytes
    """The declared type: `unsigned char[0x14]`, `__rel_loc char[]`, `struct foo`."""
    name: bytes
    """Anything but `;` and space; may repeat within an event, may be empty."""
    offset: int
    """Bytes from the beginning of the entry, so the first field of an event is at 8."""
    size: int
    """Bytes of the fixed part: 4 for both kinds of location word."""
    signed: bool
    """As the kernel computes it: the type does not begin with `u`. True for structs and location words,
    too."""
    kind: FieldKind

    @property
    def payload_offset(self) -> int:
        """Bytes from the beginning of the payload, which is the entry without the common fields."""
        return self.offset - ENTRY_HEADER_SIZE

    @property
    def is_loc(self) -> bool:
        return self.kind in (FieldKind.DATA_LOC, FieldKind.REL_LOC)

    @property
    def is_string(self) -> bool:
        """True for text: fixed char arrays, and dynamic ones with `char` anywhere in their type (the rule of
        user_field_is_dyn_string, by which the kernel demands a NUL at their end)."""
        return self.kind is FieldKind.CHAR_ARRAY or (self.is_loc and b"char" in self.type)

    @property
    def is_float(self) -> bool:
        """True for a C float or double, which the kernel takes as a struct of that name and size."""
        return (self.type, self.size) in _FLOATS

    @property
    def is_bool(self) -> bool:
        """True for a C bool: `struct bool NAME 1`; 0 is false."""
        return self.type == b"struct bool" and self.size == 1

    @property
    def element(self) -> Field | None:
        """The first element of an array of numbers, which the kernel takes as a struct: `struct TYPE_N NAME
        SIZE`, where TYPE is u8 to u64, s8 to s64, float, double or bool, and SIZE that of N of them. None: it
        is no array."""
        type_ = self.type[7:].partition(b"_")[0]
        size = _ELEMENTS.get(type_)
        if size is None or self.type != b"struct %s_%d" % (type_, self.size // size):
            return None
        if not self.size or self.size % size or self.kind is not FieldKind.STRUCT:
            return None
        if type_ in INTEGERS:
            return Field(type_, self.name, self.offset, size, type_[0] != 0x75, FieldKind.INTEGER)
        return Field(b"struct " + type_, self.name, self.offset, size, True, FieldKind.STRUCT)

    def declared(self) -> bytes:
        """The field as `dynamic_events` shows it: `type name`, and the size of a struct."""
        text = self.type + b" " + self.name
        return b"%s %d" % (text, self.size) if self.type.startswith(b"struct ") else text


class Declaration(Frozen):
    """An event's name and fields, as one registration or one line of `dynamic_events` gives them."""

    name: bytes
    """The registered name: no flags, no system, no id of multi-format events."""
    fields: tuple[Field, ...]
    """In the order of declaration, packed without padding from offset 8."""

    @property
    def min_size(self) -> int:
        """Bytes of the fixed part: a payload shorter than this is EINVAL."""
        return sum(field.size for field in self.fields)

    def canonical(self) -> bytes:
        """The command string that declares this event, in the spelling of `dynamic_events` without its
        `u:`."""
        return self.name + b" " + self.fields_text() if self.fields else self.name

    def fields_text(self) -> bytes:
        """The fields as `dynamic_events` shows them; `normalized` gives this for every text that declares
        them."""
        return b"; ".join([field.declared() for field in self.fields])


def normalized(args: bytes, *, repair_semicolons: bool = True) -> bytes:
    """An argument text in the spelling of `Declaration.fields_text`, so that equal texts declare the same
    fields (user_event_match, user_fields_match): runs of whitespace do not count, one `;` may follow the last
    field, and the space after `;` may be missing, but not when deleting through dynamic_events.
    """
    if repair_semicolons:
        args = args.replace(b";", b"; ")
    text = b" ".join(args.split())
    # The kernel takes a lone `;` as a field without text, and no event has such a field.
    return text[:-1] if text.endswith(b";") and len(text) > 1 else text


def check_command_length(command: bytes) -> None:
    """EINVAL when a command string, or the name to delete, is longer than an ioctl takes."""
    if len(command) > MAX_COMMAND_STRING:
        raise TraceError(
            errno.EINVAL,
            f"command string of {len(command)} bytes; at most {MAX_COMMAND_STRING} are possible",
        )


def check_file_name(name: bytes, what: str = "event name") -> None:
    """EINVAL when the name is not a valid directory name."""
    if not name:
        raise TraceError(errno.EINVAL, f"the {what} is empty")
    if name in (b".", b".."):
        raise TraceError(errno.EINVAL, f"{what} {shown(name)} could not be a file name")
    if b"/" in name:
        raise TraceError(errno.EINVAL, f"{what} {shown(name)} has a '/'; it could not be a file name")
    if not _CONTROL.isdisjoint(name):
        hint = "; a space must follow the name" if b"\t" in name else ""
        raise TraceError(errno.EINVAL, f"{what} {shown(name)} has a control character{hint}")


def split_name(command: bytes) -> tuple[bytes, bytes]:
    """The name (before the first space) and the argument text. EINVAL: a `:`, which would begin flags."""
    name, _, args = command.partition(b" ")
    if b":" in name:
        raise TraceError(
            errno.EINVAL,
            f"event name {shown(name)} has a ':'; there are no flags in the command string, "
            "use the flags word",
        )
    check_file_name(name)
    return name, args


def parse(command: bytes) -> Declaration:
    """Parse a command string. EINVAL, with the field at fault. The caller checks the length."""
    name, args = split_name(command)
    return Declaration(name, parse_fields(args))


def _remembered(function: Callable[P, R]) -> Callable[P, R]:
    """A small functools.lru_cache: importing functools takes a tenth of the time of a first event."""
    known: dict[object, R] = {}

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        found = known.get(args)
        if found is None:
            found = function(*args, **kwargs)
            if len(known) >= _MOST_REMEMBERED:
                known.clear()
            known[args] = found
        return found

    return call


@_remembered
def parse_fields(args: bytes) -> tuple[Field, ...]:
    """The fields of an argument text. Cached, as single fields: a program's events often share fields, and
    parsing is most of the cost of a declaration."""
    fields: list[Field] = []
    offset = ENTRY_HEADER_SIZE
    for text in args.split(b";"):
        text = text.lstrip()
        if text:
            fields.append(_parse_field(text, offset))
            offset += fields[-1].size
    return tuple(fields)


@_remembered
def _parse_field(text: bytes, offset: int) -> Field:
    """One field; see `parse_fields`."""
    if not _CONTROL_BUT_TAB.isdisjoint(text):
        raise TraceError(errno.EINVAL, f"field {shown(text)}: has a control character")
    prefix = next((p for p in _TWO_WORD_PREFIXES if text.startswith(p)), b"")
    if prefix:
        end = text.find(b" ", len(prefix))
        if end < 0:
            raise TraceError(
                errno.EINVAL, f"field {shown(text)}: a type and a name must follow {shown(prefix.rstrip())}"
            )
        type_, words = text[:end], text[end + 1 :].split(b" ")
    else:
        type_, *words = text.split(b" ")
    if not words:
        raise TraceError(errno.EINVAL, f"field {shown(text)}: has no name; write 'type name'")
    name, *rest = words
    where = f"field {shown(name)}"
    if prefix == b"struct ":
        if not rest:
            raise TraceError(errno.EINVAL, f"{where}: a struct needs its size in bytes: '{escaped(text)} 8'")
        size = _struct_size(rest[0], where)
        if len(rest) > 1:
            raise TraceError(errno.EINVAL, f"field {shown(text)}: too many words or spaces after the size")
        kind = FieldKind.STRUCT
    else:
        if rest and (b"  " in text or text.endswith(b" ")):
            raise TraceError(errno.EINVAL, f"field {shown(text)}: only single spaces may separate the words")
        size, kind = _size_and_kind(type_, where)
        if rest:
            hint = "; fields are separated by `;`" if b"," in text else ""
            raise TraceError(
                errno.EINVAL, f"field {shown(text)}: only a struct has a size after its name{hint}"
            )
    return Field(type_, name, offset, size, not type_.startswith(b"u"), kind)


def _struct_size(text: bytes, where: str) -> int:
    if not text:
        raise TraceError(errno.EINVAL, f"{where}: only single spaces may separate the words")
    if not text.removeprefix(b"+").isdigit() or not 0 < (size := int(text)) <= MAX_STRUCT_SIZE:
        raise TraceError(
            errno.EINVAL,
            f"{where}: struct size {shown(text)} is not a decimal number from 1 to {MAX_STRUCT_SIZE}",
        )
    return size


def _size_and_kind(type_: bytes, where: str) -> tuple[int, FieldKind]:
    """user_field_size(): bytes of the fixed part."""
    if type_ in INTEGERS:
        return INTEGERS[type_], FieldKind.INTEGER
    if type_.startswith((b"char[", b"unsigned char[")):
        return _array_length(type_, where), FieldKind.CHAR_ARRAY
    if type_.startswith(b"__data_loc "):
        return 4, FieldKind.DATA_LOC
    if type_.startswith(b"__rel_loc "):
        return 4, FieldKind.REL_LOC
    hint = _INSTEAD.get(type_)
    if hint is None:
        base, _, digits = type_.removesuffix(b"]").partition(b"[")
        if base in _ELEMENTS and (length := any_base(digits[:MAX_ARRAY_TEXT])):
            hint = f"write 'struct {base.decode()}_{length} NAME {length * _ELEMENTS[base]}'"
        elif b"[" in type_:
            hint = (
                f"only char arrays have a fixed length, use '__rel_loc {escaped(type_.partition(b'[')[0])}[]'"
            )
        elif type_.endswith(b"*"):
            hint = "send a pointer as u64"
        elif b"\t" in type_:
            hint = "separate type and name by a space"
        else:
            hint = "use one of s8 to s64, u8 to u64, char[N], '__rel_loc char[]' or 'struct NAME field SIZE'"
    raise TraceError(errno.EINVAL, f"{where}: unknown type {shown(type_)}; {hint}")


def _array_length(type_: bytes, where: str) -> int:
    """user_field_array_size(): N of `char[N]`, in any of C's bases."""
    text = type_.partition(b"[")[2]
    if len(text) > MAX_ARRAY_TEXT:
        raise TraceError(
            errno.EINVAL,
            f"{where}: the array length of {shown(type_)} is too long; at most {MAX_ARRAY_TEXT} characters, "
            "its ']' included",
        )
    digits, bracket, _ = text.partition(b"]")
    if not bracket:
        raise TraceError(errno.EINVAL, f"{where}: {shown(type_)} has no ']'")
    if not digits:
        raise TraceError(
            errno.EINVAL,
            f"{where}: {shown(type_)} has no length; use '__rel_loc {escaped(type_)}' for any length",
        )
    length = any_base(digits)
    if not length or length > MAX_ARRAY_LENGTH:
        raise TraceError(
            errno.EINVAL,
            f"{where}: array length {shown(digits)} is not a number from 1 to {MAX_ARRAY_LENGTH}",
        )
    return length
