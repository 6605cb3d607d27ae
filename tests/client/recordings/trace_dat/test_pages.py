"""Counting the records of a page; the pages of a ring."""

import os
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.pages.page_writer import PageWriter, decode_page
from utracefs.recordings.trace_dat._pages import count_events, gather_pages
from utracefs_protocol.limits import MIN_STREAM_RING
from utracefs_protocol.pages._stream_ring import StreamRing


def entry(event_id: int, size: int = 8) -> bytes:
    return event_id.to_bytes(2, "little") + bytes(max(size, 8) - 2)


@given(
    st.lists(
        st.tuples(st.integers(1, 0xFFFF), st.integers(8, 300), st.sampled_from([0, 5, 1 << 27, 1 << 40, -3])),
        max_size=40,
    ),
    st.integers(0, 5),
)
def test_all_that_are_events(records: list[tuple[int, int, int]], lost: int) -> None:
    page, now, expected = PageWriter(timestamp=100), 1000, 0
    for event_id, size, step in records:
        now += step
        expected += page.add(now, entry(event_id, size)) and event_id >= 20
    whole = page.page(lost)
    assert count_events(whole) == expected
    assert len(decode_page(whole).records) == page.count


@pytest.mark.parametrize("page", [b"", bytes(15), bytes(16), bytes(4096)])
def test_nothing(page: bytes) -> None:
    assert count_events(page) == 0


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """A commit word that reaches far behind the end included."""
    assert 0 <= count_events(bytes(8) + b"\xff\xff\x0f\x00" + bytes(4) + data) <= len(data)


@pytest.fixture
def memory() -> Iterator[int]:
    fd = os.memfd_create("ring")
    os.truncate(fd, 4096 + MIN_STREAM_RING)
    os.pwrite(fd, struct.pack("<4I", 0x53525455, 1, 4096, MIN_STREAM_RING), 0)
    yield fd
    os.close(fd)


def put(fd: int, pages: list[tuple[int, bytes]]) -> None:
    at = 0
    for cpu, page in pages:
        size = (24 + len(page) + 7) & ~7
        os.pwrite(fd, struct.pack("<IHHQiI", size, 5, cpu, 0, 0, len(page)) + page, 4096 + at)
        at += size
    os.pwrite(fd, at.to_bytes(8, "little"), 64)


def page_of(records: int, event_id: int = 1000) -> bytes:
    page = PageWriter()
    for n in range(records):
        assert page.add(n, entry(event_id, 24))
    return page.page()


def test_pages_of_a_ring_by_cpu(memory: int) -> None:
    full, few, marker = page_of(100), page_of(2), page_of(100, 5)
    put(memory, [(1, full), (0, full), (1, few), (1, full), (0, marker), (1, full), (2, full)])
    ring, into = StreamRing(memory), bytearray(7 * 4096)
    assert ring.next_batch(most=6 * 4120)
    found = gather_pages(ring, into, 4096, 2)
    assert [(cpu, (end - begin) // 4096, n) for cpu, begin, end, n in found] == [
        (0, 2, 100),
        (1, 1, 100),
        (1, 1, 2),
        (1, 2, 200),
    ]
    assert b"".join(into[begin:end] for _, begin, end, _ in found) == b"".join(
        (full, marker, full, few, full, full)
    )
    assert ring.next_batch(most=1)
    with pytest.raises(ValueError, match="of cpu 2"):
        gather_pages(ring, into, 4096, 2)


def test_pages_that_do_not_belong_there(memory: int) -> None:
    put(memory, [(0, page_of(1)), (0, page_of(1)[:2048])])
    ring = StreamRing(memory)
    assert ring.next_batch()
    for size, most in ((4096, 3 * 4096), (2048, 3 * 4096)):
        with pytest.raises(ValueError, match="a page of"):
            gather_pages(ring, bytearray(most), size, 1)
    put(memory, [(0, page_of(1))] * 2)
    ring = StreamRing(memory)
    assert ring.next_batch()
    with pytest.raises(ValueError, match="8192 bytes of pages"):
        gather_pages(ring, bytearray(4096), 4096, 1)
