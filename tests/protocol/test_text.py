"""Any bytes survive as str."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs_protocol.errors import TraceError
from utracefs_protocol.text import any_base, bytes_of, clean, seconds_of, shown, text_of, unsigned_of


@given(st.binary(max_size=30))
def test_there_and_back(data: bytes) -> None:
    assert bytes_of(text_of(data)) == data


def test_names_in_messages_are_readable_and_bounded() -> None:
    assert shown(b"a'\xff\n\x1b\n") == "'a'\\xff\\n\\x1b'"
    assert len(shown(b"x" * 1000)) == 202


def test_for_what_takes_utf8_only() -> None:
    assert (clean("a"), clean("ö"), clean("a\udcffb")) == ("a", "ö", "a\ufffdb")
    with pytest.raises(UnicodeEncodeError):
        clean("\ud800")


def test_times() -> None:
    found = [seconds_of(text) for text in ("0", "0.5", "90s", "10m", "2h", "1d", "1e3")]
    assert found == [0, 0.5, 90, 600, 7200, 86400, 1000]
    for text in ("", "s", "-1", "nan", "inf", "1w", "1e9m", "2 h\0"):
        with pytest.raises(ValueError):
            seconds_of(text)


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
    assert unsigned_of(text) == any_base(text) == value


@pytest.mark.parametrize(
    "text",
    [b"", b"+", b"-1", b" 1", b"1 ", b"1\n\n", b"0x", b"09", b"1_0", b"a", b"++1", b"0x-1", b"\xd9\xa1"],
)
def test_no_numbers(text: bytes) -> None:
    with pytest.raises(TraceError) as caught:
        unsigned_of(text)
    assert (caught.value.errno_name, any_base(text)) == ("EINVAL", None)


def test_too_large_whatever_follows() -> None:
    for text in (b"18446744073709551616", b"0x1" + b"0" * 16 + b" x"):
        with pytest.raises(TraceError) as caught:
            unsigned_of(text)
        assert caught.value.errno_name == "ERANGE"
    assert unsigned_of(b"010", 10) == 10
