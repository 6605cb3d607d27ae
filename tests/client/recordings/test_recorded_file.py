"""The selections with which the pages of a file are copied whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.recordings.trace_dat.example import CPU0, CPU1, pages, write
from utracefs.recordings.recorded_file import RecordedFile, Selected
from utracefs.recordings.trace_dat.reader import TraceDatReader


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[TraceDatReader]:
    with TraceDatReader(write(tmp_path / "a.dat", [pages(CPU0), pages(CPU1)])) as reader:
        yield reader


def test_whole_pages_have_no_other_selection_than_cpus(reader: TraceDatReader) -> None:
    selections = [Selected(), Selected(cpus=frozenset({0})), Selected(since_ns=1), Selected(events=("rpc",))]
    found = [RecordedFile(reader, "a.dat", selected).whole_pages() is not None for selected in selections]
    assert found == [True, True, False, False]
