"""The `format` file of an event: the layout of its records, for readers of traces.

    name: http_request
    ID: 20
    format:
    <TAB>field:unsigned short common_type;<TAB>offset:0;<TAB>size:2;<TAB>signed:0;
    ...
    <TAB>field:u16 status;<TAB>offset:8;<TAB>size:2;<TAB>signed:0;

    print fmt: "status=%u", REC->status

`format_text` writes the files of our events as the kernel does, but fixed arrays show their length (`char
a[20]`): the kernel takes the number from a member that user_events never sets. `parse_format` reads these
files and those of a kernel.
"""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import INTEGERS, NUMBER_SIZES, Field, FieldKind
from utracefs_protocol.text import shown

COMMON_FIELDS: Final = tuple(
    Field(type_, name, offset, size, signed, FieldKind.INTEGER)
    for type_, name, offset, size, signed in (
        (b"unsigned short", b"common_type", 0, 2, False),
        (b"unsigned char", b"common_flags", 2, 1, False),
        (b"unsigned char", b"common_preempt_count", 3, 1, False),
        (b"int", b"common_pid", 4, 4, True),
    )
)
"""Those of every event (trace_define_common_fields())."""

_NUMBER: Final = re.compile(rb"\d{1,10}")
"""Those of declared events are not longer. Larger ones fit into no type of other formats."""
_FORMAT_LINE: Final = re.compile(
    rb"\s*field:(?P<declared>[^;]*);\s*offset:\s*(?P<offset>\d{1,10});\s*size:\s*(?P<size>\d{1,10});"
    rb"(?:\s*signed:\s*(?P<signed>\d+);)?\s*\Z"
)
"""Like all patterns here it takes time linear in the line's length for any input: trace files are hostile."""
_SEPARATOR: Final = re.compile(rb"[ \t*]")


@attrs.frozen
class EventFormat:
    """The content of a `format` file, for readers of traces."""

    name: bytes
    """Tracepoint name: `NAME.<hex>` for multi-format events."""
    id: int
    """common_type of its records."""
    fields: tuple[Field, ...]
    """Without the common fields. Kernel events may have padding between them and types we never declare."""
    print_fmt: bytes
    """Everything after `print fmt: `, the quotes included."""

    def for_readers(self) -> EventFormat:
        """With `distinct_fields`; its print fmt prints each field, below the declared name."""
        fields = distinct_fields(self.fields)
        if fields is self.fields:
            return self
        is_ours = self.print_fmt == _print_fmt(self.fields)
        print_fmt = _print_fmt(fields, self.fields) if is_ours else self.print_fmt
        return attrs.evolve(self, fields=fields, print_fmt=print_fmt)


def distinct_fields(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """The fields with names for readers, which know a value by its name: of fields called `n` the first one
    keeps the name, the others are n_2, n_3, without the names that other fields have. An event may repeat a
    name, as in the kernel."""
    declared = {field.name for field in fields}
    if len(declared) == len(fields):
        return fields
    numbers: Counter[bytes] = Counter()
    distinct = []
    for field in fields:
        name = field.name
        numbers[field.name] += 1
        while (number := numbers[field.name]) > 1 and (name := b"%s_%d" % (field.name, number)) in declared:
            numbers[field.name] += 1
        distinct.append(Field(field.type, name, field.offset, field.size, field.signed, field.kind))
    return tuple(distinct)


def format_text(
    tracepoint_name: bytes, event_id: int, fields: Iterable[Field], print_fmt: bytes | None = None
) -> bytes:
    """The whole `format` file of an event. print_fmt: None: that of a user event."""
    fields = tuple(fields)
    return b"name: %s\nID: %d\nformat:\n%s\n%s\nprint fmt: %s\n" % (
        tracepoint_name,
        event_id,
        b"".join(map(_format_line, COMMON_FIELDS)),
        b"".join(map(_format_line, fields)),
        _print_fmt(fields) if print_fmt is None else print_fmt,
    )


def _format_line(field: Field) -> bytes:
    """The field's line, with its newline (kernel/trace/trace_events.c, fshown())."""
    base, bracket, _ = field.type.partition(b"[")
    if not bracket or field.type.startswith(b"__data_loc"):
        shown = field.type + b" " + field.name
    elif field.kind is FieldKind.CHAR_ARRAY:
        shown = b"%s %s[%d]" % (base, field.name, field.size)
    else:
        shown = b"%s %s[]" % (base, field.name)
    return b"\tfield:%s;\toffset:%d;\tsize:%d;\tsigned:%d;\n" % (
        shown,
        field.offset,
        field.size,
        field.signed,
    )


def _print_fmt(fields: tuple[Field, ...], labels: tuple[Field, ...] | None = None) -> bytes:
    """labels: fields with the names to print."""
    parts = [_conversion(field) for field in fields]
    shown = zip(labels or fields, parts, strict=True)
    text = b'"' + b" ".join(label.name + b"=" + part for label, (part, _) in shown) + b'"'
    return text + b"".join(b", " + argument for _, argument in parts)


def _conversion(field: Field) -> tuple[bytes, bytes]:
    """The field's conversion, and its argument (user_field_format(), user_event_set_print_fmt())."""
    if field.type in INTEGERS:
        if field.size == 8:
            conversion = b"%lld" if field.signed else b"%llu"
        else:
            conversion = b"%d" if field.signed else b"%u"
    else:
        conversion = b"%s" if b"char[" in field.type else b"%llu"
    if field.is_loc and field.is_string:
        getter = b"__get_str" if field.kind is FieldKind.DATA_LOC else b"__get_rel_str"
        argument = b"%s(%s)" % (getter, field.name)
    else:
        argument = b"REC->" + field.name
    return conversion, argument


def parse_format(text: bytes) -> EventFormat:
    """Parse a `format` file of utracefs or of the kernel (`ftrace/print` and all others). EINVAL when it is
    not one.

    Types get the spelling of a declaration (`char a[20]` gives `char[20]`). A field that is neither text nor
    an integer of 1, 2, 4 or 8 bytes is a STRUCT: bytes. `size` 0 means "to the end of the record"
    (`char buf[]` of ftrace/print).
    """
    head, _, print_fmt = text.partition(b"\nprint fmt:")
    name = b""
    event_id: int | None = None
    paragraphs: list[list[Field]] = [[]]
    for line in head.split(b"\n"):
        if line.startswith(b"name:"):
            name = line[5:].strip()
        elif line.startswith(b"ID:"):
            number = line[3:].strip()
            if not _NUMBER.fullmatch(number):
                raise TraceError(
                    errno.EINVAL, f"format of event {shown(name)}: ID {shown(number)} is no number"
                )
            event_id = int(number)
        elif not line.strip():
            if paragraphs[-1]:
                paragraphs.append([])
        elif line.lstrip().startswith(b"field:"):
            paragraphs[-1].append(_parse_format_line(line))
    if not name or event_id is None:
        raise TraceError(errno.EINVAL, "a format must have the lines 'name:' and 'ID:'")
    if paragraphs[0] and paragraphs[0][0].name.startswith(b"common_"):
        del paragraphs[0]
    fields = tuple(field for paragraph in paragraphs for field in paragraph)
    return EventFormat(name, event_id, fields, print_fmt.strip())


def _parse_format_line(line: bytes) -> Field:
    found = _FORMAT_LINE.match(line)
    declared = found and _split_declared(found["declared"].lstrip())
    if found is None or declared is None:
        raise TraceError(errno.EINVAL, f"format: cannot read the line {shown(line)}")
    type_, name, array = declared
    size = int(found["size"])
    signed = found["signed"] != b"0" if found["signed"] else not type_.startswith(b"u")
    if array and not (type_ in INTEGERS and size == INTEGERS[type_] and b"char" not in type_):
        type_ += array
    elif array:
        name += array  # an integer whose name has brackets: `u32 a[2]` declares one u32
    return Field(type_, name, int(found["offset"]), size, signed, _format_kind(type_, size))


def _split_declared(text: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Type, name and the text in brackets at the end; None: there is no type in front of the name."""
    first = _SEPARATOR.search(text)
    if first is None:
        return None
    end = len(text)
    if text.endswith(b"]"):
        bracket = text.find(b"[", max(text.rfind(b"]", 0, -1) + 1, first.end()))
        end = bracket if bracket >= 0 else end
    blank = max(text.rfind(b" ", 0, end), text.rfind(b"\t", 0, end)) + 1
    start = max(blank, text.rfind(b"*", 0, end) + 1)
    if start == end and blank:
        start = blank  # no pointer has no name: `u32 a*` declares a user event's field `a*`
    return text[:start].rstrip(b" \t"), text[start:end], text[end:]


def _format_kind(type_: bytes, size: int) -> FieldKind:
    if type_.startswith(b"__data_loc "):
        return FieldKind.DATA_LOC
    if type_.startswith(b"__rel_loc "):
        return FieldKind.REL_LOC
    if b"[" in type_:
        element = type_.partition(b"[")[0]
        return FieldKind.CHAR_ARRAY if element in (b"char", b"unsigned char") else FieldKind.STRUCT
    if type_.startswith((b"struct ", b"union ")) and not type_.endswith(b"*"):
        return FieldKind.STRUCT
    return FieldKind.INTEGER if size in NUMBER_SIZES else FieldKind.STRUCT
