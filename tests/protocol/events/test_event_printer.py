"""Records as text by their print fmt: every kind of field, a plain model, broken records."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.client.recordings.events import Events
from tests.protocol.events.plain_fields import plain_bytes
from utracefs_protocol.events._event_printer import EventPrinter
from utracefs_protocol.events.declaration import Field, FieldKind
from utracefs_protocol.events.event_format import EventFormat, parse_format
from utracefs_protocol.events.print_fmt import Conversion, How, conversions
from utracefs_protocol.text import bytes_of, text_of

EVENTS = Events(
    100,
    b"ints s8 a; u8 b; s16 c; u16 d; s32 e; u32 f; s64 g; u64 h",
    b"text char[8] fixed; unsigned char[4] raw; __data_loc char[] data; __rel_loc char[] rel",
    b"odd struct foo three 3; struct foo four 4; __rel_loc u8[] bytes; char c",
    b"empty",
    b"floats struct double real 8; struct float short 4; struct bool flag 1",
    b"arrays struct s64_2 a 16; struct float_2 b 8; struct bool_2 c 2; struct u8_9 d 8",
)


def text(number: int, *values: object) -> str:
    fields = EVENTS.formats()[number - 100]
    return EventPrinter(parse_format(fields)).text(EVENTS.entry(number, 1, *values))


def test_signed_fields_keep_their_sign() -> None:
    """trace-cmd prints 255, 65535 here."""
    assert text(100, -1, 255, -1, 65535, -1, 2**32 - 1, -1, 2**64 - 1) == (
        "a=-1 b=255 c=-1 d=65535 e=-1 f=4294967295 g=-1 h=18446744073709551615"
    )
    assert text(100, -128, 0, -(2**15), 0, -(2**31), 0, -(2**63), 0) == (
        "a=-128 b=0 c=-32768 d=0 e=-2147483648 f=0 g=-9223372036854775808 h=0"
    )


def test_bytes_that_are_no_text() -> None:
    """trace-cmd prints 0 and the location word."""
    assert text(102, b"\1\2\3", b"\1\0\0\0", b"\xff\0\x10", -3) == "three=010203 four=1 bytes=ff0010 c=-3"


def test_floats() -> None:
    """trace-cmd prints their bits as integers."""
    assert text(104, -0.0, 0.1, True) == "real=-0.0 short=0.10000000149011612 flag=1"
    assert text(104, float("nan"), float("-inf"), False) == "real=nan short=-inf flag=0"


def test_arrays() -> None:
    """trace-cmd prints the bits of up to 8 bytes as an integer, else 0."""
    assert text(105, [1, -2], [0.1, float("nan")], [False, True], bytes(8)) == (
        'a=[1,-2] b=[0.1,"NaN"] c=[false,true] d=0'
    )


@pytest.mark.parametrize(
    ("type_", "size", "conversion", "shown"),
    [
        (b"struct u32_4", 16, b"%-30x", "[1,0,0,0]"),
        (b"struct u32_4", 16, b"%c", "[1,0,0,0]"),
        (b"struct u32_4", 2_000_000_000, b"%5s", "<OVERFLOW>"),
        (b"struct u8_2147483647", 2_147_483_647, b"%d", "<OVERFLOW>"),
        (b"struct u32_9999999", 16, b"%d", "01" + 15 * "00"),
        (b"struct u32_" + b"9" * 6000, 16, b"%d", "01" + 15 * "00"),
        (b"struct u32_0", 0, b"%x", "01" + 15 * "00"),
        (b"struct u32_4", 0, b"%x", "01" + 15 * "00"),
    ],
)
def test_arrays_of_hostile_formats(type_: bytes, size: int, conversion: bytes, shown: str) -> None:
    head = b"name: x\nID: 9\nformat:\n\tfield:%s a;\toffset:8;\tsize:%d;\tsigned:1;\n\n" % (type_, size)
    event = parse_format(head + b'print fmt: "%s", REC->a' % conversion)
    assert EventPrinter(event).text(bytes(8) + b"\1" + bytes(15)) == shown


def test_no_fields() -> None:
    assert text(103) == ""


def test_long_text() -> None:
    assert (
        text(101, "", b"", "x" * 30_000, "y" * 30_000)
        == f"fixed= raw= data={'x' * 30_000} rel={'y' * 30_000}"
    )
    assert text(102, b"\1\2\3", b"\0\0\0\0", b"\xab" * 60_000, 0).count("ab") == 60_000


@pytest.mark.parametrize("cut", range(8, 33))
def test_an_entry_that_is_too_short(cut: int) -> None:
    entry = EVENTS.entry(101, 1, "a", b"b", "c", "d")
    printer = EventPrinter(parse_format(EVENTS.formats()[1]))
    if cut < len(entry):
        assert printer.text(entry[:cut]) == "<OVERFLOW>"


def test_a_location_that_points_outside() -> None:
    entry = bytearray(EVENTS.entry(101, 1, "a", b"b", "c", "d"))
    entry[20:24] = struct.pack("<HH", 0xFFF0, 20)
    assert EventPrinter(parse_format(EVENTS.formats()[1])).text(bytes(entry)) == "<OVERFLOW>"


FIELDS = (
    Field(b"int", b"a", 8, 4, True, FieldKind.INTEGER),
    Field(b"unsigned long", b"b", 12, 8, False, FieldKind.INTEGER),
    Field(b"char[4]", b"s", 20, 4, True, FieldKind.CHAR_ARRAY),
)
ENTRY = struct.pack("<HBBi", 9, 0, 0, 1) + struct.pack("<iQ4s", -2, 0x1F, b"xyz")


@pytest.mark.parametrize(
    ("print_fmt", "expected"),
    [
        (b'"a=%d b=%lu", REC->a, REC->b', "a=-2 b=31"),
        (b'"%5d|%-5d|%05d", REC->a, REC->a, REC->b', "   -2|-2   |00031"),
        (b'"%x %#lx %o %X", REC->a, REC->b, REC->b, REC->b', "fffffffe 0x1f 37 1F"),
        (b'"%s|%6s|%.2s", REC->s, REC->s, REC->s', "xyz|   xyz|xy"),
        (b'"100%% \\"%c\\"\\t%p", REC->b, (void *)REC->b', '100% "\x1f"\t0x1f'),
        (b'"one" " two %d", (unsigned int)(REC->a)', "one two -2"),
        (b'"%pS %ps", (void *)REC->b, (void *)REC->a', "here 0xfffffffe"),
        (b'"%6pS|%-12ps|", (void *)REC->b, (void *)REC->a', "  here|0xfffffffe  |"),
        (b'"no arguments"', "no arguments"),
        (b'"%d %d", REC->a', "a=-2 b=31 s=xyz"),
        (b"nonsense", "a=-2 b=31 s=xyz"),
    ],
)
def test_print_fmt(print_fmt: bytes, expected: str) -> None:
    printer = EventPrinter(EventFormat(b"e", 9, FIELDS, print_fmt), symbols={0x1F: "here"})
    assert printer.text(ENTRY) == expected


def marker(name: bytes, fields: tuple[Field, ...], print_fmt: bytes, *, system: str) -> EventPrinter:
    return EventPrinter(EventFormat(name, 5, fields, print_fmt), system=system)


def test_a_marker_loses_one_newline_at_its_end() -> None:
    fields = (Field(b"char[]", b"buf", 8, 0, True, FieldKind.CHAR_ARRAY),)
    for system, expected in (("ftrace", "one\ntwo\n"), ("user_events", "one\ntwo\n\n")):
        printer = marker(b"print", fields, b'"%s", REC->buf', system=system)
        assert printer.text(bytes(8) + b"one\ntwo\n\n\0rest") == expected
        assert printer.text(bytes(8) + b"\0") == printer.text(bytes(8)) == ""


def test_raw_data() -> None:
    printer = marker(b"raw_data", (), b"", system="ftrace")
    assert printer.text(bytes(8) + struct.pack("<I", 0x1234) + b"raw") == "# 1234 72 61 77"
    assert printer.text(bytes(8) + struct.pack("<I", 0)) == "# 0"
    assert printer.text(bytes(11)) == printer.text(b"") == "<OVERFLOW>"
    assert marker(b"raw_data", (), b"", system="other").text(bytes(12)) == "id 5"


# A plain model.


def model(event: EventFormat, entry: bytes, symbols: dict[int, str]) -> str:
    pieces = []
    for piece in conversions(event):
        pieces.append(piece.before)
        if piece.field is not None:
            data = plain_bytes(piece.field, entry)
            if data is None:
                return "<OVERFLOW>"
            pieces.append((piece.format or "%s") % (model_value(piece, data, symbols),))
    return text_of(bytes_of("".join(pieces)))  # the ends of two fields may be one character


def model_value(piece: Conversion, data: bytes, symbols: dict[int, str]) -> object:
    number = int.from_bytes(data, "little", signed=piece.signed)
    match piece.how:
        case How.STRING:
            return text_of(data.partition(b"\0")[0])
        case How.HEX:
            return data.hex()
        case How.POINTER:
            return hex(number)
        case How.SYMBOL:
            return symbols.get(number) or hex(number)
        case How.CHARACTER:
            return chr(number & 0xFF)
    return number


MIXED = (
    *FIELDS,
    Field(b"short", b"c", 24, 2, True, FieldKind.INTEGER),
    Field(b"u8", b"d", 26, 1, False, FieldKind.INTEGER),
    Field(b"__data_loc char[]", b"e", 28, 4, True, FieldKind.DATA_LOC),
    Field(b"__rel_loc u8[]", b"f", 32, 4, True, FieldKind.REL_LOC),
    Field(b"struct x", b"g", 5, 3, True, FieldKind.STRUCT),
    Field(b"char[]", b"h", 36, 0, True, FieldKind.CHAR_ARRAY),
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", " x=", "%%", "ö"]),
            st.sampled_from(["", "5", "-9", "08", "#", "+", ".3", "-12.4"]),
            st.sampled_from(["d", "i", "u", "x", "X", "o", "c", "s", "p", "ps", "lld"]),
            st.sampled_from([field.name.decode() for field in MIXED]),
        ),
        max_size=6,
    ),
    st.binary(min_size=20, max_size=70),
    st.integers(0, 50),
    st.integers(0, 12),
)
@example([("", "", "s", "a"), ("", "", "s", "a")], bytes(8) + b"\x80\1\1\xc2" + bytes(8), 0, 0)
def test_as_the_model_has_it(
    conversions: list[tuple[str, str, str, str]], entry: bytes, at: int, length: int
) -> None:
    data = bytearray(entry)
    for offset in (28, 32):
        if len(data) >= offset + 4:
            data[offset : offset + 4] = struct.pack("<HH", at, length)
    number = int.from_bytes(data[8:12], "little", signed=False)
    text = "".join(f"{before}%{how}{kind}" for before, how, kind, _ in conversions)
    print_fmt = f'"{text}"' + "".join(f", REC->{name}" for *_, name in conversions)
    event = EventFormat(b"e", 9, MIXED, print_fmt.encode())
    symbols = {number: "here"}
    assert EventPrinter(event, symbols=symbols).text(bytes(data)) == model(event, bytes(data), symbols)
