"""The common parts of recordings: of one file; several/test_merged.py has those of several."""

from pathlib import Path

import pytest

import utracefs
from tests.client.recordings.several.example import DAY, SECOND, origin, write
from tests.judges import library
from utracefs_protocol.errors import TraceError


def test_one_file_is_its_only_part(tmp_path: Path) -> None:
    with utracefs.open(write(tmp_path / "a.dat", origin("a", DAY), [SECOND])) as recording:
        assert list(recording.parts) == list(recording.recordings) == [recording]
        assert (recording.is_merged, recording.labels, recording.ts_offsets, recording.notes) == (
            False,
            [""],
            [0],
            [],
        )
        assert repr(recording) == f"<Recording {recording.path}: trace.dat, clock mono, 1 events>"


def test_an_unknown_event_is_named(tmp_path: Path) -> None:
    library("pyarrow")
    with utracefs.open(write(tmp_path / "a.dat", None, [])) as recording:
        for ask in (recording.find_event, recording.to_arrow, recording.arrow_reader):
            with pytest.raises(TraceError, match=r"a\.dat: .*nothing"):
                ask("nothing")
