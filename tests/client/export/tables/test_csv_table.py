"""Every field of every record, read back by the csv module."""

import csv
import io
from pathlib import Path

import pytest

import utracefs
from tests.client.export.example import EVENTS, ROWS, comm, name, shown, write
from tests.client.recordings.test_recording import break_first_page
from tests.client.recordings.trace_dat.example import CPU0, pages
from tests.client.recordings.trace_dat.example import write as write_pages
from utracefs.export import Exported, write_csv
from utracefs_protocol.errors import TraceError

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


def test_a_broken_recording_is_written_up_to_there(tmp_path: Path) -> None:
    out = io.BytesIO()
    path = break_first_page(write_pages(tmp_path / "trace.dat", [pages(CPU0)]))
    with utracefs.open(path) as recording, pytest.raises(TraceError, match="broken: cpu 0"):
        write_csv(recording, out)
    assert out.getvalue().decode().splitlines() == [
        ",".join([*BASE, "count"]),
        "100000000001,0,11,11,alpha,user_events,test,7",
    ]
