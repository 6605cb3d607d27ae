"""Records as they stand: in pieces, too large ones, what is broken."""

import struct

import pytest

from utracefs._records import EventDecoder, MergedPages, Records
from utracefs.export._raw import PerfSamples
from utracefs.trace_dat._merge import Merge
from utracefs_protocol.subbuf import PageWriter

SIZE = 1 << 18


def records_of(entries: list[bytes], *, broken: bool = False) -> Records:
    writer = PageWriter(SIZE)
    for n, data in enumerate(entries):
        assert writer.add(n + 1, struct.pack("<HBBi", 1, 0, 0, 7) + data)
    page = bytearray(writer.page(0 if broken else 5))
    if broken:
        word = struct.unpack_from("<I", page, 8)[0]
        struct.pack_into("<I", page, 8, word + 4)
        struct.pack_into("<I", page, 16 + word, 28)
    source = MergedPages(Merge(bytes(page), [(0, 3, 0, SIZE, SIZE)]), tgids={7: 6})
    source.comms = {7: "seven"}
    return Records(source, lambda _: EventDecoder("s", "ev", []))


def split(data: bytes) -> list[tuple[int, bytes]]:
    """Type and body of each record."""
    found = []
    while data:
        kind, _, size = struct.unpack_from("<IHH", data)
        assert size % 8 == 0
        found.append((kind, data[8:size]))
        data = data[size:]
    return found


def test_samples_in_pieces() -> None:
    samples = PerfSamples(records_of([b"%04d" % n for n in range(1000)]))
    pieces = []
    while piece := samples.read(500):
        assert len(piece) < 700
        pieces.append(piece)
    (lost, first), *found = split(b"".join(pieces))
    assert (lost, struct.unpack_from("<QQ", first)) == (2, (1, 5))
    assert len(found) == 1000
    for n, (kind, body) in enumerate(found):
        identifier, _, pid, tid, time, cpu, _, period, size = struct.unpack_from("<QQiiQIIQI", body)
        assert (kind, identifier, pid, tid, time, cpu, period) == (9, 1, 6, 7, n + 1, 3, 1)
        assert body[52:] == struct.pack("<HBBi", 1, 0, 0, 7) + b"%04d" % n
        assert size == len(body) - 52
    assert (samples.tasks, samples.first_ns, samples.last_ns) == ({(6, 7): "seven"}, 1, 1000)


def test_a_record_that_no_sample_can_hold_is_lost() -> None:
    samples = PerfSamples(records_of([b"x" * 65400, b"x" * 65800, b"tail"]))
    kinds = [kind for kind, _ in split(samples.read(1 << 20))]
    assert (kinds, samples.too_large) == ([2, 9, 2, 9], 1)


def test_what_is_broken_comes_after_all_before_it() -> None:
    samples = PerfSamples(records_of([b"good"], broken=True))
    assert [kind for kind, _ in split(samples.read(1 << 20))] == [9]
    for _ in range(2):
        with pytest.raises(ValueError, match="page at 0"):
            samples.read(1 << 20)
    with pytest.raises(ValueError, match="page at 0"):
        PerfSamples(records_of([], broken=True)).read(1)
