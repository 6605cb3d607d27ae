"""Every field of every record, read back by pyarrow, pandas, polars and DuckDB; days, hosts, memory."""

import datetime
import errno
import os
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import utracefs
from tests.client.export.example import EVENTS, name, write
from tests.client.recordings.columns import expected
from tests.client.recordings.events import Events
from tests.client.recordings.perf_data.example import sample
from tests.client.recordings.perf_data.example import write as write_perf_data
from tests.client.recordings.test_recording import break_first_page
from tests.client.recordings.trace_dat import example
from tests.judges import library
from utracefs.export import Exported, write_parquet, write_parquet_file
from utracefs.export.tables import parquet
from utracefs.export.tables.sql import open_tables
from utracefs.recordings.partial_files import WholeFile
from utracefs.recordings.perf_data.format import Feature
from utracefs_protocol.errors import TraceError

duckdb = library("duckdb")
pandas = library("pandas")
polars = library("polars")
pq = library("pyarrow.parquet")

NAMES = [name(number) for number in EVENTS.declared]
DAY = datetime.datetime(2026, 2, 28, 23, 59, 59, tzinfo=datetime.UTC)
DAY_NS = int(DAY.timestamp()) * 10**9
SECOND = 10**9


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Path]:
    path = write(tmp_path / "t.dat", lost=5)
    with utracefs.open(path) as recording:
        assert write_parquet(recording, tmp_path / "out") == Exported(15, 5, False, day_guessed=True)
    return path, tmp_path / "out"


def files(directory: Path, event: str) -> list[Path]:
    return sorted(directory.glob(f"event=user_events%3A{event}/day=*/host=*/part-*.parquet"))


def rows(path: Path, event: str) -> list[dict[str, Any]]:
    """The expected rows. Losses belong to the next record, of any event."""
    with utracefs.open(path) as recording:
        return expected(recording, event)


def query(text: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = duckdb.execute(text).fetchall()
    return found


@pytest.mark.parametrize("event", NAMES)
def test_every_field_of_every_record(written: tuple[Path, Path], event: str) -> None:
    path, out = written
    (file,) = files(out, event)
    wanted = rows(path, event)
    table = pq.ParquetFile(file).read()
    assert table.to_pylist() == wanted
    with utracefs.open(path) as recording:
        schema = recording.to_arrow(event).schema
        assert table.schema.equals(schema, check_metadata=True)
    assert polars.read_parquet(file, hive_partitioning=False).to_dicts() == wanted
    assert pandas.read_parquet(file, partitioning=None).to_dict("records") == wanted
    found = query(f"from read_parquet('{file}', hive_partitioning=false)")
    assert [dict(zip(table.column_names, row, strict=True)) for row in found] == wanted


def test_one_event_in_one_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t.dat")
    with utracefs.open(path) as recording, (tmp_path / "o").open("wb") as out:
        assert write_parquet_file(recording, out, event="ints") == Exported(2, 0, False)
        with pytest.raises(TraceError, match="no such event"):
            write_parquet_file(recording, out, event="nosuch")
    assert pq.read_table(tmp_path / "o").to_pylist() == rows(path, "ints")


def days_of(out: Path) -> dict[str, list[int]]:
    return {
        str(file.relative_to(out).parts[1]): pq.ParquetFile(file).read().column("n").to_pylist()
        for file in sorted(out.rglob("*.parquet"))
    }


NUMBERS = Events(5, b"ev u32 n")
AROUND_MIDNIGHT = [(SECOND * (1 + n), NUMBERS.entry(5, 1, n)) for n in range(4)]


def test_days_of_a_trace_dat(tmp_path: Path) -> None:
    """The last record is of the time of the file's last change."""
    formats = {b"user_events": NUMBERS.formats()}
    more = {"formats": formats, "uname": "Linux box=1/2 6.1 x86_64"}
    path = example.write(tmp_path / "t", [example.pages(AROUND_MIDNIGHT)], **more)
    os.utime(path, ns=(0, DAY_NS + 2 * SECOND))
    with utracefs.open(path) as recording:
        assert recording.host == "box=1/2"
        write_parquet(recording, tmp_path / "out")
        write_parquet(recording, tmp_path / "other", host="h ü")
    assert days_of(tmp_path / "out") == {"day=2026-02-28": [0, 1], "day=2026-03-01": [2, 3]}
    assert {file.parent.name for file in (tmp_path / "out").rglob("*.parquet")} == {"host=box%3D1%2F2"}
    assert query(f"select distinct host from read_parquet('{tmp_path}/other/**/*.parquet')") == [("h ü",)]


def test_days_of_a_perf_data(tmp_path: Path) -> None:
    """The file says which moment of its clock was which time of day, and the host."""
    features = [
        (Feature.HOSTNAME, struct.pack("<I", 8) + b"box\0\0\0\0\0"),
        (Feature.CLOCK_DATA, struct.pack("<IIQQ", 1, 1, DAY_NS, 2 * SECOND)),
    ]
    path = write_perf_data(
        tmp_path / "p", NUMBERS, [sample(ns, 0, 1, 1, data) for ns, data in AROUND_MIDNIGHT], b"", features
    )
    os.utime(path, ns=(0, 0))
    with utracefs.open(path) as recording:
        assert (recording.host, recording.unix_offset_ns) == ("box", DAY_NS - 2 * SECOND)
        write_parquet(recording, tmp_path / "out")
    assert days_of(tmp_path / "out") == {"day=2026-02-28": [0, 1], "day=2026-03-01": [2, 3]}


def test_times_that_do_not_fit(tmp_path: Path) -> None:
    formats = {b"user_events": NUMBERS.formats()}
    late = [(2**63 + n, NUMBERS.entry(5, 1, n)) for n in range(2)]
    path = example.write(
        tmp_path / "t", [example.pages(AROUND_MIDNIGHT), example.pages(late)], formats=formats
    )
    with utracefs.open(path) as recording:
        assert write_parquet(recording, tmp_path / "out").records == 6
    found = query(f"select n, time_ns from read_parquet('{tmp_path}/out/**/*.parquet')")
    assert [n for n, time_ns in found if time_ns is None] == [0, 1]


def test_names_of_events_that_no_directory_has(tmp_path: Path) -> None:
    formats = {
        b"s y=s": [b"name: a/b \xff%\nID: 5\nformat:\n\tfield:u32 host;\toffset:8;\tsize:4;\tsigned:0;\n"]
    }
    path = example.write(tmp_path / "t", [example.pages(AROUND_MIDNIGHT)], formats=formats)
    with utracefs.open(path) as recording:
        write_parquet(recording, tmp_path / "out")
    (folder,) = (tmp_path / "out").iterdir()
    assert folder.name == "event=s%20y%3Ds%3Aa%2Fb%20%EF%BF%BD%25"
    (file,) = folder.rglob("*.parquet")
    assert pq.ParquetFile(file).read().column("field_host").to_pylist() == [0, 1, 2, 3]


def test_names_that_are_too_long_for_a_directory(tmp_path: Path) -> None:
    names = ["\u00e4" * 60 + end for end in ("a", "b")]
    events = Events(5, *[f"{name} u32 n".encode() for name in names])
    records = [(n, events.entry(5 + n % 2, 1, n)) for n in range(4)]
    path = example.write(tmp_path / "t", [example.pages(records)], formats={b"user_events": events.formats()})
    with utracefs.open(path) as recording:
        write_parquet(recording, tmp_path / "out")
    assert all(len(folder.name) <= 255 for folder in (tmp_path / "out").iterdir())
    with open_tables(tmp_path / "out") as tables:
        assert sorted(table.name for table in tables.events) == names


def test_more_events_than_files_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_OPEN_FILES", 2)
    events = Events(5, *[b"ev%d u32 n" % n for n in range(3)])
    records = [(n, events.entry(5 + n % 3, 1, n)) for n in range(3 * 66_000)]
    formats = {b"user_events": events.formats()}
    path = example.write(tmp_path / "t", [example.pages(records)], formats=formats)
    with utracefs.open(path) as recording:
        assert write_parquet(recording, tmp_path / "out").records == len(records)
    for n in range(3):
        parts = files(tmp_path / "out", f"ev{n}")
        assert len(parts) == 2
        numbers = [i for part in parts for i in pq.ParquetFile(part).read().column("n").to_pylist()]
        assert numbers == list(range(n, len(records), 3))


def test_the_descriptions_of_many_row_groups_have_room_on_a_full_disk(tmp_path: Path) -> None:
    """Towards the end rows are divided into ever smaller groups, each with a description behind the rows."""
    arrow, pq = library("pyarrow"), library("pyarrow.parquet")
    arrays = {f"n{i}": arrow.array(range(20_000)) for i in range(8)}
    batch = arrow.record_batch(arrays | {"s": arrow.array(["x" * 500, "y"] * 10_000)})
    room = parquet._Room()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, limits[1]))
        with (
            WholeFile(str(tmp_path / "out")) as out,
            pq.ParquetWriter(out, batch.schema, compression=parquet.COMPRESSION) as writer,
        ):
            groups = parquet._RowGroups(writer, out)
            for _ in range(20):
                room.write(batch, groups.write)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    metadata = pq.ParquetFile(tmp_path / "out").metadata
    assert metadata.num_row_groups > 20 and room.missing
    assert metadata.num_rows + room.missing == 20 * batch.num_rows


def test_a_broken_file_is_written_up_to_the_broken_place(tmp_path: Path) -> None:
    path = example.write(
        tmp_path / "t", [example.pages([(1, example.CPU0[0][1])]), example.pages(example.CPU0)]
    )
    break_first_page(path)
    with utracefs.open(path) as recording:
        with pytest.raises(TraceError, match="broken"):
            write_parquet(recording, tmp_path / "out")
        with pytest.raises(FileExistsError):
            write_parquet(recording, tmp_path / "out")
    for file in (tmp_path / "out").rglob("*.parquet"):
        assert pq.ParquetFile(file).read().num_rows


MEMORY = """
import re, sys, utracefs
from utracefs.export import write_parquet
most = 0
def note(done):
    global most
    most = max(most, int(re.search(r"RssAnon:\\s*(\\d+)", open("/proc/self/status").read())[1]))
with utracefs.open(sys.argv[1]) as recording:
    write_parquet(recording, sys.argv[2], progress=note)
print(most)
"""


def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    """Four times as many records, with 120 MB of text, in no more memory; the mapped file is not counted."""
    peaks = []
    event = Events(5, b"ev u64 n; char[200] text")
    formats = {b"user_events": event.formats()}
    pages = example.pages([(n, event.entry(5, 1, 7, "x" * 199)) for n in range(15_000)])
    env = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}  # others keep what was freed for a while
    for count in (150_000, 600_000):
        path = example.write(tmp_path / "t", [pages * (count // 15_000)], formats=formats)
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, path, tmp_path / f"o{count}"],
            env=env,
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        peaks.append(int(done.stdout) * 1024)
    assert peaks[1] - peaks[0] < 48 << 20


def test_a_file_without_room_for_its_first_rows(tmp_path: Path) -> None:
    """There is none then, and half of the rows are tried in a new one."""
    events = Events(5, b"ev u32 n")
    records = [(n, events.entry(5, 1, n)) for n in range(1000)]
    path = example.write(tmp_path / "t", [example.pages(records)], formats={b"user_events": events.formats()})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 10, limits[1]))
        with utracefs.open(path) as recording:
            done = write_parquet(recording, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert (done.records, done.no_room) == (0, 1000)
    assert isinstance(done.error, OSError) and done.error.errno == errno.EFBIG
    assert not list((tmp_path / "out").rglob("*.parquet"))
