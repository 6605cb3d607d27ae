"""Payloads, byte for byte, packed by hand in the tables. `Fields`, which is compiled, unpacks the same."""

import contextlib
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.events.plain_layout import Layout
from utracefs_protocol.events._fields import Fields
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import parse_format


def layout(fields: str) -> Layout:
    return Layout(parse(b"test " + fields.encode()).fields)


@pytest.mark.parametrize(
    ("fields", "values", "payload"),
    [
        ("", (), b""),
        ("u8 a; u64 b; s16 c", (1, 2, -3), struct.pack("<BQh", 1, 2, -3)),
        ("char a", (-128,), b"\x80"),
        ("unsigned char a", (255,), b"\xff"),
        ("s64 a", (-(2**63),), bytes(7) + b"\x80"),
        ("u64 a", (2**64 - 1,), b"\xff" * 8),
        ("u8 a", (True,), b"\x01"),
        ("char[4] a", ("ab",), b"ab\0\0"),
        ("char[4] a", ("abcd",), b"abcd"),
        ("char[4] a", ("€",), "€".encode() + b"\0"),
        ("char[4] a", (b"\xff\0\xff",), b"\xff\0\xff\0"),
        ("unsigned char[2] a", (bytearray(b"x"),), b"x\0"),
        ("struct s a 3", (memoryview(b"xyz"),), b"xyz"),
        ("struct double a 8; struct float b 4", (-0.0, 1.5), bytes.fromhex("0000000000000080 0000c03f")),
        ("struct double a 8; struct float b 4", (math.inf, 2), bytes.fromhex("000000000000f07f 00000040")),
        ("struct bool a 1; struct bool b 1", (True, 0), b"\x01\0"),
        ("struct double a 16", (bytes(16),), bytes(16)),
        ("u8 a; struct s16_2 b 4", (1, [-1, 2]), bytes.fromhex("01 ffff 0200")),
        ("struct float_1 a 4; struct bool_2 b 2", ((1.5,), [True, 0]), bytes.fromhex("0000c03f 0100")),
        ("struct u32_2 a 8", (b"12345678",), b"12345678"),
        ("struct u32_9999999 a 4", (b"1234",), b"1234"),
        # records that trace-cmd was seen to read, without the common fields
        (
            "__rel_loc char[] method; u64 latency_ns; int status",
            ("Get", 1500, -2),
            bytes.fromhex("0c000400 dc05000000000000 feffffff 47657400"),
        ),
        # likewise, a dynamic string
        (
            "u32 count; __data_loc char[] msg",
            (0, "hello 0"),
            bytes.fromhex("00000000 10000800") + b"hello 0\0",
        ),
        ("__rel_loc char[] a", ("",), bytes.fromhex("00000100 00")),
        ("__rel_loc u8[] a", (b"",), bytes.fromhex("00000000")),
        ("__rel_loc u8[] a", (b"\x01\x02",), bytes.fromhex("00000200 0102")),
        ("__rel_loc u8[] a", ("é",), bytes.fromhex("00000200 c3a9")),
        ("__data_loc u32[] a; u8 b", (b"\1\0\0\0", 7), bytes.fromhex("0d000400 07 01000000")),
        ("__rel_loc char a", ("x",), bytes.fromhex("00000200 7800")),
        ("__rel_loc char[] a", (b"x\0",), bytes.fromhex("00000300 780000")),
        (
            "__rel_loc char[] a; __data_loc char[] b; __rel_loc u8[] c",
            ("A", "BB", b"\xcc"),
            struct.pack("<III", 2 << 16 | 8, 3 << 16 | 22, 1 << 16 | 5) + b"A\0BB\0\xcc",
        ),
    ],
)
def test_packed(fields: str, values: tuple[Any, ...], payload: bytes) -> None:
    event = layout(fields)
    assert event.pack(*values) == payload


def test_fields_with_one_name() -> None:
    event = layout("u8 a; u16 a; u8 b; u8 class")
    assert event.pack(1, 2, 3, 4) == b"\x01\x02\x00\x03\x04"
    assert event.unpack_items(b"\x01\x02\x00\x03\x04") == [("a", 1), ("a", 2), ("b", 3), ("class", 4)]
    assert event.unpack(b"\x01\x02\x00\x03\x04") == {"a": 2, "b": 3, "class": 4}


@pytest.mark.parametrize(
    ("fields", "payload", "values"),
    [
        ("char[4] a", b"ab\0c", {"a": "ab"}),
        ("char[4] a", b"\xffbcd", {"a": "\udcffbcd"}),
        ("unsigned char[4] a", b"ab\0c", {"a": b"ab\0c"}),
        ("struct s a 2", b"\0\1", {"a": b"\0\1"}),
        ("__rel_loc char[] a", b"\0\0\0\0", {"a": ""}),
        ("__rel_loc char[] a", b"\0\0\2\0xy", {"a": "xy"}),
        ("__rel_loc char[] a", b"\0\0\4\0x\0y\0", {"a": "x"}),
        ("__data_loc u8[] a", b"\x08\0\4\0", {"a": b"\x08\0\4\0"}),  # it may point at itself
        ("u8 a", b"\1more", {"a": 1}),
        ("", b"more", {}),
    ],
)
def test_unpacked(fields: str, payload: bytes, values: dict[str, Any]) -> None:
    assert layout(fields).unpack(payload) == values
    assert Fields(layout(fields).fields).unpack(payload) == values


@pytest.mark.parametrize(
    ("fields", "payload", "says"),
    [
        ("u32 a", b"\0\0\0", "3 bytes; the event has at least 4"),
        ("__rel_loc char[] a", b"\0\0\1\0", "1 bytes at 4 of a payload of 4"),
        ("__rel_loc char[] a", b"\1\0\0\0", "0 bytes at 5"),
        ("__data_loc char[] a", b"\7\0\1\0", "at -1"),
        ("__data_loc char[] a", b"\0\0\0\0", "at -8"),
        ("__data_loc char[] a", b"\xff\xff\xff\xff", "65535 bytes at 65527"),
    ],
)
def test_not_unpacked(fields: str, payload: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        layout(fields).unpack(payload)
    with pytest.raises(ValueError, match=f"payload of {len(payload)} bytes"):
        Fields(layout(fields).fields).unpack(payload)


def test_kernel_event_with_padding_and_open_end() -> None:
    event = parse_format(
        b"name: print\nID: 5\nformat:\n"
        b"\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n"
        b"\tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;\n"
        b'\tfield:char buf[];\toffset:16;\tsize:0;\tsigned:0;\n\nprint fmt: ""\n'
    )
    for unpack in (Layout(event.fields).unpack, Fields(event.fields).unpack):
        assert unpack(struct.pack("<Q", 9) + b"hello\n\0") == {"ip": 9, "buf": "hello\n"}


INTEGERS = {
    "s8": (1, 1),
    "u8": (1, 0),
    "short": (2, 1),
    "u16": (2, 0),
    "int": (4, 1),
    "u32": (4, 0),
    "s64": (8, 1),
    "u64": (8, 0),
}
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@st.composite
def events(draw: st.DrawFn) -> tuple[Layout, list[Any]]:
    """A declaration and values that fit it."""
    fields: list[str] = []
    values: list[Any] = []
    for number in range(draw(st.integers(0, 6))):
        kind = draw(
            st.sampled_from(
                [
                    *INTEGERS,
                    "char[80]",
                    "unsigned char[3]",
                    "struct s",
                    "__rel_loc char[]",
                    "__data_loc char[]",
                    "__rel_loc u8[]",
                    "__data_loc u16[]",
                ]
            )
        )
        size = ""
        if kind in INTEGERS:
            width, signed = INTEGERS[kind]
            low = -(1 << (8 * width - 1)) if signed else 0
            values.append(draw(st.integers(low, low + (1 << 8 * width) - 1)))
        elif kind == "unsigned char[3]":
            values.append(draw(st.binary(min_size=3, max_size=3)))
        elif kind == "struct s":
            size = " 5"
            values.append(draw(st.binary(min_size=5, max_size=5)))
        elif "char" in kind:
            values.append(draw(TEXT))
        else:
            values.append(draw(st.binary(max_size=20)))
        fields.append(f"{kind} f{number}{size}")
    return layout("; ".join(fields)), values


@given(events(), st.binary(max_size=60))
def test_any_payload_is_unpacked_or_refused(event: tuple[Layout, list[Any]], payload: bytes) -> None:
    expected = None
    with contextlib.suppress(ValueError):
        expected = event[0].unpack(payload)
    fields = Fields(event[0].fields)
    if expected is None:
        with pytest.raises(ValueError):
            fields.unpack(payload)
    else:
        assert fields.unpack(payload) == expected
