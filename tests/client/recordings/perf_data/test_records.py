"""Counting records, against a plain model in Python."""

import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import utracefs.recordings.perf_data.format as layout
from tests.client.recordings.perf_data.test_writer import sample
from utracefs.recordings.perf_data._records import Tally

SAMPLES = st.builds(
    lambda raw, pid, tid, time: sample(1, raw, pid=pid, tid=tid, time=time, cpu=2),
    st.binary(min_size=8, max_size=40),
    st.integers(0, 3),
    st.integers(0, (1 << 32) - 1) | st.integers(0, 2),
    st.integers(1, 50) | st.integers(1, (1 << 64) - 1),
)
LOST = st.builds(
    lambda count, trailer: struct.pack("<IHHQQ", 2, 0, 24 + len(trailer), 1, count) + trailer,
    st.integers(0, 99),
    st.sampled_from([b"", bytes(32)]),
)
OTHER = st.just(struct.pack("<IHHQ", 99, 0, 16, 5))


@given(st.lists(SAMPLES | LOST | OTHER, max_size=20))
def test_counts(records: list[bytes]) -> None:
    data = bytearray(b"".join(records))
    tally = Tally()
    tally.add(data, 77)
    kinds = [struct.unpack_from("<I", one)[0] for one in records]
    samples = [one for one, kind in zip(records, kinds, strict=True) if kind == 9]
    times = [struct.unpack_from("<Q", one, 32)[0] for one in samples]
    assert (tally.samples, tally.first_ns, tally.last_ns) == (
        len(samples),
        min(times, default=0),
        max(times, default=0),
    )
    lost = [one for one, kind in zip(records, kinds, strict=True) if kind == 2]
    assert tally.lost == sum(struct.unpack_from("<Q", one, 16)[0] for one in lost)
    assert tally.take_tasks() == Counter(struct.unpack_from("<II", one, 24) for one in samples)
    assert tally.take_tasks() == {}
    at = 0
    for record, kind in zip(records, kinds, strict=True):
        if kind in (2, 9):
            assert struct.unpack_from("<Q", data, at + 8)[0] == 77
            if kind == 2 and len(record) > 24:
                assert struct.unpack_from("<Q", data, at + 48)[0] == 77
        at += len(record)


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack("<IHH", 9, 2, 56) + bytes(48),
        struct.pack("<IHH", 2, 0, 16) + bytes(8),
        struct.pack("<IHH", 99, 0, 0),
        struct.pack("<IHH", 99, 0, 12) + bytes(8),
    ],
)
def test_what_is_no_record(bad: bytes) -> None:
    good = sample(1, bytes(8), pid=1, tid=1, time=1, cpu=0)
    tally = Tally()
    with pytest.raises(ValueError, match=f"at byte {len(good)}"):
        tally.add(bytearray(good + bad), 5)
    assert tally.samples == 1


def test_a_record_that_continues_in_the_next_piece() -> None:
    one = sample(1, bytes(8), pid=1, tid=1, time=1, cpu=0)
    tally = Tally()
    for size in range(len(one)):
        assert tally.add(bytearray(one + one[:size]), 5) == len(one)
    assert tally.samples == len(one)
    with pytest.raises(ValueError, match="at byte 0"):
        tally.add(bytearray(one[:-1]), 5)


def test_sizes() -> None:
    assert layout.HEADER_SIZE == 104
    assert layout.FEATURES_AT == 72
    assert layout.ATTR_SIZE == 112
    assert layout.LOST_RECORD.size == 56
    assert layout.COMM_TRAILER.size == 32
    assert len(layout.TRACING_DATA_BEGIN) == 3 + 7 + 4 + 1 + 1
