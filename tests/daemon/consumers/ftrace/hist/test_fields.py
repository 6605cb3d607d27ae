"""Names and texts of HistFields; what parsing makes of them is in test_expressions.py."""

from __future__ import annotations

import pytest

from tests.daemon.consumers.ftrace.histograms import defined
from utracefsd.consumers.ftrace.hist.fields import Flag, HistField, Operator, expression_text, field_text


@pytest.mark.parametrize(
    ("text", "name", "shown"),
    [
        (b"sz.bucket=0x10", b"sz", b"sz.buckets=16"),
        (b"cpu", b"cpu", b"common_cpu"),
        (b"CPU", b"CPU", b"common_cpu"),
        (b"common_cpu.log2", b"common_cpu", b"common_cpu.log2"),
        (b"stacktrace", b"common_stacktrace", b"common_stacktrace"),
        (b"7", b"", b"7"),
        (b"id-1", b"id-1", b"id-1"),
        (b"-(id)", b"-(id)", b"-(id)"),
        (b"id.hex+sz", b"id.hex+sz", b"id.hex+sz"),
        (b"hitcount", b"hitcount", b"hitcount"),
    ],
)
def test_of_keys(text: bytes, name: bytes, shown: bytes) -> None:
    (key,) = defined(b"keys=" + text).keys
    assert key.shown_name() == name
    assert field_text(key) == shown


def test_variables_show_their_name() -> None:
    (variable,) = defined(b"keys=id:x=sz").variables
    assert field_text(variable) == b"x=sz"


def test_references() -> None:
    ref = HistField(Flag.VAR_REF, name=b"ts0", system=b"user_events", event=b"start")
    assert ref.shown_name() == b"user_events.start.ts0"
    assert field_text(HistField(Flag.VAR_REF, name=b"ts0")) == b"$ts0"
    alias = HistField(Flag.ALIAS | Flag.VAR, operands=(HistField(Flag.VAR_REF, name=b"x"),), var_name=b"y")
    assert field_text(alias) == b"y=$x"


def test_deep_expressions_lose_their_middle() -> None:
    """expr_str() goes two levels deep."""
    inner = HistField(Flag.CONST, constant=1)
    for _ in range(3):
        inner = HistField(Flag.EXPR, operator=Operator.UNARY_MINUS, operands=(inner,))
    assert expression_text(inner) == b"-(-())"
