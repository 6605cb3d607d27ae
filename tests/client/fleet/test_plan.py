"""From wishes to lines: filters that meet, limits, policies."""

from __future__ import annotations

import pytest

from utracefs.fleet.plan import MAX_WISHES, Choice, Limits, Plan, choose
from utracefs.fleet.wish import Wish
from utracefs.tree.event_names import EventName
from utracefs_protocol.events.declaration import parse

HTTP = EventName("user_events", "http_get")
DB = EventName("user_events", "db")
FIELDS = parse(b"http_get u32 status; u32 usec").fields


def wish(*events: str, filter: str = "", sample: int = 1, duration_s: float = 60) -> Wish:
    return Wish(events, duration_s, filter, sample)


def test_no_wishes_no_lines() -> None:
    plan = Plan([])
    assert (plan.events, plan.filters) == ([], [])
    assert not plan.wants(HTTP)
    assert plan.sample(HTTP) == 0
    assert plan == Plan([])


def test_each_glob_has_its_filter() -> None:
    plan = Plan([wish("http_*", filter="status >= 500"), wish("db", filter="usec > 9"), wish("x_*")])
    assert plan.events == ["http_*", "x_*", "db"]
    assert plan.filters == ["http_* status >= 500", "x_* 0", "db usec > 9"]
    assert plan.filter(HTTP, FIELDS) == ("status >= 500", "")


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("http_*", "http_get", True),
        ("http_*", "http*", True),
        ("http_*", "db_*", False),
        ("*", "db", True),
        ("user_events:db", "db", True),
        ("user_events:db", "other:db", False),
        ("user_events:d*", "user_events:*b", True),
        ("user_events", "db", True),
        ("[h]ttp", "http", True),
        ("a:", ":b", True),
        ("db", "da", False),
        ("s:db", "s:da", False),
    ],
)
def test_globs_that_may_meet_have_no_standing_filter(one: str, other: str, meet: bool) -> None:
    plan = Plan([wish(one, filter="status == 1"), wish(other, filter="usec == 2")])
    assert all(line.endswith(" 0") for line in plan.filters) == meet


def test_an_event_of_two_wishes_has_both_filters() -> None:
    plan = Plan(
        [wish("http_*", filter="status == 1", sample=10), wish("http_get", filter="usec > 2", sample=3)]
    )
    assert plan.filter(HTTP, FIELDS) == ("(status == 1) || (usec > 2)", "")
    assert plan.sample(HTTP) == 3
    assert Plan([wish("*", filter="usec > 2"), wish("http_get")]).filter(HTTP, FIELDS) == ("0", "")


def test_a_filter_that_does_not_fit_leaves_the_event_out() -> None:
    text, reason = Plan([wish("*", filter="other == 1")]).filter(HTTP, FIELDS)
    assert text == "other == 1"
    assert "Field not found" in reason
    text, reason = Plan([wish("*", filter="other == 1"), wish("*", filter="usec > 2")]).filter(HTTP, FIELDS)
    assert text == "usec > 2"
    assert reason


def test_joined_filters_that_are_too_long_pass_all() -> None:
    long = " || ".join("usec > 2" for _ in range(80))
    plan = Plan([wish("*", filter=f"{long} || usec > {n}") for n in range(8)])
    assert plan.filter(HTTP, FIELDS) == ("0", "")


def test_what_the_policy_refuses() -> None:
    limits = Limits(("user_events:http_*",), 100, frozenset({"card"}))
    fits, long, others = wish("http_get"), wish("http_*", duration_s=101), wish("db*")
    spy = wish("http_*", filter="status == 1 || (card ~ '4*')")
    choice = choose({"fits": fits, "long": long, "others": others, "spy": spy}, limits)
    assert choice.obeyed == {"fits": fits}
    assert "max_wish_s" in choice.refused["long"]
    assert "none of its events" in choice.refused["others"]
    assert "hides the field card" in choice.refused["spy"]


def test_the_oldest_wishes_are_obeyed() -> None:
    many = {f"w{n}": wish("a") for n in range(MAX_WISHES + 2)}
    choice = choose(many, Limits())
    assert list(choice.obeyed) == list(many)[:MAX_WISHES]
    assert all("older wishes" in text for text in choice.refused.values())
    assert choose({}, Limits()) == Choice({}, {})
