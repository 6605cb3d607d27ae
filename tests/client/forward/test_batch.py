"""Batches: stored and read again; invalid ones."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tests.client.forward.kit import EVENT, batch
from utracefs.forward.batch import Batch, Formats
from utracefs.forward.losses import Loss

LOSSES = [Loss(EVENT, "ring", 5), Loss("*", "away", None), Loss("user_events:\udcff", "spool", 1)]


def test_it_is_read_as_it_was_stored() -> None:
    one = batch(losses=LOSSES)
    again = Batch.of(one.header(), one.body, Formats())
    assert again == one
    assert again.losses == LOSSES
    assert (again.nr_records, again.unix_offset_ns, again.clock.uncertainty_ns) == (2, 10**18, 3)


def test_an_id_may_have_another_event_in_the_next_batch() -> None:
    formats = Formats()
    one = batch()
    other = batch()
    other.events[5] = ("user_events", other.events[5][1].replace(b"work", b"play"))  # type: ignore[index]
    names = []
    for each in (one, other, one):
        names += [r.name for r in formats.records(each)]
    assert names == ["work"] * 2 + ["play"] * 2 + ["work"] * 2


def test_without_records() -> None:
    one = batch([], losses=LOSSES)
    assert list(Batch.of(one.header(), one.body, Formats())) == []
    assert one.to_json() == b""


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.pop("clock"),
        lambda told: told.update(version=2),
        lambda told: told.update(events=[1]),
        lambda told: told.update(events={1: 2}),
        lambda told: told.update(losses=[[1]]),
        lambda told: told.update(clock=[]),
    ],
)
def test_an_invalid_header(change: Any) -> None:
    told = msgpack.unpackb(batch().header(), strict_map_key=False)
    change(told)
    with pytest.raises(ValueError, match="batch"):
        Batch.of(msgpack.packb(told), b"", Formats())


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\1\2\3", b"\1"])
def test_no_header(data: bytes) -> None:
    with pytest.raises(ValueError):
        Batch.of(data, b"", Formats())
