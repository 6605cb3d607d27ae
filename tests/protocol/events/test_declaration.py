"""Command strings: the kernel's accepting, errors, display and lookup.

The tables come from transcripts of Linux 6.12.117, and from reading kernel/trace/trace_events_user.c where
the transcripts are silent.
"""

import errno
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import (
    Declaration,
    FieldKind,
    check_command_length,
    check_file_name,
    normalized,
    parse,
    parse_fields,
    split_name,
)


def refused(command: bytes) -> str:
    with pytest.raises(TraceError) as caught:
        parse(command)
    assert caught.value.errno == errno.EINVAL
    return caught.value.text


def matches(declaration: Declaration, args: bytes, repair: bool = True) -> bool:
    return normalized(args, repair_semicolons=repair) == declaration.fields_text()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (b"test long a", "field 'a': unknown type 'long'; use s64 or u64"),
        (b"test u32", "has no name"),
        (b"test u32 a b", "only a struct has a size"),
        (b"test u32  a", "single spaces"),
        (b"test u32 a ; u32 b", "single spaces"),
        (b"test unsigned a", "a type and a name must follow 'unsigned'"),
        (b"test struct s a", "a struct needs its size"),
        (b"test struct s a 0", "struct size '0'"),
        (b"test struct s a 0x14", "struct size '0x14'"),
        (b"test char a 20", "only a struct has a size"),
        (b"test u32 a, u32 b", "after its name; fields are separated by `;`"),
        (b"test char[] a", "use '__rel_loc char[]'"),
        (b"test char[1025] a", "not a number from 1 to 1024"),
        (b"test:F u32 a", "has a ':'"),
        (b"test: u32 a", "has a ':'"),
        # unknown types
        (b"test unsigned long a", "unknown type 'unsigned long'; use s64 or u64"),
        (b"test bool a", "write 'struct bool NAME 1'"),
        (b"test float a", "write 'struct float NAME 4'"),
        (b"test double a", "write 'struct double NAME 8'"),
        (b"test f32 a", "write 'struct float NAME 4'"),
        (b"test f64 a", "write 'struct double NAME 8'"),
        (b"test str a", "use '__rel_loc char[]'"),
        (b"test u128 a", "unknown type"),
        (b"test u8[4] a", "write 'struct u8_4 NAME 4'"),
        (b"test int[4] a", "only char arrays"),
        (b"test const char a", "unknown type 'const'"),
        (b"test char* a", "send a pointer as u64"),
        (b"test void* a", "send a pointer as u64"),
        (b"test unsigned s32 a", "unknown type"),
        (b"test u32\ta b", "separate type and name by a space"),
        (b"test U32 a", "unknown type"),
        (b"test foo a; u32 b", "unknown type 'foo'"),
        (b"test u32 a; foo b", "unknown type 'foo'"),
        (b"test  a", "has no name"),
        # missing words
        (b"test struct", "has no name"),
        (b"test struct s", "a type and a name must follow 'struct'"),
        (b"test __data_loc char[]", "must follow '__data_loc'"),
        (b"test __rel_loc x", "must follow '__rel_loc'"),
        (b"test __rel_loc unsigned x", "must follow '__rel_loc unsigned'"),
        (b"test unsigned char[10]", "must follow 'unsigned'"),
        # the size of a struct, words behind the name
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
        # lengths of char arrays
        (b"test char[0] a", "1 to 1024"),
        (b"test char[08] a", "1 to 1024"),
        (b"test char[4 ] a", "no ']'"),
        (b"test char[20 a", "no ']'"),
        (b"test char[ a", "no ']'"),
        (b"test char[0000020] a", "at most 7 characters"),
        (b"test char[0x0000000000001] a", "at most 7 characters"),
        (b"test char[20]abcde a", "at most 7 characters"),
        (b"test unsigned char[] a", "use '__rel_loc unsigned char[]'"),
        (b"test unsigned char[1025] a", "1 to 1024"),
        # not in the kernel: names that cannot be directories, text that would forge lines
        (b"", "is empty"),
        (b" u32 a", "is empty"),
        (b". u32 a", "could not be a file name"),
        (b".. u32 a", "could not be a file name"),
        (b"a/b u32 a", "has a '/'"),
        (b"a\0b u32 a", "control character"),
        (b"test\tu32 a", "a space must follow the name"),
        (b"\x7f", "control character"),
        (b"test u32 a\nu:forged", "control character"),
        (b"test u32 a\n", "control character"),
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


@pytest.mark.parametrize(
    ("existing", "asked", "found"),
    [
        # user_event_match() and user_fields_match() in the kernel
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
        (b"", b";", False),
        # (tests/conformance/6.12.117/05_reregister.txt has more.)
        # an event with an empty name can be created but never found
        (b"u32 ", b"u32 ", False),
    ],
)
def test_matches(existing: bytes, asked: bytes, found: bool) -> None:
    assert matches(parse(b"test " + existing), asked) is found


def test_deleting_does_not_repair_semicolons() -> None:
    declaration = parse(b"test u32 a; u32 b")
    assert not matches(declaration, b"u32 a;u32 b", repair=False)
    assert matches(declaration, b"u32 a; u32 b;", repair=False)


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


def matches_token_by_token(declaration: Declaration, args: bytes, repair: bool) -> bool:
    """user_fields_match(), which compares the words one after the other with the fields."""
    tokens = (re.sub(rb";(?=\S)", b"; ", args) if repair else args).split()
    if not tokens:
        return not declaration.fields
    position = 0
    for field in declaration.fields:
        if position >= len(tokens):
            return False
        end = position
        while end < len(tokens) - 1 and b";" not in tokens[end]:
            end += 1
        existing = field.declared() + (b";" if b";" in tokens[end] else b"")
        if b" ".join(tokens[position : end + 1]) != existing:
            return False
        position = end + 1
    return position == len(tokens)


PIECES = st.lists(
    st.sampled_from([b"u32", b"struct", b"a", b"b\tc", b"8", b";", b" ", b"  ", b"\t"]), max_size=12
)


@given(declared=PIECES, asked=PIECES, repair=st.booleans())
def test_one_spelling_for_all_texts_that_match(
    declared: list[bytes], asked: list[bytes], repair: bool
) -> None:
    try:
        declaration = Declaration(b"x", parse_fields(b"".join(declared)))
    except TraceError:
        return
    text = declaration.fields_text()
    for args in (
        b"".join(asked),
        text,
        text + b";",
        text + b" ;",
        text.replace(b" ", b"  "),
        b"".join(declared),
    ):
        expected = matches_token_by_token(declaration, args, repair)
        assert matches(declaration, args, repair) is expected


def test_fields_are_remembered_within_bounds() -> None:
    first = parse_fields(b"u32 a_first_one")
    assert parse_fields(b"u32 a_first_one") is first
    for n in range(5000):
        (field,) = parse_fields(b"u32 a%d" % n)
        assert field.name == b"a%d" % n
    again = parse_fields(b"u32 a_first_one")
    assert again == first
    assert again is not first
    for _ in range(2):
        with pytest.raises(TraceError) as error:
            parse_fields(b"nonsense")
        assert error.value.__context__ is None
