"""RingWriter: what a reader of the ring gets is what the recording has, at any size and pace."""

from __future__ import annotations

from pathlib import Path

import pytest

import utracefs
from tests.client.recordings.events import Events
from tests.client.recordings.perf_data.example import comm, lost, sample, write
from utracefs.streaming._ring_writer import RingWriter
from utracefs_protocol.pages._stream_ring import StreamRing

EVENTS = Events(300, b"first u64 n; __rel_loc char[] s", b"second u8 a")
IDS = {300: 5, 301: 6}
DESCRIBED = {5: b"user_events\0first", 6: b"user_events\0second"}
SIZE = 256 << 10


def contents(data: list[bytes], path: Path) -> list[tuple[object, ...]]:
    """All entries of the ring, read whenever the writer has no room."""
    write(path, EVENTS, data)
    found: list[tuple[object, ...]] = []
    with utracefs.open(path) as recording:
        writer = RingWriter(recording.reading().records, IDS, DESCRIBED, SIZE)
        ring = StreamRing(writer.fd)
        more = True
        while more:
            more = writer.write() is not None
            while ring.next_batch():
                found += [(*record, ring.comms.get(record[4])) for record in ring.tuples()]
                found += [("lost", id_, count) for id_, count in ring.take_lost().items()]
                found += [("described", *one) for one in ring.described.items()]
                ring.described.clear()
        found.append(("not reported", ring.unreported_lost))
        ring.close()
    return found


def test_records_names_and_losses(tmp_path: Path) -> None:
    data = [
        comm(3, 4, b"alpha"),
        sample(10, 1, 3, 4, EVENTS.entry(300, 4, 7, "x")),
        lost(5, 11),
        sample(12, 0, 3, 8, EVENTS.entry(301, 8, 9)),
        lost(2, 13),
    ]
    found = contents(data, tmp_path / "perf.data")
    first, second = EVENTS.entry(300, 4, 7, "x")[8:], EVENTS.entry(301, 8, 9)[8:]
    records = [one for one in found if isinstance(one[0], int)]
    assert [(*one[:5], one[6]) for one in records] == [(5, 10, 1, 3, 4, "alpha"), (6, 12, 0, 3, 8, "<...>")]
    for one, payload in zip(records, (first, second), strict=True):
        assert isinstance(one[5], bytes)
        assert one[5].startswith(payload)  # perf pads
    assert [one for one in found if one[0] == "described"] == [
        ("described", *one) for one in DESCRIBED.items()
    ]
    assert sum(one[2] for one in found if one[0] == "lost" and isinstance(one[2], int)) == 7
    assert found[-1] == ("not reported", 0)


@pytest.mark.parametrize("size", [0, 100, 3001])
def test_more_than_the_ring_has_room_for(tmp_path: Path, size: int) -> None:
    count = 3 * SIZE // (size + 60)
    data = [sample(n + 1, 0, 3, 4, EVENTS.entry(300, 4, n, "x" * (size + n % 7))) for n in range(count)]
    found = contents(data, tmp_path / "perf.data")
    assert [one[1] for one in found if one[0] == 5] == list(range(1, count + 1))


def test_no_records(tmp_path: Path) -> None:
    assert contents([], tmp_path / "perf.data") == [("not reported", 0)]


def test_invalid_data(tmp_path: Path) -> None:
    data = [sample(10, 1, 3, 4, EVENTS.entry(301, 4, 7)), b"\x09\0\0\0\0\0\x05\0"]
    with pytest.raises(ValueError, match="record"):
        contents(data, tmp_path / "perf.data")
