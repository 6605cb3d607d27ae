"""Triggers of wishes: what a policy must allow for them, and which ones exclude each other."""

from __future__ import annotations

from utracefs.fleet.plan import choose
from utracefs.fleet.trigger import slot
from utracefs.fleet.wish import Wish
from utracefs.forward.policy import Policy


def wish(trigger: str) -> Wish:
    return Wish(("*",), 60, triggers=(trigger,))


def test_triggers_that_the_policy_allows() -> None:
    inside = (
        "traceoff:3 if a == 1",
        "hist:keys=a,b.log2:vals=c:sort=c:size=256 if d == 1",
        "hist:keys=a:x=b:onmax($x).save(c,d):onchange($x).snapshot() if e == 1",
        "enable_hist:user_events:work",
    )
    outside = {
        "hist:name=all:keys=a": "name",
        "hist:keys=a:name=all": "name",
        "hist name=all:keys=a": "name",
        "hist  onmax($x).trace(wakeup,$x):keys=a:x=b": "trace",
        "hist:keys=a:x=b:onmatch(user_events.work).trace(wakeup,$x)": "trace",
        "hist:keys=a:x=b:onmatch(user_events.work).wakeup($x)": "trace",
        "hist:keys=a:x=b:onmax($x).save(a):onmax($x).trace(wakeup,$x) if c == 1": "trace",
        "onmatch:keys=a": "onmatch",
        "hist\u00a0:keys=a": "hist\u00a0",
    }
    for text in inside:
        assert choose({"w": wish(text)}, Policy()).obeyed
        none = choose({"w": wish(text)}, Policy(triggers=frozenset()))
        assert "the policy allows no trigger with" in none.refused["w"]
    for text, word in outside.items():
        refused = choose({"w": wish(text)}, Policy()).refused["w"]
        assert f"the policy allows no trigger with {word!r}" in refused
        assert choose({"w": wish(text)}, Policy(triggers=frozenset({"hist", word, "onmatch"})))


def test_slots() -> None:
    assert slot("traceon:3 if a == 1") == slot("traceoff")
    assert slot("enable_event:a:b:3") == slot("disable_event:a:b if c == 1") != slot("enable_event:a:c")
    assert slot("enable_event a:b") == slot("enable_event: a:b") == slot("enable_event:a:b")
    assert slot("enable_hist:a:b") != slot("enable_event:a:b")
    assert slot("snapshot:1") == slot("snapshot if a == 1") != slot("stacktrace")
    assert slot("hist:keys=a") != slot("hist:keys=b")
