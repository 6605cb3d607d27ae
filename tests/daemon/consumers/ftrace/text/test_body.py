"""The bodies of events: what a kernel printed for each kind of field, the model, and hostile entries.

GOLDEN holds what Linux 6.12.117 printed (trace_clock counter) for payloads it had accepted, as in
tests/conformance/6.12.117/09_trace_text.txt.
"""

import struct

import pytest
from hypothesis import given, settings

from tests.daemon.consumers.ftrace.text.text_model import (
    BARE,
    TYPES,
    Events,
    entries_of,
    entry,
    model_value,
    one_event,
    renderer,
)
from utracefsd.consumers.ftrace.text._text import LINE_LIMIT

GOLDEN = [
    # declaration without the name, payload, text after the name
    (b"s8 v", "00", b": v=(0)"),
    (b"s8 v", "01", b": v=(1)"),
    (b"s8 v", "ff", b": v='\xff'(255)"),
    (b"s8 v", "80", b": v=(128)"),
    (b"s8 v", "7f", b": v=(127)"),
    (b"u8 v", "00", b": v=(0)"),
    (b"u8 v", "ff", b": v='\xff'(255)"),
    (b"s16 v", "ffff", b": v=0xffff (65535)"),
    (b"s16 v", "0080", b": v=0x8000 (32768)"),
    (b"s16 v", "ff7f", b": v=0x7fff (32767)"),
    (b"u16 v", "ffff", b": v=0xffff (65535)"),
    (b"u16 v", "0700", b": v=0x7 (7)"),
    (b"s32 v", "ffffffff", b": v=0xffffffff (-1)"),
    (b"s32 v", "00000080", b": v=0x80000000 (-2147483648)"),
    (b"s32 v", "ffffff7f", b": v=0x7fffffff (2147483647)"),
    (b"s32 v", "00000000", b": v=0x0 (0)"),
    (b"u32 v", "ffffffff", b": v=0xffffffff (-1)"),
    (b"u32 v", "0a000000", b": v=0xa (10)"),
    (b"s64 v", "ffffffffffffffff", b": v=0xffffffffffffffff (-1)"),
    (b"s64 v", "0000000000000080", b": v=0x8000000000000000 (-9223372036854775808)"),
    (b"s64 v", "ffffffffffffff7f", b": v=0x7fffffffffffffff (9223372036854775807)"),
    (b"u64 v", "ffffffffffffffff", b": v=0xffffffffffffffff (-1)"),
    (b"u64 v", "0100000000000000", b": v=0x1 (1)"),
    (b"char v", "41", b": v='A'(65)"),
    (b"char v", "ff", b": v='\xff'(255)"),
    (b"char v", "00", b": v=(0)"),
    (b"unsigned char v", "41", b": v='A'(65)"),
    (b"unsigned char v", "ff", b": v='\xff'(255)"),
    (b"short v", "feff", b": v=0xfffe (65534)"),
    (b"unsigned short v", "feff", b": v=0xfffe (65534)"),
    (b"int v", "fdffffff", b": v=0xfffffffd (-3)"),
    (b"unsigned int v", "fdffffff", b": v=0xfffffffd (-3)"),
    (b"char[8] v", "6162630000000000", b": v=abc"),
    (b"char[8] v", "6162636465666768", b": v=abcdefgh"),
    (b"char[8] v", "0062636465666768", b": v="),
    (b"char[8] v", "610162ff63000000", b": v=a\x01b\xffc"),
    (b"char[8] v", "6122625c6325640a", b': v=a"b\\c%d\n'),
    (b"unsigned char[8] v", "6162630000000000", b": v=abc"),
    (b"unsigned char[8] v", "6162636465666768", b": v=abcdefgh"),
    (b"unsigned char[8] v", "0102030405060708", b": v=\x01\x02\x03\x04\x05\x06\x07\x08"),
    (b"char[1] v", "5a", b": v=Z"),
    (b"char[1] v", "00", b": v="),
    (b"struct foo v 8", "0102030405060708", b": v=0x807060504030201 (578437695752307201)"),
    (b"struct foo v 8", "0000000000000000", b": v=0x0 (0)"),
    (b"struct foo v 3", "010203", b": v=<INVALID-SIZE>"),
    (b"struct foo v 20", "0102030405060708090a0b0c0d0e0f1011121314", b": v=<INVALID-SIZE>"),
    (b"struct foo v 20", "6162636465666768696a6b6c6d6e6f7071727374", b": v=<INVALID-SIZE>"),
    (b"__data_loc char[] v", "0c00060068656c6c6f00", b": v=hello"),
    (b"__data_loc char[] v", "0c00010000", b": v="),
    (b"__data_loc char[] v", "00000000", b": v="),
    (b"__data_loc char[] v", "0c0008007409620a6e6cc300", b": v=t\tb\nnl\xc3"),
    (b"__rel_loc char[] v", "0000060068656c6c6f00", b": v=hello"),
    (b"__rel_loc char[] v", "0000010000", b": v="),
    (b"__rel_loc char[] v", "00000000", b": v="),
    (b"__rel_loc char[] v", "040006000000000068656c6c6f00", b": v=hello"),
    (b"__rel_loc char[] v", "000008007409620a6e6cc300", b": v=t\tb\nnl\xc3"),
    (b"__data_loc u8[] v", "0c00040001020304", b": v=01,02,03,04"),
    (b"__data_loc u8[] v", "00000000", b": v="),
    (
        b"__data_loc u8[] v",
        "0c001400000102030405060708090a0b0c0d0e0f10111213",
        b": v=00,01,02,03,04,05,06,07,08,09,0a,0b,0c,0d,0e,0f,10,11,12,13",
    ),
    (b"__data_loc u8[] v", "0c0005007465787400", b": v=74,65,78,74,00"),
    (b"__rel_loc u8[] v", "0000040001020304", b": v=01,02,03,04"),
    (b"__rel_loc u8[] v", "00000000", b": v="),
    (
        b"__rel_loc u8[] v",
        "00001400000102030405060708090a0b0c0d0e0f10111213",
        b": v=00,01,02,03,04,05,06,07,08,09,0a,0b,0c,0d,0e,0f,10,11,12,13",
    ),
    (b"__rel_loc u8[] v", "000005007465787400", b": v=74,65,78,74,00"),
    (b"__data_loc unsigned char[] v", "0c00040061626300", b": v=abc"),
    (b"__rel_loc unsigned char[] v", "0000040061626300", b": v=abc"),
    (b"__rel_loc u32[] v", "000008000100000002000000", b": v=01,00,00,00,02,00,00,00"),
    (b"__rel_loc u32[] v", "00000300010203", b": v=01,02,03"),
    (b"__rel_loc s16[] v", "00000400ffff0200", b": v=ff,ff,02,00"),
    (b"", "", b":No fields found"),
    (
        b"u32 a; s8 b; __rel_loc char[] s; u16 c; struct foo d 5; char[4] e; u64 f",
        "07000000f9130006000900010203040561626364630000000000000068656c6c6f00",
        b": a=0x7 (7) b='\xf9'(249) s=hello c=0x9 (9) d=<INVALID-SIZE> e=abcd f=0x63 (99)",
    ),
    (
        b"u32 a; s8 b; __rel_loc char[] s; u16 c; struct foo d 5; char[4] e; u64 f",
        "07000000f9130006000900010203040561620064630000000000000068656c6c6f00747261696c696e67",
        b": a=0x7 (7) b='\xf9'(249) s=hello c=0x9 (9) d=<INVALID-SIZE> e=ab f=0x63 (99)",
    ),
    (
        b"u32 common_pid; u32 a-b; u32 a.b",
        "010000000200000003000000",
        b": common_pid=0x1 (1) a-b=0x2 (2) a.b=0x3 (3)",
    ),
    # extra bytes behind the fields, strings in odd places (from tests/conformance/6.12.117/08_writes.txt)
    (b"u32 a; u32 b", "0100000002000000", b": a=0x1 (1) b=0x2 (2)"),
    (b"u32 a; u32 b", "0300000004000000", b": a=0x3 (3) b=0x4 (4)"),
    (b"u32 a; u32 b", "210000002c000000", b": a=0x21 (33) b=0x2c (44)"),
    (b"u32 a; u32 b", "050000000600000007000000", b": a=0x5 (5) b=0x6 (6)"),
    (b"u32 a; u32 b", "0b0000000c000000", b": a=0xb (11) b=0xc (12)"),
    (b"", "", b":No fields found"),
    (b"", "01000000", b":No fields found"),
    (b"u32 a; __rel_loc char[] s", "010000000000060068656c6c6f00", b": a=0x1 (1) s=hello"),
    (b"u32 a; __rel_loc char[] s", "0300000000000000", b": a=0x3 (3) s="),
    (b"u32 a; __rel_loc char[] s", "040000000000010000", b": a=0x4 (4) s="),
    (b"u32 a; __rel_loc char[] s", "070000000100050068656c6c6f00", b": a=0x7 (7) s=ello"),
    (b"u32 a; __rel_loc char[] s", "0900000000000a006869006a756e6b303000", b": a=0x9 (9) s=hi"),
    (b"u32 a; __rel_loc char[] s", "0c0000000600000068656c6c6f00", b": a=0xc (12) s="),
    (b"u32 a; __rel_loc char[] s", "0e0000000000060068656c6c6f006578747261", b": a=0xe (14) s=hello"),
    (b"u32 a; __rel_loc char[] s", "10000000040006000000000068656c6c6f00", b": a=0x10 (16) s=hello"),
    (b"u32 a; __rel_loc char[] s", "110000000000000000000000", b": a=0x11 (17) s="),
    (b"u32 a; __rel_loc char[] s", "120000000000000041414141", b": a=0x12 (18) s="),
    (b"__data_loc char[] s; u8 c", "0d000300016f6b00", b": s=ok c=(1)"),
    (b"__data_loc char[] s; u8 c", "0c00010000", b": s= c=(0)"),
    (b"__data_loc char[] s; u8 c", "05000300036f6b00", b": s= c=(3)"),
    (b"__data_loc char[] s; u8 c", "0000000004", b": s= c=(4)"),
    (b"__data_loc char[] s; u8 c", "0000040005", b": s=\x11\x04 c=(5)"),
    (b"__data_loc char[] s; u8 c", "10000000076f6b00", b": s= c=(7)"),
    (b"__data_loc char[] s; u8 c", "0e000200096f6b00", b": s=k c=(9)"),
    (b"__data_loc char[] s; u8 c", "0800050000", b": s=\x08 c=(0)"),
    (b"__rel_loc u8[] d", "0000040001020304", b": d=01,02,03,04"),
    (b"__rel_loc u8[] d", "00000000", b": d="),
    (b"__rel_loc u8[] d", "0400000001020304", b": d="),
    (b"__rel_loc u8[] d", "0100020001020304", b": d=02,03"),
    (b"__data_loc u8[] d", "0c00040001020304", b": d=01,02,03,04"),
    (b"__data_loc u8[] d", "00000000", b": d="),
    (b"__data_loc u8[] d", "00000c00", b": d=16,04,00,00,2e,00,00,00,00,00,0c,00"),
    (b"char[8] s; u16 v", "61626364656667680700", b": s=abcdefgh v=0x7 (7)"),
    (b"char[8] s; u16 v", "61626300646566670800", b": s=abc v=0x8 (8)"),
    (b"char[8] s; u16 v", "00616263646566670900", b": s= v=0x9 (9)"),
    (b"__rel_loc char[] s; __rel_loc char[] t", "0400030003000300616200636400", b": s=ab t=cd"),
    (b"__rel_loc char[] s; __rel_loc char[] t", "0000000000000000", b": s= t="),
]


@pytest.mark.parametrize(("fields", "payload", "body"), GOLDEN)
def test_body_as_the_kernel_prints_it(fields: bytes, payload: str, body: bytes) -> None:
    event_id = 0x416 if b"16,04" in body else 0x411
    events = one_event(b"p " + fields if fields else b"p", event_id)
    line = renderer(events).render_entry(0, 75, entry(event_id, bytes.fromhex(payload)))
    assert line == b"          golden-46      [000] .....           75: p" + body + b"\n"


@pytest.mark.parametrize(
    ("field", "payload", "shown"),
    [
        # A kernel prints `x=0x3ff8000000000000 (4609434218413702656)`.
        (b"struct double x 8", struct.pack("<d", 1.5), b"1.5"),
        (b"struct double x 8", struct.pack("<d", -0.0), b"-0.0"),
        (b"struct double x 8", struct.pack("<d", 1e300), b"1e+300"),
        (b"struct double x 8", struct.pack("<d", float("nan")), b"nan"),
        (b"struct double x 8", struct.pack("<d", float("-inf")), b"-inf"),
        (b"struct float x 4", struct.pack("<f", 0.1), b"0.10000000149011612"),
        (b"struct double x 4", bytes(4), b"0x0 (0)"),
        (b"struct bool x 1", b"\1", b"(1)"),
        (b"struct s16_3 x 6", struct.pack("<3h", 1, -2, 3), b"[1,-2,3]"),
        (b"struct double_1 x 8", struct.pack("<d", float("nan")), b'["NaN"]'),
        (b"struct u32_9999999 x 16", bytes(16), b"<INVALID-SIZE>"),
        (b"struct u8_4 x 4", b"\1", b"<OVERFLOW>"),
    ],
)
def test_floats_and_arrays(field: bytes, payload: bytes, shown: bytes) -> None:
    line = renderer(one_event(b"t " + field), BARE).render_entry(0, 1, entry(1041, payload))
    assert line == b"t: x=" + shown + b"\n"


# ---- one step for each kind of field


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 16])
def test_a_struct_is_printed_as_the_integer_of_its_size(size: int) -> None:
    declaration = b"t struct s x %d" % size
    line = renderer(one_event(declaration), BARE).render_entry(0, 1, entry(1041, b"\xfe" * size))
    shown = {
        1: b"'\xfe'(254)",
        2: b"0xfefe (65278)",
        4: b"0xfefefefe (-16843010)",
        8: b"0xfefefefefefefefe (-72340172838076674)",
    }
    assert line == b"t: x=" + shown.get(size, b"<INVALID-SIZE>") + b"\n"


def test_every_byte_as_a_character() -> None:
    render = renderer(one_event(b"t u8 x"), BARE).render_entry
    plain = {n for n in range(256) if render(0, 1, entry(1041, bytes([n]))) == b"t: x=(%d)\n" % n}
    assert plain == {*range(32), *range(127, 160)}


@pytest.mark.parametrize(
    ("type_", "body"),
    [
        (b"char[]", b"ab"),
        (b"unsigned char[]", b"ab"),
        (b"u8[]", b"61,62,00,63"),
        (b"s8[]", b"61,62,00,63"),
        (b"u64[]", b"61,62,00,63"),
        (b"mychar[]", b"ab"),
    ],
)
@pytest.mark.parametrize("word", ["__data_loc 0c00", "__rel_loc 0000"])
def test_a_loc_is_a_string_where_its_type_contains_char(word: str, type_: bytes, body: bytes) -> None:
    kind, start = word.split()
    events = one_event(b"t %s %s x" % (kind.encode(), type_))
    data = entry(1041, bytes.fromhex(start) + b"\4\0ab\0c")
    assert renderer(events, BARE).render_entry(0, 1, data) == b"t: x=" + body + b"\n"


@pytest.mark.parametrize("type_", TYPES)
def test_a_field_that_begins_or_ends_at_any_place(type_: bytes) -> None:
    """Entries of every length up to the field's end and a little more."""
    events = one_event(b"t u8 before; %s; u8 behind" % type_)
    (name, fields) = events[1041]
    render = renderer(events, BARE).render_entry
    for length in range(40):
        data = entry(1041, bytes(range(1, 1 + length)))
        expected = b"".join(b" %s=%s" % (f.name, model_value(f, data)) for f in fields)
        assert render(0, 1, data) == name + b":" + expected + b"\n"


@settings(max_examples=200)
@given(entries_of())
def test_bodies_against_the_model(made: tuple[Events, bytes]) -> None:
    events, data = made
    ((name, fields),) = events.values()
    line = b"".join(b" %s=%s" % (field.name, model_value(field, data)) for field in fields)
    line = name + b":" + (line or b"No fields found") + b"\n"
    if len(line) > LINE_LIMIT:
        line = b"[LINE TOO BIG]\n"
    assert renderer(events, BARE).render_entry(0, 1, data) == line


# ---- hostile entries, and ids that pass on


@pytest.mark.parametrize(
    ("declaration", "payload", "body"),
    [
        (b"t u32 a; u32 b", "01000000 020000", b"t: a=0x1 (1) b=<OVERFLOW>\n"),
        (b"t u8 a", "", b"t: a=<OVERFLOW>\n"),
        (b"t u64 a", "01020304 050607", b"t: a=<OVERFLOW>\n"),
        (b"t char[16] a", "6162", b"t: a=<OVERFLOW>\n"),
        (
            b"t struct s a 2147483647; struct s b 2147483647; struct s c 12; u32 d",
            "",
            b"t: a=@ b=@ c=@ d=@\n",
        ),
        (b"t __rel_loc char[] a", "0000ffff", b"t: a=<OVERFLOW>\n"),
        (b"t __rel_loc char[] a", "ffff0000", b"t: a=<OVERFLOW>\n"),
        (b"t __rel_loc u8[] a", "01000100 41", b"t: a=<OVERFLOW>\n"),
        (b"t __data_loc char[] a", "0d000100 41", b"t: a=<OVERFLOW>\n"),
        (b"t __data_loc u8[] a", "ffffffff", b"t: a=<OVERFLOW>\n"),
        (b"t __data_loc char[] a", "0c00", b"t: a=<OVERFLOW>\n"),
        (b"t __data_loc char[] a; u8 b", "0000ff00 41", b"t: a=<OVERFLOW> b='A'(65)\n"),
    ],
)
def test_fields_beyond_the_entry(declaration: bytes, payload: str, body: bytes) -> None:
    data = entry(1041, bytes.fromhex(payload))
    expected = body.replace(b"=@", b"=<OVERFLOW>")
    assert renderer(one_event(declaration), BARE).render_entry(0, 1, data) == expected


def test_an_id_may_pass_to_another_event_between_calls() -> None:
    events = dict(one_event(b"old u32 a", 20))
    text = renderer(events, BARE)
    record = entry(20, struct.pack("<I", 65))
    assert text.render_entry(0, 1, record) == b"old: a=0x41 (65)\n"
    events.update(one_event(b"new u8 b; u16 c", 20))
    assert text.render_entry(0, 1, record) == b"new: b='A'(65) c=0x0 (0)\n"
    del events[20]
    assert text.render_entry(0, 1, record) == b"Unknown type 20\n"
    events.update(one_event(b"new u16 b", 20))
    assert text.render_entry(0, 1, record) == b"new: b=0x41 (65)\n"
