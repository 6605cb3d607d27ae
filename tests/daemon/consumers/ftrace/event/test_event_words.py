"""The events that words of set_event and standing_events select."""

import errno
from typing import Any

import attrs
import pytest

from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace.event.event_words import check_glob, first_word, select


@attrs.frozen
class Named:
    system: bytes
    tracepoint_name: bytes


EVENTS: list[Any] = [
    Named(b"user_events", b"alpha"),
    Named(b"user_events", b"beta"),
    Named(b"user_events_multi", b"alpha.0"),
    Named(b"user_events_multi", b"beta"),
]


def find(system: bytes, name: bytes) -> Any:
    return next((event for event in EVENTS if (event.system, event.tracepoint_name) == (system, name)), None)


def chosen(word: bytes) -> list[int]:
    return [EVENTS.index(event) for event in select(word, EVENTS, find)]


@pytest.mark.parametrize(
    ("data", "word", "used"),
    [
        (b"a:b\n", b"a:b", 4),
        (b"a:b", b"a:b", 3),
        (b"user_events:al user_events:be", b"user_events:al", 15),
        (b"  a  b", b"a", 4),
        (b"\n\na b", b"a", 4),
        (b"a\0b", b"a", 2),
        (b"", b"", 0),
        (b" \n\t", b"", 3),
        (b"x" * 127, b"x" * 127, 127),
    ],
)
def test_one_write_is_one_word(data: bytes, word: bytes, used: int) -> None:
    assert first_word(data) == (word, used)


def test_long_words_are_refused() -> None:
    with pytest.raises(TraceError) as caught:
        first_word(b"x" * 128)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (b"user_events:alpha", [0]),
        (b"user_events:*", [0, 1]),
        (b"user_events:", [0, 1]),
        (b"*:beta", [1, 3]),
        (b":beta", [1, 3]),
        (b"beta", [1, 3]),
        (b"user_events_multi", [2, 3]),
        (b"*:*", [0, 1, 2, 3]),
        (b":", [0, 1, 2, 3]),
    ],
)
def test_forms(word: bytes, expected: list[int]) -> None:
    assert chosen(word) == expected


@pytest.mark.parametrize(
    "word",
    [
        b"al*",
        b"*",
        b"",
        b"user_events:al*",
        b"user_events/alpha",
        b"a,b",
        b"user_events:alpha:x",
        b"nosys:*",
        b"#",
    ],
)
def test_no_match_and_no_globbing(word: bytes) -> None:
    with pytest.raises(TraceError) as caught:
        chosen(word)
    assert caught.value.errno == errno.EINVAL


def test_what_is_no_glob() -> None:
    for glob in (b"a", b"a*:b?", b"\xff*", b":", b"[ab]"):
        check_glob(glob)
    for glob in (b"", b"a:b:c", b"x" * 128):
        with pytest.raises(TraceError) as caught:
            check_glob(glob)
        assert caught.value.errno == errno.EINVAL
