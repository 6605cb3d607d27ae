"""Command strings: what the kernel accepts, refuses, shows and finds again.

The tables come from transcripts of Linux 6.12.117, and from reading kernel/trace/trace_events_user.c where the
transcripts are silent.
"""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.kernel_types import KERNEL_TYPES
from utracefs_protocol.declaration import (
    Field,
    FieldKind,
    check_command_length,
    check_file_name,
    format_text,
    parse,
    parse_format,
    split_name,
)
from utracefs_protocol.errors import TraceError

COMMON = b"""\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;
"""


def refused(command: bytes) -> str:
    with pytest.raises(TraceError) as caught:
        parse(command)
    assert caught.value.errno == errno.EINVAL
    return caught.value.text


@pytest.mark.parametrize(("command", "line", "fields", "print_fmt"), KERNEL_TYPES)
def test_as_the_kernel_shows_it(
    command: bytes, line: bytes, fields: list[tuple[bytes, int, int, int]], print_fmt: bytes
) -> None:
    declaration = parse(command)
    assert declaration.canonical() == line
    lines = b"".join(b"\tfield:%s;\toffset:%d;\tsize:%d;\tsigned:%d;\n" % row for row in fields)
    name = command.split(b" ")[0]
    assert format_text(name, 1039, declaration.fields) == (
        b"name: "
        + name
        + b"\nID: 1039\nformat:\n"
        + COMMON
        + b"\n"
        + lines
        + b"\nprint fmt: "
        + print_fmt
        + b"\n"
    )
    assert declaration.min_size == sum(size for _, _, size, _ in fields)
    # a line of dynamic_events can be fed back
    assert parse(line) == declaration
    assert declaration.matches(split_name(line)[1])
    assert declaration.matches(split_name(command)[1])


@pytest.mark.parametrize("command", [row[0] for row in KERNEL_TYPES])
def test_format_read_back(command: bytes) -> None:
    declaration = parse(command)
    read = parse_format(format_text(declaration.name, 1100, declaration.fields))
    assert (read.name, read.id, read.print_fmt) == (declaration.name, 1100, declaration.print_fmt())
    assert [field.name for field in read.common_fields] == [
        b"common_type",
        b"common_flags",
        b"common_preempt_count",
        b"common_pid",
    ]
    for found, declared in zip(read.fields, declaration.fields, strict=True):
        assert (found.name, found.offset, found.size, found.signed, found.kind, found.is_string) == (
            declared.name,
            declared.offset,
            declared.size,
            declared.signed,
            declared.kind,
            declared.is_string,
        )


def test_no_fields_leaves_two_blank_lines() -> None:
    assert format_text(b"empty", 20, ()) == (
        b"name: empty\nID: 20\nformat:\n" + COMMON + b'\n\nprint fmt: ""\n'
    )


@pytest.mark.parametrize(
    ("command", "says"),
    [
        # user_events.md 4.5
        (b"test long a", "field 'a': unknown type 'long'; use s64 or u64"),
        (b"test u32", "has no name"),
        (b"test u32 a b", "only a struct has a size"),
        (b"test u32  a", "single spaces"),
        (b"test u32 a ", "single spaces"),
        (b"test u32 a ; u32 b", "single spaces"),
        (b"test u32\ta", "has no name"),
        (b"test unsigned a", "a type and a name must follow 'unsigned'"),
        (b"test struct s a", "a struct needs its size"),
        (b"test struct s a 0", "struct size '0'"),
        (b"test struct s a 0x14", "struct size '0x14'"),
        (b"test char a 20", "only a struct has a size"),
        (b"test char[] a", "use '__rel_loc char[]'"),
        (b"test char[1025] a", "not a number from 1 to 1024"),
        (b"test:F u32 a", "has a ':'"),
        (b"test: u32 a", "has a ':'"),
        # R17
        (b"test unsigned long a", "unknown type 'unsigned long'; use s64 or u64"),
        (b"test bool a", "use u8"),
        (b"test float a", "u32"),
        (b"test u128 a", "unknown type"),
        (b"test u8[4] a", "use '__rel_loc u8[]'"),
        (b"test int[4] a", "only char arrays"),
        (b"test const char a", "unknown type 'const'"),
        (b"test char* a", "send a pointer as u64"),
        (b"test void* a", "send a pointer as u64"),
        (b"test unsigned s32 a", "unknown type"),
        (b"test u32\ta b", "separate type and name by a space"),
        (b"test unsigned  int a", "single spaces"),
        (b"test U32 a", "unknown type"),
        (b"test foo a; u32 b", "unknown type 'foo'"),
        (b"test u32 a; foo b", "unknown type 'foo'"),
        (b"test  a", "has no name"),
        # R18
        (b"test unsigned", "has no name"),
        (b"test struct", "has no name"),
        (b"test struct s", "a type and a name must follow 'struct'"),
        (b"test __data_loc char[]", "must follow '__data_loc'"),
        (b"test __rel_loc x", "must follow '__rel_loc'"),
        (b"test __rel_loc unsigned x", "must follow '__rel_loc unsigned'"),
        (b"test unsigned char[10]", "must follow 'unsigned'"),
        # R19
        (b"test struct s a -1", "struct size '-1'"),
        (b"test struct s a 1.5", "struct size"),
        (b"test struct s a 8 8", "too many words"),
        (b"test struct s a 8 ", "too many words or spaces"),
        (b"test struct s a  8", "single spaces"),
        (b"test struct s a 2147483648", "1 to 2147483647"),
        (b"test struct s a 4294967295", "1 to 2147483647"),
        (b"test struct s a 4294967296", "1 to 2147483647"),
        (b"test struct s a 1_0", "struct size"),
        (b"test struct s a \xb2", "struct size"),
        (b"test __rel_loc char[] a 4", "only a struct"),
        (b"test __data_loc struct s a", "only a struct"),
        # R20
        (b"test char[0] a", "1 to 1024"),
        (b"test char[aa] a", "1 to 1024"),
        (b"test char[-1] a", "1 to 1024"),
        (b"test char[+] a", "1 to 1024"),
        (b"test char[08] a", "1 to 1024"),
        (b"test char[0x] a", "1 to 1024"),
        (b"test char[0x401] a", "1 to 1024"),
        (b"test char[4 ] a", "no ']'"),
        (b"test char[20 a", "no ']'"),
        (b"test char[ a", "no ']'"),
        (b"test char[0000020] a", "at most 7 characters"),
        (b"test char[0x0000000000001] a", "at most 7 characters"),
        (b"test char[20]abcde a", "at most 7 characters"),
        (b"test unsigned char[] a", "use '__rel_loc unsigned char[]'"),
        (b"test unsigned char[1025] a", "1 to 1024"),
        # ours: names that could be no directory, text that would forge lines
        (b"", "is empty"),
        (b" u32 a", "is empty"),
        (b". u32 a", "could not be a file name"),
        (b".. u32 a", "could not be a file name"),
        (b"a/b u32 a", "has a '/'"),
        (b"a\0b u32 a", "control character"),
        (b"a\nb u32 a", "control character"),
        (b"test\tu32 a", "a space must follow the name"),
        (b"\x7f", "control character"),
        (b"test u32 a\nu:forged", "control character"),
        (b"test u32 a\n", "control character"),
        (b"test u32 a\0", "control character"),
        (b"test struct s\x1b a 4", "control character"),
    ],
)
def test_refused(command: bytes, says: str) -> None:
    assert says in refused(command)


@pytest.mark.parametrize(
    ("command", "canonical"),
    [
        (b"test ;", b"test"),
        (b"test ", b"test"),
        (b"test", b"test"),
        (b"test  u32 a", b"test u32 a"),
        (b"test u32 a;;", b"test u32 a"),
        (b"test u32 a; ;\t; ", b"test u32 a"),
        (b"test u32 a;\nu32 b", b"test u32 a; u32 b"),
        (b"test u32 a;\t \v\f\ru32 b", b"test u32 a; u32 b"),
        (b"test u32 a;; u32 b", b"test u32 a; u32 b"),
        (b"test ;u32 a", b"test u32 a"),
        (b"test u32 ", b"test u32 "),
        (b"test u32 ;u8 b", b"test u32 ; u8 b"),
        (b"te;st u32 a", b"te;st u32 a"),
        (b"t\xc3\xa4st u32 \xff", b"t\xc3\xa4st u32 \xff"),
        (b"test char[+4] a", b"test char[+4] a"),
        (b"test char[4]x a", b"test char[4]x a"),
        (b"test unsigned char[0x14] a", b"test unsigned char[0x14] a"),
        (b"test char[0X14] a", b"test char[0X14] a"),
        (b"test struct s a +8", b"test struct s a 8"),
        (b"test struct s a 020", b"test struct s a 20"),
        (b"test struct s a 2147483647", b"test struct s a 2147483647"),
        (b"test struct  a 8", b"test struct  a 8"),
        (b"test __data_loc long[] x", b"test __data_loc long[] x"),
        (b"test __data_loc unsigned long[] x", b"test __data_loc unsigned long[] x"),
        (b"test __rel_loc  x", b"test __rel_loc  x"),
        (b"test __data_loc struct s", b"test __data_loc struct s"),
        (b"test u32 a\t", b"test u32 a\t"),
    ],
)
def test_valid_though_odd(command: bytes, canonical: bytes) -> None:
    assert parse(command).canonical() == canonical


@pytest.mark.parametrize(
    ("length", "size"),
    [(b"1", 1), (b"1024", 1024), (b"0x400", 1024), (b"02000", 1024), (b"+0x10", 16), (b"+010", 8)],
)
def test_array_length_in_any_base(length: bytes, size: int) -> None:
    (field,) = parse(b"test char[" + length + b"] a").fields
    assert (field.size, field.kind, field.signed) == (size, FieldKind.CHAR_ARRAY, True)


def test_format_shows_the_number_of_a_fixed_array() -> None:
    (field,) = parse(b"test unsigned char[0x14] b").fields
    assert field.format_line() == b"\tfield:unsigned char b[20];\toffset:8;\tsize:20;\tsigned:0;\n"


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
    (field,) = parse(b"test " + type_ + b" x").fields
    assert field.print_fmt() == (conversion, argument)


@pytest.mark.parametrize(
    ("existing", "asked", "found"),
    [
        # user_events.md 2.2
        (b"u32 a; u32 b", b"u32 a; u32 b;", True),
        (b"u32 a; u32 b", b"u32 a;u32 b", True),
        (b"u32 a; u32 b", b"u32   a;\tu32 b", True),
        (b"u32 a; u32 b", b"u32 b; u32 a", False),
        (b"u32 a", b"u32 a ;", False),
        (b"char[20] a", b"char[0x14] a", False),
        (b"u32 a", b"unsigned int a", False),
        (b"struct s a 20", b"struct s a 21", False),
        (b"struct s a 20", b"struct s a 020", False),
        (b"u32 a", b"", False),
        (b"u32 a;; u32 b", b"u32 a;; u32 b", False),
        (b";u32 a", b";u32 a", False),
        # golden 05
        (b"u32 a;u32 b", b"u32 a;u32 b", True),
        (b"u32 a;u32 b", b"u32 a;  u32 b", True),
        (b"u32 a;u32 b", b" u32 a; u32 b", True),
        (b"u32 a;u32 b", b"u32 a; u32 b; ", True),
        (b"u32 a;u32 b", b"u32 a ; u32 b", False),
        (b"u32 a;u32 b", b"", False),
        (b"u32 a;u32 b", b"u32 a", False),
        (b"u32 a;u32 b", b"u32 a; u32 c", False),
        (b"u32 a;u32 b", b"u32 a; s32 b", False),
        (b"u32 a;u32 b", b"u32 a; u32 b; u32 c", False),
        (b"u32 a;u32 b", b"bad x", False),
        (b"u32 a;u32 b", b"unsigned int a; u32 b", False),
        (b"", b"", True),
        (b"", b" ", True),
        (b"", b"u32 a", False),
        (b"", b";", False),
        (b"struct foo a 8; u32 b", b"struct foo a 8;u32 b", True),
        (b"struct foo a 8; u32 b", b"struct foo a; u32 b", False),
        (b"struct foo a 8; u32 b", b"struct bar a 8; u32 b", False),
        (b"__rel_loc char[] m; unsigned int n", b"__rel_loc char[] m;unsigned int n", True),
        (b"__rel_loc char[] m; unsigned int n", b"__data_loc char[] m; unsigned int n", False),
        (b"__rel_loc char[] m; unsigned int n", b"__rel_loc char[] m; u32 n", False),
        (b"char[20] a", b"char[20]  a", True),
        # an empty name can be created but never asked for
        (b"u32 ", b"u32 ", False),
    ],
)
def test_matches(existing: bytes, asked: bytes, found: bool) -> None:
    assert parse(b"test " + existing).matches(asked) is found


def test_deleting_does_not_repair_semicolons() -> None:
    declaration = parse(b"test u32 a; u32 b")
    assert not declaration.matches(b"u32 a;u32 b", repair_semicolons=False)
    assert declaration.matches(b"u32 a; u32 b;", repair_semicolons=False)


def test_split_name() -> None:
    assert split_name(b"test") == (b"test", b"")
    assert split_name(b"test ") == (b"test", b"")
    assert split_name(b"test  u32 a") == (b"test", b" u32 a")


def test_names_that_could_be_files() -> None:
    check_file_name(b"...")
    check_file_name("größe".encode())
    with pytest.raises(TraceError, match="the instance name is empty"):
        check_file_name(b"", "instance name")


def test_command_length() -> None:
    check_command_length(b"x" * 511)
    with pytest.raises(TraceError, match="at most 511") as caught:
        check_command_length(b"x" * 512)
    assert caught.value.errno == errno.EINVAL


def test_error_text_can_be_printed() -> None:
    text = refused(b"test fo\xffo\x01 a")
    assert text.isprintable()
    assert refused(b"test \xe2\x82\xac a").startswith("field 'a': unknown type '€'")


def test_offsets_have_no_padding() -> None:
    declaration = parse(b"test u8 a; u64 b; char[3] c; u16 d")
    assert [(f.offset, f.payload_offset, f.size) for f in declaration.fields] == [
        (8, 0, 1),
        (9, 1, 8),
        (17, 9, 3),
        (20, 12, 2),
    ]
    assert declaration.min_size == 14
    assert parse(b"test").min_size == 0


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
    assert event.common_fields == ()
    assert [field.name for field in event.fields] == [b"a"]


@given(st.binary(max_size=80))
def test_any_bytes_are_parsed_or_refused(command: bytes) -> None:
    try:
        declaration = parse(command)
    except TraceError as error:
        assert error.errno == errno.EINVAL
        assert error.text.isprintable()
    else:
        assert parse(declaration.canonical()) == declaration


@given(
    st.lists(
        st.sampled_from([b"u32", b"a", b"struct", b"s", b"8", b" ", b";", b"__rel_loc", b"char[4]", b"\t"])
    )
)
def test_what_was_parsed_shows_itself(words: list[bytes]) -> None:
    try:
        declaration = parse(b"test " + b" ".join(words))
    except TraceError:
        return
    assert parse(declaration.canonical()) == declaration
    whole = format_text(declaration.name, 1, declaration.fields)
    if all(field.name.strip() == field.name != b"" for field in declaration.fields):
        assert len(parse_format(whole).fields) == len(declaration.fields)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_format_or_refused(text: bytes) -> None:
    try:
        parse_format(b"name: x\nID: 1\nformat:\n\tfield:" + text)
    except TraceError as error:
        assert error.errno == errno.EINVAL
