"""`utracefs fleet enable` and `disable`, on a real nats-server."""

from __future__ import annotations

import pytest

from tests.client.cli.kit import Cli
from tests.client.nats.server import NatsServer
from utracefs.fleet.buckets import Fleet
from utracefs.fleet.wish import Wish


def wishes(server: NatsServer) -> dict[str, Wish]:
    with server.connection() as connection:
        fleet = Fleet(connection)
        return {value.key: Wish.from_bytes(value.data) for value in fleet.wishes.present()}


def test_enable_and_disable(operator: Cli, server: NatsServer) -> None:
    triggers = ("hist:keys=a", "traceoff if a > 1")
    words = ["fleet", "enable", "http_*", "db", "-f", "a > 1", "-f", "b < 2", "--label", "site=n*"]
    words += ["--for", "15m", "-R", triggers[0], "-R", triggers[1]]
    assert operator.out(*words, "--owner", "alice", "--sample", "10") == "http__\n"
    wish = Wish(("http_*", "db"), 900.0, "(a > 1) && (b < 2)", 10, {"site": "n*"}, "alice", triggers)
    assert wishes(server) == {"http__": wish}
    assert "by alice; --replace" in operator.fails("fleet", "enable", "http_*")
    assert operator.out("fleet", "enable", "http_*", "--replace", "--owner", "bob") == "http__\n"
    assert wishes(server)["http__"].owner == "bob"
    operator.out("fleet", "enable", "db", "--name", "other")
    operator.out("fleet", "disable", "other")
    assert list(wishes(server)) == ["http__"]
    operator.out("fleet", "disable", "--all")
    operator.out("fleet", "enable", "db", "--name", "other")
    assert list(wishes(server)) == ["other"]


def test_failures(operator: Cli) -> None:
    operator.out("fleet", "enable", "first")
    for words, reason in (
        (["enable", *"abcdefghi"], "9 events"),
        (["enable", "a", "-R", "!hist"], "trigger"),
        (["enable", "a", "-R", "hst:keys=b"], "no trigger 'hst'; there are disable_event "),
        (["enable", "a", "--label", "a b=c"], "label"),
        (["enable", "a", "--name", "w", "--replace"], "no such wish"),
        (["disable", "w"], "no such wish"),
    ):
        assert reason in operator.fails("fleet", *words)
    for option, text, column in (("-f", "b >== 1", 4), ("-R", "traceoff if b", 13)):
        done = operator.run("fleet", "enable", "a", option, text, status=1)
        assert done.stderr.decode().splitlines()[1:] == [f"  {text}", " " * (2 + column) + "^"]


@pytest.mark.parametrize(
    "words",
    [
        ["enable"],
        ["enable", "a b"],
        ["enable", "a", "--for", "0"],
        ["enable", "a", "--for", "soon"],
        ["enable", "a", "--name", "a.b"],
        ["enable", "a", "--sample", "0"],
        ["enable", "a", "--label", "site"],
        ["disable"],
        ["disable", "--all", "w"],
    ],
)
def test_wrong_usage(cli: Cli, words: list[str]) -> None:
    cli.fails("fleet", *words, "--server", "nats://127.0.0.1:1", status=2)
