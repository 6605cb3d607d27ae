"""Any bytes survive as str."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs_protocol.text import bytes_of, clean, seconds_of, text_of


@given(st.binary(max_size=30))
def test_there_and_back(data: bytes) -> None:
    assert bytes_of(text_of(data)) == data


def test_examples() -> None:
    assert text_of(b"a\xc3\xa4\xff") == "aä\udcff"
    assert bytes_of("aä\udcff") == b"a\xc3\xa4\xff"
    with pytest.raises(UnicodeEncodeError):
        bytes_of("\ud800")


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
