"""Batches to messages of limited size and back; messages that are invalid."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from tests.client.forward.kit import EVENT, batch
from tests.judges import library
from utracefs.forward.batch import Batch
from utracefs.forward.losses import Loss
from utracefs.forward.nats_messages import Arrived, Encoder, Part, headers, position
from utracefs.nats.jetstream import Stored
from utracefs.recordings.origin import ClockPair

library("pyarrow")

LOSSES = [Loss(EVENT, "ring", 5), Loss("*", "away", None)]


def numbered(size: int, **members: object) -> Batch:
    made = attrs.evolve(batch(range(size)), forwarder="f", sequence=7, losses=LOSSES)
    return attrs.evolve(made, **members)  # type: ignore[arg-type]


def read(one: Batch, part: Part) -> Arrived:
    return Arrived.of(Stored("s", 3, headers(one, part, 6), bytes(memoryview(part.payload))))


def column(found: list[Arrived]) -> list[int]:
    return [v for one in found for t in one.tables.get(EVENT, ()) for v in t.column("a").to_pylist()]


def test_there_and_back() -> None:
    one = numbered(3, host="bö x\udcff", clock=ClockPair(10, 20, 3, 4))
    (part,), refused = Encoder("zstd").parts(one, 1 << 20)
    found = read(one, part)
    assert not refused
    assert (found.host, found.position.boot_id, found.forwarder) == ("bö x\udcff", "boot", "f")
    assert (found.position.sequence, found.previous, found.at) == (7, 6, 3)
    assert attrs.astuple(found.clock) == (10, 20, 3, 4)
    assert found.counts == {EVENT: 3} and list(found.losses) == LOSSES
    assert column([found]) == [0, 1, 2]
    assert headers(one, part, 6)["Utracefs-Host"].isascii()


@pytest.mark.parametrize("limit", [5000, 8000, 20_000, 1 << 20])
def test_parts(limit: int) -> None:
    one = numbered(1000)
    parts, refused = Encoder("none").parts(one, limit)
    assert not refused
    assert all(part.payload.size <= limit for part in parts)
    found = [read(one, part) for part in parts]
    assert column(found) == list(range(1000))
    assert sum(arrived.counts.get(EVENT, 0) for arrived in found) == 1000
    assert [loss for arrived in found for loss in arrived.losses] == LOSSES
    assert parts[-1].end == 1000 and parts[0].begin == 0
    for stored in parts[:-1]:
        rest, _ = Encoder("none").parts(one, limit, (stored.end, stored.losses))
        assert column([read(one, part) for part in rest]) == list(range(stored.end, 1000))
        assert not any(read(one, part).losses for part in rest)


def test_records_that_are_too_large() -> None:
    one = numbered(10)
    parts, refused = Encoder("none").parts(one, 1000)
    assert refused == {EVENT: 10}
    assert [(part.begin, part.end) for part in parts] == [(0, 0), (0, 10)]
    found = [read(one, part) for part in parts]
    assert [loss for arrived in found for loss in arrived.losses] == LOSSES
    assert not any(arrived.counts or arrived.tables for arrived in found)
    rest, refused = Encoder("none").parts(one, 1000, (0, None))
    assert refused == {EVENT: 10} and [(part.begin, part.end) for part in rest] == [(0, 10)]


@pytest.mark.parametrize("size", [0, 1000])
def test_many_losses(size: int) -> None:
    losses = [Loss(f"s:e{n}", "ring", None if n % 7 else n) for n in range(1000)]
    one = numbered(size, losses=losses)
    parts, refused = Encoder("none").parts(one, 8000)
    assert not refused and all(part.payload.size <= 8000 for part in parts)
    found = [read(one, part) for part in parts]
    assert [loss for arrived in found for loss in arrived.losses] == losses
    assert column(found) == list(range(size))
    for n, part in enumerate(parts, 1):
        at = position(headers(one, part, 6))
        assert at.is_whole == (n == len(parts))
        if not at.is_whole:
            rest, _ = Encoder("none").parts(one, 8000, (at.end, at.losses))
            found = [read(one, part) for part in (*parts[:n], *rest)]
            assert [loss for arrived in found for loss in arrived.losses] == losses
            assert column(found) == list(range(size))


@pytest.mark.parametrize("cut", [1, 7, 39, 40, 60])
def test_a_broken_body(cut: int) -> None:
    one = numbered(1000)
    one = attrs.evolve(one, body=one.body[:-cut])
    for limit in (1 << 20, 4000):
        parts, refused = Encoder("none").parts(one, limit)
        assert refused == {EVENT: 1000}
        found = [read(one, part) for part in parts]
        assert [loss for arrived in found for loss in arrived.losses] == LOSSES
        assert not any(arrived.counts for arrived in found)


@pytest.mark.parametrize(
    "value", ["", "1", "-1-2/3", "2-1/3", "0-4/3", "0-1/٣", "0-1/3/4", "0-1/" + "9" * 99]
)
def test_no_positions(value: str) -> None:
    others = {"Utracefs-Boot": "boot", "Utracefs-Clock": "1 2 3"}
    with pytest.raises(ValueError):
        position({**others, "Utracefs-Records": value, "Utracefs-Sequence": "1"})
    with pytest.raises(ValueError):
        position({**others, "Utracefs-Records": "0-1/1", "Utracefs-Sequence": value.replace("1", "x")})


def test_messages_of_others() -> None:
    one = numbered(5)
    (part,), _ = Encoder("none").parts(one, 1 << 20)
    payload = bytes(memoryview(part.payload))
    whole = headers(one, part, 0)
    broken: list[tuple[dict[str, str], bytes]] = [
        *(({name: text for name, text in whole.items() if name != left}, payload) for left in whole),
        ({**whole, "Utracefs-Version": "2"}, payload),
        ({**whole, "Utracefs-Clock": "1 2"}, payload),
        ({**whole, "Utracefs-Clock": "1 2 x"}, payload),
        ({**whole, "Utracefs-Clock": "1 9223372036854775808 1"}, payload),
        ({**whole, "Utracefs-Clock": "99999999999999999999 2 1"}, payload),
        (whole, b""),
        (whole, b"hello"),
        (whole, payload[:-30]),
        (whole, payload + b"\xff\xff\xff\xff\x10"),
        (whole, payload[100:]),
    ]
    for told, data in broken:
        with pytest.raises(ValueError, match="message 3"):
            Arrived.of(Stored("s", 3, told, data))


def test_damaged_payloads() -> None:
    """Each is refused or read; none stops the reader otherwise."""
    one = numbered(5)
    (part,), _ = Encoder("lz4").parts(one, 1 << 20)
    payload = bytes(memoryview(part.payload))
    outcomes: Counter[str] = Counter()
    for at in range(0, len(payload), 3):
        damaged = payload[:at] + bytes([payload[at] ^ 0x55]) + payload[at + 1 :]
        try:
            Arrived.of(Stored("s", 3, headers(one, part, 0), damaged))
        except ValueError:
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
    assert outcomes["refused"] > 100
