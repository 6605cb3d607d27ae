"""Keys and values in a real nats-server: changes, conflicts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.nats.server import NatsServer
from utracefs.nats.bucket import Bucket, Value
from utracefs.nats.errors import NotFound, WrongLastSequence
from utracefs.nats.jetstream import JetStream


@pytest.fixture
def bucket(server: NatsServer) -> Iterator[Bucket]:
    with server.connection() as connection:
        bucket = Bucket(JetStream(connection), "wishes")
        bucket.create()
        yield bucket


def test_a_value(bucket: Bucket) -> None:
    with pytest.raises(NotFound):
        bucket.get("a.b")
    first = bucket.put("a.b", b"one")
    assert bucket.get("a.b") == Value("a.b", b"one", first)
    second = bucket.put("a.b", b"")
    assert second > first
    assert bucket.get("a.b") == Value("a.b", b"", second)
    bucket.delete("a.b")
    with pytest.raises(NotFound, match="deleted"):
        bucket.get("a.b")


def test_limits_are_stored(bucket: Bucket) -> None:
    other = Bucket(bucket.jetstream, "limited")
    other.create(max_bytes=1 << 20, max_age_s=60)
    config = bucket.jetstream.stream("KV_limited")["config"]
    assert (config["max_bytes"], config["max_age"]) == (1 << 20, 60 * 10**9)


def test_conflicts(bucket: Bucket) -> None:
    first = bucket.add("k", b"1")
    with pytest.raises(WrongLastSequence):
        bucket.add("k", b"2")
    second = bucket.update("k", b"2", first)
    with pytest.raises(WrongLastSequence):
        bucket.update("k", b"3", first)
    deleted = bucket.delete("k")
    with pytest.raises(WrongLastSequence):
        bucket.update("k", b"4", second)
    assert bucket.add("k", b"5") > deleted
