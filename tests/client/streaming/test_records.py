"""Records of a stream: batch by batch, as they are in the ring, written by a plain writer."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.pages.stream_writer import PAD, RECORD, SIZE, PlainWriter
from utracefs.recordings._records import EventDecoder, Record, Records
from utracefs.streaming._records import RingRecords
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.pages._stream_ring import StreamRing

DECODERS = {
    id_: EventDecoder("user_events", f"ev{id_}", parse(b"ev u32 a").fields) for id_ in (20, 21, 65535)
}


def read(ring: StreamRing, *, release: bool = False) -> list[Record]:
    return list(Records(RingRecords(ring, release=release), DECODERS.get))


def numbers(ring: StreamRing) -> list[object]:
    return [record.fields["a"] for record in read(ring)]


def word(number: int) -> bytes:
    return struct.pack("<I", number)


def test_a_batch(writer: PlainWriter) -> None:
    ring = StreamRing(writer.fd)
    assert not ring.next_batch()
    writer.describe(20, b"ev u32 a")
    writer.comm(8, b"worker")
    writer.record(20, word(5), time_ns=77, cpu=3)
    writer.record(65535, word(6), tid=9)
    writer.publish()
    assert ring.next_batch()
    assert (ring.records, ring.counts()) == (2, {20: 1, 65535: 1})
    assert ring.described[20].startswith(b"user_events\0name: ev\n")
    first, second = read(ring)
    assert (first.time_ns, first.cpu, first.pid, first.tid) == (77, 3, 7, 8)
    assert (first.comm, first.fields, first.lost) == ("worker", {"a": 5}, 0)
    assert (second.name, second.comm) == ("ev65535", "<...>")
    assert numbers(ring) == [5, 6]  # as often as wanted
    assert writer.tail == 0
    assert not ring.next_batch()
    assert writer.tail == writer.head
    assert (ring.records, ring.counts()) == (0, {})


def test_it_goes_around(writer: PlainWriter) -> None:
    ring = StreamRing(writer.fd)
    for number, size in enumerate((4, 9001, 60_000) * 20):
        writer.record(20, word(number) + bytes(size - 4))
        writer.publish()
        assert ring.next_batch()
        assert numbers(ring) == [number]
    assert writer.head > 3 * SIZE


def test_what_was_lost(writer: PlainWriter) -> None:
    ring = StreamRing(writer.fd)
    writer.record(20, word(1))
    writer.lost(20, 3)
    writer.lost(21, 4)
    writer.record(20, word(2))
    writer.lost(20, 5)
    writer.publish(lost=20)
    assert ring.next_batch()
    assert [record.lost for record in read(ring)] == [0, 7]
    assert ring.take_lost() == {20: 8, 21: 4}
    assert (ring.reported_lost, ring.unreported_lost) == (12, 8)
    assert ring.take_lost() == {}


def test_what_was_missed_before(writer: PlainWriter) -> None:
    ring = StreamRing(writer.fd, gap=True)
    writer.lost(20, 3)
    for number in range(2):
        writer.record(20, word(number))
    writer.publish()
    assert ring.next_batch()
    assert [record.lost for record in read(ring)] == [-1, 0]


def test_an_id_that_another_event_takes(writer: PlainWriter) -> None:
    ring = StreamRing(writer.fd)
    writer.describe(20, b"ev u32 a")
    writer.record(20, word(1))
    writer.describe(21, b"more u32 a")
    writer.describe(20, b"other u32 b")
    writer.record(20, word(2))
    writer.publish()
    assert ring.next_batch()
    assert numbers(ring) == [1]
    assert b"name: ev\n" in ring.described[20]
    assert ring.next_batch()
    assert numbers(ring) == [2]
    assert b"name: other\n" in ring.described[20]
    writer.lost(20, 1)
    writer.describe(20, b"third u32 b")
    writer.publish()
    assert ring.next_batch()
    assert ring.take_lost() == {20: 1}
    assert b"name: other\n" in ring.described[20]
    assert ring.next_batch()
    assert b"name: third\n" in ring.described[20]


def test_kinds_that_are_not_known_are_skipped(writer: PlainWriter) -> None:
    ring = StreamRing(writer.fd)
    writer.put(77, bytes(20))
    writer.record(20, word(1))
    writer.publish()
    assert ring.next_batch()
    assert numbers(ring) == [1]


def test_room_is_given_back_while_records_are_read(writer: PlainWriter) -> None:
    ring = StreamRing(writer.fd)
    for number in range(100):
        writer.record(20, word(number) + bytes(2000))
    writer.publish()
    assert ring.next_batch()
    others = Records(RingRecords(ring), DECODERS.get)
    records = Records(RingRecords(ring, release=True), DECODERS.get)
    for _ in range(50):
        next(records)
    assert 0 < writer.tail < writer.head // 2
    with pytest.raises(RuntimeError, match="over"):
        next(others)


def test_a_batch_that_is_over(writer: PlainWriter) -> None:
    ring = StreamRing(writer.fd)
    writer.record(20, word(1))
    writer.record(20, word(2))
    writer.publish()
    ring.next_batch()
    records = Records(RingRecords(ring), DECODERS.get)
    next(records)
    ring.next_batch()
    with pytest.raises(RuntimeError, match="over"):
        next(records)
    ring.close()
    ring.close()
    assert not ring.next_batch()
    assert (ring.unreported_lost, read(ring)) == (0, [])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_broken_memory(data: st.DataObject) -> None:
    """A ValueError, or records; nothing else, and always an end."""
    writer = PlainWriter()
    try:
        for number in range(data.draw(st.integers(0, 5))):
            writer.record(20, word(number))
        for _ in range(data.draw(st.integers(0, 3))):
            size = data.draw(st.sampled_from([0, 4, 8, 12, 24, 32, 40, 48, SIZE, 1 << 31]))
            kind = data.draw(st.sampled_from([RECORD, 1, 2, 3, PAD, 9]))
            length = data.draw(st.integers(0, 64) | st.just(0xFFFFFFFF))
            entry = data.draw(st.binary(max_size=24))
            writer.put_raw(struct.pack("<IHHQiI", size, kind, 0, 0, 0, length) + entry.ljust(24, b"\0"))
        writer.head += data.draw(st.sampled_from([0, 0, 8, -8, SIZE, -SIZE]))
        if writer.head >= 0:
            writer.publish()
        ring = StreamRing(writer.fd)
        try:
            while ring.next_batch():
                read(ring)
        except ValueError as error:
            assert "stream ring" in str(error)
        ring.close()
    finally:
        writer.close()
