"""From wishes to lines: filters that meet, limits, policies."""

from __future__ import annotations

import pytest

from tests.client.recordings.event_header import event_headers
from utracefs.fleet.plan import MAX_TRIGGERS, MAX_WISHES, Choice, Plan, choose
from utracefs.fleet.wish import Wish
from utracefs.forward.policy import Policy
from utracefs.tree.event_names import EventName
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import format_text, parse_format

HTTP = EventName("user_events", "http_get")
DB = EventName("user_events", "db")
FIELDS = parse(b"http_get u32 status; u32 usec").fields


def wish(
    *events: str, filter: str = "", sample: int = 1, duration_s: float = 60, triggers: tuple[str, ...] = ()
) -> Wish:
    return Wish(events, duration_s, filter, sample, triggers=triggers)


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
    assert plan.filter(HTTP, FIELDS) == ("status >= 500", {})


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
    assert plan.filter(HTTP, FIELDS) == ("(status == 1) || (usec > 2)", {})
    assert plan.sample(HTTP) == 3
    assert Plan([wish("*", filter="usec > 2"), wish("http_get")]).filter(HTTP, FIELDS) == ("0", {})


def test_a_filter_that_does_not_fit_leaves_the_event_out() -> None:
    text, refused = Plan([wish("*", filter="other == 1")]).filter(HTTP, FIELDS)
    assert text == "other == 1"
    assert "Field not found" in refused["other == 1"]
    text, refused = Plan([wish("*", filter="other == 1"), wish("*", filter="usec > 2")]).filter(HTTP, FIELDS)
    assert text == "usec > 2"
    assert list(refused) == ["other == 1"]


def test_joined_filters_that_are_too_long_pass_all() -> None:
    long = " || ".join("usec > 2" for _ in range(80))
    plan = Plan([wish("*", filter=f"{long} || usec > {n}") for n in range(8)])
    assert plan.filter(HTTP, FIELDS) == ("0", {})


def test_what_the_policy_refuses() -> None:
    policy = Policy(("user_events:http_*",), fields={"*": {"card": "redact"}}, max_wish_s=100)
    fits, long, others = wish("http_get"), wish("http_*", duration_s=101), wish("db*")
    spy = wish("http_*", filter="status == 1 || (card ~ '4*')")
    choice = choose({"fits": fits, "long": long, "others": others, "spy": spy}, policy)
    assert choice.obeyed == {"fits": fits}
    assert "max_wish_s" in choice.refused["long"]
    assert "none of its events" in choice.refused["others"]
    assert "hides the field card" in choice.refused["spy"]


def test_the_oldest_wishes_are_obeyed() -> None:
    many = {f"w{n}": wish("a") for n in range(MAX_WISHES + 2)}
    choice = choose(many, Policy())
    assert list(choice.obeyed) == list(many)[:MAX_WISHES]
    assert all("older wishes" in text for text in choice.refused.values())
    assert choose({}, Policy()) == Choice({}, {})


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("card", "card == 1"),
        ("card", "(a)&&!(card==1)"),
        ("card.no", "card.no == 1"),
        ("user-id", "user-id == 1"),
        ("p\u00e4ss", "p\u00e4ss == 1"),
        ("pa\u0308ss", "pa\u0308ss == 1"),
    ],
)
def test_hidden_fields_are_in_no_filter_and_no_trigger(field: str, text: str) -> None:
    policy = Policy(fields={"login*": {field: "hash"}})
    one = Wish(("*",), 9)
    object.__setattr__(one, "filter", text)  # also what no parser takes
    more = [
        wish("*", triggers=(trigger,))
        for trigger in (f"traceoff if {text}", f"hist:keys={field}.hex", f"hist:keys=a:v={field},w=$v")
    ]
    choice = choose({str(n): one for n, one in enumerate([one, *more])}, policy)
    assert not choice.obeyed
    assert all(f"hides the field {field}" in text for text in choice.refused.values())
    other = wish("*", filter=f"x{field[0]} == 1", triggers=(f"hist:keys={field}s",))
    assert choose({"other": other}, policy).obeyed


def test_triggers_of_all_wishes_are_limited() -> None:
    many = {f"w{n}": wish("a", triggers=("traceoff", "snapshot")) for n in range(MAX_TRIGGERS)}
    choice = choose({**many, "last": wish("a")}, Policy())
    assert [*choice.obeyed] == [*list(many)[: MAX_TRIGGERS // 2], "last"]
    assert "triggers of older wishes" in choice.refused["w9"]


def test_triggers_are_for_events_that_the_policy_allows() -> None:
    wishes = [wish("http_*", "user_events:db", "db", triggers=("traceoff",))]
    assert Plan(wishes).triggers == ["http_* traceoff", "user_events:db traceoff", "db traceoff"]
    plan = Plan(wishes, Policy(("user_events:d*",)))
    assert plan.triggers == ["user_events:db traceoff"]
    assert plan.triggers_of(DB) == (["traceoff"], {})
    assert plan.triggers_of(HTTP) == ([], {})
    hidden = Plan(wishes, Policy(fields={"d*": {"a": "redact"}}))
    assert hidden.triggers == ["http_* traceoff"]
    assert hidden.triggers_of(DB) == (["traceoff"], {})


@pytest.mark.parametrize(
    ("word", "is_open"),
    [
        ("user_events_multi:Shop_L4K1f.0", False),
        ("Shop_L4K1f.1f", False),
        ("user_events_multi:Shop_L4K1f.*", False),
        ("user_events_multi:Sh*", False),
        ("*.0", False),
        ("user_events_multi", False),
        ("user_events_multi:Shop_L4K1f.more.0", True),
        ("user_events_multi:Shop_L4K1fs.*", True),
        ("synthetic:Shop_L4K1f.0", True),
    ],
)
def test_hidden_fields_of_multi_format_events(word: str, is_open: bool) -> None:
    """A standing line would set it for events whose records may not leave."""
    format = parse_format(format_text(b"Shop_L4K1f.0", 7, parse(b"x " + event_headers.FIELDS).fields))
    policy = Policy(fields={"user_events:Shop_L4K1f": {"password": "redact"}})
    plan = Plan([wish(word, triggers=("hist:keys=common_pid",))], policy)
    assert not plan.may_trigger(EventName("user_events_multi", "Shop_L4K1f.0"), format)
    assert bool(plan.triggers) == is_open


def test_triggers_that_exclude_each_other() -> None:
    plan = Plan(
        [
            wish("*", triggers=("traceoff if usec > 1", "hist:keys=usec", "enable_event:user_events:db:3")),
            wish("http_*", triggers=("traceon:1", "hist:keys=status", "enable_event:user_events:x")),
            wish("db", triggers=("disable_event:user_events:db if a == 1", "traceoff if usec > 1")),
        ]
    )
    triggers, left_out = plan.triggers_of(HTTP)
    assert triggers == [
        "traceoff if usec > 1",
        "hist:keys=usec",
        "enable_event:user_events:db:3",
        "hist:keys=status",
        "enable_event:user_events:x",
    ]
    assert left_out == {"traceon:1": "trigger 'traceon:1': there is 'traceoff if usec > 1' of an older wish"}
    triggers, left_out = plan.triggers_of(DB)
    assert len(triggers) == 3
    assert list(left_out) == ["disable_event:user_events:db if a == 1"]


def test_a_trigger_of_two_wishes_is_one_line() -> None:
    """Which can be removed once only."""
    plan = Plan([wish("db", triggers=("hist:keys=a", "hist:keys=b")), wish("db", triggers=("hist:keys=a",))])
    assert plan.triggers == ["db hist:keys=a", "db hist:keys=b"]
