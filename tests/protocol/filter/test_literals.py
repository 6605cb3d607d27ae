"""Numbers, patterns and lists of cpus, against plain readings of the same texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs_protocol.filter._program import How
from utracefs_protocol.filter.literals import parsed_cpus, parsed_number, parsed_pattern


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
    "text", [b"", b"-", b"--1", b"0x", b"0xg", b"08", b"1x", b"0b1", b"1_0", b"-0x", b"a"]
)
def test_no_numbers(text: bytes) -> None:
    assert parsed_number(text, signed=True) is None
    assert parsed_number(text, signed=False) is None


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


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"8", b"0-8", b"3-2", b"-1", b"1-", b"a", b"0x1", b"1:1/2", b"0-3:1", b"0-3:1/", b"0-3:2/1"),
        *(b"0-3:0/0", b"99999999999", b"4294967296", b"alle", b"1;2"),
    ],
)
def test_no_lists_of_cpus(text: bytes) -> None:
    assert parsed_cpus(text, 8) is None
