"""Streams, acknowledgements and messages of a real nats-server, and answers that are none."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.client.nats.server import NatsServer
from utracefs.nats.errors import ApiError, NoResponders, NotFound, WireError, WrongLastSequence
from utracefs.nats.jetstream import JetStream, Stored, _checked, _time_s
from utracefs.nats.wire import Message


@pytest.fixture
def jetstream(server: NatsServer) -> Iterator[JetStream]:
    with server.connection() as connection:
        made = JetStream(connection)
        made.create_stream({"name": "S", "subjects": ["s.>"]})
        yield made


def test_streams(jetstream: JetStream) -> None:
    with pytest.raises(NotFound):
        jetstream.stream("none")
    config = jetstream.stream("S")["config"]
    jetstream.create_stream({"name": "S", "subjects": ["s.>"]})
    with pytest.raises(ApiError, match="already in use"):
        jetstream.create_stream({"name": "S", "subjects": ["t.>"]})
    jetstream.call("STREAM.UPDATE.S", {**config, "max_bytes": 1 << 20})
    assert jetstream.stream("S")["config"]["max_bytes"] == 1 << 20


def test_publish(jetstream: JetStream) -> None:
    assert jetstream.publish("s.a", b"1", {"K": "v"}, expected=0) == 1
    assert jetstream.publish("s.b", b"2", expected=0) == 2
    with pytest.raises(WrongLastSequence):
        jetstream.publish("s.a", b"3", expected=0)
    assert jetstream.publish("s.a", b"3", expected=1) == 3
    assert jetstream.last("S", "s.a") == Stored("s.a", 3, {"Nats-Expected-Last-Subject-Sequence": "1"}, b"3")
    first = jetstream.next("S", ">", 0)
    assert first and first.headers["K"] == "v"
    assert jetstream.last("S", "s.b") == Stored("s.b", 2, {"Nats-Expected-Last-Subject-Sequence": "0"}, b"2")
    with pytest.raises(NotFound):
        jetstream.last("S", "s.none")
    with pytest.raises(NoResponders):
        jetstream.publish("other", b"")
    numbers = [jetstream.begin("s.c", b"") for _ in range(3)]
    assert [jetstream.end(number) for number in reversed(numbers)] == [6, 5, 4]


def test_without_jetstream(jetstream: JetStream) -> None:
    with pytest.raises(NoResponders):
        JetStream(jetstream.connection, "leaf").stream("S")


def test_the_next_message(jetstream: JetStream) -> None:
    for one in range(4):
        jetstream.publish(f"s.{one % 2}", b"%d" % one)
    found = [jetstream.next("S", subject, after) for subject, after in (("s.>", 0), ("s.1", 0), ("s.1", 2))]
    assert [one and (one.sequence, one.payload) for one in found] == [(1, b"0"), (2, b"1"), (4, b"3")]
    assert jetstream.next("S", "s.1", 4) is None
    assert jetstream.stream("S")["state"]["consumer_count"] == 0


def test_no_such_stream(jetstream: JetStream) -> None:
    with pytest.raises(NotFound):
        jetstream.next("none", ">", 0)


@pytest.mark.parametrize(
    "payload",
    [b"", b"no", b"[]", b"1", b'{"error": 1}', b'{"error": {}}', b'{"error": {"code": "x"}}', b"[" * 9999],
)
def test_no_answer_of_jetstream(payload: bytes) -> None:
    with pytest.raises(WireError, match="no answer"):
        _checked(Message("", 1, payload, {}, 0))


def test_times_are_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        for text in ("Z", ".5", ".500000001Z", "+00:00", ""):
            assert int(_time_s(f"1970-01-02T00:00:00{text}")) == 86400
        assert _time_s("1970-01-02T01:00:00.25+01:00") == 86400.25
    finally:
        monkeypatch.undo()
        time.tzset()


def test_errors() -> None:
    with pytest.raises(ApiError, match="full") as found:
        _checked(Message("", 1, b'{"error": {"code": 503, "err_code": 10077, "description": "full"}}', {}, 0))
    assert found.value.err_code == 10077
