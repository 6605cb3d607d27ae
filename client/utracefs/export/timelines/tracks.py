"""Slices and counters of a timeline, besides points. For Perfetto and Chrome JSON.

| item | source | on a command line |
|---|---|---|
| Slice | two events, begin and end, with equal values of some fields, or of one thread | BEGIN,END[,KEY...] |
| Duration | one event with a field for the duration that it ends | EVENT.FIELD[:UNIT] |
| Counter | the values of a field | EVENT.FIELD |

In a file they are TOML, a table for each:

    [[slice]]
    begin = "http_begin"
    end = ["http_done", "http_failed"]      # or one name
    key = "request"                         # or several; none: the same thread
    name = "request"                        # default: the event's; [[duration]] and [[counter]] have it, too

    [[duration]]
    event = "db_query"
    field = "usec"
    unit = "us"                             # ns (default), us, ms, s

    [[counter]]
    event = "queue"
    field = "length"

Spans (`utracefs.span`) need none of these: `with_spans` recognizes their events by their fields and makes
slices of them.

EVENT is `SYSTEM:NAME`, `NAME`, or a glob of either. `_placing` chooses the tracks of slices.
"""

import errno
import tomllib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Self

import attrs

from utracefs.recordings.recording import Recording
from utracefs.tree.event_names import EventName, matches
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import Field, FieldKind
from utracefs_protocol.text import text_of

UNITS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


@attrs.frozen
class Slice:
    """From a record of `begin` to the next one of any of `ends` with the same key."""

    begin: str
    ends: tuple[str, ...]
    keys: tuple[str, ...] = ()
    """Fields of all these events whose values must be equal; none: the same thread."""
    name: str = ""
    """Name of the slice; default: that of the event that begins it."""
    parent: str = ""
    """For spans: the field of the begin event with the parent's key. All spans share one space of keys."""
    duration_ns: str = ""
    """For spans: the field of the end event with the duration, for an end without a begin."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """ValueError: it is not BEGIN,END[/END...][,KEY...]."""
        words = text.split(",")
        if len(words) < 2 or not all(words) or not all(words[1].split("/")):
            raise ValueError(f"{text!r} is not BEGIN,END[,KEY]: two events, and a field that both have")
        return cls(words[0], tuple(words[1].split("/")), tuple(words[2:]))


@attrs.frozen
class Duration:
    """A slice that ends with a record, with the duration in `field`."""

    event: str
    field: str
    unit_ns: int = 1
    """Nanoseconds per unit of the field: 1000 for microseconds."""
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """ValueError: it is not EVENT.FIELD[:UNIT]."""
        event, _, rest = text.rpartition(".")
        field, colon, unit = rest.partition(":")
        if not event or not field or (colon and not unit):
            raise ValueError(f"{text!r} is not EVENT.FIELD[:UNIT]")
        return cls(event, field, _unit_ns(unit or "ns"))


@attrs.frozen
class Counter:
    """A curve of the values of `field`, one for each process."""

    event: str
    field: str
    name: str = ""
    """Default: EVENT.FIELD."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """ValueError: it is not EVENT.FIELD."""
        event, _, field = text.rpartition(".")
        if not event or not field:
            raise ValueError(f"{text!r} is not EVENT.FIELD")
        return cls(event, field)


_BEGIN: Final = [(b"u64", b"span_id"), (b"u64", b"parent_id")]
_END: Final = [*_BEGIN, (b"u64", b"duration_ns")]


_START, _STOP = 1, 2
"""Opcodes of activities."""


class Roles(NamedTuple):
    """Items of one event's records, besides points; a field is its place in the event, or -1.

    ends: number of the Slice, or -1 for spans; its keys; a span's duration; name. begins: the same with a
    span's parent. durations: the field, nanoseconds per unit, name. counters: the field, name.
    """

    ends: list[tuple[int, tuple[int, ...], int, str]]
    begins: list[tuple[int, tuple[int, ...], int, str]]
    durations: list[tuple[int, int, str]]
    counters: list[tuple[int, str]]


@attrs.frozen
class Tracks:
    slices: tuple[Slice, ...] = ()
    durations: tuple[Duration, ...] = ()
    counters: tuple[Counter, ...] = ()

    @classmethod
    def from_toml(cls, data: bytes) -> Self:
        """ValueError with one line: it is not TOML, or not as above."""
        try:
            tables = tomllib.loads(data.decode())
        except RecursionError:
            raise ValueError("too deeply nested") from None
        _no_others(tables, _READ, "table", "[[{}]]")
        found: dict[str, list[Any]] = {}
        for kind, make in _READ.items():
            found[kind] = []
            rows = tables.get(kind, [])
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise ValueError(f"{kind}: write [[{kind}]], with two brackets")
            for number, row in enumerate(rows, 1):
                try:
                    found[kind].append(make(row))
                except ValueError as error:
                    raise ValueError(f"[[{kind}]] number {number}: {error}") from None
        return cls(tuple(found["slice"]), tuple(found["duration"]), tuple(found["counter"]))

    def __add__(self, other: "Tracks") -> "Tracks":
        return Tracks(
            self.slices + other.slices, self.durations + other.durations, self.counters + other.counters
        )

    def with_spans(self, recording: Recording) -> "Tracks":
        """Besides these, the spans that the recording describes, unless their begin has a slice here."""
        fields = {
            EventName(system, text_of(event.name)): [(field.type, field.name) for field in event.fields]
            for system, event in recording.formats
        }
        spans = []
        for event, found in fields.items():
            name = event.name.removesuffix("_begin")
            end = EventName(event.system, f"{name}_end")
            if (
                event.name != name
                and found[: len(_BEGIN)] == _BEGIN
                and fields.get(end, [])[: len(_END)] == _END
                and not any(matches(one.begin, event) for one in self.slices)
            ):
                spans.append(Slice(str(event), (str(end),), ("span_id",), name, "parent_id", "duration_ns"))
        return self + Tracks(tuple(spans))

    def __bool__(self) -> bool:
        return bool(self.slices or self.durations or self.counters)

    def events(self) -> set[str]:
        """The names of all events, as given."""
        names = {event for pair in self.slices for event in (pair.begin, *pair.ends)}
        return names | {one.event for one in self.durations} | {one.event for one in self.counters}

    def without(self, events: Iterable[str]) -> "Tracks":
        """The rest without these events."""
        gone = set(events)
        slices = [attrs.evolve(p, ends=tuple(e for e in p.ends if e not in gone)) for p in self.slices]
        return Tracks(
            tuple(pair for pair in slices if pair.begin not in gone and pair.ends),
            tuple(one for one in self.durations if one.event not in gone),
            tuple(one for one in self.counters if one.event not in gone),
        )

    def missing(self, recording: Recording) -> list[str]:
        """The names that match no event of the recording."""
        there = recording.events
        return sorted(name for name in self.events() if not any(matches(name, event) for event in there))

    def check(self, recording: Recording) -> None:
        """TraceError: ENOENT for an event or field that the recording does not describe, EINVAL for a field
        that is no number, and for keys that can never be equal."""
        gone = self.missing(recording)
        if gone:
            raise TraceError(errno.ENOENT, f"{gone[0]}: no such event in {recording.path}")
        numbers: tuple[Duration | Counter, ...] = (*self.durations, *self.counters)
        for one in numbers:
            for field in _fields(recording, one.event, one.field):
                if not _is_number(field):
                    kind = text_of(field.type)
                    raise TraceError(errno.EINVAL, f"{one.event}.{one.field}: is {kind}, not a number")
        for pair in self.slices:
            for key in pair.keys:
                kinds = {
                    name: _is_number(field)
                    for name in (pair.begin, *pair.ends)
                    for field in _fields(recording, name, key)
                }
                if len(set(kinds.values())) > 1:
                    number, text = sorted(kinds, key=kinds.__getitem__, reverse=True)[:: len(kinds) - 1]
                    raise TraceError(
                        errno.EINVAL, f"{key}: is a number in {number} and none in {text}: never equal"
                    )

    def roles(self, event: EventName, fields: Iterable[str], opcode: int = -1) -> Roles:
        """Items of an event with these fields. opcode: of an event of EventHeader."""
        place = {name: i for i, name in enumerate(fields)}
        slices = [
            (-1 if one.parent else self.slices.index(one), tuple([place[key] for key in one.keys]), one)
            for one in self.slices
            if place.keys() >= set(one.keys)
        ]
        ends = [
            (number, keys, place.get(one.duration_ns, -1), one.name)
            for number, keys, one in slices
            if any(matches(end, event) for end in one.ends)
        ]
        begins = [
            (number, keys, place.get(one.parent, -1), one.name or event.name)
            for number, keys, one in slices
            if matches(one.begin, event)
        ]
        if opcode in (_START, _STOP) and not begins and not ends:
            # Activities of EventHeader are like spans; one without a parent is in none, as if in itself.
            keys = (place["activity_id"],) if "activity_id" in place else ()
            if opcode == _STOP:
                ends.append((-1, keys, -1, event.name))
            else:
                begins.append((-1, keys, place.get("related_id", keys[0] if keys else -1), event.name))
        return Roles(
            ends,
            begins,
            [
                (place[one.field], one.unit_ns, one.name or event.name)
                for one in self.durations
                if one.field in place and matches(one.event, event)
            ],
            [
                (place[one.field], one.name or f"{event.name}.{one.field}")
                for one in self.counters
                if one.field in place and matches(one.event, event)
            ],
        )


def _is_number(field: Field) -> bool:
    return field.kind is FieldKind.INTEGER or field.is_float or field.is_bool


def _fields(recording: Recording, pattern: str, field: str) -> list[Field]:
    """The fields named `field` of all events that match the pattern. TraceError: none has it."""
    events = [
        event
        for system, event in recording.formats
        if matches(pattern, EventName(system, text_of(event.name)))
    ]
    found = [one for event in events for one in event.fields if text_of(one.name) == field]
    if not found:
        there = sorted({text_of(one.name) for event in events for one in event.fields})
        raise TraceError(
            errno.ENOENT, f"{pattern}.{field}: no such field; the event has {', '.join(there) or 'none'}"
        )
    return found


def _unit_ns(unit: str) -> int:
    if unit not in UNITS:
        raise ValueError(f"the unit is one of {', '.join(UNITS)}, not {unit!r}")
    return UNITS[unit]


def _no_others(table: dict[str, Any], known: Iterable[str], what: str, shown: str = "{}") -> None:
    for name in table:
        if name not in known:
            there = ", ".join(shown.format(one) for one in known)
            raise ValueError(f"there is no {what} {name!r}; there are {there}")


def _text(row: dict[str, Any], key: str, default: str | None = None) -> str:
    value = row.get(key, default)
    if not isinstance(value, str) or (not value and default is None):
        raise ValueError(f"{key} is missing" if value is None else f"{key} must be a text")
    return value


def _texts(row: dict[str, Any], key: str, least: int) -> tuple[str, ...]:
    value = row.get(key, [])
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(one, str) and one for one in values):
        raise ValueError(f"{key} must be a text, or a list of texts")
    if len(values) < least:
        raise ValueError(f"{key} is missing")
    return tuple(values)


def _slice(row: dict[str, Any]) -> Slice:
    _no_others(row, ("begin", "end", "key", "name"), "key")
    return Slice(_text(row, "begin"), _texts(row, "end", 1), _texts(row, "key", 0), _text(row, "name", ""))


def _duration(row: dict[str, Any]) -> Duration:
    _no_others(row, ("event", "field", "unit", "name"), "key")
    unit_ns = _unit_ns(_text(row, "unit", "ns"))
    return Duration(_text(row, "event"), _text(row, "field"), unit_ns, _text(row, "name", ""))


def _counter(row: dict[str, Any]) -> Counter:
    _no_others(row, ("event", "field", "name"), "key")
    return Counter(_text(row, "event"), _text(row, "field"), _text(row, "name", ""))


_READ: Final = {"slice": _slice, "duration": _duration, "counter": _counter}
