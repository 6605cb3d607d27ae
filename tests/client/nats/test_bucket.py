"""Keys and values in a real nats-server: changes, conflicts, watchers, restarts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.nats.server import WAIT_S, NatsServer
from utracefs.nats.bucket import Bucket, Entry, Watch
from utracefs.nats.errors import NotFound, WrongLastSequence
from utracefs.nats.jetstream import JetStream


@pytest.fixture
def bucket(server: NatsServer) -> Iterator[Bucket]:
    with server.connection() as connection:
        bucket = Bucket(JetStream(connection), "wishes")
        bucket.create()
        yield bucket


def take(watch: Watch, number: int) -> list[Entry]:
    found = []
    for _ in range(number):
        entry = watch.next(WAIT_S)
        assert entry is not None
        found.append(entry)
    return found


def test_a_value(bucket: Bucket) -> None:
    with pytest.raises(NotFound):
        bucket.get("a.b")
    first = bucket.put("a.b", b"one")
    assert bucket.get("a.b") == Entry("a.b", b"one", first)
    second = bucket.put("a.b", b"")
    assert second > first
    assert bucket.get("a.b") == Entry("a.b", b"", second)
    bucket.delete("a.b")
    with pytest.raises(NotFound, match="deleted"):
        bucket.get("a.b")


def test_create_again_keeps_the_bucket(bucket: Bucket) -> None:
    bucket.put("a", b"1")
    bucket.create(history=5)
    assert bucket.get("a").value == b"1"


def test_limits_are_stored(bucket: Bucket) -> None:
    other = Bucket(bucket._jetstream, "limited")
    other.create(history=3, max_bytes=1 << 20, max_age_s=60)
    config = bucket._jetstream.stream("KV_limited")["config"]
    assert (config["max_msgs_per_subject"], config["max_bytes"], config["max_age"]) == (
        3,
        1 << 20,
        60 * 10**9,
    )


def test_conflicts(bucket: Bucket) -> None:
    first = bucket.add("k", b"1")
    with pytest.raises(WrongLastSequence):
        bucket.add("k", b"2")
    second = bucket.update("k", b"2", first)
    with pytest.raises(WrongLastSequence):
        bucket.update("k", b"3", first)
    with pytest.raises(WrongLastSequence):
        bucket.delete("k", first)
    deleted = bucket.delete("k", second)
    with pytest.raises(WrongLastSequence):
        bucket.update("k", b"4", second)
    assert bucket.add("k", b"5") > deleted


def test_keys_and_entries(bucket: Bucket) -> None:
    assert bucket.keys() == []
    for key in ("host.a", "host.b", "other", "gone"):
        bucket.put(key, key.encode())
    bucket.delete("gone")
    assert bucket.keys() == ["host.a", "host.b", "other"]
    assert bucket.keys("host.*") == ["host.a", "host.b"]
    assert {key: entry.value for key, entry in bucket.entries("host.>").items()} == {
        "host.a": b"host.a",
        "host.b": b"host.b",
    }


def test_a_watcher(server: NatsServer, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    bucket.put("b", b"2")
    with server.connection() as other, Bucket(JetStream(other), "wishes").watch() as watch:
        assert not watch.is_current
        assert [entry.key for entry in take(watch, 2)] == ["a", "b"]
        assert watch.is_current
        assert watch.next(0) is None
        bucket.put("a", b"3")
        bucket.delete("b")
        changed, deleted = take(watch, 2)
        assert (changed.key, changed.value, changed.is_deleted) == ("a", b"3", False)
        assert (deleted.key, deleted.is_deleted) == ("b", True)


def test_a_watcher_of_an_empty_bucket(bucket: Bucket) -> None:
    with bucket.watch() as watch:
        assert watch.is_current


def test_a_watcher_survives_restarts(server: NatsServer, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    with server.connection() as other, Bucket(JetStream(other), "wishes").watch() as watch:
        assert take(watch, 1)[0].value == b"1"
        for number in range(3):
            server.kill()
            with pytest.raises(OSError):
                watch.next(0)
            server.start()
            bucket.put("a", b"%d" % number)
            assert take(watch, 1)[0].value == b"%d" % number


def test_a_watcher_of_a_server_that_lost_its_store(server: NatsServer, bucket: Bucket) -> None:
    for _ in range(5):
        bucket.put("a", b"1")
    with server.connection() as other, Bucket(JetStream(other), "wishes").watch() as watch:
        take(watch, 1)
        server.kill()
        server.empty()
        server.start()
        bucket.create()
        bucket.put("b", b"2")
        assert take(watch, 1)[0] == Entry("b", b"2", 1)


def test_many_values(bucket: Bucket) -> None:
    for number in range(600):
        bucket.put(f"k{number}", b"%d" % number)
    assert len(bucket.keys()) == 600


@pytest.mark.parametrize("key", ["", ".a", "a.", "a..b", "a b", "a*", ">", "ä", "a\r\nPUB x 0"])
def test_invalid_keys(bucket: Bucket, key: str) -> None:
    for call in (lambda: bucket.put(key, b""), lambda: bucket.get(key), lambda: bucket.delete(key)):
        with pytest.raises(ValueError, match="is no key"):
            call()


@pytest.mark.parametrize("pattern", ["", "a.>.b", "a b", "a*", ".."])
def test_invalid_patterns(bucket: Bucket, pattern: str) -> None:
    with pytest.raises(ValueError, match="is no pattern"):
        bucket.watch(pattern)


def test_invalid_names(bucket: Bucket) -> None:
    for name in ("", "a.b", "a b", "*"):
        with pytest.raises(ValueError, match="is no name"):
            Bucket(bucket._jetstream, name)


def test_no_such_bucket(bucket: Bucket) -> None:
    other = Bucket(bucket._jetstream, "none")
    with pytest.raises(NotFound):
        other.get("a")
    with pytest.raises(NotFound), other.watch():
        pass
