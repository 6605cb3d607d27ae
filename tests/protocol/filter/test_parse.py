"""Parsing a filter's text, every error in it, and what may be compared."""

from __future__ import annotations

import errno
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import Field, parse
from utracefs_protocol.filter import Filter, FilterError, parse_filter
from utracefs_protocol.filter import parse as parsing
from utracefs_protocol.filter._program import How
from utracefs_protocol.filter.parse import is_no_filter, parsed_cpus, parsed_number, parsed_pattern
from utracefsd.machine._writer_names import WriterNames

FIELDS = parse(
    b"fl u32 a; s32 i; u8 b; char[8] s; __rel_loc char[] r; u64 q; struct foo z 8; struct bar odd 3; "
    b"__rel_loc u16[] words; __rel_loc cpumask_t[] mask; struct double real 8; struct float f 4"
).fields
NAMES = WriterNames(lambda pid: b"drv")


def parsed(text: bytes, fields: tuple[Field, ...] = FIELDS, nr_cpus: int = 8) -> Filter:
    return parse_filter(text, fields, nr_cpus=nr_cpus, names=NAMES)


def refused(text: bytes, fields: tuple[Field, ...] = FIELDS) -> FilterError:
    with pytest.raises(FilterError) as caught:
        parsed(text, fields)
    return caught.value


# Offsets in these texts are counted; for an error within a predicate the kernel reports one column more.
# tests/conformance/6.12.117/12_filter.txt has the common ones.
REFUSED = [
    (b"00", "Field not found", 3),
    (b"a == 1 && nope", "Field not found", 15),
    (b"common_comm == 'x'", "Field not found", 12),
    (b"a  !~ 1", "Invalid operator", 4),
    (b"a | 1", "Invalid operator", 3),
    (b"a ^ 1", "Invalid operator", 3),
    (b"a.functio == 1", "Invalid operator", 2),
    (b"q.function > 1", "Invalid operator", 14),
    (b"q.function == 1x", "Invalid value (did you forget quotes)?", 17),
    (b"comm == 1", "Expecting string field", 9),
    (b"words == 'x'", "Expecting numeric field", 10),
    (b"STACKTRACE == 'x'", "Expecting numeric field", 15),
    (b"s & 'x'", "Illegal operation for field type", 5),
    (b"a < CPUS{1}", "Illegal operation for field type", 5),
    (b"s == CPUS{1}", "Illegal operation for field type", 6),
    (b"comm & CPUS{1}", "Illegal operation for field type", 8),
    (b"STACKTRACE == CPUS{1}", "Illegal operation for field type", 15),
    (b"mask & CPUS{1}", "Illegal operation for field type", 8),
    (b"a.function == x", "Illegal operation for field type", 15),
    (b"a == 0b11", "Illegal integer value", 6),
    (b"a == 0xg", "Illegal integer value", 6),
    (b"a == 08", "Illegal integer value", 6),
    (b"i == -", "Illegal integer value", 6),
    (b"q == 18446744073709551616", "Illegal integer value", 6),
    (b"i == 9223372036854775808", "Illegal integer value", 6),
    (b"i == -9223372036854775809", "Illegal integer value", 6),
    (b"a == " + b"1" * 24, "Operand too long", 30),
    (b"q.function == " + b"1" * 24, "Operand too long", 39),
    (b"q.function == " + b"f" * 512, "Operand too long", 527),
    (b"s == '" + b"x" * 256 + b"'", "Operand too long", 263),
    (b"a & CPUS1", "Missing '{'", 10),
    (b"a & CPUS{1", "Missing '}'", 11),
    (b"a & CPUS{}", "Invalid cpulist", 10),
    (b"a & CPUS{8}", "Invalid cpulist", 11),
    (b"a & CPUS{3-2}", "Invalid cpulist", 13),
    (b"a & CPUS{-2}", "Invalid cpulist", 12),
    (b"a & CPUS{1:1/2}", "Invalid cpulist", 15),
    (b"a & CPUS{0-7:3/2}", "Invalid cpulist", 17),
    (b"a & CPUS{0-7:0/0}", "Invalid cpulist", 17),
    (b"q.function == vfs_read", "Function not found", 23),
    (b"q.function == 0x1", "Function not found", 18),
    (b"real & 1", "Illegal operation for field type", 8),
    (b"real ~ 1", "Illegal operation for field type", 8),
    (b"real == CPUS{1}", "Illegal operation for field type", 9),
    (b"real == 'x'", "Expecting numeric field", 9),
    (b"real == 0x1f", "Invalid value (did you forget quotes)?", 9),
    (b"real == 1.5.2", "Invalid value (did you forget quotes)?", 9),
    (b"f == -", "Invalid value (did you forget quotes)?", 6),
    (b"f == .5", "Invalid value (did you forget quotes)?", 6),
    (b"f == 1e", "Invalid value (did you forget quotes)?", 6),
    (b"a == 1 && !", "Meaningless filter expression", 11),
    (b"!", "No filter found", 1),
]


@pytest.mark.parametrize(("text", "message", "position"), REFUSED)
def test_refused(text: bytes, message: str, position: int) -> None:
    error = refused(text)
    assert (error.message, error.position, error.errno) == (message, position, errno.EINVAL)
    assert error.text.startswith(f"{message} at column {position}: ")


OTHER_ERRNOS = [
    (b"(a == 1 && s == 'x' || s == \"", "Missing matching quote", 28, errno.ESRCH),
    (b"a == 1 && ((b == 1)", "Too many '('", 10, errno.ENOENT),
    (b"(a == 1) && ((b == 1) || (i == 1", "Too many '('", 25, errno.ENOENT),
    (b")a == 1(", "Too few '('", 0, errno.EPERM),
    (b"a == 1 &| b == 1", "Too many terms in predicate expression", 7, errno.EPERM),
    (b"a == 1;", "Too many terms in predicate expression", 6, errno.EPERM),
    (b"(a == 1) (b == 1)", "Too many terms in predicate expression", 9, errno.EPERM),
    (b"(a == 1) !b == 1", "Too many terms in predicate expression", 9, errno.EPERM),
    (b"", "", None, errno.EINVAL),
    (b" \t\n", "", None, errno.EINVAL),
    (b"(a == 1 && )", "", None, errno.EPERM),
    (b"'x' == a", "", None, errno.EPERM),
    (b"!= 1", "", None, errno.EPERM),
    (b"(!)", "", None, errno.EPERM),
]


@pytest.mark.parametrize(("text", "message", "position", "number"), OTHER_ERRNOS)
def test_refused_with_another_errno(text: bytes, message: str, position: int | None, number: int) -> None:
    error = refused(text)
    assert (error.message, error.position, error.errno) == (message, position, number)


@pytest.mark.parametrize(
    "text",
    [
        b"a==1&&b==2||i<-3",
        b"!a == 1",
        b"!!(!(a == 1))",
        b"! ( a == 1 )",
        b"\ta\n==\n1\t",
        b"a.ustring == 1",
        b"s.ustring ~ 'x'",
        b's == "it\'s"',
        b"s == '(\"'",
        b"s == ''",
        b"s == '" + b"x" * 255 + b"'",
        b"a == " + b"0" * 23,
        b"i == -9223372036854775808",
        b"q == 0xFFFFFFFFFFFFFFFF",
        b"z == 1",
        b"real == 1",
        b"real>=-1.5e-3&&f < 1e+400",
        b"odd == 1",
        b"odd != 1",
        b"words > 1",
        b"mask == 1",
        b"STACKTRACE == 1",
        b"stacktrace & 1",
        b"common_type == 1 && common_flags == 0 && common_preempt_count == 0 && common_pid == 1",
        b"CPU == 0 && cpu < 1 && common_cpu >= -1",
        b"COMM == 'x' || comm ~ 'y'",
        b"a & CPUS{0,2-5}",
        b"a & CPUS{ 1\t3 ,,5 }",
        b"a & CPUS{all}",
        b"a & CPUS{ALL:1/2}",
        b"a & CPUS{0-N:1/2}",
        b"a & CPUS{,}",
        b"a & CPUS{7\nx}",
        b"a == 1\0nonsense",
        b"(" * 1900 + b"a == 1" + b")" * 1900,
        b"!(" * 1300 + b"a == 1" + b")" * 1300,
        b"||".join([b"a==1"] * 680),
        b"&&".join([b"a==1"] * 680),
    ],
)
def test_accepted(text: bytes) -> None:
    found = parsed(text)
    assert found.text == text.partition(b"\0")[0]
    assert len(found) >= 1


def test_a_name_with_letters_of_latin_1() -> None:
    fields = parse(b"e u32 caf\xe9; u32 gr\xc3\xb6\xc3\x9f").fields
    assert len(parsed(b"caf\xe9 == 1", fields)) == 1
    # The second byte of these letters in UTF-8 is no letter in Latin-1, which the kernel counts in.
    assert refused(b"gr\xc3\xb6\xc3\x9f == 1", fields).position == 4


def test_names_with_dots_are_only_those_of_fields() -> None:
    fields = parse(b"ev u32 user.id; u32 a; u32 a.b.c").fields
    for text in (b"user.id == 5", b"a.b.c == 1 && a == 2", b"a.b.c==1"):
        assert parse_filter(text, fields, nr_cpus=2).text == text
    for text, position in [(b"user == 5", 5), (b"user.x == 5", 5), (b"user.id.x == 5", 5), (b"x.id == 1", 2)]:
        with pytest.raises(FilterError, match="Field not found") as caught:
            parse_filter(text, fields, nr_cpus=2)
        assert caught.value.position == position
    with pytest.raises(FilterError, match="Invalid operator"):
        parse_filter(b"a.b == 1", fields, nr_cpus=2)


def test_a_field_of_its_own_goes_before_a_generic_one() -> None:
    fields = parse(b"e u32 cpu; u8 comm; u16 common_pid; u64 COMM").fields
    payload = (7).to_bytes(4, "little") + b"\x09" + (3).to_bytes(2, "little") + (5).to_bytes(8, "little")
    text = b"cpu == 7 && comm == 9 && common_pid == 3 && COMM == 5 && CPU == 1 && common_cpu == 1"
    assert parsed(text, fields).test(payload, cpu=1, pid=46)


def test_without_names_there_is_no_comm() -> None:
    with pytest.raises(FilterError, match="Field not found at column 5"):
        parse_filter(b"comm == 'x'", FIELDS)


@pytest.mark.parametrize("text", [b"0", b" 0 ", b"\n0\t"])
def test_no_filter(text: bytes) -> None:
    assert is_no_filter(text)
    assert not is_no_filter(text + b"0")


@given(st.binary(max_size=60))
@example(b"a == CPUS{'} && s == 'x'")
@example(b"a == CPUS{(} && b == 1)")
def test_any_bytes(text: bytes) -> None:
    """No other exception than FilterError is ever raised."""
    try:
        parsed(text)
    except FilterError as error:
        shown = error.shown(text)
        assert shown.startswith(text) and shown.endswith(b"\n")


TOKENS = [
    *(b"a", b"i", b"b", b"s", b"r", b"q", b"z", b"odd", b"words", b"mask", b"comm", b"CPU", b"common_pid"),
    *(b"==", b"!=", b"<", b"<=", b">", b">=", b"&", b"~", b"&&", b"||", b"!", b"(", b")", b".ustring"),
    *(b"1", b"-1", b"0x1f", b"'x'", b'"*y*"', b"'!z'", b"CPUS{0}", b"CPUS{0,1}", b"CPUS{", b"}", b"'", b'"'),
    *(b" ", b"\n", b".function", b"0", b"x", b"\0", b"\xe9"),
]


@given(st.lists(st.sampled_from(TOKENS), max_size=30).map(b" ".join))
def test_any_words(text: bytes) -> None:
    try:
        found = parsed(text)
    except FilterError as error:
        assert error.position is None or error.position <= len(text) + 2
    else:
        assert len(found) >= 1


MESSAGES: dict[str, Any] = {
    name: value
    for name, value in vars(parsing).items()
    if re.fullmatch("[A-Z]+_[A-Z_]+|MEANINGLESS", name) and isinstance(value, str)
}


@pytest.mark.parametrize("message", [*MESSAGES.values(), ""])
def test_each_message_says_what_to_do(message: str) -> None:
    error = FilterError(message, 3)
    assert isinstance(error, TraceError)
    where, _, advice = error.text.partition(": ")
    assert where == f"{message or 'not a filter'} at column 3"
    assert len(advice) > 10


def test_the_kernel_has_no_more() -> None:
    assert len(MESSAGES) == 19
    assert FilterError("").errno == errno.EINVAL


@pytest.mark.parametrize(
    ("position", "column"), [(None, 0), (0, 0), (1, 1), (6, 6), (7, 7), (8, 7), (999, 7)]
)
def test_the_caret_stays_below_the_text(position: int | None, column: int) -> None:
    shown = FilterError(parsing.INVALID_OPERATOR, position).shown(b"abc\ndef")
    assert shown == b"abc\ndef\n" + b" " * column + b"^\nparse_error: Invalid operator\n"


@given(st.integers(-(1 << 64), 1 << 65), st.sampled_from(["%d", "0x%x", "0X%X", "0%o", "0%d"]))
def test_numbers_in_every_base(value: int, form: str) -> None:
    text = ("-" if value < 0 else "") + form % abs(value)
    if form == "0%d":
        octal = str(abs(value))
        value = int(octal, 8) * (-1 if value < 0 else 1) if not set("89") & set(octal) else 1 << 70
    signed = value if -(1 << 63) <= value < 1 << 63 else None
    unsigned = value if 0 <= value < 1 << 64 and not text.startswith("-") else None
    assert parsed_number(text.encode(), signed=True) == signed
    assert parsed_number(text.encode(), signed=False) == unsigned


@pytest.mark.parametrize(
    ("text", "how", "pattern", "negated"),
    [
        (b"", How.FULL, b"", False),
        (b"abc", How.FULL, b"abc", False),
        (b"!abc", How.FULL, b"abc", True),
        (b"!", How.FULL, b"", True),
        (b"!!a", How.FULL, b"!a", True),
        (b"abc*", How.FRONT, b"abc", False),
        (b"*abc", How.END, b"abc", False),
        (b"*abc*", How.MIDDLE, b"abc", False),
        (b"!*abc*", How.MIDDLE, b"abc", True),
        (b"*", How.END, b"", False),
        (b"**", How.MIDDLE, b"", False),
        (b"***", How.GLOB, b"***", False),
        (b"a*c", How.GLOB, b"a*c", False),
        (b"*a*c", How.GLOB, b"*a*c", False),
        (b"a?c", How.GLOB, b"a?c", False),
        (b"*[", How.GLOB, b"*[", False),
        (b"a\\", How.GLOB, b"a\\", False),
        (b"1*", How.FULL, b"1*", False),
        (b"!1?", How.FULL, b"1?", True),
    ],
)
def test_patterns(text: bytes, how: How, pattern: bytes, negated: bool) -> None:
    assert parsed_pattern(text) == (how, pattern, negated)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        (b"0", {0}),
        (b"0,2-5", {0, 2, 3, 4, 5}),
        (b" 1\t,\n", {1}),
        (b"7\n99", {7}),
        (b"N", {7}),
        (b"5-N", {5, 6, 7}),
        (b"all", set(range(8))),
        (b"All:1/3", {0, 3, 6}),
        (b"1-6:2/3", {1, 2, 4, 5}),
        (b"0-7:8/8", set(range(8))),
        (b"0-7:0/8", set()),
        (b",", set()),
        (b"3 3", {3}),
    ],
)
def test_lists_of_cpus(text: bytes, cpus: set[int]) -> None:
    mask = parsed_cpus(text, 8)
    assert mask is not None
    assert {cpu for cpu in range(64) if mask >> cpu & 1} == cpus
