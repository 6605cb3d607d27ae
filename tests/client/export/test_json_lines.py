"""Every field of every record, read back by the json module."""

import io
import json
from pathlib import Path

import utracefs
from tests.client.export.example import ROWS, comm, name, shown, write
from utracefs.export import Exported, write_json_lines


def test_all_records(tmp_path: Path) -> None:
    out = io.BytesIO()
    with utracefs.open(write(tmp_path / "trace.dat", lost=3)) as recording:
        assert write_json_lines(recording, out) == Exported(len(ROWS), 3, False)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines.pop(1) == {"lost": 3}
    assert lines == [
        {
            "time_ns": time,
            "cpu": number % 2,
            "pid": tid,
            "tid": tid,
            "comm": comm(tid),
            "system": "user_events",
            "name": name(event_id),
            "fields": {key: shown(value) for key, value in values.items()},
        }
        for number, (tid, event_id, time, values) in enumerate(ROWS)
    ]


def test_records_that_were_lost_and_not_counted(tmp_path: Path) -> None:
    out = io.BytesIO()
    with utracefs.open(write(tmp_path / "trace.dat", lost=-1), events=["empty"]) as recording:
        assert write_json_lines(recording, out) == Exported(1, 0, True)
    assert json.loads(out.getvalue().splitlines()[0]) == {"lost": None}
