"""Reports: limits of size, and everything that a host may write into its entry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from utracefs.fleet.report import AWAY_S, MAX_BYTES, MAX_NAMES, Host, pack
from utracefs.nats.bucket import Value


def host(data: bytes) -> Host:
    return Host.of(Value("web1=2Ea", data, 1, 100.0, False))


def test_there_and_back() -> None:
    found = host(
        pack(
            {
                "labels": {"site": "north"},
                "events": ["a:b"],
                "enabled": ["a:b"],
                "forwarded": {"a:b": 3},
                "lost": {"a:b": {"ring": 1, "sample": 2}},
                "wishes": {"w": "obeyed"},
                "error": "x",
                "lag_s": 1.5,
            }
        )
    )
    assert (found.name, found.labels, found.wishes) == ("web1.a", {"site": "north"}, {"w": "obeyed"})
    assert (found.names("events"), found.counts("forwarded"), found.lost) == (["a:b"], {"a:b": 3}, {"a:b": 3})
    assert (found.text("error"), found.number("lag_s"), found.number("left_out")) == ("x", 1.5, 0)
    assert not found.is_away(100 + AWAY_S) and found.is_away(101 + AWAY_S)


def test_many_events_are_cut_and_counted() -> None:
    found = host(pack({"events": [f"user_events:e{n}" for n in range(2 * MAX_NAMES)]}))
    assert len(found.names("events")) == MAX_NAMES
    assert found.number("left_out") == MAX_NAMES


def test_long_names_are_cut_and_counted() -> None:
    events = ["x" * 1000 + str(n) for n in range(400)]
    data = pack({"events": events, "enabled": events, "lost": {one: {"ring": 1} for one in events}})
    assert len(data) <= MAX_BYTES
    found = host(data)
    assert 3 * len(found.names("events")) + found.number("left_out") == 1200


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e300", "1" * 400, "9223372036854775808", "-1e19"])
def test_numbers_out_of_range(value: str) -> None:
    told = (
        f'"time": {value}, "forwarded": {{"a:b": {value}, "a:c": 1}}, "lost": {{"a:b": {{"ring": {value}}}}}'
    )
    found = host(f'{{"version": 1, {told}}}'.encode())
    assert (found.number("time"), found.counts("forwarded"), found.lost) == (0, {"a:c": 1}, {"a:b": 0})
    assert "NaN" not in json.dumps(found.members) and "Infinity" not in json.dumps(found.members)


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"\xff",
        b"[" * 9000,
        b"[]",
        b'{"version": 2}',
        *(
            json.dumps(
                {"version": 1, **dict.fromkeys(("labels", "wishes", "lost", "events", "error"), value)}
            )
            for value in (1, None, [1], {"a": 1}, {"a": {"b": "c"}}, "x", True)
        ),
    ],
)
def test_nonsense(told: Any) -> None:
    found = host(told if isinstance(told, bytes) else told.encode())
    for value in (found.labels, found.wishes, found.counts("events"), found.lost):
        assert isinstance(value, dict)
    assert all(isinstance(one, str) for one in found.names("events"))
    assert isinstance(found.text("error"), str)
    assert found.number("lag_s") == 0
