"""Pieces of any size, and what is broken; shown with two writers that share nothing else."""

from collections.abc import Callable

import pytest

from tests.client.export.one_page import TEXT, records_of
from utracefs.export._json_text import JsonText
from utracefs.export._raw import PerfSamples
from utracefs.recordings._output_buffer import Pieces
from utracefs.recordings._records import Records

each_writer = pytest.mark.parametrize("writer", [JsonText, PerfSamples])


@each_writer
def test_pieces_are_the_whole(writer: Callable[[Records], Pieces]) -> None:
    entries = [b"%04d" % n * (n % 7 * 300) for n in range(20)]
    whole = writer(records_of(entries, [TEXT])).read(1 << 20)
    for max_bytes in (1, 500, 20_000):
        text = writer(records_of(entries, [TEXT]))
        pieces = []
        while piece := text.read(max_bytes):
            pieces.append(piece)
        assert b"".join(pieces) == whole
        assert all(len(piece) >= max_bytes for piece in pieces[:-1])
        assert text.read(max_bytes) == b""


@each_writer
def test_nothing_is_read_where_nothing_is_wanted(writer: Callable[[Records], Pieces]) -> None:
    text = writer(records_of([b"1234"], [TEXT]))
    assert text.read(0) == b""
    assert text.read(1) != b""


@each_writer
def test_what_is_broken_comes_after_all_before_it(writer: Callable[[Records], Pieces]) -> None:
    text = writer(records_of([b"good"], [TEXT], broken=True))
    assert b"good" in text.read(1 << 20)
    for _ in range(2):
        with pytest.raises(ValueError, match="page at 0"):
            text.read(1 << 20)


def test_what_says_nothing_of_records() -> None:
    with pytest.raises(NotImplementedError):
        Pieces().read(1)
