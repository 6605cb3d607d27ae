"""The text of a trace.dat, as `trace-cmd report` prints it, and the same as JSON.

    cpus=2
               alpha-11    [000]   100.000000: test:                 count=7
    CPU:0 [1234 EVENTS DROPPED]
           beta task-12    [000]   100.000351: rpc:                  method=Get latency_ns=1500 status=-2

The fields of a record are printed by the event's own print fmt: a C format string and its arguments. What
user events and ftrace's `print` have there is understood (REC->field, __get_str, __get_rel_str, casts,
symbols); the records of an event with another print fmt are printed as name=value.

A print fmt says for each argument which field to read and with which sign, so a record is decoded here by one
getter per conversion; a location word that points outside gives `<OVERFLOW>`. Layout, which decodes all
fields for JSON, checks the whole payload first and takes 2.5 times as long for the same record.

The text is the same as that of trace-cmd 3.1.6 (libtraceevent 1.7.1), line by line, except where that is
wrong:

| field | trace-cmd | here |
|---|---|---|
| s8, s16, char below zero | as unsigned: 248, but in files of `utracefs record` | -8 |
| struct of a size other than 1, 2, 4, 8 | 0 | its bytes in hex |
| dynamic array other than a string | the location word | its bytes in hex |
| record of an unknown event | [UNKNOWN EVENT] three times | once, with its id |
"""

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import attrs

from utracefs.event_names import EventName, matches
from utracefs.trace_dat import CLOCKS_IN_NS, BufferRecord, TraceDatReader
from utracefs_protocol.declaration import Field, FieldKind
from utracefs_protocol.event_format import EventFormat
from utracefs_protocol.layout import Layout
from utracefs_protocol.limits import ENTRY_HEADER_SIZE
from utracefs_protocol.text import bytes_of, text_of

__all__ = ["EventPrinter", "ReportOptions", "json_lines", "report_lines"]

Entry: TypeAlias = bytes | memoryview
Getter: TypeAlias = Callable[[Entry], Any]

_COMMON: Final = struct.Struct("<HBBi")
_LOC: Final = struct.Struct("<I")
_INTEGERS: Final = {
    (size, signed): struct.Struct("<" + (letter if signed else letter.upper()))
    for size, letter in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))
    for signed in (False, True)
}

_NAME_WIDTH: Final = 20
"""trace-cmd pads `NAME: ` so that the fields begin below each other."""


@attrs.frozen
class ReportOptions:
    """What to print."""

    full_ns: bool = False
    """All nine digits of the time."""
    cpus: frozenset[int] | None = None
    """Only these; None: all."""
    events: tuple[str, ...] = ()
    """Only events that one of these patterns means; empty: all."""


def report_lines(reader: TraceDatReader, options: ReportOptions) -> Iterator[str]:
    """The report line by line, without newlines at their ends (some have one in the middle). Undecodable
    bytes are surrogate escapes. ValueError at a broken page, after what came before it."""
    names = [buffer.name for buffer in reader.buffers]
    width = max(map(len, names), default=0)
    prefixes = {
        name: (f"{name:>{width}}: " if name else " " * (width + 2)) if width else "" for name in names
    }
    yield f"cpus={reader.nr_cpus}"
    printers = _Printers(reader, options.events)
    for record in reader.records(options.cpus):
        prefix = prefixes[record.buffer.name]
        if record.lost:
            count = f"{record.lost} " if record.lost > 0 else ""
            yield f"{prefix}CPU:{record.cpu} [{count}EVENTS DROPPED]"
        if len(record.data) < ENTRY_HEADER_SIZE:
            continue
        event_id, _, _, pid = _COMMON.unpack_from(record.data)
        printer = printers.get(event_id)
        if printer is None:
            continue
        stamp = _stamp(record.ts + reader.offset_ns, record.buffer.clock in CLOCKS_IN_NS, options.full_ns)
        yield (
            f"{prefix}{reader.comm(pid):>16}-{pid:<5} [{record.cpu:03d}]{stamp}: "
            f"{printer.label}{printer.text(record.data)}"
        )


def json_lines(reader: TraceDatReader, options: ReportOptions) -> Iterator[str]:
    """One object a line: records with ts (as the file's clock has it, `ts_ns` where that is nanoseconds),
    cpu, pid, comm, system, event and fields; and where records were lost, `{"lost": N, "cpu": N}`, N null
    when they were not counted."""
    printers = _Printers(reader, options.events)
    for record in reader.records(options.cpus):
        if record.lost:
            yield json.dumps({"lost": record.lost if record.lost > 0 else None, "cpu": record.cpu})
        if len(record.data) < ENTRY_HEADER_SIZE:
            continue
        event_id, _, _, pid = _COMMON.unpack_from(record.data)
        printer = printers.get(event_id)
        if printer is not None:
            yield json.dumps(_json_record(reader, record, printer, event_id, pid))


def _json_record(
    reader: TraceDatReader, record: BufferRecord, printer: "EventPrinter", event_id: int, pid: int
) -> dict[str, Any]:
    in_ns = record.buffer.clock in CLOCKS_IN_NS | {"boot"}
    found: dict[str, Any] = {
        "ts_ns" if in_ns else "ts": record.ts + reader.offset_ns,
        "cpu": record.cpu,
        "pid": pid,
        "comm": _clean(reader.comm(pid)),
        "system": reader.systems.get(event_id),
        "event": _clean(printer.name),
        "fields": printer.values(record.data),
    }
    if record.buffer.name:
        found["instance"] = record.buffer.name
    return found


def _stamp(ts: int, in_ns: bool, full_ns: bool) -> str:
    """print_event_time() of libtraceevent's event-parse.c."""
    if not in_ns:
        return f"{ts:12d}"
    if full_ns:
        return f" {ts // 1_000_000_000:5d}.{ts % 1_000_000_000:09d}"
    us = (ts + 500) // 1000
    return f" {us // 1_000_000:5d}.{us % 1_000_000:06d}"


class _Printers:
    """Printers by event id, made when they are first needed; None for events that were not asked for."""

    def __init__(self, reader: TraceDatReader, patterns: tuple[str, ...]) -> None:
        self._reader = reader
        self._patterns = patterns
        self._known: dict[int, EventPrinter | None] = {}

    def get(self, event_id: int) -> "EventPrinter | None":
        try:
            return self._known[event_id]
        except KeyError:
            return self._known.setdefault(event_id, self._make(event_id))

    def _make(self, event_id: int) -> "EventPrinter | None":
        event = self._reader.formats.get(event_id)
        system = self._reader.systems.get(event_id, "")
        if event is None:
            event = EventFormat(b"[UNKNOWN EVENT]", event_id, (), b"")
        name = EventName(system, text_of(event.name))
        if self._patterns and not any(matches(pattern, name) for pattern in self._patterns):
            return None
        return EventPrinter(event, system=system, symbols=self._reader.kallsyms)


class EventPrinter:
    """Prints the records of one event. `symbols`: address to name, for `%ps`."""

    def __init__(
        self, event: EventFormat, *, system: str = "", symbols: Mapping[int, str] | None = None
    ) -> None:
        self.name: Final = text_of(event.name)
        self.label: Final = f"{self.name}: " + " " * max(0, _NAME_WIDTH - len(self.name))
        self._layout = Layout(event.fields)
        self._in_ftrace = system == "ftrace"
        known = event.id if not event.print_fmt and not event.fields else None
        self._parts = (
            [(f"id {known}", None)] if known else _compile(event, symbols if symbols is not None else {})
        )

    def text(self, entry: Entry) -> str:
        """The fields; never raises: what a broken record has is `<OVERFLOW>`."""
        if self._in_ftrace and self.name == "raw_data":
            return _raw_data(entry)
        try:
            text = "".join([part if getter is None else part % getter(entry) for part, getter in self._parts])
        except struct.error:
            return "<OVERFLOW>"
        if self._in_ftrace:
            # A marker's text has its own newline, which is not the line's.
            return text.removesuffix("\n")
        return text

    def values(self, entry: Entry) -> dict[str, Any]:
        """Name to value for JSON: numbers, text with U+FFFD for what is not UTF-8, bytes in hex."""
        try:
            values = self._layout.unpack(entry[ENTRY_HEADER_SIZE:])
        except ValueError:
            return {}
        return {
            _clean(name): value.hex()
            if isinstance(value, bytes)
            else _clean(value)
            if isinstance(value, str)
            else value
            for name, value in values.items()
        }


# print fmt.

_STRING: Final = re.compile(rb'\s*"((?:[^"\\]|\\.)*)"')
_CONVERSION: Final = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\d*)(?P<precision>\.\d+)?(?P<length>hh|h|ll|l|z|j|t|L|q)?"
    r"(?P<kind>[diuoxXcs%]|p[sSfF]?)"
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "\\": "\\", '"': '"', "r": "\r"}
_CAST: Final = re.compile(rb"\(\s*(?:unsigned|signed|const|void|char|short|int|long|[us]\d+|\s|\*)+\)\s*")
_MEMBER: Final = re.compile(rb"\(?REC->(?P<name>[^\s,()]+)\)?\Z")
_STRING_CALL: Final = re.compile(rb"__get(?:_rel)?_str\(\s*(?P<name>[^()]+?)\s*\)\Z")


class _NotUnderstoodError(Exception):
    """A print fmt that is more C than this reads."""


def _compile(event: EventFormat, symbols: Mapping[int, str]) -> list[tuple[str, Getter | None]]:
    """Pieces of text, and pieces with one conversion each and what gets its value."""
    try:
        return _compile_print_fmt(event, symbols)
    except _NotUnderstoodError:
        parts: list[tuple[str, Getter | None]] = []
        for field in event.fields:
            name = text_of(field.name).replace("%", "%%")
            parts.append((f"{' ' if parts else ''}{name}=%s", _any_getter(field)))
        return parts


def _compile_print_fmt(event: EventFormat, symbols: Mapping[int, str]) -> list[tuple[str, Getter | None]]:
    rest = event.print_fmt
    text = b""
    found = _STRING.match(rest)
    if not found:
        raise _NotUnderstoodError
    while found:
        text += found[1]
        rest = rest[found.end() :]
        found = _STRING.match(rest)
    arguments = [argument.strip() for argument in rest.split(b",")]
    if arguments.pop(0):
        raise _NotUnderstoodError
    fields = {field.name: field for field in event.fields}
    parts: list[tuple[str, Getter | None]] = []
    format_string = _unescape(text_of(text))
    at = 0
    for conversion in _CONVERSION.finditer(format_string):
        _literal(parts, format_string[at : conversion.start()])
        at = conversion.end()
        if conversion["kind"] == "%":
            _literal(parts, "%")
        elif not arguments:
            raise _NotUnderstoodError
        else:
            parts.append(_conversion(conversion, _field(arguments.pop(0), fields), symbols))
    _literal(parts, format_string[at:])
    if arguments:
        raise _NotUnderstoodError
    return parts


def _literal(parts: list[tuple[str, Getter | None]], text: str) -> None:
    if text:
        parts.append((text, None))


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text)


def _field(argument: bytes, fields: Mapping[bytes, Field]) -> Field:
    """The field that an argument reads."""
    while cast := _CAST.match(argument):
        argument = argument[cast.end() :]
    found = _MEMBER.match(argument) or _STRING_CALL.match(argument)
    if not found or found["name"] not in fields:
        raise _NotUnderstoodError
    return fields[found["name"]]


def _conversion(conversion: re.Match[str], field: Field, symbols: Mapping[int, str]) -> tuple[str, Getter]:
    flags, width, precision = conversion["flags"], conversion["width"], conversion["precision"] or ""
    kind = conversion["kind"]
    as_text = f"%{flags.replace('0', '').replace('#', '')}{width}s"
    if kind == "s" or (field.is_loc and field.is_string):
        return as_text[:-1] + precision + "s", _string_getter(field)
    if field.is_loc or (field.kind is not FieldKind.INTEGER and field.size not in (1, 2, 4, 8)):
        return as_text, _any_getter(field)
    number = _integer_getter(field, signed=field.signed and kind in "di")
    match kind:
        case "d" | "i" | "u":
            return f"%{flags}{width}{precision}d", number
        case "c":
            return as_text, lambda entry: chr(number(entry) & 0xFF)
        case "p":
            return as_text, lambda entry: f"0x{number(entry):x}"
        case "ps" | "pf" | "pS" | "pF":
            return as_text, lambda entry: symbols.get(value := number(entry)) or f"0x{value:x}"
        case _:
            return f"%{flags}{width}{precision}{kind}", number


def _integer_getter(field: Field, *, signed: bool) -> Getter:
    unpack = _INTEGERS[field.size, signed].unpack_from
    offset = field.offset
    return lambda entry: unpack(entry, offset)[0]


def _bytes_getter(field: Field) -> Getter:
    """All bytes of an array, dynamic or not, or of a struct."""
    offset, size = field.offset, field.size
    if field.is_loc:
        base = 0 if field.kind is FieldKind.DATA_LOC else offset + 4

        def dynamic(entry: Entry) -> bytes:
            (word,) = _LOC.unpack_from(entry, offset)
            start = base + (word & 0xFFFF)
            end = start + (word >> 16)
            if end > len(entry):
                raise struct.error("outside the record")
            return bytes(entry[start:end])

        return dynamic

    def fixed(entry: Entry) -> bytes:
        if offset + size > len(entry):
            raise struct.error("outside the record")
        return bytes(entry[offset : offset + size] if size else entry[offset:])

    return fixed


def _string_getter(field: Field) -> Getter:
    data = _bytes_getter(field)
    return lambda entry: text_of(data(entry).partition(b"\0")[0])


def _any_getter(field: Field) -> Getter:
    """A value as it reads best where the print fmt does not say."""
    if field.kind is FieldKind.INTEGER:
        return _integer_getter(field, signed=field.signed)
    if field.kind is FieldKind.CHAR_ARRAY or (field.is_loc and field.is_string):
        return _string_getter(field)
    data = _bytes_getter(field)
    return lambda entry: data(entry).hex()


def _raw_data(entry: Entry) -> str:
    """trace_marker_raw: a tag and bytes, as the kernel prints them (and trace-cmd for itself)."""
    if len(entry) < ENTRY_HEADER_SIZE + 4:
        return "<OVERFLOW>"
    (tag,) = _LOC.unpack_from(entry, ENTRY_HEADER_SIZE)
    return f"# {tag:x}" + "".join(f" {byte:02x}" for byte in bytes(entry[ENTRY_HEADER_SIZE + 4 :]))


def _clean(text: str) -> str:
    return bytes_of(text).decode("utf-8", "replace")
