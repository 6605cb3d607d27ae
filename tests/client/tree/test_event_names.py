"""Names on a command line, and the lists that they choose from."""

import pytest

from utracefs.tree.event_names import (
    ALL_USER_EVENTS,
    EventName,
    is_glob,
    matches,
    no_such_event,
    parse_event_list,
    select,
    similar_event,
)
from utracefs_protocol.text import text_of

LIST = b"user_events:a\nuser_events:ab\nother:a\nuser_events_multi:a.0\nuser_events:\xff\n\n"
EVENTS = parse_event_list(LIST)


def test_a_list() -> None:
    assert [str(event) for event in EVENTS] == text_of(LIST).split()
    assert EVENTS[0] == EventName("user_events", "a")
    assert EVENTS[0].directory == "events/user_events/a"
    assert parse_event_list(b"") == []


@pytest.mark.parametrize(
    ("patterns", "places"),
    [
        (["a"], [0, 2]),
        (["user_events:a"], [0]),
        (["user_events"], [0, 1, 4]),
        (["user_events:?"], [0, 4]),
        (["user_events:\udcff"], [4]),
        (["other", "user_events:a*"], [0, 1, 2]),
        ([ALL_USER_EVENTS], [0, 1, 3, 4]),
        (["nosuch", "*:nosuch"], []),
        ([], []),
    ],
)
def test_selection_keeps_the_order_of_the_list(patterns: list[str], places: list[int]) -> None:
    assert select(patterns, EVENTS) == [EVENTS[place] for place in places]
    for event in EVENTS:
        assert any(matches(pattern, event) for pattern in patterns) == (event in select(patterns, EVENTS))


def test_globs() -> None:
    assert [is_glob(pattern) for pattern in ("a", "s:a", "s:", ":a", "a*", "\udcff?")] == [False] * 2 + [
        True
    ] * 4


def test_what_there_is_instead() -> None:
    events = [EventName("user_events", name) for name in "ba"] + [EventName("ftrace", "print")]
    assert no_such_event("x", events) == "no such event: x; it has a, b"
    assert no_such_event("x", events[2:]) == "no such event: x"


def test_similar_event() -> None:
    events = parse_event_list(b"user_events:http_request\nuser_events:shop_order\n")
    assert similar_event("http_requst", events) == "; did you mean http_request?"
    assert "commas" in similar_event("http_request,shop_*", events)
    assert similar_event("user_event:shop_order", events) == "; did you mean user_events:shop_order?"
    assert "record events of the kernel" in similar_event("sched:sched_switch", events)
    assert "record events of the kernel" in similar_event("sched:*", [])
    assert similar_event("user_events:zzz", []) == similar_event("*:zzz", []) == ""
    many = [EventName("user_events", f"handler_of_requests_{n:04}_{'x' * 80}") for n in range(4095)]
    assert similar_event(f"handlr_of_requests_0077_{'x' * 80}", many).startswith("; did you mean handler_")
    assert similar_event("http*", events) == similar_event("zzz", events) == similar_event("x", []) == ""
    many = [EventName("user_events", str(number)) for number in range(9)]
    assert no_such_event("x", many).endswith(" 6, 7, ...")
