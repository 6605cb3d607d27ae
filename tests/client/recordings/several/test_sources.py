"""The compiled merge of several sources, against sorted()."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.pages.page_writer import PageWriter
from utracefs.recordings._records import EventDecoder, Records
from utracefs.recordings.several._sources import MergedSources
from utracefs.recordings.several.timeline import Timeline
from utracefs.recordings.trace_dat._merge import MergedPages
from utracefs_protocol.limits import SUBBUF_SIZE

ENTRY = b"\1\0\0\0\7\0\0\0"


def source(times: list[int], damage: bytes = b"") -> MergedPages:
    writer = PageWriter()
    for time in sorted(times):
        assert writer.add(time, ENTRY)
    page = writer.page(0)
    assert len(page) == SUBBUF_SIZE
    if damage:
        at = page.index(ENTRY) - len(damage)
        page = page[:at] + damage + page[at + len(damage) :]
    return MergedPages(page, [(0, 0, 0, SUBBUF_SIZE, SUBBUF_SIZE)])


def records(merged: MergedSources, count: int) -> Records:
    places = [("", str(n)) for n in range(count)]
    return Records(merged, lambda key: EventDecoder("s", f"e{key >> 16}", ()), places=places)


lines = st.builds(
    Timeline,
    shift_ns=st.integers(-1000, 1000),
    begin_ns=st.integers(0, 10**6),
    span_ns=st.integers(10**6, 10**9),
    offset_ns=st.integers(0, 2**60),
    step_ns=st.integers(-1000, 1000),
) | st.builds(Timeline, offset_ns=st.integers(0, 100))


@given(st.lists(st.tuples(lines, st.lists(st.integers(10**4, 10**10), max_size=20)), max_size=9))
def test_against_sorted(members: list[tuple[Timeline, list[int]]]) -> None:
    expected = sorted(
        (line.place(time), number) for number, (line, times) in enumerate(members) for time in times
    )
    merged = MergedSources((source(times), line, 0) for line, times in members)
    found = [(r.time_ns, int(r.file), r.name) for r in records(merged, len(members))]
    assert found == [(time, number, f"e{number}") for time, number in expected]
    assert merged.broken == -1


def test_a_broken_source_is_raised_after_the_others() -> None:
    merged = MergedSources(
        [
            (source([5]), Timeline(), 0),
            (source([1], b"\xff\xff\xff\x7f"), Timeline(), 0),
            (source([9]), Timeline(), 0),
        ]
    )
    reading = records(merged, 3)
    assert [next(reading).time_ns for _ in range(2)] == [5, 9]
    with pytest.raises(ValueError, match="page"):
        next(reading)
    assert merged.broken == 1
    with pytest.raises(StopIteration):
        next(reading)


def test_it_takes_sources_only() -> None:
    with pytest.raises(TypeError):
        MergedSources([("file", Timeline(), 0)])  # type: ignore[list-item]
