"""One file of a recording, and the selection of its events."""

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


def test_selected_events_have_decoders(reader: TraceDatReader) -> None:
    one = RecordedFile(reader, "a.dat", Selected(events=("rpc", "gone"), filter=b"common_pid > 0"))
    assert [str(event) for event in one.events] == [f"user_events:{n}" for n in ("test", "rpc", "blob")]
    assert [one.decoder(event.id) is not None for _, event in one.formats] == [False, True, False]
    assert [event.name for _, event in one.selected_tracepoints] == [b"rpc"]
    assert (one.missing, one.filter_error) == (["gone"], None)
    refused = RecordedFile(reader, "a.dat", Selected(filter=b"nothing == 1"))
    assert refused.filter_error is not None and not refused.selected_tracepoints


def test_a_selection_in_words() -> None:
    assert Selected().words() == []
    chosen = Selected(("e*",), frozenset({2, 1}), frozenset({0}), 10**9, 2 * 10**9, b"n > 1")
    assert "; ".join(chosen.words()) == (
        "event e*; process 1, 2; cpu 0; from 1.000000000 s; before 2.000000000 s; filter n > 1"
    )


def test_whole_pages_have_no_other_selection_than_cpus(reader: TraceDatReader) -> None:
    selections = [Selected(), Selected(cpus=frozenset({0})), Selected(since_ns=1), Selected(events=("rpc",))]
    found = [RecordedFile(reader, "a.dat", selected).whole_pages() is not None for selected in selections]
    assert found == [True, True, False, False]
