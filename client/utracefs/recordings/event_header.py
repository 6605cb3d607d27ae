"""The events of EventHeader tracepoints: from the metadata in a record to fields like those of other events.

    tracepoint  MyProvider_L4K1fGgroup: provider, level, keyword, options
    metadata    event\\0 (field\\0 encoding [format [tag]] [count])...

Numbers of encodings, formats and flags are those of eventheader.h of LinuxTracepoints; `_event_header` has
the layout of a record, and converts its values. The event is `MyProvider:event`. Its fields are those of the
metadata, then those of the header:

| value | field |
|---|---|
| integer, port, errno, pid, time (seconds since 1970) | integer of its size |
| text of any encoding, UUID, IP address, character | `__rel_loc char[]`, UTF-8 |
| bytes | `__rel_loc u8[]` |
| float, boolean | `struct float`, `struct double`, `struct bool` (docs/differences.md) |
| value that may be null, array | `__rel_loc char[]`, JSON |
| struct | a field for each of its members, `STRUCT.MEMBER` |

`level` and `keyword` are in all events; `opcode`, `id`, `version`, `tag`, `activity_id` and `related_id` in
events that set them. If the event has a field of such a name, the header's gets the prefix `eventheader_`.

Events of OpenTelemetry's exporters have the Common Schema: `__csver__`, and the structs PartA, PartB, PartC.
Their main fields get the names of OpenTelemetry's logs (COMMON_SCHEMA).
"""

import re
import struct
import sys
from collections.abc import Iterable
from typing import Final

import attrs

from utracefs.recordings._event_header import EventHeaders, Op, Plan, Repeated
from utracefs.recordings._records import EventDecoder, RecordSource
from utracefs_protocol.events.declaration import Field, FieldKind
from utracefs_protocol.events.event_format import EventFormat
from utracefs_protocol.events.event_header import HEADER_SIZE, header_name
from utracefs_protocol.limits import ENTRY_HEADER_SIZE
from utracefs_protocol.text import bytes_of, clean, text_of

MAX_EVENTS: Final = 4096
"""Distinct layouts of events; records of further ones are not decoded."""
MAX_DEPTH: Final = 8
"""Structs in structs, as in the decoder of LinuxTracepoints."""
MAX_NAMES: Final = 1 << 20
"""Characters of all names of an event: members of nested structs repeat those of the outer ones."""
MAX_FIXED: Final = 32 << 10
"""Bytes of integers and location words."""
MAX_ALL_FIELDS: Final = 1 << 17
"""Fields of all layouts; one takes about 500 bytes."""
MAX_ALL_NAMES: Final = 8 << 20
"""Characters of the names in all layouts."""

_LITTLE: Final = 0x02

_STRUCT: Final = 1
_VALUES: Final = {2: 1, 3: 2, 4: 4, 5: 8, 6: 16}
"""Encoding of values of a fixed size, to that."""
_ENDED: Final = {7: 1, 8: 2, 9: 4}
"""Encoding of texts with a zero at the end, to the size of their units."""
_COUNTED: Final = {10: 1, 11: 2, 12: 4, 13: 1}
_BINARY: Final = 13
_CONSTANT, _VARIABLE, _MORE = 0x20, 0x40, 0x80
_SIGNED: Final = (2, 4, 5, 6)
"""Formats: signed integer, errno, pid, time."""
_HEX, _BOOLEAN, _FLOAT, _HEX_BYTES, _STRING8, _UTF, _UUID, _PORT = 3, 7, 8, 9, 10, 11, 15, 16
_MARKED: Final = (12, 13, 14)
"""Formats of texts with a byte order mark: UTF, XML, JSON."""
_ADDRESSES: Final = (17, 18)
_STRUCTS: Final = {Op.TRUTH: b"struct bool", Op.REAL: b"struct float"}
_NULLABLE: Final = {
    _BOOLEAN: Op.TRUTH,
    _FLOAT: Op.REAL,
    _UUID: Op.UUID,
    **dict.fromkeys(_ADDRESSES, Op.ADDRESS),
}
_SIZES: Final = {
    **dict.fromkeys((1, 2, _HEX), 1 | 2 | 4 | 8),
    **dict.fromkeys((4, 5), 4),
    6: 4 | 8,
    _BOOLEAN: 1 | 2 | 4,
    _FLOAT: 4 | 8,
    _UUID: 16,
    _PORT: 2,
    **dict.fromkeys(_ADDRESSES, 4 | 16),
}
"""Format of a value that may be null, counted bytes, to the sizes it may have."""

COMMON_SCHEMA: Final = {
    ("PartA", "time"): "time",
    ("PartA", "ext_dt", "traceId"): "trace_id",
    ("PartA", "ext_dt", "spanId"): "span_id",
    ("PartA", "ext_dt_traceId"): "trace_id",
    ("PartA", "ext_dt_spanId"): "span_id",
    ("PartB", "severityNumber"): "severity_number",
    ("PartB", "severityText"): "severity_text",
    ("PartB", "body"): "body",
}
"""Path of a field to its name."""


@attrs.frozen
class _Tracepoint:
    event: EventFormat
    system: str
    provider: str
    level: int
    keyword: int


@attrs.define
class _Node:
    name: str
    op: Op
    repeated: Repeated = Repeated.ONCE
    size: int = 1
    is_big: bool = False
    is_foreign: bool = False
    is_signed: bool = False
    is_counted: bool = False
    is_ended: bool = False
    is_json: bool = False
    sizes: int = 0
    is_text: bool = False
    is_hex: bool = False
    count: int = 0
    path: tuple[str, ...] | None = None
    """Path of the column."""
    is_renamed: bool = False
    end: int = 0
    at: int = 0


@attrs.frozen
class HeaderEvent:
    """An event found in the records of a tracepoint."""

    system: str
    format: EventFormat
    tracepoint: int
    """Id of the tracepoint."""
    paths: tuple[tuple[str, ...], ...] = ()
    """For each field: the names of its structs, and its own; empty: fields have no structs."""
    json: frozenset[str] = frozenset()
    """Fields with JSON."""
    opcode: int = -1
    """-1: it has the undecoded records of its tracepoint."""

    def decoder(self) -> EventDecoder:
        return EventDecoder(
            self.system,
            text_of(self.format.name),
            self.format.fields,
            paths=self.paths,
            json=self.json,
            opcode=self.opcode,
        )


class HeaderEvents:
    """The EventHeader tracepoints of a recording or stream, and the events found in their records so far."""

    def __init__(self) -> None:
        self.tracepoints: Final[dict[int, _Tracepoint]] = {}
        self.events: Final[dict[int, HeaderEvent]] = {}
        """By their ids: from the highest on that no tracepoint has."""
        self._plans: Final[dict[bytes, Plan | None]] = {}
        self._ids: Final[dict[HeaderEvent, int]] = {}
        self._nr_fields = 0
        self._nr_names = 0
        self._taken: Final[set[int]] = set()

    def add(self, system: str, event: EventFormat) -> None:
        """Add a tracepoint if it is one of EventHeader."""
        self._taken.add(event.id)
        found = header_name(event.name, event.fields)
        if found is None:
            return
        self.tracepoints[event.id] = _Tracepoint(
            event, system, text_of(found["provider"]), int(found["level"], 16), int(found["keyword"], 16)
        )

    def source(self, source: RecordSource) -> RecordSource:
        """A source with the same records, in which records of EventHeader tracepoints are replaced by those
        of the events in them."""
        if not self.tracepoints:
            return source
        return EventHeaders(source, self.tracepoints, self._plans, self.plan, self.rest)

    def rest(self, tracepoint_id: int) -> int | None:
        """The id of the event for records that cannot be decoded."""
        tracepoint = self.tracepoints[tracepoint_id]
        header = ENTRY_HEADER_SIZE + HEADER_SIZE
        rest = Field(b"u8[]", b"rest", header, 0, False, FieldKind.STRUCT)
        fields = (*tracepoint.event.fields, rest)
        return self._event_id(
            HeaderEvent(tracepoint.system, EventFormat(tracepoint.event.name, 0, fields, b""), tracepoint_id)
        )

    def plan(self, tracepoint_id: int, header: bytes, activity: int, metadata: bytes) -> Plan | None:
        tracepoint = self.tracepoints[tracepoint_id]
        is_little = bool(header[0] & _LITTLE)
        try:
            name, nodes = _read(metadata, is_little=is_little)
        except ValueError:
            return None
        version, id_, tag, opcode, level = struct.unpack("<xBHHBB" if is_little else ">xBHHBB", header)
        layout = _Layout()
        # Renamed fields first: what is left of their structs stays together.
        for node in sorted(nodes, key=lambda node: not node.is_renamed):
            if node.path is not None:
                layout.add_node(node)
        layout.number("level", 1, level)
        layout.number("keyword", 8, tracepoint.keyword, is_hex=True)
        for what, size, value in (
            ("opcode", 1, opcode),
            ("id", 2, id_),
            ("version", 1, version),
            ("tag", 2, tag),
        ):
            if value:
                layout.number(what, size, value)
        activity_at = layout.text("activity_id") if activity else 0
        related_at = layout.text("related_id") if activity > 16 else 0
        if len(layout.start) > MAX_FIXED:
            return None
        event = EventFormat(bytes_of(name), 0, tuple(layout.fields), layout.print_fmt())
        paths = tuple(layout.paths) if _are_nested(layout.paths) else ()
        event_id = self._event_id(
            HeaderEvent(tracepoint.provider, event, tracepoint_id, paths, frozenset(layout.json), opcode)
        )
        if event_id is None:
            return None
        return Plan(event_id, bytes(layout.start), nodes, activity_at, related_at)

    def _event_id(self, event: HeaderEvent) -> int | None:
        """The id of this event, which has none yet; None: there are too many."""
        if event not in self._ids:
            nr_fields = self._nr_fields + len(event.format.fields)
            nr_names = self._nr_names + sum(len(field.name) for field in event.format.fields)
            is_full = len(self.events) >= MAX_EVENTS or nr_fields > MAX_ALL_FIELDS or nr_names > MAX_ALL_NAMES
            # One for each tracepoint has the undecoded records.
            if is_full and event.opcode >= 0:
                return None
            self._nr_fields, self._nr_names = nr_fields, nr_names
            id_ = min(self.events, default=1 << 16) - 1
            while id_ in self._taken:
                id_ -= 1
            self._ids[event] = id_
            self.events[id_] = attrs.evolve(event, format=attrs.evolve(event.format, id=id_))
        return self._ids[event]


class _Layout:
    """The fields of an event, while they are added."""

    def __init__(self) -> None:
        self.start = bytearray(ENTRY_HEADER_SIZE)
        self.fields: Final[list[Field]] = []
        self.paths: Final[list[tuple[str, ...]]] = []
        self.json: Final[set[str]] = set()
        self._formats: Final[list[tuple[bytes, bytes]]] = []
        self._taken: Final[set[str]] = set()
        self._numbers: Final[dict[str, int]] = {}
        """The next number for a field of this name: a search from 2 on takes minutes for 30,000."""

    def add_node(self, node: _Node) -> None:
        assert node.path is not None
        name = clean(".".join(node.path))
        number = self._numbers.get(name, 1)
        free = name if number == 1 else f"{name}_{number}"
        while free in self._taken:
            number += 1
            free = f"{name}_{number}"
        self._numbers[name] = number + 1
        path = (*node.path[:-1], f"{node.path[-1]}_{number}") if number > 1 else node.path
        node.at = len(self.start)
        if node.op in _STRUCTS and not node.is_json:
            type_, size = _STRUCTS[node.op], 1 if node.op == Op.TRUTH else node.size
            if type_ == b"struct float" and size == 8:
                type_ = b"struct double"
            self._add(free, path, type_, FieldKind.STRUCT, True, bytes(size))
        elif node.op == Op.NUMBER and not node.is_json:
            self._add(free, path, *_integer(node.size, node.is_signed), bytes(node.size), node.is_hex)
        elif node.op == Op.UUID and not node.is_json:
            self._add(free, path, b"char[36]", FieldKind.CHAR_ARRAY, True, bytes(36))
        else:
            is_bytes = node.op == Op.BYTES and not node.is_json
            type_ = b"__rel_loc u8[]" if is_bytes else b"__rel_loc char[]"
            self._add(free, path, type_, FieldKind.REL_LOC, True, bytes(4))
            if node.is_json:
                self.json.add(free)

    def number(self, name: str, size: int, value: int, *, is_hex: bool = False) -> None:
        data = value.to_bytes(size, sys.byteorder)
        free = self._free(name)
        self._add(free, (free,), *_integer(size, False), data, is_hex)

    def text(self, name: str) -> int:
        """Read an id at the present offset, as text."""
        free = self._free(name)
        at = len(self.start)
        self._add(free, (free,), b"char[36]", FieldKind.CHAR_ARRAY, True, bytes(36))
        return at

    def print_fmt(self) -> bytes:
        """Empty if the notation cannot have one of the names."""
        if not all(re.fullmatch(rb"[\w.]+", field.name) for field in self.fields):
            return b""
        text = b" ".join(
            field.name + b"=" + how for field, (how, _) in zip(self.fields, self._formats, strict=True)
        )
        return b'"%s"' % text + b"".join(b", " + argument for _, argument in self._formats)

    def _free(self, name: str) -> str:
        while name in self._taken:
            name = f"eventheader_{name}"
        return name

    def _add(
        self,
        name: str,
        path: tuple[str, ...],
        type_: bytes,
        kind: FieldKind,
        signed: bool,
        data: bytes,
        is_hex: bool = False,
    ) -> None:
        encoded = bytes_of(name)
        self._taken.add(name)
        self.fields.append(Field(type_, encoded, len(self.start), len(data), signed, kind))
        self.paths.append(path)
        self.start += data
        how, argument = b"%llu", b"REC->" + encoded
        if kind is FieldKind.INTEGER:
            how = b"0x%llx" if is_hex else b"%lld" if signed else b"%llu"
        elif type_ == b"__rel_loc char[]":
            how, argument = b"%s", b"__get_rel_str(%s)" % encoded
        elif kind is FieldKind.CHAR_ARRAY:
            how = b"%s"
        self._formats.append((how, argument))


def _integer(size: int, signed: bool) -> tuple[bytes, FieldKind, bool]:
    return b"%s%d" % (b"s" if signed else b"u", 8 * size), FieldKind.INTEGER, signed


def _are_nested(paths: Iterable[tuple[str, ...]]) -> bool:
    """Whether there are structs, each in one piece, and none with the name of another field."""
    begun: set[tuple[str, ...]] = set()
    before: tuple[str, ...] = ()
    is_any = False
    for path in paths:
        for depth in range(1, len(path) + 1):
            part = path[:depth]
            if depth < len(path):
                is_any = True
                if before[:depth] == part and len(before) > depth:
                    continue
            if part in begun:
                return False
            begun.add(part)
        before = path
    return is_any


def _read(metadata: bytes, *, is_little: bool) -> tuple[str, list[_Node]]:
    """The event's name and its fields. ValueError: they are invalid, or too much."""
    reader = _Reader(metadata, is_little=is_little)
    name = reader.name()
    while reader.at < len(metadata):
        reader.field((), is_column=True, depth=0)
    nodes = reader.nodes
    if nodes and nodes[0].name == "__csver__":
        for node in nodes:
            if node.path in COMMON_SCHEMA:
                node.path = (COMMON_SCHEMA[node.path],)
                node.is_renamed = True
    return name, nodes


class _Reader:
    def __init__(self, data: bytes, *, is_little: bool) -> None:
        self.at = 0
        self.nodes: Final[list[_Node]] = []
        self._data: Final = data
        self._is_little: Final = is_little
        self._names = 0

    def name(self) -> str:
        """Read a name, without its attributes."""
        end = self._data.index(0, self.at)
        name = self._data[self.at : end]
        self.at = end + 1
        return text_of(name.partition(b";")[0])

    def _number(self, size: int) -> int:
        data = self._data[self.at : self.at + size]
        if len(data) < size:
            raise ValueError("the metadata end within a field")
        self.at += size
        return int.from_bytes(data, "little" if self._is_little else "big")

    def field(self, outer: tuple[str, ...], *, is_column: bool, depth: int) -> None:
        """Read a field within structs of these names; if it is a struct, all its members."""
        name = self.name()
        encoding = self._number(1)
        format_ = self._number(1) if encoding & _MORE else 0
        if format_ & _MORE:
            self._number(2)
        repeated = Repeated.ONCE
        count = 0
        if encoding & _CONSTANT:
            repeated = Repeated.CONSTANT
            count = self._number(2)
        if encoding & _VARIABLE:
            repeated = Repeated.VARIABLE
        if encoding & _CONSTANT and (encoding & _VARIABLE or not count):
            raise ValueError("an invalid array")
        path = (*outer, name)
        self._names += sum(map(len, path)) + len(path)
        if self._names > MAX_NAMES:
            raise ValueError("too many names")
        node = _node(name, encoding & 0x1F, format_ & 0x7F)
        node.repeated = repeated
        node.count = count
        node.is_foreign = self._is_little != (sys.byteorder == "little")
        node.is_big = node.is_big or not self._is_little
        node.is_json = node.is_json or repeated != Repeated.ONCE
        self.nodes.append(node)
        if node.op != Op.STRUCT:
            node.path = path if is_column else None
        else:
            if depth == MAX_DEPTH or self.at == len(self._data) or not format_ & 0x7F:
                raise ValueError("a struct without members, or too many in each other")
            node.path = path if is_column and repeated != Repeated.ONCE else None
            is_column = is_column and repeated == Repeated.ONCE
            for _ in range(format_ & 0x7F):
                if self.at < len(self._data):
                    self.field(path, is_column=is_column, depth=depth + 1)
        node.end = len(self.nodes)


def _node(name: str, encoding: int, format_: int) -> _Node:
    """ValueError: there is no such encoding. A format that the encoding cannot have is like none."""
    if encoding == _STRUCT:
        return _Node(name, Op.STRUCT)
    if encoding in _VALUES:
        return _value(name, _VALUES[encoding], format_)
    if encoding in _ENDED:
        size = _ENDED[encoding]
        return _Node(name, _text(size, format_), size=size, is_ended=True)
    if encoding not in _COUNTED:
        raise ValueError(f"encoding {encoding}")
    size = _COUNTED[encoding]
    if size == 1 and format_ in _SIZES:
        return _Node(
            name,
            _NULLABLE.get(format_, Op.NUMBER),
            is_big=format_ == _PORT,
            is_signed=format_ in _SIGNED,
            is_counted=True,
            is_json=True,
            sizes=_SIZES[format_],
            is_text=encoding != _BINARY,
        )
    is_text = encoding != _BINARY or format_ in (_STRING8, _UTF, *_MARKED)
    op = _text(size, format_) if is_text else Op.BYTES
    return _Node(name, op, size=size, is_counted=True)


def _text(size: int, format_: int) -> Op:
    if format_ == _HEX_BYTES:
        return Op.BYTES
    if format_ == _STRING8 and size == 1:
        return Op.LATIN_TEXT
    return Op.MARKED_TEXT if format_ in _MARKED else Op.TEXT


def _value(name: str, size: int, format_: int) -> _Node:
    if format_ == _HEX_BYTES or (size == 16 and format_ not in (_UUID, *_ADDRESSES)):
        return _Node(name, Op.BYTES, size=size)
    if size == 16:
        return _Node(name, Op.UUID if format_ == _UUID else Op.ADDRESS, size=size)
    if format_ == _FLOAT and size >= 4:
        return _Node(name, Op.REAL, size=size)
    if format_ == _BOOLEAN and size < 8:
        return _Node(name, Op.TRUTH, size=size)
    if (size, format_) in ((1, _STRING8), (2, _UTF), (4, _UTF)):
        return _Node(name, Op.CHARACTER, size=size)
    if size == 2 and format_ == _PORT:
        return _Node(name, Op.NUMBER, size=size, is_big=True)
    if size == 4 and format_ in _ADDRESSES:
        return _Node(name, Op.ADDRESS, size=size)
    is_signed = format_ == 2 or (size == 4 and format_ in (4, 5, 6)) or (size == 8 and format_ == 6)
    return _Node(name, Op.NUMBER, size=size, is_signed=is_signed, is_hex=format_ == _HEX)
