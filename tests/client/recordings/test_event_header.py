"""EventHeader: every encoding with every format, once, in arrays and in structs, in both byte orders;
selection; malformed records."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import utracefs
from tests.client.recordings.event_header.event_headers import (
    ACTIVITY,
    CONSTANT,
    FIELDS,
    NAME,
    RELATED,
    TRACEPOINT,
    VARIABLE,
    entry,
    field,
    payload,
    write,
)
from tests.client.recordings.test_records import merge
from utracefs.export import (
    Counter,
    Slice,
    Tracks,
    write_chrome,
    write_perf_data,
    write_trace_dat,
)
from utracefs.recordings import event_header
from utracefs.recordings._records import Records
from utracefs.recordings.event_header import MAX_EVENTS, HeaderEvents
from utracefs.recordings.report import report_text
from utracefs.tree.event_names import EventName
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import EventFormat
from utracefs_protocol.text import text_of

UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"

Value = tuple[str, Any]
CASES: list[tuple[int, int, Value | list[Value], Any]] = [
    # 8 bits: default, unsigned, signed, hex, boolean, hex bytes, string8, and a format it cannot have
    (2, 0, ("B", 200), 200),
    (2, 1, ("B", 200), 200),
    (2, 2, ("B", 200), -56),
    (2, 3, ("B", 200), 200),
    (2, 7, ("B", 1), True),
    (2, 9, ("1s", b"\xfe"), b"\xfe"),
    (2, 10, ("B", 0xE9), "é"),
    (2, 15, ("B", 7), 7),
    # 16 bits: also UTF, port
    (3, 0, ("H", 0xFFFE), 0xFFFE),
    (3, 1, ("H", 0xFFFE), 0xFFFE),
    (3, 2, ("H", 0xFFFE), -2),
    (3, 3, ("H", 0xFFFE), 0xFFFE),
    (3, 7, ("H", 0), False),
    (3, 9, ("2s", b"\1\2"), b"\1\2"),
    (3, 11, ("H", 0x6F22), "漢"),
    (3, 11, ("H", 0xD800), "\ufffd"),
    (3, 16, ("2s", b"\x1f\x90"), 8080),
    # 32 bits: also errno, pid, time, float, IP
    (4, 0, ("I", 4_000_000_000), 4_000_000_000),
    (4, 1, ("I", 4_000_000_000), 4_000_000_000),
    (4, 2, ("i", -5), -5),
    (4, 3, ("I", 0xDEADBEEF), 0xDEADBEEF),
    (4, 4, ("i", 2), 2),
    (4, 5, ("i", 4711), 4711),
    (4, 6, ("i", -1), -1),
    (4, 7, ("I", 1), True),
    (4, 8, ("f", 0.1), 0.1),
    (4, 8, ("f", 16777216.0), 16777216.0),
    (4, 8, ("f", float("inf")), float("inf")),
    (4, 9, ("4s", b"\0\1\2\xff"), b"\0\1\2\xff"),
    (4, 11, ("I", 0x1F600), "\U0001f600"),
    (4, 11, ("I", 0x110000), "\ufffd"),
    (4, 17, ("4s", bytes([127, 0, 0, 1])), "127.0.0.1"),
    (4, 18, ("4s", bytes([255, 255, 255, 255])), "255.255.255.255"),
    # 64 bits
    (5, 0, ("Q", 2**64 - 1), 2**64 - 1),
    (5, 1, ("Q", 2**63), 2**63),
    (5, 2, ("q", -(2**63)), -(2**63)),
    (5, 3, ("Q", 0xCAFE), 0xCAFE),
    (5, 6, ("q", 1_700_000_000), 1_700_000_000),
    (5, 8, ("d", 0.1), 0.1),
    (5, 8, ("d", -0.0), -0.0),
    (5, 8, ("d", float("nan")), float("nan")),
    (5, 9, ("8s", b"12345678"), b"12345678"),
    # 128 bits
    (6, 0, ("16s", ACTIVITY), ACTIVITY),
    (6, 9, ("16s", ACTIVITY), ACTIVITY),
    (6, 15, ("16s", ACTIVITY), UUID),
    (6, 17, ("16s", bytes.fromhex("20010db8" + "00" * 11 + "01")), "2001:db8::1"),
    (6, 18, ("16s", bytes(16)), "::"),
    (6, 18, ("16s", bytes.fromhex("fe80000000000000000000000000") + b"\0\0"), "fe80::"),
    (6, 18, ("16s", bytes.fromhex("00010000000200000000000300040005")), "1:0:2::3:4:5"),
    (6, 18, ("16s", bytes.fromhex("00010000000200030004000500060007")), "1:0:2:3:4:5:6:7"),
    # texts that end at 0: default, hex bytes, string8, UTF, with mark, XML, JSON
    (7, 0, ("4s", "aé".encode() + b"\0"), "aé"),
    (7, 9, ("3s", b"\1\2\0"), b"\1\2"),
    (7, 10, ("3s", b"a\xe9\0"), "aé"),
    (7, 11, ("1s", b"\0"), ""),
    (7, 12, ("5s", b"\xef\xbb\xbfa\0"), "a"),
    (7, 12, ("2s", b"a\0"), "a"),
    (7, 13, ("5s", b"<a/>\0"), "<a/>"),
    (7, 14, ("6s", b'["b"]\0'), '["b"]'),
    (8, 0, ("3H", (0x61, 0x6F22, 0)), "a漢"),
    (8, 11, ("3H", (0xD83D, 0xDE00, 0)), "\U0001f600"),
    (8, 11, ("3H", (0xDE00, 0xD83D, 0)), "\ufffd\ufffd"),
    (8, 9, ("4s", b"\1\2\0\0"), b"\1\2"),
    (8, 12, ("6s", b"\xfe\xff\0a\0\0"), "a"),
    (8, 12, ("6s", b"\xff\xfea\0\0\0"), "a"),
    (9, 0, ("3I", (0x61, 0x1F600, 0)), "a\U0001f600"),
    (9, 12, ("12s", b"\0\0\xfe\xff\0\0\0a\0\0\0\0"), "a"),
    (9, 12, ("12s", b"\xff\xfe\0\0a\0\0\0\0\0\0\0"), "a"),
    (9, 14, ("2I", (0x62, 0)), "b"),
    (9, 9, ("8s", b"\1\0\0\0\0\0\0\0"), b"\1\0\0\0"),
    # counted texts
    (10, 0, [("H", 3), ("3s", b"abc")], "abc"),
    (10, 0, ("H", 0), ""),
    (10, 9, [("H", 2), ("2s", b"\0\1")], b"\0\1"),
    (10, 10, [("H", 1), ("1s", b"\xe9")], "é"),
    (10, 11, [("H", 2), ("2s", b'"\\')], '"\\'),
    (10, 14, [("H", 2), ("2s", b"{}")], "{}"),
    (11, 0, [("H", 2), ("2H", (0x68, 0xE9))], "hé"),
    (11, 12, [("H", 2), ("4s", b"\xff\xfeh\0")], "h"),
    (11, 9, [("H", 1), ("2s", b"\1\2")], b"\1\2"),
    (12, 0, [("H", 1), ("I", 0x1F600)], "\U0001f600"),
    (12, 9, [("H", 1), ("4s", b"\1\2\3\4")], b"\1\2\3\4"),
    # counted bytes, and counted values of any format: nothing without bytes, hex for a size it cannot have
    (13, 0, [("H", 2), ("2s", b"\0\1")], b"\0\1"),
    (13, 0, ("H", 0), b""),
    (13, 9, [("H", 2), ("2s", b"\0\1")], b"\0\1"),
    (13, 11, [("H", 1), ("1s", b"a")], "a"),
    (13, 1, [("H", 4), ("I", 7)], 7),
    (13, 2, [("H", 8), ("q", -7)], -7),
    (13, 3, [("H", 1), ("B", 7)], 7),
    (13, 2, ("H", 0), None),
    (13, 2, [("H", 3), ("3s", b"\1\2\3")], "010203"),
    (13, 4, [("H", 4), ("i", 2)], 2),
    (13, 5, [("H", 4), ("i", 2)], 2),
    (13, 6, [("H", 8), ("q", 2)], 2),
    (13, 7, [("H", 1), ("B", 1)], True),
    (13, 7, [("H", 4), ("I", 0)], False),
    (13, 7, [("H", 1), ("B", 2)], 2),
    (13, 8, [("H", 8), ("d", 1.5)], 1.5),
    (13, 8, [("H", 2), ("2s", b"\1\2")], "0102"),
    (13, 15, [("H", 16), ("16s", ACTIVITY)], UUID),
    (13, 15, ("H", 0), None),
    (13, 16, [("H", 2), ("2s", b"\0\x50")], 80),
    (13, 17, [("H", 4), ("4s", bytes([10, 0, 0, 1]))], "10.0.0.1"),
    (13, 17, [("H", 16), ("16s", bytes(15) + b"\1")], "::1"),
    (10, 2, [("H", 2), ("h", -2)], -2),
    (10, 18, ("H", 0), None),
    # a size that the format cannot have: as without a format
    (13, 4, [("H", 2), ("2s", b"\1\2")], "0102"),
    (13, 5, [("H", 8), ("8s", b"12345678")], b"12345678".hex()),
    (13, 6, [("H", 2), ("2s", b"\1\2")], "0102"),
    (13, 7, [("H", 8), ("8s", b"12345678")], b"12345678".hex()),
    (13, 16, [("H", 4), ("4s", b"\1\2\3\4")], "01020304"),
    (10, 1, [("H", 3), ("3s", b'a"b')], 'a"b'),
    (10, 15, [("H", 4), ("4s", b"\1\2\3\4")], "\1\2\3\4"),
    (10, 4, [("H", 3), ("3s", b"a\0b")], "a\ufffdb"),
    # IPv6 that ends with IPv4
    (6, 18, ("16s", bytes(10) + b"\xff\xff\1\2\3\4"), "::ffff:1.2.3.4"),
    (6, 18, ("16s", bytes(12) + b"\1\2\3\4"), "::1.2.3.4"),
    (6, 18, ("16s", bytes(8) + b"\0\1\xff\xff\1\2\3\4"), "::1:ffff:102:304"),
]
"""Encoding, format, the parts of the value, the expected field."""


def packed(value: Value | list[Value], *, big: bool) -> bytes:
    parts = value if isinstance(value, list) else [value]
    order = ">" if big else "<"
    return b"".join(
        struct.pack(order + format, *(data if isinstance(data, tuple) else (data,))) for format, data in parts
    )


def records(*payloads: bytes, name: bytes = NAME) -> list[tuple[str, str, dict[str, Any]]]:
    """System, name and fields of each."""
    events = HeaderEvents()
    declared = parse(name + b" " + FIELDS)
    events.add("user_events", EventFormat(name, TRACEPOINT, declared.fields, b""))
    source = events.source(merge(*([(n, entry(data))] for n, data in enumerate(payloads))))
    found = Records(source, lambda number: events.events[number].decoder())
    return [(record.system, record.name, record.fields) for record in found]


def values(*fields: bytes, data: bytes, big: bool = False) -> dict[str, Any]:
    """The fields of a record, without those of the header."""
    ((system, name, found),) = records(payload(b"ev", fields, data, big=big))
    assert (system, name) == ("Shop", "ev"), found
    assert (found.pop("level"), found.pop("keyword")) == (4, 0x1F)
    return found


def of_json(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def shown(value: Any) -> str:
    """With its type: True is not 1, and -0.0 is not 0.0."""
    return repr(value)


@pytest.mark.parametrize("big", [False, True], ids=["little", "big"])
@pytest.mark.parametrize(("encoding", "format", "value", "expected"), CASES)
def test_every_value(encoding: int, format: int, value: Value, expected: Any, big: bool) -> None:
    data = packed(value, big=big)
    two = struct.pack(">H" if big else "<H", 2)
    none = bytes(2)
    in_array = of_json(expected)
    if isinstance(expected, float) and encoding < 7:
        in_array = {"inf": "Infinity", "nan": "NaN"}.get(str(expected), expected)
        expected = struct.unpack("<f", struct.pack("<f", expected))[0] if encoding == 4 else expected
    one = values(
        field(b"one", encoding, format, big=big),
        field(b"tagged", encoding, format, tag=0x1234, big=big) if format else field(b"tagged", encoding),
        field(b"constant", encoding | CONSTANT, format, count=3, big=big),
        field(b"variable", encoding | VARIABLE, format, big=big),
        field(b"empty", encoding | VARIABLE, format, big=big),
        field(b"s", 1, 2, big=big),
        field(b"a", encoding, format, big=big),
        field(b"b", encoding | VARIABLE, format, big=big),
        field(b"structs", 1 | VARIABLE, 2, big=big),
        field(b"a", encoding, format, big=big),
        field(b"t", 1, 1, big=big),
        field(b"b", encoding | CONSTANT, format, count=1, big=big),
        field(b"last", 2, big=big),
        data=data * 5 + two + data * 2 + none + data + two + data * 2 + two + data * 4 + b"\7",
        big=big,
    )
    assert shown(one) == shown(
        {
            "one": expected,
            "tagged": expected,
            "constant": [in_array] * 3,
            "variable": [in_array] * 2,
            "empty": [],
            "s": {"a": expected, "b": [in_array] * 2},
            "structs": [{"a": in_array, "t": {"b": [in_array]}}] * 2,
            "last": 7,
        }
    )


def test_the_cases_are_all_encodings_and_all_formats() -> None:
    assert {encoding for encoding, *_ in CASES} == {*range(2, 14)}
    assert {format for _, format, *_ in CASES} == {*range(19)}


def test_the_header_is_in_fields_behind_those_of_the_event() -> None:
    (_, _, found), (_, _, short) = records(
        payload(
            b"ev;attribute=of;;it",
            [field(b"n;a=b", 2)],
            b"\7",
            opcode=1,
            id=5,
            version=3,
            tag=9,
            level=2,
            activity=ACTIVITY + RELATED,
            others=[(77, b"anything")],
        ),
        payload(b"ev"),
    )
    assert list(found.items()) == [
        ("n", 7),
        ("level", 2),
        ("keyword", 0x1F),
        ("opcode", 1),
        ("id", 5),
        ("version", 3),
        ("tag", 9),
        ("activity_id", UUID),
        ("related_id", "10111213-1415-1617-1819-1a1b1c1d1e1f"),
    ]
    assert short == {"level": 4, "keyword": 0x1F}


def test_fields_with_the_names_of_others() -> None:
    ((_, _, found),) = records(
        payload(b"ev", [field(b"level", 2), field(b"a", 2), field(b"a", 2), field(b"a.b", 2)], b"\1\2\3\4")
    )
    assert found == {"level": 1, "a": 2, "a_2": 3, "a.b": 4, "eventheader_level": 4, "keyword": 0x1F}


def test_structs_that_are_no_tree_are_flat() -> None:
    assert values(
        field(b"a", 2), field(b"a", 1, 1), field(b"b", 2), field(b"a", 1, 1), field(b"c", 2), data=b"\1\2\3"
    ) == {"a": 1, "a.b": 2, "a.c": 3}


def test_a_struct_may_have_fewer_fields_than_it_says() -> None:
    assert values(field(b"s", 1, 5), field(b"a", 2), data=b"\1") == {"s": {"a": 1}}


@pytest.mark.parametrize(
    ("name", "provider", "keyword"),
    [
        (b"A_B_L5K0", "A_B", 0),
        (b"P_LffKffffffffffffffffGgroupHx1", "P", 2**64 - 1),
        (b"P_L1K1.0", "P", 1),
    ],
)
def test_names_of_tracepoints(name: bytes, provider: str, keyword: int) -> None:
    ((system, event, found),) = records(payload(b"ev"), name=name)
    assert (system, event, found["keyword"]) == (provider, "ev", keyword)


@pytest.mark.parametrize(
    "name", [b"P", b"P_L1", b"_L1K1", b"P_L1K1g", b"P_LK1", b"P_L1K", b"P_L001K1", b"P_L1k1"]
)
def test_other_tracepoints_are_left_alone(name: bytes) -> None:
    events = HeaderEvents()
    events.add("user_events", EventFormat(name, 5, parse(name + b" " + FIELDS).fields, b""))
    events.add("user_events", EventFormat(NAME, 6, parse(NAME + b" " + FIELDS + b"; u8 more").fields, b""))
    source = merge([])
    assert not events.tracepoints
    assert events.source(source) is source


GOOD = payload(b"ev", [field(b"a", 3), field(b"b", 10)], b"\1\2\2\0xy")
MALFORMED = {
    "no extension": bytes([3]) + GOOD[1:],
    "an unknown flag": bytes([15]) + GOOD[1:],
    "no metadata": struct.pack("<8sHH", GOOD[:8], 0, 77),
    "an extension of kind 0": struct.pack("<8sHH", GOOD[:8], 0, 0x8000) + GOOD[8:],
    "metadata twice": payload(b"ev", others=[(1, b"x\0")]),
    "an activity of 15 bytes": payload(b"ev", activity=bytes(15)),
    "an activity twice": payload(b"ev", activity=ACTIVITY, others=[(2, ACTIVITY)]),
    "an extension that is too long": GOOD[:8] + b"\xff\xff" + GOOD[10:],
    "a value that is too long": payload(b"ev", [field(b"a", 10)], b"\xff\xffxy"),
    "a name without an end": struct.pack("<8sHH", GOOD[:8], 2, 1) + b"ev",
    "a field without an encoding": payload(b"ev", [b"a\0"]),
    "a field without a format": payload(b"ev", [b"a\0\x82"]),
    "a field without a tag": payload(b"ev", [b"a\0\x82\x81\0"]),
    "an encoding that there is not": payload(b"ev", [field(b"a", 14)], bytes(99)),
    "the encoding 0": payload(b"ev", [field(b"a", 0)], bytes(99)),
    "a constant array of none": payload(b"ev", [field(b"a", 2 | CONSTANT)]),
    "an array of both kinds": payload(b"ev", [field(b"a", 2 | CONSTANT | VARIABLE, count=1)], bytes(99)),
    "a struct without fields": payload(b"ev", [field(b"a", 1), field(b"b", 2)], bytes(99)),
    "a struct at the end": payload(b"ev", [field(b"a", 1, 1)]),
    "an array that is too long": payload(b"ev", [field(b"a", 2 | VARIABLE)], b"\xff\xff" + bytes(99)),
    "an array without its length": payload(b"even", [field(b"a", 2 | VARIABLE)]),
    "structs that are too many": payload(
        b"ev", [field(b"a", 1 | VARIABLE, 1), field(b"b", 2)], b"\xff\xff" + bytes(99)
    ),
    "a text without an end": payload(b"even", [field(b"a", 8)], b"abcd"),
    "structs that are too deep": payload(b"ev", [field(b"a", 1, 1)] * 9 + [field(b"b", 2)], b"\1"),
    "text that grows too much": payload(
        b"ev", [field(b"a", 3 | VARIABLE)], b"\xff\xff" + b"\xff" * 0xFFFF * 2
    )[:65000],
    "names that are too many": payload(
        b"ev", [field(b"n" * 9000, 1, 127), *[field(b"m", 2)] * 127, field(b"", 2)], bytes(128)
    ),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_records_have_the_plain_fields_and_the_rest(data: bytes) -> None:
    ((system, name, found), (_, after, _)) = records(data, GOOD)
    assert (system, name, after) == ("user_events", NAME.decode(), "ev")
    assert list(found)[:6] == ["eventheader_flags", "version", "id", "tag", "opcode", "level"]
    assert found["rest"].startswith(data[8:])
    assert len(found["rest"]) - len(data[8:]) < 4  # padding of a page


def test_a_short_record_is_left_to_the_event() -> None:
    events = HeaderEvents()
    events.add("user_events", EventFormat(NAME, TRACEPOINT, parse(NAME + b" " + FIELDS).fields, b""))
    seen: list[int] = []
    source = events.source(merge([(0, entry(b"\7\0\0"))]))
    assert Records(source, lambda number: seen.append(number)).events() == []
    assert seen == [TRACEPOINT]


@given(st.data())
def test_damaged_records_are_never_an_error(data: st.DataObject) -> None:
    encoding, format, value, _ = data.draw(st.sampled_from(CASES))
    extra = field(b"f", encoding | data.draw(st.sampled_from([0, CONSTANT, VARIABLE])), format, count=2)
    good = payload(b"ev", [field(b"s", 1, 2), extra, extra], b"\2\0" + packed(value, big=False) * 2)
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(8, len(damaged))) :]
    damaged += data.draw(st.binary(max_size=20))
    for _, name, found in records(bytes(damaged), good):
        assert name == NAME.decode() or found["keyword"] == 0x1F
        json.dumps(found, default=bytes.hex)


@given(st.binary(max_size=200), st.sampled_from([5, 7]))
def test_random_metadata_are_never_an_error(metadata: bytes, flags: int) -> None:
    order = "<" if flags & 2 else ">"
    head = struct.pack(order + "BBHHBBHH", flags, 0, 0, 0, 0, 4, len(metadata), 1)
    assert len(records(head + metadata + bytes(50))) == 1


def test_too_many_layouts_are_not_decoded() -> None:
    events = HeaderEvents()
    events.add("user_events", EventFormat(NAME, TRACEPOINT, parse(NAME + b" " + FIELDS).fields, b""))
    many = [(n, entry(payload(b"ev%d" % n))) for n in range(MAX_EVENTS + 2)]
    pages = [many[n : n + 2000] for n in range(0, len(many), 2000)]
    source = events.source(merge(*pages))
    found = Records(
        source, lambda number: events.events[number].decoder() if number in events.events else None
    )
    assert len(found.events()) == MAX_EVENTS + 1  # one with the undecoded records
    assert found.count == MAX_EVENTS + 2


def test_fields_of_one_name_are_numbered_in_one_pass() -> None:
    ((_, _, found),) = records(payload(b"ev", [field(b"", 2)] * 30_000, bytes(30_000)))
    assert list(found)[:3] == ["", "_2", "_3"]
    assert len(found) == 30_002


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ([field(b"%x" % n, 2) for n in range(800)], 16),
        ([field(b"n" * 800, 1, 120), *[field(b"m", 2)] * 120], 8),
    ],
)
def test_fields_and_names_of_all_layouts_are_limited(
    monkeypatch: pytest.MonkeyPatch, fields: list[bytes], most: int
) -> None:
    monkeypatch.setattr(event_header, "MAX_ALL_FIELDS", 17 * 800)
    monkeypatch.setattr(event_header, "MAX_ALL_NAMES", 9 * 120 * 800)
    many = records(*[payload(b"ev%d" % n, fields, bytes(len(fields))) for n in range(most + 3)])
    assert sum(system == "Shop" for system, _, _ in many) == most
    assert all("rest" in found for _, _, found in many[most:])
    assert len(many) == most + 3


# In a recording.

GET = payload(b"Get", [field(b"status", 3), field(b"path", 10)], struct.pack("<HH", 200, 2) + b"/a", opcode=1)
PUT = payload(b"Put", [field(b"status", 3), field(b"s", 1, 1), field(b"x", 2)], struct.pack("<HB", 500, 7))


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return write(tmp_path / "trace.dat", [GET, PUT, GET, b"\7" + bytes(9)])


def test_a_recording_has_the_events(recorded: Path) -> None:
    with utracefs.open(recorded) as recording:
        assert list(map(str, recording.events)) == [
            "user_events:plain",
            "Shop:Get",
            "Shop:Put",
            "user_events:Shop_L4K1f",
        ]
        assert [record.name for record in recording] == ["plain", "Get", "Put", "Get", "Shop_L4K1f"]
        assert [record.fields.get("s") for record in recording] == [None, None, {"x": 7}, None, None]


@pytest.mark.parametrize(
    ("events", "filter", "expected"),
    [
        ((), "status >= 500", ["Put"]),
        ((), 'path == "/a"', ["Get", "Get"]),
        ((), "level == 4", ["Get", "Put", "Get"]),
        (("Shop:*",), None, ["Get", "Put", "Get"]),
        (("Put",), None, ["Put"]),
        (("user_events:Shop_L4K1f",), None, ["Get", "Put", "Get", "Shop_L4K1f"]),
        (("Shop_L4*",), "status", ["Get", "Put", "Get"]),
    ],
)
def test_selection(recorded: Path, events: tuple[str, ...], filter: str | None, expected: list[str]) -> None:
    if filter == "status":
        filter = "status > 0"
    with utracefs.open(recorded, events=events, filter=filter) as recording:
        assert [record.name for record in recording] == expected


def test_a_report_has_the_provider(recorded: Path) -> None:
    with utracefs.open(recorded) as recording:
        lines = b"".join(report_text(recording)).decode().splitlines()
    assert [line.partition(": ")[2] for line in lines[2:]] == [
        "Shop:Get:             status=200 path=/a level=4 keyword=0x1f opcode=1",
        "Shop:Put:             status=500 s.x=7 level=4 keyword=0x1f",
        "Shop:Get:             status=200 path=/a level=4 keyword=0x1f opcode=1",
        "Shop_L4K1f:           eventheader_flags=7 version=0 id=0 tag=0 opcode=0 level=0 rest=00000000",
    ]


def test_the_common_schema_of_opentelemetry(tmp_path: Path) -> None:
    def text(*words: bytes) -> bytes:
        return b"".join(struct.pack("<H", len(word)) + word for word in words)

    log = payload(
        b"Log",
        [
            field(b"__csver__", 3, 3),
            field(b"PartA", 1, 3),
            field(b"time", 10),
            field(b"ext_dt", 1, 2),
            field(b"traceId", 10),
            field(b"spanId", 10),
            field(b"ext_cloud", 1, 1),
            field(b"role", 10),
            field(b"PartC", 1, 1),
            field(b"user", 5, 2),
            field(b"PartB", 1, 4),
            field(b"_typeName", 10),
            field(b"body", 10),
            field(b"severityNumber", 3, 2),
            field(b"severityText", 10),
        ],
        struct.pack("<H", 0x400)
        + text(b"2026-11-23T12:00:00Z", b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331", b"shop")
        + struct.pack("<q", 7)
        + text(b"Log", b"paid")
        + struct.pack("<h", 17)
        + text(b"ERROR"),
        level=2,
    )
    with utracefs.open(write(tmp_path / "trace.dat", [log], name=b"opentelemetry_L2K1")) as recording:
        record = list(recording)[1]
    assert record.system == "opentelemetry"
    assert record.fields == {
        "time": "2026-11-23T12:00:00Z",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": "b7ad6b7169203331",
        "body": "paid",
        "severity_number": 17,
        "severity_text": "ERROR",
        "__csver__": 0x400,
        "PartA": {"ext_cloud": {"role": "shop"}},
        "PartC": {"user": 7},
        "PartB": {"_typeName": "Log"},
        "level": 2,
        "keyword": 1,
    }


# Several layouts of one event, and exports.


@pytest.mark.parametrize(("convert", "name"), [(write_trace_dat, "out.dat"), (write_perf_data, "perf.data")])
@pytest.mark.parametrize(("event", "numbers"), [((), (0, 1, 2)), (("Put",), (1,)), (("Shop:*",), (0, 1, 2))])
def test_files_have_the_original_records(
    recorded: Path, tmp_path: Path, convert: Any, name: str, event: tuple[str, ...], numbers: tuple[int, ...]
) -> None:
    expected = [GET, PUT, GET]
    with utracefs.open(recorded, events=event) as recording:
        convert(recording, tmp_path / name)
    with utracefs.open(tmp_path / name, events=["Shop_L4K1f"], raw_eventheader=True) as recording:
        tables = recording.formats
        raw = [tuple(record.fields.values()) for record in recording]
    assert [str(EventName(system, text_of(one.name))) for system, one in tables if b"Shop" in one.name] == [
        "user_events:Shop_L4K1f"
    ]
    heads = [struct.unpack_from("<BBHHBB", expected[number]) for number in numbers]
    assert raw[: len(heads)] == heads
    with utracefs.open(tmp_path / name, events=["Shop:*"]) as recording:
        names = [record.name for record in recording]
    assert names == [("Get", "Put", "Get")[number] for number in numbers]


def slices(path: Path, tracks: Tracks | None = None) -> list[tuple[str, str, int]]:
    out = io.BytesIO()
    with utracefs.open(path) as recording:
        write_chrome(recording, out, tracks=tracks)
    events = json.loads(out.getvalue())["traceEvents"]
    return [
        (event["ph"], event["name"], event["ts"] // 1000)
        for event in events
        if event["ph"] in "bei" and event["name"] != "plain"
    ]


def test_activities_are_slices(tmp_path: Path) -> None:
    path = write(
        tmp_path / "trace.dat",
        [
            payload(b"Order", opcode=1, activity=ACTIVITY),
            payload(b"Pay", [field(b"n", 2)], b"\7", opcode=1, activity=RELATED + ACTIVITY),
            payload(b"Step", activity=RELATED),
            payload(b"PayStop", opcode=2, activity=RELATED),
            payload(b"Order", opcode=2, activity=ACTIVITY),
            payload(b"Lone", opcode=1),
            payload(b"Lone", opcode=2),
            payload(b"Lone", opcode=2),
        ],
    )
    expected = [
        ("b", "Order", 1),
        ("b", "Pay", 2),
        ("i", "Step", 3),
        ("e", "Pay", 4),
        ("e", "Order", 5),
        ("b", "Lone", 6),
        ("e", "Lone", 7),
        ("i", "Lone", 8),
    ]
    assert slices(path) == expected
    assert slices(path, Tracks(counters=(Counter("Pay", "n"),))) == expected


def test_own_slices_take_precedence(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.dat", [payload(b"A", opcode=1), payload(b"B"), payload(b"C", opcode=2)])
    assert slices(path, Tracks((Slice("A", ("B",)),))) == [("b", "A", 1), ("e", "A", 2), ("i", "C", 3)]
