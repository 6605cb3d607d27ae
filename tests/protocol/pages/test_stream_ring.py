"""The ring of a stream for any reader: batches, their memory, invalid rings."""

import os
import struct
from collections.abc import Iterator

import pytest

from tests.protocol.pages.stream_writer import SIZE, PlainWriter
from utracefs_protocol.pages._stream_ring import StreamRing


@pytest.fixture
def writer() -> Iterator[PlainWriter]:
    writer = PlainWriter()
    yield writer
    writer.close()


def test_plain_tuples_and_counts(writer: PlainWriter) -> None:
    ring = StreamRing(writer.fd)
    assert (ring.tuples(), ring.counts(), ring.pieces()) == ([], {}, [])
    writer.record(20, b"abc", time_ns=5, cpu=3, tid=9)
    writer.lost(20, 1)
    writer.record(65535, b"")
    writer.publish()
    assert ring.next_batch()
    assert ring.tuples() == ring.tuples() == [(20, 5, 3, 7, 9, b"abc"), (65535, 1, 0, 7, 8, b"")]
    assert ring.counts() == {20: 1, 65535: 1}
    assert ring.position == writer.head


def test_not_beyond_a_position(writer: PlainWriter) -> None:
    ring = StreamRing(writer.fd)
    writer.record(20, b"a")
    between = writer.head
    writer.record(20, b"b")
    writer.publish()
    assert not ring.next_batch(0)
    assert ring.next_batch(between)
    assert [data for *_, data in ring.tuples()] == [b"a"]
    assert not ring.next_batch(between)
    assert ring.next_batch(1 << 60)
    assert [data for *_, data in ring.tuples()] == [b"b"]


def test_records_of_a_killed_daemon(writer: PlainWriter) -> None:
    ring = StreamRing(writer.fd)
    writer.record(20, b"a")
    writer.publish()
    writer.record(20, b"b")
    writer.end()
    assert ring.next_batch()
    assert not ring.next_batch()
    ring.is_over = True
    assert ring.next_batch()
    assert [data for *_, data in ring.tuples()] == [b"b"]
    assert not ring.next_batch()


@pytest.mark.parametrize("written", [0, 8, SIZE + 8, 1 << 63])
def test_a_daemon_that_does_not_say_what_it_has_written(writer: PlainWriter, written: int) -> None:
    ring = StreamRing(writer.fd)
    writer.record(20, b"a")
    writer.publish()
    struct.pack_into("<Q", writer.mapping, 256, (written and writer.head + written) % 2**64)
    ring.is_over = True
    if written == 8:
        with pytest.raises(ValueError, match="record of 0 bytes"):
            ring.next_batch()
    else:
        assert ring.next_batch()
        assert len(ring.tuples()) == 1


def test_unread_losses_end_with_their_batch(writer: PlainWriter) -> None:
    """An event that is described again after lost records begins a batch, also for a reader that ignores
    losses."""
    ring = StreamRing(writer.fd)
    writer.lost(20, 1)
    writer.publish()
    assert ring.head == writer.head
    assert ring.next_batch()
    writer.describe(20, b"test u32 a")
    writer.record(20, b"a")
    writer.publish()
    assert ring.next_batch()
    assert [data for *_, data in ring.tuples()] == [b"a"]
    assert ring.take_lost() == {}
    assert ring.position == ring.head == writer.head


def test_the_memory_of_a_batch(writer: PlainWriter) -> None:
    ring = StreamRing(writer.fd)
    for start in range(0, SIZE * 2, SIZE // 4 * 3):
        for _ in range(3):
            writer.record(20, bytes([start >> 16]) * (SIZE // 4 - 100))
        writer.publish()
        ring.next_batch()
        pieces = ring.pieces()
        assert b"".join(pieces).count(bytes([start >> 16]) * 1000) > 0 or start == 0
        assert all(piece.readonly for piece in pieces)
        assert sum(len(piece) for piece in pieces) <= SIZE
    assert len(pieces) in (1, 2)
    kept = pieces[0]
    first = bytes(kept[:8])
    ring.close()
    assert bytes(kept[:8]) == first  # what is looked at stays mapped
    assert ring.pieces() == []
    with pytest.raises(BufferError):
        memoryview(ring)  # type: ignore[arg-type]
    del kept, pieces


def test_what_is_no_ring(writer: PlainWriter) -> None:
    for at, value in ((0, 1), (4, 2), (8, 8192), (12, SIZE // 2), (12, SIZE - 8), (12, 1 << 31)):
        before = writer.mapping[at : at + 4]
        struct.pack_into("<I", writer.mapping, at, value)
        with pytest.raises(ValueError, match="ring"):
            StreamRing(writer.fd)
        writer.mapping[at : at + 4] = before
    StreamRing(writer.fd).close()
    fd = os.memfd_create("small", os.MFD_CLOEXEC)
    with pytest.raises(ValueError, match="0 bytes"):
        StreamRing(fd)
    os.close(fd)
    with pytest.raises(OSError):
        StreamRing(fd)
