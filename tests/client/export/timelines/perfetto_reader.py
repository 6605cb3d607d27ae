"""A Perfetto trace read from its description (protos/perfetto/trace), without any code of the writer's: what
each packet says, with interned names put in."""

import struct
from collections.abc import Iterator
from typing import Any

import attrs

Field = tuple[int, int | bytes]

TYPES = {1: "begin", 2: "end", 3: "instant", 4: "counter"}


@attrs.define
class Trace:
    clocks: list[tuple[int, int]] = attrs.field(factory=list)
    """Clock id and nanoseconds of the snapshot."""
    primary_clock: int = 0
    default_clock: int = 0
    tracks: dict[int, dict[str, Any]] = attrs.field(factory=dict)
    """By uuid: kind, name, parent, pid, tid as far as there are any; the last description of each."""
    events: list[dict[str, Any]] = attrs.field(factory=list)
    """In the order of the file: ts, type, track, name, category, args, value."""


def fields(data: bytes) -> Iterator[Field]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value: int | bytes
        if tag & 7 == 0:
            value, at = _varint(data, at)
        else:
            size = 8
            if tag & 7 == 2:
                size, at = _varint(data, at)
            else:
                assert tag & 7 == 1, f"type {tag & 7}"
            assert at + size <= len(data)
            value, at = data[at : at + size], at + size
        yield tag >> 3, value


def read(data: bytes) -> Trace:
    trace = Trace()
    names: dict[int, dict[int, str]] = {1: {}, 2: {}, 3: {}}
    cleared = False
    for number, packet in fields(data):
        assert number == 1 and isinstance(packet, bytes)
        parts: dict[int, Any] = dict(fields(packet))
        assert parts[10] == 1  # the sequence
        cleared = cleared or parts[13] == 1
        assert cleared and (parts[13] == 1 or parts[13] == 2)
        if 6 in parts:
            for part, value in fields(parts[6]):
                if part == 1:
                    clock: dict[int, Any] = dict(fields(_bytes(value)))
                    trace.clocks.append((clock[1], clock[2]))
                else:
                    trace.primary_clock = _int(value)
        if 59 in parts:
            trace.default_clock = _int(dict(fields(parts[59]))[58])
        for kind, entry in fields(parts.get(12, b"")):
            interned: dict[int, Any] = dict(fields(_bytes(entry)))
            assert interned[1] not in names[kind]
            names[kind][interned[1]] = interned[2].decode()
        if 60 in parts:
            _track(trace, dict(fields(parts[60])))
        if 11 in parts:
            trace.events.append({"ts": parts[8], **_event(list(fields(parts[11])), names)})
            assert trace.events[-1]["track"] in trace.tracks
    return trace


def _event(parts: list[Field], names: dict[int, dict[int, str]]) -> dict[str, Any]:
    found: dict[str, Any] = {"args": {}}
    for number, value in parts:
        match number:
            case 3:
                found["category"] = names[1][_int(value)]
            case 4:
                name, argument = _annotation(_bytes(value), names)
                assert name not in found["args"]
                found["args"][name] = argument
            case 9:
                found["type"] = TYPES[_int(value)]
            case 10:
                found["name"] = names[2][_int(value)]
            case 11:
                found["track"] = value
            case 30:
                found["value"] = _signed(_int(value))
            case 44:
                found["value"] = struct.unpack("<d", _bytes(value))[0]
            case _:
                raise AssertionError(number)
    return found


def _annotation(data: bytes, names: dict[int, dict[int, str]]) -> tuple[str, Any]:
    name, members = "", dict[str, Any]()
    value: int | str | None = None
    for number, part in fields(data):
        match number:
            case 1:
                name = names[3][_int(part)]
            case 3:
                value = _int(part)
            case 4:
                value = _signed(_int(part))
            case 6:
                value = _bytes(part).decode()
            case 11:
                member, argument = _annotation(_bytes(part), names)
                members[member] = argument
            case _:
                raise AssertionError(number)
    return name, members or value


def _track(trace: Trace, parts: dict[int, Any]) -> None:
    found: dict[str, Any] = {"kind": "counter" if 8 in parts else "lane"}
    if 2 in parts:
        found["name"] = parts[2].decode()
    if 5 in parts:
        found["parent"] = parts[5]
        assert parts[5] in trace.tracks
    if 3 in parts:
        about: dict[int, Any] = dict(fields(parts[3]))
        found |= {"kind": "process", "pid": _signed(about[1]), "name": about[6].decode()}
    if 4 in parts:
        about = dict(fields(parts[4]))
        found |= {"kind": "thread", "pid": _signed(about[1]), "tid": _signed(about[2])}
        found["name"] = about[5].decode()
    trace.tracks[parts[1]] = found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            assert value < 1 << 64
            return value, at


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _int(value: int | bytes) -> int:
    assert isinstance(value, int)
    return value


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value
