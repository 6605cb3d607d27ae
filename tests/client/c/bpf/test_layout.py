"""layout.h: each shown format is C's layout, and records copied into it have the same values."""

from __future__ import annotations

import ctypes
import random
import re
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.c.bpf.assembler import Machine
from tests.client.c.programs import Program
from utracefs_protocol.events.declaration import Field, parse
from utracefs_protocol.events.event_format import format_text

C_TYPES = {
    "char": ctypes.c_byte,
    "unsigned char": ctypes.c_ubyte,
    "short": ctypes.c_int16,
    "unsigned short": ctypes.c_uint16,
    "int": ctypes.c_int32,
    "unsigned int": ctypes.c_uint32,
    "long": ctypes.c_int64,
    "unsigned long": ctypes.c_uint64,
}

FIELD = re.compile(r"\tfield:([^;]*) (\S+);\toffset:(\d+);\tsize:(\d+);\tsigned:([01]);")


@pytest.fixture(scope="module")
def program(machine: Machine) -> Program:
    return machine.program


Shown = list[tuple[str, str, int, int]]
"""Type, name, offset and size of each field, with the common ones."""


def shown(program: Program, command: str) -> tuple[tuple[Field, ...], Shown]:
    declaration = parse(command.encode())
    text = format_text(declaration.name, 7, declaration.fields)
    seen = bytes.fromhex(program.ask(f"format {text.hex()}")).decode()
    assert seen.startswith("name: ev\nID: 7\nformat:\n\tfield:unsigned short common_type;\toffset:0;")
    assert seen.partition("\nprint fmt")[2] == text.decode().partition("\nprint fmt")[2]
    return declaration.fields, [
        (type_, name, int(offset), int(size)) for type_, name, offset, size, _ in FIELD.findall(seen)
    ]


def check_is_c(fields: Shown) -> None:
    """ctypes, which lays structs out as the C compiler does, has every field at the shown offset."""
    members: list[tuple[str, type[Any]]] = []
    for type_, name, _, _ in fields:
        plain, _, count = name.partition("[")
        assert plain.isidentifier()
        if type_.startswith("__data_loc "):
            members.append((plain, ctypes.c_int32))
        elif count:
            members.append((plain, C_TYPES[type_] * int(count[:-1])))
        else:
            members.append((plain, C_TYPES[type_]))
    compiled = type("event", (ctypes.Structure,), {"_fields_": members})
    for (plain, _), (_, _, offset, size) in zip(members, fields, strict=True):
        member = getattr(compiled, plain)
        assert (member.offset, member.size) == (offset, size), plain


def check_record(program: Program, declared: tuple[Field, ...], fields: Shown, datas: list[bytes]) -> None:
    """A record with random numbers and these data of location words."""
    end = max((field.offset + field.size for field in declared), default=8)
    record = bytearray(random.randbytes(end))
    locs = [field for field in declared if "_loc" in field.type.decode()]
    behind = b""
    for field, data in zip(locs, datas, strict=False):
        at = end + len(behind) - (field.offset + 4 if b"__rel_loc" in field.type else 0)
        struct.pack_into("<HH", record, field.offset, at, len(data))
        behind += data
    record += behind
    context = bytes.fromhex(program.ask(f"apply {record.hex()}"))
    assert context[:8] == record[:8]
    texts = iter(datas)
    for field, (type_, _, offset, size) in zip(declared, fields[4:], strict=True):
        if type_.startswith("__data_loc "):
            at, length = struct.unpack_from("<HH", context, offset)
            data = next(texts)
            assert context[at : at + length + 1] == data + b"\0"
            if len(b"".join(datas)) < 40_000:
                assert context[4 * at :][: min(1024, length) + 1] == data[:1024] + b"\0"  # as 0.23 reads it
        else:
            assert context[offset : offset + size] == record[field.offset : field.offset + size]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("ev", ""),
        ("ev u8 a; u16 b; u32 c", "unsigned char a 8, unsigned short b 10, unsigned int c 12"),
        ("ev u16 a; u64 b", "unsigned short a 8, unsigned long b 16"),
        ("ev s8 a; s16 b; s32 c; s64 d", "char a 8, short b 10, int c 12, long d 16"),
        ("ev unsigned int a; char b; short c", "unsigned int a 8, char b 12, short c 14"),
        ("ev char[16] a; unsigned char[3] b", "char a[16] 8, unsigned char b[3] 24"),
        ("ev u8 a; __rel_loc char[] s", "unsigned char a 8, __data_loc char[] s 12"),
        (
            "ev __data_loc char[] s; __rel_loc u8[] b",
            "__data_loc char[] s 8, __data_loc unsigned char[] b 12",
        ),
        ("ev u8 a; struct u32_4 b 16", "unsigned char a 8, unsigned int b[4] 12"),
        ("ev struct s64_1 a 8; struct u32_4 b 15", "long a[1] 8, unsigned char b[15] 16"),
        ("ev struct bool a 1; struct double b 8", "unsigned char a 8, unsigned char b[8] 9"),
        ("ev struct float a 4; struct mine m 12", "unsigned char a[4] 8, unsigned char m[12] 12"),
        ("ev u8 default; u8 int", "unsigned char default_ 8, unsigned char int_ 9"),
        ("ev u8 linux; u8 __func__", "unsigned char linux_ 8, unsigned char __func___ 9"),
        ("ev u8 a-b; u8 a.b; u8 9", "unsigned char a_b 8, unsigned char a_b_ 9, unsigned char _9 10"),
    ],
)
def test_shown(program: Program, command: str, text: str) -> None:
    declared, fields = shown(program, command)
    assert ", ".join(f"{type_} {name} {offset}" for type_, name, offset, _ in fields[4:]) == text
    check_is_c(fields)
    locs = sum("_loc" in field.type.decode() for field in declared)
    check_record(program, declared, fields, [b"abc", b"/index.html\0", b""][:locs])


TYPES = st.sampled_from(
    [
        *("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "char", "int", "unsigned short"),
        *("__rel_loc char[]", "__data_loc char[]", "__rel_loc u8[]", "char[5]", "unsigned char[32]"),
    ]
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(TYPES, max_size=20),
    st.lists(st.binary(max_size=40) | st.integers(0, 3000).map(bytes), min_size=20, max_size=20),
)
def test_any_fields(program: Program, types: list[str], datas: list[bytes]) -> None:
    command = "ev " + "; ".join(f"{type_} f{number}" for number, type_ in enumerate(types))
    declared, fields = shown(program, command.strip())
    check_is_c(fields)
    check_record(program, declared, fields, datas[: sum("_loc" in type_ for type_ in types)])


@pytest.mark.parametrize("size", [0, 1, 5000, 40_000, 65_000, 65_400])
def test_sizes_of_texts(program: Program, size: int) -> None:
    declared, fields = shown(program, "ev u8 a; __rel_loc char[] s")
    check_record(program, declared, fields, [b"x" * size])
    declared, fields = shown(program, "ev __rel_loc char[] s; __rel_loc char[] t")
    check_record(program, declared, fields, [b"x" * (size // 2), b"y" * (size // 2)])


def test_records_that_no_daemon_sends(program: Program) -> None:
    """A record that is too short is none; a location word that points outside has no data."""
    shown(program, "ev u8 a; __rel_loc char[] s; __data_loc char[] t")
    assert program.ask(f"apply {bytes(16).hex()}") == "none"
    for first, second in ((0xFFFF_FFFF, 0xFFFF_FFFF), (0x0005_0008, 0x0001_0016), (0x0001_FFFF, 0xFFFF_0000)):
        record = bytes(8) + struct.pack("<BII4s", 1, first, second, b"abcd")
        context = bytes.fromhex(program.ask(f"apply {record.hex()}"))
        words = struct.unpack_from("<II", context, 12)
        assert [word >> 16 for word in words] == [0, 0]
        assert all(context[word & 0xFFFF] == 0 for word in words)


@pytest.mark.parametrize(
    "line",
    [
        "\tfield:u8 a;\toffset:99999;\tsize:1;\tsigned:0;",
        "\tfield:u8 a;\toffset:8;\tsize:40000;\tsigned:0;",
        "\tfield:u8;\toffset:8;\tsize:1;\tsigned:0;",
        "\tfield:u8 a;\toffset:8;",
        "\tfield:__rel_loc char s[];\toffset:8;\tsize:2;\tsigned:1;",
        f"\tfield:u8 {'a' * 300};\toffset:8;\tsize:1;\tsigned:0;",
    ],
)
def test_formats_that_no_daemon_sends(program: Program, line: str) -> None:
    assert program.ask(f"format {f'name: ev{chr(10)}{line}{chr(10)}'.encode().hex()}") == "none"


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("\t\n;: 0189[]_-afieldoszgu"), max_size=80))
def test_no_text_does_harm(program: Program, text: str) -> None:
    assert program.ask(f"format {(chr(9) + 'field:' + text).encode().hex()}")
