"""Shared parts of the exporters."""

import io
from pathlib import Path

import utracefs
from tests.client.export.example import ROWS, write
from utracefs.export.common import Exported, json_text, plain
from utracefs.export.json_lines import write_json_lines


def test_values() -> None:
    assert (plain(-5), plain(b"\x00\xff"), plain("a\udcffb")) == (-5, "00ff", "a\ufffdb")
    assert json_text({"a": "</script>\u2028"}) == '{"a":"\\u003c/script>\\u2028"}'


def test_progress_is_reported(tmp_path: Path) -> None:
    told: list[float] = []
    with utracefs.open(write(tmp_path / "trace.dat")) as recording:
        done = write_json_lines(recording, io.BytesIO(), progress=told.append)
        assert done == Exported(len(ROWS), 0, False)
        assert told == [1.0]
