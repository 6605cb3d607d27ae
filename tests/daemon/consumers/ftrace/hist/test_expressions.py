from __future__ import annotations

import errno

import pytest

from tests.daemon.consumers.ftrace.histograms import EVENT, context_of, defined
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.hist.errors import HistError, Log
from utracefsd.consumers.ftrace.hist.expressions import divided, parse_expression
from utracefsd.consumers.ftrace.hist.fields import NONE, Flag, HistField, field_text


def expression(text: bytes) -> HistField:
    return parse_expression(context_of(EVENT, Log(b"hist:keys=id:x=" + text)), text, Flag.VAR, b"x")


def shape(field: HistField) -> object:
    """Operators and leaves, in a form that can be compared."""
    if field.operator is None:
        return field.constant if Flag.CONST in field.flags else field.shown_name().decode()
    return (field.operator.name, *map(shape, field.operands))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"id", "id"),
        (b"id-sz-small", ("MINUS", ("MINUS", "id", "sz"), "small")),
        (b"id+sz*small", ("PLUS", "id", ("MULT", "sz", "small"))),
        (b"id/sz/small", ("DIV", ("DIV", "id", "sz"), "small")),
        (b"id*sz-1", ("MINUS", ("MULT", "id", "sz"), 1)),
        (b"-(id+sz)", ("UNARY_MINUS", ("PLUS", "id", "sz"))),
        (b"2*3", 6),
        (b"1-2", (1 << 64) - 1),
        (b"10/3", 4),
        (b"12/4", 3),
        (b"0x10+010", 24),
    ],
)
def test_shapes(text: bytes, wanted: object) -> None:
    assert shape(expression(text)) == wanted


def entries_of(text: bytes) -> tuple[int, tuple[tuple[str, int], ...]]:
    with pytest.raises(HistError) as caught:
        expression(text)
    return caught.value.errno, tuple((message, position - 15) for message, position in caught.value.entries)


@pytest.mark.parametrize(
    ("text", "number", "entries"),
    [
        (b"foo", errno.EINVAL, [("Couldn't find field", 0)]),
        (b"comm", errno.EINVAL, [("Couldn't find field", 0)]),
        (b"id+foo", errno.EINVAL, [("Couldn't find field", 3)]),
        (b"id.foo", errno.EINVAL, [("Invalid field modifier", 3)]),
        (b"id.execname", errno.EINVAL, [("Invalid field modifier", 3)]),
        (b"id.percent", errno.EINVAL, [("Invalid field modifier", 3)]),
        (b"id.buckets", errno.EINVAL, [("Invalid field modifier", -15)]),
        (b"id.buckets=0", errno.EINVAL, [("Invalid field modifier", 11)]),
        (b"$q", errno.EINVAL, [("Couldn't find variable", 1), ("Couldn't find field", 0)]),
        (b"name+1", errno.EINVAL, [("String type can not be an operand in expression", 0)]),
        (b"1+msg", errno.EINVAL, [("String type can not be an operand in expression", 2)]),
        (b"-(msg)", errno.EINVAL, [("String type can not be an operand in expression", 2)]),
        (b"id/0", errno.EDOM, [("Division by zero", 3)]),
        (b"3/0", errno.EDOM, [("Division by zero", 2)]),
        (b"12x", errno.EINVAL, [("Expecting numeric literal", 0)]),
        (b"sz+sz+sz+sz+sz", errno.EINVAL, [("Too many subexpressions (3 max)", 0)]),
        (b"-(id)+1", errno.EINVAL, [("Unary minus not supported in sub-expressions", 2)]),
        (b"-id", errno.EINVAL, []),
        (b"-(id", errno.EINVAL, []),
        (b"id+", errno.EINVAL, []),
        (b"common_timestamp.usecs-1", errno.EINVAL, [("Timestamp units in expression don't match", -15)]),
    ],
)
def test_refused(text: bytes, number: int, entries: list[tuple[str, int]]) -> None:
    assert entries_of(text) == (number, tuple(entries))


def test_fields_without_a_number() -> None:
    event = parse(b"k struct bar t 12; struct foo s 8; __rel_loc u8[] d")
    context = context_of(event, Log(b""))
    with pytest.raises(HistError) as caught:
        parse_expression(context, b"t", Flag.KEY)
    assert caught.value.errno == errno.ENOMEM
    assert caught.value.entries == ()
    for name in (b"s", b"d"):
        field = parse_expression(context, name, Flag.KEY)
        assert field.signed
        assert field.size == (8 if name == b"s" else 4)


@pytest.mark.parametrize("text", [b"d+1", b"1-f", b"-(d)", b"d.log2", b"f.buckets=2"])
def test_floats_are_no_numbers_to_calculate_with(text: bytes) -> None:
    event = parse(b"k struct double d 8; struct float f 4")
    with pytest.raises(HistError, match="Float type can not be an operand") as caught:
        parse_expression(context_of(event, Log(b"")), text, NONE)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("text", [b"a", b"a.hex", b"a.log2", b"a+1", b"-(a)"])
@pytest.mark.parametrize("flag", [Flag.KEY, NONE])
def test_arrays_are_no_keys_and_no_values(text: bytes, flag: Flag) -> None:
    event = parse(b"k struct u8_8 a 8")
    with pytest.raises(HistError) as caught:
        parse_expression(context_of(event, Log(b"")), text, flag)
    assert caught.value.errno == errno.EINVAL


def test_of_fields_with_one_name_the_last_counts() -> None:
    event = parse(b"k u8 a; s64 a")
    assert parse_expression(context_of(event, Log(b"")), b"a", NONE).size == 8


def test_own_variables_that_are_fields_are_put_in() -> None:
    variables = defined(b"keys=id:a=sz,b=$a*2,c=user_events.h.$a+1".replace(b"user_events.h.", b"")).variables
    assert [field_text(variable) for variable in variables] == [b"a=sz", b"b=sz*2", b"c=sz+1"]


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 10, 1 << 20, (1 << 20) + 1])
def test_division_by_a_constant_is_off_by_one_at_most(divisor: int) -> None:
    for value in [*range(40), (1 << 20) - 1, 1 << 20, (1 << 64) - 1]:
        assert 0 <= divided(value, divisor) - value // divisor <= 1
        if value >= 1 << 20 or not divisor & (divisor - 1):
            assert divided(value, divisor) == value // divisor
