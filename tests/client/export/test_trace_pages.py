"""Rewritten pages, beside those of PageWriter; pages copied unchanged."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.pages.page_writer import PageWriter, broken, decode_page
from utracefs.export._trace_pages import RecordPages, WholePages, extent_of
from utracefs.recordings._records import EventDecoder, Records
from utracefs.recordings.trace_dat._merge import MergedPages

SIZE = 1 << 17
OUT = 4096
HEAD = struct.pack("<HBBi", 1, 0, 0, 7)

SIZES = st.sampled_from([0, 1, 3, 4, 5, 8, 50, 103, 104, 105, 106, 1000, 4064])
STEPS = st.sampled_from([0, 1, (1 << 27) - 1, 1 << 27, (1 << 59) - 1, 1 << 59, 1 << 60])
ROWS = st.lists(st.tuples(SIZES, STEPS, st.sampled_from([0, 0, 0, 5, -1])), max_size=100)


def source_of(*pages: bytes, cpus: tuple[int, ...] = (), buffers: tuple[int, ...] = ()) -> MergedPages:
    """An extent for each page."""
    places = [
        (buffers[n] if buffers else 0, cpus[n] if cpus else n, SIZE * n, SIZE, SIZE)
        for n in range(len(pages))
    ]
    source = MergedPages(b"".join(pages), places)
    source.comms = {7: "seven"}
    return source


def records_of(source: MergedPages) -> Records:
    return Records(source, lambda _: EventDecoder("s", "ev", []))


def page_of(*entries: bytes, lost: int = 0) -> bytes:
    writer = PageWriter(SIZE)
    for n, data in enumerate(entries):
        assert writer.add(n + 1, data)
    return writer.page(lost)


class Model:
    """A model of RecordPages for one cpu."""

    def __init__(self) -> None:
        self.pages: list[bytes] = []
        self._writer, self._lost = PageWriter(OUT), 0

    def add(self, ts: int, entry: bytes, lost: int) -> None:
        if lost:
            self.take()
            self._lost = lost
        has_no_room = self._lost > 0 and self._writer.count and self._writer.room < len(entry) + 32
        if has_no_room or not self._writer.add(ts, entry):
            self.take()
            assert self._writer.add(ts, entry)

    def take(self) -> None:
        if self._writer.count:
            self.pages.append(self._writer.page(self._lost))
        self._writer, self._lost = PageWriter(OUT), 0


@given(ROWS)
def test_the_same_pages_as_the_model(rows: list[tuple[int, int, int]]) -> None:
    """Each record on a page of its own, so that any may have lost records in front of it, and any time."""
    model, pages, ts = Model(), [], 0
    for n, (size, step, lost) in enumerate(rows):
        ts = (ts + step) % (1 << 64)
        entry = HEAD + bytes([n + 1]) * size
        entry += bytes(-len(entry) % 4 if len(entry) != 8 else 4)  # as a page gives it back
        if len(entry) > 112 or len(entry) >= 12:
            model.add(ts, entry, lost)
            writer = PageWriter(SIZE)
            assert writer.add(ts, entry)
            pages.append(writer.page(lost))
    model.take()
    source = MergedPages(b"".join(pages), [(0, 0, 0, len(pages) * SIZE, SIZE)])
    found = list(RecordPages(records_of(source), page_size=OUT))
    assert found == [(0, page) for page in model.pages]


def test_cpus_and_names() -> None:
    source = source_of(page_of(HEAD + b"aaaa"), page_of(HEAD + b"bbbb", HEAD + b"cccc", lost=5))
    pages = RecordPages(records_of(source), page_size=OUT)
    found = [(cpu, decode_page(page)) for cpu, page in pages]
    assert [(cpu, page.missed_events, [(r.ts, r.data) for r in page.records]) for cpu, page in found] == [
        (0, 0, [(1, HEAD + b"aaaa")]),
        (1, 5, [(1, HEAD + b"bbbb"), (2, HEAD + b"cccc")]),
    ]
    assert pages.comms == {7: "seven"}


@pytest.mark.parametrize("entry", [b"", b"x" * 5000])
def test_what_is_broken_or_too_large_comes_after_all_before_it(entry: bytes) -> None:
    page = page_of(HEAD + b"good", HEAD + entry) if entry else broken(page_of(HEAD + b"good"))
    pages = iter(RecordPages(records_of(source_of(page)), page_size=OUT))
    assert [len(decode_page(page).records) for _, page in [next(pages)]] == [1]
    with pytest.raises(ValueError, match="too large" if entry else "page at 0"):
        next(pages)


def test_extent() -> None:
    source = source_of(page_of(HEAD + b"aaaa"), page_of(HEAD + b"b" * 100))
    assert extent_of(records_of(source)) == (2, 108)
    assert extent_of(records_of(source_of(broken(page_of(HEAD + b"aaaa"))))) == (1, 12)
    assert extent_of(records_of(source_of())) == (0, 0)


def test_whole_pages() -> None:
    pages = [page_of(HEAD + b"aaaa", lost=3), page_of(HEAD + b"bbbb", HEAD + b"cccc", lost=-1)]
    whole = WholePages(source_of(*pages, cpus=(0, 4)))
    assert (whole.sound, whole.nr_cpus, whole.page_size) == (True, 5, SIZE)
    assert (whole.records, whole.lost, whole.lost_uncounted, whole.comms) == (3, 3, True, {7: "seven"})
    assert list(whole) == [(0, pages[0]), (4, pages[1])]


GOOD = page_of(HEAD + b"aaaa")


@pytest.mark.parametrize(
    ("pages", "places"),
    [
        ([], {}),
        ([GOOD, page_of()], {}),
        ([GOOD, broken(GOOD)], {}),
        ([page_of(b"abcd")], {}),
        ([struct.pack("<QQ", 0, SIZE).ljust(SIZE, b"\0")], {}),
        ([GOOD, GOOD], {"cpus": (1, 1)}),
        ([GOOD, GOOD], {"buffers": (0, 1)}),
    ],
)
def test_what_is_not_copied(pages: list[bytes], places: dict[str, Any]) -> None:
    assert not WholePages(source_of(*pages, **places)).sound
