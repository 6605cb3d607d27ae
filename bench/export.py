"""Recordings as a library and in other formats: records a second of one process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import utracefs
from bench import report
from bench.measure import Row, at_least_row, left_out
from utracefs.export import (
    Counter,
    Duration,
    Tracks,
    write_chrome,
    write_csv,
    write_ctf,
    write_json_lines,
    write_parquet,
    write_perf_data,
    write_perfetto,
    write_trace_dat,
)
from utracefs.export.tables.sql import open_tables
from utracefs.html import write_html
from utracefs.recordings.recording import Recording

RUNS = 3


def _objects(recording: Recording) -> None:
    for _ in recording:
        pass


def _into(write: Callable[..., object], **options: object) -> Callable[[Recording], None]:
    def export(recording: Recording) -> None:
        with open("/dev/null", "wb") as out:
            write(recording, out, **options)

    return export


TRACKS = Tracks(durations=(Duration("request", "usec", 1),), counters=(Counter("request", "usec"),))


def _arrow(recording: Recording) -> None:
    recording.to_arrow()


def _to_path(write: Callable[..., object], **selection: Any) -> Callable[[Recording], None]:
    def export(recording: Recording) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="utracefs-bench-") as folder,
            utracefs.open(recording.path, **selection) as selected,
        ):
            write(selected, Path(folder, "out"))

    return export


def _filtered(recording: Recording) -> None:
    with utracefs.open(recording.path, filter='status >= 500 || comm == "nobody"') as selected:
        _objects(selected)


def _sql(table: str) -> Callable[[Recording], None]:
    def ask(recording: Recording) -> None:
        with open_tables(recording.path) as tables:
            tables.connect().execute(f"SELECT pid, count(*) FROM {table} GROUP BY pid").fetchall()

    return ask


KINDS: dict[str, tuple[Callable[[Recording], None], float]] = {
    "as Record objects": (_objects, 300_000),
    "as JSON lines": (_into(write_json_lines), 300_000),
    "as an HTML page": (_into(write_html), 300_000),
    "as CSV": (_into(write_csv), 100_000),
    "as Chrome JSON": (_into(write_chrome), 300_000),
    "as Perfetto": (_into(write_perfetto), 1_000_000),
    "as Perfetto, all slices and counters": (_into(write_perfetto, tracks=TRACKS), 300_000),
    "as columns (Arrow)": (_arrow, 1_000_000),
    "as Parquet": (_to_path(write_parquet), 1_000_000),
    "as perf.data": (_to_path(write_perf_data), 1_000_000),
    "as CTF": (_to_path(write_ctf), 1_000_000),
    "as trace.dat, selected": (_to_path(write_trace_dat, events=["request"]), 1_000_000),
    "judged by a filter": (_filtered, 5_000_000),
    "grouped in SQL, of an event": (_sql("request"), 1_000_000),
    "grouped in SQL, of `records`": (_sql("records"), 500_000),
}


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="utracefs-bench-") as folder:
        path = Path(folder) / "trace.dat"
        report.make(path, *report.EVENTS["strings"])
        for name, (run, least) in KINDS.items():
            with left_out(f"1,000,000 records {name}"):
                figure = report.RECORDS / _best(run, path)
                yield at_least_row(f"1,000,000 records {name}", figure, least, "records/s")
        rate = path.stat().st_size / 1e6 / _best(_to_path(write_trace_dat), path)
        yield at_least_row("whole pages as trace.dat", rate, 500, "MB/s")


def _best(run: Callable[[Recording], None], path: Path) -> float:
    """Seconds."""
    took = []
    for _ in range(RUNS):
        with utracefs.open(path) as recording:
            begin = time.perf_counter()
            run(recording)
            took.append(time.perf_counter() - begin)
    return min(took)
