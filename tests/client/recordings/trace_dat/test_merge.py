"""Merging by time: a plain model, records that were lost, files that are broken."""

import heapq
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.pages import subbuf_model
from tests.protocol.pages.page_writer import PageWriter
from utracefs.recordings._records import EventDecoder, Record, Records
from utracefs.recordings.trace_dat._merge import MergedPages
from utracefs_protocol.events.declaration import Field, FieldKind

PAGE = 128
Extent = tuple[int, int, int, int, int]
Merged = tuple[int, int, int, int, str]
VALUE = Field(b"u32", b"value", 8, 4, False, FieldKind.INTEGER)


def page(*times: int, lost: int = 0) -> bytes:
    writer = PageWriter(PAGE)
    for ts in times:
        assert writer.add(ts, struct.pack("<HBBiI", 1, 0, 0, 7, ts + 1000))
    return writer.page(lost)


def file_of(*streams: list[bytes]) -> tuple[bytes, list[Extent]]:
    """Streams one behind the other; their cpu is ten times their number."""
    data = b"in front"
    extents = []
    for n, pages in enumerate(streams):
        extents.append((n % 2, n * 10, len(data), PAGE * len(pages), PAGE))
        data += b"".join(pages)
    return data, extents


def merged(data: bytes, extents: list[Extent]) -> Iterator[Merged]:
    """(time, cpu, value, lost, instance) of each record."""
    decoder = EventDecoder("s", "ev", [VALUE])
    records = Records(MergedPages(data, extents), lambda _: decoder, instances=["even", "odd"])

    def merged_one(record: Record) -> Merged:
        return record.time_ns, record.cpu, record.fields["value"], record.lost, record.instance

    return map(merged_one, records)


def model(data: bytes, extents: list[Extent]) -> Iterator[Merged]:
    def stream(extent: Extent) -> Iterator[Merged]:
        buffer, cpu, offset, size, _ = extent
        lost = 0
        for start in range(offset, offset + size, PAGE):
            missed = subbuf_model.missed_events(data[start : start + PAGE])
            lost = -1 if missed < 0 or lost < 0 else lost + missed
            for ts, at, length in subbuf_model.records(data[start : start + PAGE]):
                value = int.from_bytes(data[start + at + 8 : start + at + length], "little")
                yield ts, cpu, value, lost, ("even", "odd")[buffer]
                lost = 0

    return heapq.merge(*map(stream, extents), key=lambda record: record[0])


@given(
    st.lists(
        st.lists(
            st.tuples(st.lists(st.integers(0, 20), max_size=3), st.sampled_from([0, 0, 3, -1])), max_size=5
        ),
        max_size=9,
    )
)
def test_as_the_model_has_it(streams: list[list[tuple[list[int], int]]]) -> None:
    """Also with times that go back within a stream, and pages without records."""
    data, extents = file_of(*([page(*times, lost=lost) for times, lost in pages] for pages in streams))
    assert list(merged(data, extents)) == list(model(data, extents))


def test_equal_times_in_the_order_of_the_streams() -> None:
    data, extents = file_of([page(5, 5), page(5)], [page(5)], [page(4, 5)])
    assert [record[:2] for record in merged(data, extents)] == [
        (4, 20),
        (5, 0),
        (5, 0),
        (5, 0),
        (5, 10),
        (5, 20),
    ]


def test_lost_records_are_reported_once_before_the_next_one() -> None:
    empty = page(lost=4)
    data, extents = file_of(
        [empty, empty, page(1, 2, lost=5), page(3, lost=-1), empty, page(4), page(lost=9)]
    )
    assert [record[3] for record in merged(data, extents)] == [13, 0, -1, 4]
    data, extents = file_of([page(lost=-1), page(1, lost=5)])
    assert [record[3] for record in merged(data, extents)] == [-1]


def test_no_streams() -> None:
    assert list(merged(b"", [])) == []
    assert list(merged(b"any", [(0, 0, 1, 0, PAGE)])) == []


@pytest.mark.parametrize(
    "extent",
    [
        (0, 3, 0, 2 * PAGE, PAGE),
        (0, 3, 1, PAGE, PAGE),
        (0, 3, 2**63, PAGE, PAGE),
        (0, 3, 0, PAGE - 1, PAGE),
        (0, 3, 0, PAGE, 0),
        (0, 3, 0, PAGE, -PAGE),
    ],
)
def test_an_extent_outside_the_file_or_of_broken_pages(extent: Extent) -> None:
    with pytest.raises(ValueError, match="cpu 3 has"):
        MergedPages(page(1), [extent])


BROKEN = bytearray(page(7, 8))
struct.pack_into("<I", BROKEN, 16 + 16, 28)
TOO_FULL = struct.pack("<QQ", 1, PAGE).ljust(PAGE, b"\0")


def test_a_broken_record_is_reported_after_the_records_before_it() -> None:
    data, extents = file_of([page(1), bytes(BROKEN)], [page(2, 9)])
    merge = merged(data, extents)
    assert [next(merge)[0] for _ in range(3)] == [1, 2, 7]
    with pytest.raises(ValueError, match=r"^cpu 0, page at 136: record at 36 has 112 bytes"):
        next(merge)
    assert list(merge) == []


def test_a_broken_page() -> None:
    data, extents = file_of([page(5)], [page(1), TOO_FULL])
    merge = merged(data, extents)
    assert next(merge)[0] == 1
    with pytest.raises(ValueError, match=r"^cpu 10, page at 264: page of 128 bytes says that it holds 128"):
        next(merge)
    assert list(merge) == []
    with pytest.raises(ValueError, match="cpu 0, page at 8: "):
        next(merged(*file_of([TOO_FULL])))
