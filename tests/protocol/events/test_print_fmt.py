"""Parsing a print fmt: of utracefs, of the kernel, and unsupported ones."""

import pytest

from utracefs_protocol.events.declaration import Field, FieldKind, parse
from utracefs_protocol.events.event_format import EventFormat, format_text, parse_format
from utracefs_protocol.events.print_fmt import Conversion, How, conversions

A = Field(b"int", b"a", 8, 4, True, FieldKind.INTEGER)
B = Field(b"unsigned long", b"b", 12, 8, False, FieldKind.INTEGER)
S = Field(b"char[4]", b"s", 20, 4, True, FieldKind.CHAR_ARRAY)
D = Field(b"__data_loc char[]", b"d", 24, 4, True, FieldKind.DATA_LOC)
J = Field(b"__data_loc u32[]", b"j", 28, 4, True, FieldKind.DATA_LOC)
Z = Field(b"struct z", b"z", 32, 3, True, FieldKind.STRUCT)


def read(print_fmt: bytes) -> list[Conversion]:
    return conversions(EventFormat(b"e", 9, (A, B, S, D, J, Z), print_fmt))


BY_NAME = [
    Conversion("a=", A, How.NUMBER, True),
    Conversion(" b=", B, How.NUMBER),
    Conversion(" s=", S, How.STRING),
    Conversion(" d=", D, How.STRING),
    Conversion(" j=", J, How.HEX),
    Conversion(" z=", Z, How.HEX),
]


def test_what_our_formats_say() -> None:
    event = parse(b"e u32 a; s64 b; char[4] c; __rel_loc char[] d; char e")
    a, b, c, d, e = event.fields
    assert conversions(parse_format(format_text(event.name, 9, event.fields))) == [
        Conversion("a=", a, How.NUMBER),
        Conversion(" b=", b, How.NUMBER, True),
        Conversion(" c=", attr(c, b"char[4]"), How.STRING),
        Conversion(" d=", d, How.STRING),
        Conversion(" e=", e, How.NUMBER, True),
        Conversion(""),
    ]


def attr(field: Field, type_: bytes) -> Field:
    return Field(type_, field.name, field.offset, field.size, field.signed, field.kind)


@pytest.mark.parametrize(
    ("text", "how", "signed", "as_python"),
    [
        (b"%d", How.NUMBER, True, ""),
        (b"%i", How.NUMBER, True, ""),
        (b"%u", How.NUMBER, False, ""),
        (b"%lld", How.NUMBER, True, ""),
        (b"%hhu", How.NUMBER, False, ""),
        (b"%5d", How.NUMBER, True, "%5d"),
        (b"%-05u", How.NUMBER, False, "%-05d"),
        (b"%.3d", How.NUMBER, True, "%.3d"),
        (b"%x", How.NUMBER, False, "%x"),
        (b"%#lx", How.NUMBER, False, "%#x"),
        (b"%08X", How.NUMBER, False, "%08X"),
        (b"%o", How.NUMBER, False, "%o"),
        (b"%c", How.CHARACTER, False, "%s"),
        (b"%3c", How.CHARACTER, False, "%3s"),
        (b"%p", How.POINTER, False, ""),
        (b"%020p", How.POINTER, False, "%20s"),
        (b"%pS", How.SYMBOL, False, ""),
        (b"%-20ps", How.SYMBOL, False, "%-20s"),
        (b"%s", How.STRING, False, ""),
        (b"%-4.2s", How.STRING, False, "%-4.2s"),
    ],
)
def test_conversions_of_an_integer(text: bytes, how: How, signed: bool, as_python: str) -> None:
    expected = [Conversion("<", A, how, signed, as_python), Conversion(">")]
    assert read(b'"<' + text + b'>", REC->a') == expected


@pytest.mark.parametrize(
    ("field", "text", "how", "as_python"),
    [
        (D, b"%d", How.STRING, ""),
        (D, b"%9.4s", How.STRING, "%9.4s"),
        (S, b"%d", How.NUMBER, ""),
        (J, b"%d", How.HEX, ""),
        (J, b"%#09x", How.HEX, "%9s"),
        (J, b"%s", How.STRING, ""),
        (Z, b"%llu", How.HEX, ""),
        (Z, b"%-9llu", How.HEX, "%-9s"),
    ],
)
def test_conversions_of_other_fields(field: Field, text: bytes, how: How, as_python: str) -> None:
    signed = how is How.NUMBER
    expected = [Conversion("", field, how, signed, as_python), Conversion("")]
    assert read(b'"' + text + b'", REC->' + field.name) == expected


@pytest.mark.parametrize(
    "argument",
    [
        b"REC->a",
        b"(REC->a)",
        b"(unsigned long)REC->a",
        b"(void *)(REC->a)",
        b"(const char *) (u64) REC->a",
        b"__get_str(a)",
        b"__get_rel_str( a )",
    ],
)
def test_arguments(argument: bytes) -> None:
    assert read(b'"%d", ' + argument) == [Conversion("", A, How.NUMBER, True), Conversion("")]


@pytest.mark.parametrize(
    "print_fmt",
    [
        b"",
        b"nonsense",
        b"REC->a",
        b'"%d',
        b'"%d %d", REC->a',
        b'"%d", REC->a, REC->b',
        b'"%d" REC->a',
        b'"%d", REC->nosuch',
        b'"%d", REC->a + 1',
        b'"%d", REC->a[0]',
        b'"%s", __print_symbolic(REC->a, {1, "one"})',
        b'"%99999d", REC->a',
        b'"%.99999d", REC->a',
        b'"%*d", REC->a',
        b'"%y", REC->a',
    ],
)
def test_more_than_this_reads_is_printed_by_name(print_fmt: bytes) -> None:
    assert read(print_fmt) == BY_NAME


def test_text() -> None:
    assert read(b'"one" " two\\t\\"\\\\ 100%% %q \\q\xff"') == [Conversion('one two\t"\\ 100% %q \\q\udcff')]
    assert read(b'"%d%%%d", REC->a, REC->a')[1] == Conversion("%", A, How.NUMBER, True)


def test_an_event_without_a_format_is_shown_by_its_id() -> None:
    assert conversions(EventFormat(b"?", 77, (), b"")) == [Conversion("id 77")]


LONG = 50_000


@pytest.mark.parametrize(
    "argument",
    [
        b"(" + b" " * LONG + b"x",
        b"__get_str(" + b" " * LONG + b"x(",
        b"__get_str(" + b" " * LONG,
        b"(int)" * LONG + b"x",
    ],
)
def test_a_long_argument_takes_no_more_time_than_it_is_long(argument: bytes) -> None:
    """Hours, where blanks may be matched in several ways."""
    assert read(b'"%d", ' + argument) == BY_NAME


def test_many_casts_strings_and_arguments() -> None:
    assert read(b'"%d", ' + b"(int)" * LONG + b"REC->a")[0].field == A
    assert read(b'"x" ' * LONG)[0].before == "x" * LONG
    assert len(read(b'"' + b"%d" * LONG + b'"' + b", REC->a" * LONG)) == LONG + 1
