"""Streams, acknowledgements and consumers of a real nats-server, and answers that are none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.nats.server import WAIT_S, NatsServer
from utracefs.nats import jetstream as jetstream_module
from utracefs.nats.errors import ApiError, NoResponders, NotFound, WireError, WrongLastSequence
from utracefs.nats.jetstream import Consumer, JetStream, Stored, _checked
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
    jetstream.update_stream({**config, "max_bytes": 1 << 20})
    assert jetstream.stream("S")["config"]["max_bytes"] == 1 << 20


def test_publish(jetstream: JetStream) -> None:
    assert jetstream.publish("s.a", b"1", {"K": "v"}, expected=0) == 1
    assert jetstream.publish("s.b", b"2", expected=0) == 2
    with pytest.raises(WrongLastSequence):
        jetstream.publish("s.a", b"3", expected=0)
    assert jetstream.publish("s.a", b"3", expected=1) == 3
    assert jetstream.last("S", "s.a") == Stored("s.a", 3, {"Nats-Expected-Last-Subject-Sequence": "1"}, b"3")
    assert jetstream.get("S", 1).headers["K"] == "v"
    assert jetstream.get("S", 2) == Stored("s.b", 2, {"Nats-Expected-Last-Subject-Sequence": "0"}, b"2")
    with pytest.raises(NotFound):
        jetstream.get("S", 99)
    with pytest.raises(NotFound):
        jetstream.last("S", "s.none")
    with pytest.raises(NoResponders):
        jetstream.publish("other", b"")


def test_without_jetstream(jetstream: JetStream) -> None:
    with pytest.raises(NoResponders):
        JetStream(jetstream.connection, "leaf").stream("S")


@pytest.mark.parametrize("number", [1, 255, 256, 257, 1000])
def test_a_consumer(jetstream: JetStream, number: int) -> None:
    for one in range(number):
        jetstream.connection.publish(f"s.{one % 2}", b"%d" % one)
    jetstream.connection.flush()
    with Consumer(jetstream, "S") as consumer:
        found = [consumer.next(WAIT_S) for _ in range(number)]
        assert [one and one.payload for one in found] == [b"%d" % one for one in range(number)]
        assert consumer.pending == 0
        assert consumer.next(0) is None
        jetstream.publish("s.0", b"more")
        last = consumer.next(WAIT_S)
        assert last and last.payload == b"more" and consumer.sequence == number + 1
    with Consumer(jetstream, "S", "s.1", after=number) as consumer:
        assert consumer.next(0) is None
    assert jetstream.stream("S")["state"]["consumer_count"] == 0


def test_a_consumer_that_was_deleted(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_module, "_HEARTBEAT_S", 0.1)
    for one in range(600):
        jetstream.publish("s.a", b"%d" % one)
    found = []
    with Consumer(jetstream, "S") as consumer:
        for one in range(600):
            if one % 290 == 0:  # more than one request has
                jetstream.call(f"CONSUMER.DELETE.S.{consumer._name}")
            message = consumer.next(WAIT_S)
            assert message
            found.append(int(message.payload))
    assert found == list(range(600))


def test_silence_is_no_loss(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_module, "_HEARTBEAT_S", 0.1)
    monkeypatch.setattr(jetstream_module, "_FETCH_S", 0.5)
    with Consumer(jetstream, "S") as consumer:
        assert consumer.next(1.2) is None
        jetstream.publish("s.a", b"1")
        found = consumer.next(WAIT_S)
        assert found and found.payload == b"1"


def test_a_consumer_over_restarts(server: NatsServer, jetstream: JetStream) -> None:
    for one in range(500):
        jetstream.publish("s.a", b"%d" % one)
    found: list[int] = []
    with server.connection() as connection, Consumer(JetStream(connection), "S") as consumer:
        while len(found) < 500:
            if len(found) % 100 == 50:
                server.kill()
                server.start()
            message = consumer.next(WAIT_S)
            assert message
            found.append(int(message.payload))
    assert found == list(range(500))


def test_a_consumer_of_a_stream_that_was_made_again(jetstream: JetStream) -> None:
    jetstream.publish("s.a", b"1")
    with Consumer(jetstream, "S") as consumer:
        assert consumer.next(WAIT_S)
        jetstream.call("STREAM.DELETE.S")
        with pytest.raises(NotFound):
            consumer.next(WAIT_S)
        jetstream.create_stream({"name": "S", "subjects": ["s.>"]})
        jetstream.publish("s.a", b"2")
        again = consumer.next(WAIT_S)
        assert again and again.payload == b"2" and consumer.restarts == 1


def test_only_headers(jetstream: JetStream) -> None:
    jetstream.publish("s.a", b"12345", {"K": "v"})
    with Consumer(jetstream, "S", headers_only=True) as consumer:
        found = consumer.next(WAIT_S)
        assert found and not found.payload and found.headers["K"] == "v"


def test_no_such_stream(jetstream: JetStream) -> None:
    with pytest.raises(NotFound), Consumer(jetstream, "none"):
        pass


@pytest.mark.parametrize(
    "payload",
    [b"", b"no", b"[]", b"1", b'{"error": 1}', b'{"error": {}}', b'{"error": {"code": "x"}}', b"[" * 9999],
)
def test_no_answer_of_jetstream(payload: bytes) -> None:
    with pytest.raises(WireError, match="no answer"):
        _checked(Message("", 1, "", payload, {}, 0))


def test_errors() -> None:
    with pytest.raises(ApiError, match="full") as found:
        _checked(
            Message("", 1, "", b'{"error": {"code": 503, "err_code": 10077, "description": "full"}}', {}, 0)
        )
    assert (found.value.code, found.value.err_code) == (503, 10077)
