"""Counting the records of a page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs.recordings.trace_dat._pages import count_events
from utracefs_protocol.pages.subbuf import PageWriter, decode_page


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
