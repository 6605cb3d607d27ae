"""Wishes: there and back, and everything that may be in a bucket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from utracefs.fleet.wish import MAX_BYTES, Wish, key_of, name_of

GOOD: dict[str, Any] = {"version": 1, "events": ["http_*"], "duration_s": 60}


def packed(**members: Any) -> bytes:
    return json.dumps({**GOOD, **members}).encode()


def test_there_and_back() -> None:
    wish = Wish(
        ("http_*", "shop:order"), 90.0, "status >= 500", 10, {"site": "n*"}, "alice", ("hist:keys=a",)
    )
    assert Wish.from_bytes(wish.to_bytes()) == wish
    assert Wish.from_bytes(packed()) == Wish(("http_*",), 60.0)


def test_labels_select_hosts() -> None:
    wish = Wish(("a",), 1, labels={"site": "n*", "host": "web[12]"})
    assert wish.selects({"site": "north", "host": "web1", "more": "x"})
    assert not wish.selects({"site": "south", "host": "web1"})
    assert not wish.selects({"host": "web1"})
    assert Wish(("a",), 1).selects({})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 8000, "JSON"),
        (b"[]", "version"),
        (b"null", "version"),
        (b"x" * (MAX_BYTES + 1), "bytes"),
        (packed(version=2), "version"),
        (packed(version="1"), "version"),
        (packed(more=1), "more"),
        (packed(events=[]), "0 events"),
        (packed(events=["a"] * 9), "9 events"),
        (packed(events="abc"), "events"),
        (packed(events=[1]), "events"),
        (packed(events=[""]), "no event"),
        (packed(events=["a b"]), "no event"),
        (packed(events=["a\nb"]), "no event"),
        (packed(events=["!a"]), "no event"),
        (packed(events=["a:b:c"]), "no event"),
        (packed(events=["\ud800"]), "no event"),
        (packed(events=["a" * 128]), "no event"),
        (packed(filter="((((a == 1"), "filter"),
        (packed(filter=" "), "filter"),
        (packed(filter="a == 1\n0"), "filter"),
        (packed(filter="a == 1 || " * 200 + "a == 1"), "filter"),
        (packed(filter="a == \ud800"), "filter"),
        (packed(filter=1), "filter"),
        (packed(sample=0), "sample"),
        (packed(sample=1.5), "sample"),
        (packed(sample=True), "sample"),
        (packed(sample=10**30), "sample"),
        (packed(labels=[]), "labels"),
        (packed(labels={"a": 1}), "labels"),
        (packed(labels={"a b": "c"}), "label"),
        (packed(labels={"a": "x\n"}), "label"),
        (packed(labels={"a": ""}), "label"),
        (packed(labels={f"a{n}": "x" for n in range(17)}), "17 labels"),
        (packed(duration_s=None), "duration"),
        (packed(duration_s="1"), "duration"),
        (packed(duration_s=True), "duration"),
        (packed(duration_s=0), "duration"),
        (packed(duration_s=-1), "duration"),
        (packed(duration_s=10**400), "duration"),
        (packed(duration_s=float("nan")), "duration"),
        (packed(duration_s=float("inf")), "duration"),
        (packed(triggers="hist:keys=a"), "triggers"),
        (packed(triggers=[1]), "triggers"),
        (packed(triggers=["traceoff"] * 9), "9 triggers"),
        (packed(triggers=[""]), "trigger"),
        (packed(triggers=["!traceoff"]), "trigger"),
        (packed(triggers=[" traceoff"]), "trigger"),
        (packed(triggers=["traceoff\ntraceon"]), "trigger"),
        (packed(triggers=["traceoff\tif a == 1"]), "trigger"),
        (packed(triggers=["\ud800"]), "trigger"),
        (packed(triggers=["a" * 1025]), "trigger"),
        (packed(owner="a" * 129), "owner"),
        (packed(owner="\x1b[31m"), "owner"),
    ],
)
def test_what_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Wish.from_bytes(data)


@pytest.mark.parametrize(
    "host", ["web1", "web1.example.org", "*", ">", "a b", "a.*.>", "Ünïcode", "=41", "\udcff", "x" * 255, "."]
)
def test_names_of_hosts_are_one_word_of_a_subject(host: str) -> None:
    key = key_of(host)
    assert not set(key) & set(".*> \t\r\n") and key.isascii()
    assert name_of(key) == host


@pytest.mark.parametrize("host", ["", "x" * 256])
def test_names_that_no_host_has(host: str) -> None:
    with pytest.raises(ValueError):
        key_of(host)


def test_a_key_of_others_has_some_name() -> None:
    assert name_of("=ZZ=4\U0001f600=FF")
