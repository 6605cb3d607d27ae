"""Records as raw bytes: in pieces, too large ones, broken ones."""

import struct

import pytest

from tests.client.export.one_page import records_of
from utracefs.export._raw import PerfSamples


def samples_of(entries: list[bytes], *, broken: bool = False) -> PerfSamples:
    lost = 0 if broken else 5
    return PerfSamples(records_of(entries, [], broken=broken, lost=lost, comms={7: "seven"}, tgids={7: 6}))


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
    samples = samples_of([b"%04d" % n for n in range(1000)])
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
    samples = samples_of([b"x" * 65400, b"x" * 65800, b"tail"])
    kinds = [kind for kind, _ in split(samples.read(1 << 20))]
    assert (kinds, samples.left_out) == ([2, 9, 2, 9], 1)


def test_what_is_broken_comes_after_all_before_it() -> None:
    samples = samples_of([b"good"], broken=True)
    assert [kind for kind, _ in split(samples.read(1 << 20))] == [9]
    for _ in range(2):
        with pytest.raises(ValueError, match="page at 0"):
            samples.read(1 << 20)
    with pytest.raises(ValueError, match="page at 0"):
        samples_of([], broken=True).read(1)
