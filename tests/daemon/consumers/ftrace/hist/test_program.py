"""The program of a Definition; test_hist.py checks its results."""

from __future__ import annotations

import pytest

from tests.daemon.consumers.ftrace.histograms import EVENT, defined
from utracefs_protocol.events.declaration import parse
from utracefsd.consumers.ftrace.hist._hist import KeyKind, Op
from utracefsd.consumers.ftrace.hist.fields import HistField
from utracefsd.consumers.ftrace.hist.program import Key, Step, compile_definition, string_key


def steps(value: bytes) -> list[Step]:
    (program,) = compile_definition(defined(b"keys=id:vals=" + value)).values
    return list(program)


def test_values() -> None:
    sv, small = Step(Op.FIELD, 0, 4, 4, True), Step(Op.FIELD, 0, 32, 1, False)
    assert steps(b"sv") == [sv]
    assert steps(b"sv*small-3") == [sv, small, Step(Op.MULT), Step(Op.CONST, 3), Step(Op.SUB)]
    assert steps(b"-(sv)") == [sv, Step(Op.NEGATE)]
    assert steps(b"sv/small") == [sv, small, Step(Op.DIV)]
    assert steps(b"sv/3") == [sv, Step(Op.DIV_CONST, 3)]
    assert steps(b"sv/4") == [sv, Step(Op.CONST, 4), Step(Op.DIV)]
    assert steps(b"sv/1048577") == [sv, Step(Op.CONST, 1048577), Step(Op.DIV)]
    assert steps(b"hitcount.percent") == [Step(Op.CONST, 1)]
    assert steps(b"common_pid") == [Step(Op.PID)]
    assert steps(b"common_type") == [Step(Op.TYPE)]
    assert steps(b"common_flags") == [Step(Op.CONST, 0)]
    assert steps(b"common_cpu") == [Step(Op.CPU)]
    assert steps(b"common_timestamp") == [Step(Op.TIMESTAMP, 0)]


def test_microseconds_hold_for_all() -> None:
    program = compile_definition(defined(b"keys=common_timestamp:vals=common_timestamp.usecs"))
    assert program.keys[0].steps == (Step(Op.TIMESTAMP, 1),)
    assert program.values == ((Step(Op.TIMESTAMP, 1),),)


def test_keys() -> None:
    program = compile_definition(defined(b"keys=name,id.log2,msg"))
    assert program.key_size == 280
    assert program.keys == (
        Key(KeyKind.FIXED_STRING, 0, 16, 16, 12, ()),
        Key(KeyKind.NUMBER, 16, 8, 0, 0, (Step(Op.FIELD, 0, 0, 4, False), Step(Op.LOG2))),
        Key(KeyKind.REL_LOC, 24, 256, 28, 4, ()),
    )
    (key,) = compile_definition(defined(b"keys=m", parse(b"k __data_loc char[] m"))).keys
    assert key == Key(KeyKind.DATA_LOC, 0, 256, 0, 4, ())
    (key,) = compile_definition(defined(b"keys=stacktrace")).keys
    assert key == Key(KeyKind.NOTHING, 0, 248, 0, 0, ())


def test_rounded_strings_are_addresses() -> None:
    (key,) = compile_definition(defined(b"keys=name.log2")).keys
    assert key.steps == (Step(Op.CONST, (1 << 64) - 1), Step(Op.LOG2))


def test_buckets() -> None:
    (key,) = compile_definition(defined(b"keys=sz.buckets=7")).keys
    assert key.steps[-1] == Step(Op.BUCKET, 7)


def test_a_string_has_a_field() -> None:
    assert EVENT.fields
    with pytest.raises(ValueError):
        string_key(HistField(), 0, 8)
