"""Words and the events that they match."""

import errno

import pytest

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_names import (
    ALL_USER_EVENTS,
    MAX_WORD,
    check_length,
    is_glob,
    matches,
    split,
)


@pytest.mark.parametrize(
    ("word", "means"),
    [
        (b"s:a", True),
        (b"s:b", False),
        (b"t:a", False),
        (b"a", True),
        (b"s", True),
        (b"b", False),
        (b"s:", True),
        (b":a", True),
        (b":b", False),
        (b":", True),
        (b"*", True),
        (b"s:*", True),
        (b"*:a", True),
        (b"[rs]:?", True),
        (b"[!s]:?", False),
        (b"S:a", False),
        (b"s:a:b", False),
        (b"", False),
    ],
)
def test_matches(word: bytes, means: bool) -> None:
    assert matches(word, b"s", b"a") == means


def test_a_question_mark_is_one_byte() -> None:
    assert not matches(b"s:?", b"s", "ä".encode())
    assert matches(b"s:??", b"s", "ä".encode())
    assert matches(b"s:?", b"s", b"\xff")


def test_all_user_events() -> None:
    assert matches(ALL_USER_EVENTS, b"user_events", b"a")
    assert matches(ALL_USER_EVENTS, b"user_events_multi", b"a.0")
    assert not matches(ALL_USER_EVENTS, b"ftrace", b"print")


def test_globs() -> None:
    for word in (b"s:", b":a", b"s:*", b"a?", b"[ab]", b"*"):
        assert is_glob(word)
    for word in (b"a", b"s:a", b"s:a:b"):
        assert not is_glob(word)


def test_split() -> None:
    assert [split(word) for word in (b"s:a", b"a", b":a", b"s:", b"s:a:b")] == [
        (b"s", b"a"),
        (None, b"a"),
        (b"", b"a"),
        (b"s", b""),
        (b"s", b"a:b"),
    ]


def test_length() -> None:
    check_length(b"x" * MAX_WORD)
    with pytest.raises(TraceError, match="at most 127 bytes, not 128") as caught:
        check_length(b"x" * (MAX_WORD + 1))
    assert caught.value.errno == errno.EINVAL
