"""Samples in the order of time; broken data."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.recordings.perf_data.example import SAMPLE_TYPE, comm, lost, record, sample
from utracefs.recordings._records import EventDecoder, Record, Records
from utracefs.recordings.perf_data._samples import Samples
from utracefs_protocol.pages.perf_ring import Sample

ENTRY = struct.pack("<HBBi", 1, 0, 0, 7)


def source(data: bytes, **options: object) -> Samples:
    return Samples(data, 0, len(data), SAMPLE_TYPE, True, comms={}, **options)  # type: ignore[arg-type]


def records(data: bytes, **options: object) -> list[Record]:
    return list(Records(source(data, **options), lambda _: EventDecoder("s", "ev", ())))


@given(st.lists(st.integers(0, 2**64 - 1), max_size=40))
def test_in_the_order_of_time(times: list[int]) -> None:
    data = b"".join(sample(time, n, 3, 4, ENTRY) for n, time in enumerate(times))
    expected = sorted(enumerate(times), key=lambda item: (item[1], item[0]))
    assert [(r.cpu, r.time_ns) for r in records(data)] == expected


def test_a_window_sorts_what_it_holds() -> None:
    data = b"".join(sample(time, 0, 3, 4, ENTRY) for time in (3, 2, 1, 6, 5, 4))
    assert [r.time_ns for r in records(data, window=2)] == [2, 1, 3, 5, 4, 6]


def test_names_change_at_their_time() -> None:
    data = [
        comm(3, 4, b"first"),
        comm(3, 4, b"second", time=20),
        sample(30, 0, 3, 4, ENTRY),
        sample(10, 0, 3, 4, ENTRY),
    ]
    assert [(r.time_ns, r.comm, r.pid, r.tid) for r in records(b"".join(data))] == [
        (10, "first", 3, 4),
        (30, "second", 3, 4),
    ]


def test_names_of_the_beginning_may_be_at_the_end() -> None:
    data = sample(10, 0, 3, 4, ENTRY) + sample(20, 0, 3, 4, ENTRY) + comm(3, 4, b"name")
    assert [r.comm for r in records(data, window=1)] == ["name", "name"]


def test_lost_samples_are_reported_at_their_time() -> None:
    data = [
        sample(30, 0, 3, 4, ENTRY),
        sample(10, 0, 3, 4, ENTRY),
        lost(2, 20),
        record(13, struct.pack("<Q", 3) + struct.pack("<iiQIIQ", 0, 0, 25, 0, 0, 1)),
        record(68, b""),
    ]
    assert [(r.time_ns, r.lost) for r in records(b"".join(data))] == [(10, 0), (30, 5)]
    for uncounted in (2**64 - 1, 0):
        assert [r.lost for r in records(lost(uncounted, 1) + sample(2, 0, 3, 4, ENTRY))] == [-1]


def test_all_that_was_lost_is_counted_behind_the_last_sample_too() -> None:
    data = lost(2, 20) + sample(10, 0, 3, 4, ENTRY) + lost(0, 30) + lost(2**64 - 1, 40)
    samples = source(data)
    assert len(list(samples)) == 1
    assert (samples.lost, samples.gaps) == (2**64 + 1, 1)


@pytest.mark.parametrize(
    ("at", "new"),
    [(4, struct.pack("<HH", 2, 0xFFFF)), (4, struct.pack("<HH", 2, 16)), (56, b"\xff\xff\xff\xff")],
    ids=["longer", "shorter", "raw data"],
)
def test_a_file_that_changes_while_it_is_read(at: int, new: bytes) -> None:
    data = bytearray(sample(1, 0, 3, 4, ENTRY) + sample(2, 0, 3, 4, ENTRY))
    samples = Samples(data, 0, len(data), SAMPLE_TYPE, True, comms={})
    assert next(samples).time == 1
    at += len(data) // 2
    data[at : at + len(new)] = new
    with pytest.raises(ValueError, match="changes while it is read"):
        next(samples)


@pytest.mark.parametrize("kind", [SAMPLE_TYPE & ~2, SAMPLE_TYPE & ~0x400, SAMPLE_TYPE | 0x20, 1 << 63])
def test_samples_of_another_kind_are_refused(kind: int) -> None:
    with pytest.raises(ValueError, match="samples of type"):
        Samples(b"", 0, 0, kind, True, comms={})


def test_data_beyond_the_file_is_refused() -> None:
    for offset, size in ((0, 9), (9, 0), (2**63, 2**63), (1, 2**64 - 1)):
        with pytest.raises(ValueError, match="of a file of 8"):
            Samples(bytes(8), offset, size, SAMPLE_TYPE, True, comms={})


def test_every_combination_of_what_a_sample_may_have() -> None:
    for kind in range(1 << 6):
        bits = [1 << 16, 1, 8, 1 << 6, 1 << 9, 1 << 8]
        chosen = [bit for n, bit in enumerate(bits) if kind >> n & 1]

        def value(bit: int, number: int, chosen: list[int] = chosen) -> int:
            return number if bit in chosen else 0

        def part(bit: int, number: int = 0, chosen: list[int] = chosen) -> bytes:
            return struct.pack("<Q", number) if bit in chosen else b""

        body = part(1 << 16, 9) + part(1, 8) + struct.pack("<iiQ", 3, 4, 77)
        body += part(8) + part(1 << 6) + part(1 << 9) + struct.pack("<II", 5, 0) + part(1 << 8, 7)
        data = record(9, body + struct.pack("<I", len(ENTRY)) + ENTRY)
        found = Records(
            Samples(data, 0, len(data), 0x486 | sum(chosen), False, comms={4: "four"}),
            lambda _: EventDecoder("s", "ev", ()),
        )
        assert [(r.time_ns, r.cpu, r.pid, r.tid, r.comm) for r in found] == [(77, 5, 3, 4, "four")]
        assert list(Samples(data, 0, len(data), 0x486 | sum(chosen), False, comms={})) == [
            Sample(value(1 << 16, 9), value(1, 8), 3, 4, 77, 5, value(1 << 8, 7), ENTRY)
        ]


GOOD = sample(1, 0, 3, 4, ENTRY) + comm(3, 4, b"name", 2) + lost(3, 2) + sample(9, 0, 3, 4, ENTRY)


@pytest.mark.parametrize(
    "broken",
    [
        b"\0",
        struct.pack("<IHH", 9, 0, 0),
        struct.pack("<IHH", 9, 0, 7),
        struct.pack("<IHH", 9, 0, 80) + bytes(8),
        record(9, b""),
        sample(3, 0, 3, 4, ENTRY)[:-16].replace(struct.pack("<H", 72), struct.pack("<H", 56), 1),
        record(3, b""),
        record(2, bytes(8)),
        record(13, b""),
        b"1234567",
        struct.pack("<IHH", 9, 2, 56) + bytes(48),
        struct.pack("<IHH", 2, 0, 16) + bytes(8),
        struct.pack("<IHH", 99, 0, 0),
        struct.pack("<IHH", 99, 0, 24) + bytes(8),
    ],
)
def test_what_is_before_a_broken_record_is_given(broken: bytes) -> None:
    found = Records(source(GOOD + broken), lambda _: EventDecoder("s", "ev", ()))
    assert [next(found).time_ns, next(found).time_ns] == [1, 9]
    for _ in range(2):
        with pytest.raises(ValueError, match=f"record at {len(GOOD)}"):
            next(found)
    assert [r.time_ns for r in records(GOOD + broken, recover=True)] == [1, 9]


@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=6), st.integers(0, 400)
)
def test_any_bytes(changes: list[tuple[int, int]], length: int) -> None:
    data = bytearray(GOOD[:length])
    for at, value in changes:
        if at < len(data):
            data[at] = value
    try:
        assert len(records(bytes(data))) <= 2
    except ValueError as error:
        assert "record at" in str(error)


def test_how_far_it_is() -> None:
    samples = source(GOOD, window=1)
    assert samples.read_bytes == 0
    list(Records(samples, lambda _: EventDecoder("s", "ev", ())))
    assert samples.read_bytes == len(GOOD)
