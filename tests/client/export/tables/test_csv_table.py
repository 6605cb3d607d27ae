"""Every field of every record, read back by the csv module."""

import csv
import io
from pathlib import Path

import utracefs
from tests.client.export.example import EVENTS, ROWS, comm, name, shown, write
from utracefs.export import Exported, write_csv

BASE = ["time_ns", "cpu", "pid", "tid", "comm", "system", "name"]


def test_all_records(tmp_path: Path) -> None:
    out = io.BytesIO()
    with utracefs.open(write(tmp_path / "trace.dat", lost=3)) as recording:
        assert write_csv(recording, out) == Exported(len(ROWS), 3, False)
    assert not out.closed
    header, *rows = csv.reader(io.StringIO(out.getvalue().decode("utf-8"), newline=""), strict=True)
    fields = list(
        dict.fromkeys(text for d in EVENTS.declared.values() for f in d.fields for text in [f.name.decode()])
    )
    assert header == BASE + [f"field_{field}" if field in BASE else field for field in fields]
    assert rows == [
        [str(time), str(number % 2), str(tid), str(tid), comm(tid), "user_events", name(event_id)]
        + [str(shown(values[field])) if field in values else "" for field in fields]
        for number, (tid, event_id, time, values) in enumerate(ROWS)
    ]


def test_only_columns_of_events_that_have_records(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.dat")
    for events, columns in (
        (["begin"], ["key", "size"]),
        (["empty"], []),
        (["done", "begin"], ["key", "size", "usec"]),
    ):
        out = io.BytesIO()
        with utracefs.open(path, events=events) as recording:
            write_csv(recording, out)
        assert out.getvalue().decode().splitlines()[0].split(",") == BASE + columns
    out = io.BytesIO()
    with utracefs.open(path, pids=[999]) as recording:
        assert write_csv(recording, out).records == 0
    assert out.getvalue() == ",".join(BASE).encode() + b"\r\n"
