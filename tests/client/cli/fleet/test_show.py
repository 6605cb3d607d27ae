"""`utracefs fleet status`, `events`, `top`: reports of hosts, good and bad, on a real nats-server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.cli.kit import Cli
from tests.client.nats.server import NatsServer
from utracefs.fleet.buckets import Fleet
from utracefs.fleet.report import pack
from utracefs.fleet.wish import Wish


@pytest.fixture
def fleet(server: NatsServer) -> Iterator[Fleet]:
    fleet = Fleet(server.connection())
    fleet.create()
    yield fleet
    fleet.close()


def report(fleet: Fleet, host: str, **told: Any) -> None:
    events = ["user_events:http", "user_events:db"]
    defaults = {
        "labels": {"site": "north", "host": host},
        "utracefs": "1.2",
        "wishes": {"errors": "obeyed"},
        "events": events,
        "enabled": events[:1],
        "forwarded": {"user_events:http": 100},
        "lost": {"user_events:http": {"ring": 2, "sample": 5}},
        "records_sent": 90,
        "lag_s": 1.5,
    }
    fleet.report(host, pack({**defaults, **told}))


def test_all_is_well(operator: Cli, fleet: Fleet) -> None:
    fleet.wishes.put("errors", Wish(("http",), 600, "status > 1", 3, {"site": "n*"}, "alice").to_bytes())
    report(fleet, "web1.a")
    out = operator.out("fleet", "status")
    assert "errors  http 1/3  status > 1  site=n*  alice" in out
    assert "web1.a  site=north" in out and "1 of 2" in out and "1.5 s" in out
    report(fleet, "web1.a", records_sent=0, is_new=True)
    assert "not reported yet" in operator.out("fleet", "status")
    assert operator.out("fleet", "events").split("\n")[1:3] == [
        "user_events:db    web1.a",
        "user_events:http  web1.a*",
    ]
    assert json.loads(operator.out("fleet", "events", "ht*", "--json")) == {
        "user_events:http": {"web1.a": True}
    }


def test_events_that_no_host_has(operator: Cli, fleet: Fleet) -> None:
    fleet.wishes.put("errors", Wish(("http", "user_events:d*", "htpt", "x*"), 600).to_bytes())
    report(fleet, "web1")
    said = ["errors  no host has an event htpt that may leave yet"]
    said.append(said[0].replace("htpt", "x*"))
    assert operator.out("fleet", "status").splitlines()[-2:] == said
    fleet.report("web2", b'{"version": 1, "left_out": 1}')
    assert "htpt that" not in operator.out("fleet", "status")


def test_bad_news(operator: Cli, fleet: Fleet) -> None:
    fleet.wishes.put("errors", Wish(("http",), 600).to_bytes())
    fleet.wishes.put("bad", b"{")
    report(fleet, "web1", wishes={"errors": "refused: the policy", "x": "obeyed"}, error="disk full")
    fleet.report("strange\x1b[31m", b"\xff")
    done = operator.run("fleet", "status", status=1)
    text = done.stdout.decode()
    assert "errors  web1: refused: the policy" in text
    assert "error    web1: disk full" in text
    assert "invalid: it is not JSON" in text
    assert "\x1b" not in text
    told = json.loads(operator.run("fleet", "status", "--json", status=1).stdout)
    assert {wish["name"] for wish in told["wishes"]} == {"errors", "bad"}
    assert [host["is_away"] for host in told["hosts"]] == [False, False]


def test_nothing_yet(operator: Cli, fleet: Fleet) -> None:
    assert operator.out("fleet", "status") == "wishes  none\nhosts   none\n"
    assert operator.out("fleet", "events") == "EVENT  HOSTS\n"


def test_top(operator: Cli, fleet: Fleet) -> None:
    report(fleet, "web1")
    out = operator.out("fleet", "top", "--duration", "0.1")
    assert "HOST  EVENT  RECORDS/S  LOST/S" in out
