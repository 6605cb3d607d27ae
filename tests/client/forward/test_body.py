"""Bodies: cut from a ring, read again; invalid ones."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.forward.kit import record
from tests.protocol.pages.stream_writer import PlainWriter
from utracefs.forward._body import BodyRecords, Cutter
from utracefs.recordings._records import EventDecoder, Records
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.pages._stream_ring import StreamRing

DECODERS = {id_: EventDecoder("user_events", f"ev{id_}", parse(b"ev u32 a").fields) for id_ in (20, 21)}


@pytest.fixture
def writer() -> Iterator[PlainWriter]:
    writer = PlainWriter()
    yield writer
    writer.close()


def filled(writer: PlainWriter, records: list[tuple[int, int, int]]) -> StreamRing:
    """A ring of records (event, thread, number); thread 0: so many are lost."""
    writer.describe(20, b"ev u32 a")
    writer.comm(8, b"worker")
    for id_, tid, number in records:
        if tid:
            writer.record(id_, struct.pack("<I", number), tid=tid, time_ns=100 + number)
        else:
            writer.lost(id_, number)
    writer.publish()
    ring = StreamRing(writer.fd)
    ring.next_batch()
    return ring


def numbers(body: bytes) -> list[tuple[str, int, int]]:
    records = Records(BodyRecords(body, {}), DECODERS.get)
    return [(record.name, record.fields["a"], record.lost) for record in records]


def test_a_batch_of_the_ring(writer: PlainWriter) -> None:
    ring = filled(writer, [(20, 8, 1), (21, 9, 2), (20, 0, 5), (20, 8, 3), (20, 0, 7)])
    ((body, counts, tids, first_ns, last_ns),), above = Cutter(lambda _: True, 10, 10**6).cut(ring, 100)
    assert numbers(body) == [("ev20", 1, 0), ("ev21", 2, 0), ("ev20", 3, 5)]
    assert (counts, tids, first_ns, last_ns, above) == ({20: 2, 21: 1}, {8, 9}, 101, 103, {})
    ring.close()


def test_events_that_are_not_kept(writer: PlainWriter) -> None:
    asked = []

    def allows(id_: int) -> bool:
        asked.append(id_)
        return id_ == 21

    ring = filled(writer, [(20, 8, 1), (21, 9, 2), (20, 0, 5), (20, 8, 3)])
    cutter = Cutter(allows, 10, 10**6)
    ((body, counts, tids, *_),), above = cutter.cut(ring, 100)
    assert (numbers(body), counts, tids, above) == ([("ev21", 2, 0)], {21: 1}, {9}, {})
    assert asked == [20, 21]
    cutter.cut(ring, 0)
    assert asked == [20, 21, 20, 21]
    ring.close()


def test_without_records(writer: PlainWriter) -> None:
    ring = filled(writer, [(20, 0, 5)])
    assert Cutter(lambda _: True, 10, 10**6).cut(ring, 100) == ([], {})
    ring.close()


@given(
    st.lists(st.tuples(st.sampled_from([20, 21]), st.sampled_from([8, 9, 10]), st.integers(0, 99))),
    st.integers(1, 7),
    st.integers(1, 200),
    st.integers(0, 30),
)
def test_cuts(records: list[tuple[int, int, int]], max_records: int, max_bytes: int, room: int) -> None:
    """Bounded parts, which together are the first `room` records."""
    writer = PlainWriter()
    ring = filled(writer, records)
    parts, above = Cutter(lambda _: True, max_records, max_bytes).cut(ring, room)
    found = []
    for body, counts, tids, first_ns, last_ns in parts:
        part = list(Records(BodyRecords(body, {}), DECODERS.get))
        assert 1 <= len(part) <= max_records
        assert len(part) == 1 or len(body) <= max_bytes
        assert counts == {id_: n for id_ in (20, 21) if (n := sum(r.name == f"ev{id_}" for r in part))}
        assert tids == {r.tid for r in part}
        assert (first_ns, last_ns) == (part[0].time_ns, part[-1].time_ns)
        found += [(int(r.name[2:]), r.tid, r.fields["a"]) for r in part]
    assert found == records[:room]
    assert above == {id_: n for id_ in (20, 21) if (n := sum(r[0] == id_ for r in records[room:]))}
    ring.close()
    writer.close()


def test_bodies_of_about_one_size(writer: PlainWriter) -> None:
    """A little more than two bodies can have is three alike, not two and a rest."""
    ring = filled(writer, [(20, 8, number) for number in range(90)])
    sizes = [len(body) for body, *_ in Cutter(lambda _: True, 1000, 1700).cut(ring, 1000)[0]]
    assert (len(sizes), sum(sizes)) == (3, 90 * len(record(1)))
    assert min(sizes) > max(sizes) // 2
    ring.close()


@pytest.mark.parametrize("gap", [False, True])
def test_an_unknown_number_was_lost(gap: bool) -> None:
    records = Records(BodyRecords(b"", {}, gap), lambda _: None)
    assert list(records) == []
    assert records.lost_uncounted == gap


@pytest.mark.parametrize(
    "body",
    [record(1)[:-8], record(1)[:20], b"\0" * 40, b"\xff" * 40, record(1) + b"\1"],
    ids=["short", "shorter", "zeros", "ones", "longer"],
)
def test_an_invalid_body(body: bytes) -> None:
    with pytest.raises(ValueError, match="no record at byte"):
        list(Records(BodyRecords(body, {}), lambda _: None))
