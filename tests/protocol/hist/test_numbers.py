from __future__ import annotations

import pytest

from utracefs_protocol.hist.numbers import parse_unsigned


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0", 0),
        (b"12", 12),
        (b"+12", 12),
        (b"12\n", 12),
        (b"0x1F", 31),
        (b"0Xff", 255),
        (b"010", 8),
        (b"18446744073709551615", (1 << 64) - 1),
    ],
)
def test_numbers(text: bytes, value: int) -> None:
    assert parse_unsigned(text) == value


@pytest.mark.parametrize(
    "text",
    [b"", b"+", b"-1", b" 1", b"1 ", b"1\n\n", b"0x", b"09", b"1_0", b"a", b"++1", b"0x-1", b"\xd9\xa1"],
)
def test_no_numbers(text: bytes) -> None:
    with pytest.raises(ValueError):
        parse_unsigned(text)


def test_too_large() -> None:
    with pytest.raises(OverflowError):
        parse_unsigned(b"18446744073709551616")
