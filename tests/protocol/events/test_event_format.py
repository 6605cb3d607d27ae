"""`format` files: written like the kernel's, and read back."""

import errno
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import Field, FieldKind, parse
from utracefs_protocol.events.event_format import _split_declared, format_text, parse_format


def test_readers_tell_fields_of_one_name_apart() -> None:
    text = format_text(b"pair", 9, parse(b"pair u32 a; s8 a; u32 a_2; __rel_loc char[] a").fields)
    event = parse_format(text).for_readers()
    assert [field.name for field in event.fields] == [b"a", b"a_3", b"a_2", b"a_4"]
    assert event.print_fmt == b'"a=%u a=%d a_2=%u a=%s", REC->a, REC->a_3, REC->a_2, __get_rel_str(a_4)'
    assert event.for_readers() is event


def test_format_shows_the_number_of_a_fixed_array() -> None:
    text = format_text(b"test", 20, parse(b"test unsigned char[0x14] b").fields)
    assert text.split(b"\n\n")[1] + b"\n" == b"\tfield:unsigned char b[20];\toffset:8;\tsize:20;\tsigned:0;\n"


@pytest.mark.parametrize(
    ("type_", "conversion", "argument"),
    [
        (b"__data_loc char", b"x=%llu", b"__get_str(x)"),
        (b"__rel_loc unsigned char", b"x=%llu", b"__get_rel_str(x)"),
        (b"__rel_loc wchar[]", b"x=%s", b"__get_rel_str(x)"),
        (b"__rel_loc s64[]", b"x=%llu", b"REC->x"),
    ],
)
def test_print_fmt_of_location_words(type_: bytes, conversion: bytes, argument: bytes) -> None:
    text = format_text(b"test", 20, parse(b"test " + type_ + b" x").fields)
    assert text.endswith(b'\nprint fmt: "%s", %s\n' % (conversion, argument))


PRINT_FORMAT = b"""name: print
ID: 5
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;
\tfield:char buf[];\toffset:16;\tsize:0;\tsigned:0;

print fmt: "%ps: %s", (void *)REC->ip, REC->buf
"""


def test_format_of_a_kernel_event() -> None:
    event = parse_format(PRINT_FORMAT)
    assert (event.name, event.id) == (b"print", 5)
    assert event.fields == (
        Field(b"unsigned long", b"ip", 8, 8, False, FieldKind.INTEGER),
        Field(b"char[]", b"buf", 16, 0, False, FieldKind.CHAR_ARRAY),
    )
    assert event.print_fmt == b'"%ps: %s", (void *)REC->ip, REC->buf'


@pytest.mark.parametrize(
    ("shown", "size", "type_", "name", "kind"),
    [
        (b"struct task_struct * task", 8, b"struct task_struct *", b"task", FieldKind.INTEGER),
        (b"void *call_site", 8, b"void *", b"call_site", FieldKind.INTEGER),
        (b"char comm[16]", 16, b"char[16]", b"comm", FieldKind.CHAR_ARRAY),
        (b"unsigned long args[6]", 48, b"unsigned long[6]", b"args", FieldKind.STRUCT),
        (b"__data_loc char[] name", 4, b"__data_loc char[]", b"name", FieldKind.DATA_LOC),
        (b"__rel_loc char s[4]", 4, b"__rel_loc char[4]", b"s", FieldKind.REL_LOC),
        (b"__rel_loc char[] s", 4, b"__rel_loc char[]", b"s", FieldKind.REL_LOC),
        (b"struct timespec ts", 16, b"struct timespec", b"ts", FieldKind.STRUCT),
        (b"enum state s", 4, b"enum state", b"s", FieldKind.INTEGER),
    ],
)
def test_format_lines_of_the_kernel(
    shown: bytes, size: int, type_: bytes, name: bytes, kind: FieldKind
) -> None:
    line = b"\tfield:%s;\toffset:16;\tsize:%d;\tsigned:0;\n" % (shown, size)
    text = PRINT_FORMAT.replace(b"\tfield:char buf[];\toffset:16;\tsize:0;\tsigned:0;\n", line)
    field = parse_format(text).fields[1]
    assert field == Field(type_, name, 16, size, False, kind)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"name: x\n",
        b"ID: 5\n",
        b"name: x\nID: five\nformat:\n",
        b"name: x\nID: 5\nformat:\n\tfield:u32;\toffset:8;\tsize:4;\tsigned:0;\n",
        b"name: x\nID: 5\nformat:\n\tfield:u32 a;\toffset:x;\tsize:4;\tsigned:0;\n",
        b"name: x\nID: 5\nformat:\n\tfield:u32 a;\n",
        b"name: x\nID: " + b"9" * 30,
        b"name: x\nID: " + b"9" * 5000,
        b"name: x\nID: 5\nformat:\n\tfield:u32 a;\toffset:8;\tsize:" + b"9" * 5000 + b";\tsigned:0;\n",
        b"name: x\nID: 5\nformat:\n\tfield:u32 a;\toffset:" + b"9" * 5000 + b";\tsize:4;\tsigned:0;\n",
    ],
)
def test_not_a_format(text: bytes) -> None:
    with pytest.raises(TraceError) as caught:
        parse_format(text)
    assert caught.value.errno == errno.EINVAL


def test_format_without_common_fields() -> None:
    event = parse_format(
        b'name: x\nID: 5\nformat:\n\tfield:u32 a;\toffset:8;\tsize:4;\tsigned:0;\nprint fmt: ""'
    )
    assert [field.name for field in event.fields] == [b"a"]


@given(
    st.lists(
        st.sampled_from([b"u32", b"a", b"struct", b"s", b"8", b" ", b";", b"__rel_loc", b"char[4]", b"\t"])
    )
)
def test_fields_of_any_declaration_are_read_back(words: list[bytes]) -> None:
    try:
        declaration = parse(b"test " + b" ".join(words))
    except TraceError:
        return
    whole = format_text(declaration.name, 1, declaration.fields)
    if all(field.name.strip() == field.name != b"" for field in declaration.fields):
        assert len(parse_format(whole).fields) == len(declaration.fields)


@pytest.mark.parametrize("name", [b"a*", b"*", b"**", b"*b*"])
@pytest.mark.parametrize(
    "type_", [b"u32", b"unsigned int", b"char[8]", b"__rel_loc char[]", b"__data_loc u8[]"]
)
def test_a_name_that_ends_in_a_star(type_: bytes, name: bytes) -> None:
    fields = parse(b"test u8 first; %s %s" % (type_, name)).fields
    found = parse_format(format_text(b"test", 1, fields)).fields
    assert [field.name for field in found] == [b"first", name]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_format_or_refused(text: bytes) -> None:
    try:
        parse_format(b"name: x\nID: 1\nformat:\n\tfield:" + text)
    except TraceError as error:
        assert error.errno == errno.EINVAL


SPLIT = re.compile(
    rb"(?P<type>.*?)[ \t]*"
    rb"(?P<name>(?<=[ \t*])[^ \t*]*?|(?<=[ \t])(?:(?:[^ \t[]|\[[^ \t\]]*\])*?|[^ \t]*?(?=\*\Z))\*)"
    rb"(?P<array>\[[^\]]*\])?\Z",
    re.DOTALL,
)
"""The definition of splitting a declared field; for long ones it takes forever."""


@given(st.lists(st.sampled_from([b" ", b"*", b"[", b"]", b"a", b"\t", b"b2"]), max_size=12).map(b"".join))
@example(b"*[]")
def test_type_name_and_array(text: bytes) -> None:
    text = text.lstrip()
    found = SPLIT.match(text)
    assert _split_declared(text) == (found and (found["type"], found["name"], found["array"] or b""))


@pytest.mark.parametrize(
    "declared", [b" " * 50_000, b"x" + b" " * 50_000 + b"[" * 50_000, b" *[" * 50_000 + b"x", b"[" * 50_000]
)
@pytest.mark.parametrize("end", [b"", b";", b";\toffset:8;\tsize:4;\tsigned:0;"])
def test_a_long_line_takes_no_more_time_than_it_is_long(declared: bytes, end: bytes) -> None:
    try:
        parse_format(b"name: x\nID: 1\nformat:\n\tfield:" + declared + end)
    except TraceError as error:
        assert error.errno == errno.EINVAL
