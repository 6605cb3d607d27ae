"""utracefs.open: both formats, selection, time ranges without reading all, what can be saved."""

import errno
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import utracefs
from tests.client.recordings.events import Events
from tests.client.recordings.perf_data.example import lost, sample
from tests.client.recordings.perf_data.example import write as write_perf_data
from tests.client.recordings.trace_dat.example import CPU0, CPU1, many_records, pages, write
from utracefs import Record, Recording
from utracefs.recordings.report import report_text
from utracefs_protocol.errors import TraceError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "trace.dat", [pages(CPU0), pages(CPU1)])


def rows(recording: Recording) -> list[tuple[object, ...]]:
    return [(r.time_ns, r.cpu, r.tid, r.comm, r.system, r.name, r.fields) for r in recording]


ALPHA = [
    (100000000001, 0, 11, "alpha", "user_events", "test", {"count": 7}),
    (
        100000000351,
        0,
        12,
        "beta task",
        "user_events",
        "rpc",
        {"method": "Get", "latency_ns": 1500, "status": -2},
    ),
    (100500000000, 1, 11, "alpha", "user_events", "blob", {"digest": b"0123456789abcdef", "tag": "t1"}),
    (101000000000, 0, 11, "alpha", "user_events", "test", {"count": 8}),
]


def test_a_trace_dat(file: Path) -> None:
    with utracefs.open(file) as recording:
        assert rows(recording) == ALPHA
        assert rows(recording) == ALPHA, "each iteration begins anew"
        assert (recording.format, recording.clock, recording.clock_in_ns) == ("trace.dat", "mono", True)
        assert [str(event) for event in recording.events] == [
            f"user_events:{n}" for n in ("test", "rpc", "blob")
        ]
        assert [event.name for event in recording.events_with_records()] == ["test", "rpc", "blob"]


def test_one_file_is_its_only_part(file: Path) -> None:
    with utracefs.open(file) as recording:
        (part,) = recording.parts
        assert rows(part) == rows(recording) != []
        assert (recording.is_merged, recording.labels, recording.ts_offsets, recording.notes) == (
            False,
            [""],
            [0],
            [],
        )
        assert repr(recording) == f"<Recording {file}: trace.dat, clock mono, 3 events>"


def test_the_name_open_stays_the_builtin() -> None:
    program = (
        "from utracefs import *; import utracefs, builtins;"
        "assert open is builtins.open; assert utracefs.open is not open"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@given(st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=40)
def test_a_time_range_reads_only_its_pages(
    tmp_path_factory: pytest.TempPathFactory, first: int, last: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "many.dat"
    if not path.exists():
        write(path, [pages(many_records(cpu, 1500)) for cpu in range(3)], offset_ns=1000)
    with utracefs.open(path) as recording:
        everything = [(r.time_ns, r.cpu) for r in recording]
    begin, end = everything[0][0], everything[-1][0]
    since, until = begin + (end - begin) * first // 40, begin + (end - begin) * last // 40
    with utracefs.open(path, since_ns=since, until_ns=until) as recording:
        reading = recording.reading()
        assert [(r.time_ns, r.cpu) for r in reading] == [row for row in everything if since <= row[0] < until]


def test_errors(tmp_path: Path, file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        utracefs.open(tmp_path / "nothing")
    other = tmp_path / "other"
    for data in (b"", b"\x7fELF", b"text"):
        other.write_bytes(data)
        with pytest.raises(TraceError, match="is neither"):
            utracefs.open(other)
    with pytest.raises(TraceError, match="no such event: nosuch") as raised:
        utracefs.open(file, events=["test", "nosuch"])
    assert raised.value.errno == errno.ENOENT


def break_first_page(path: Path) -> Path:
    """The second record of the first page claims to be longer than the page."""
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<Q", CPU0[0][0])) + 16 + 16
    data[at : at + 8] = struct.pack("<II", 0, 60000)
    path.write_bytes(data)
    return path


def test_a_broken_page_ends_it_or_is_left_out(tmp_path: Path) -> None:
    many = [pages(many_records(cpu, 600)) for cpu in range(2)]
    path = write(tmp_path / "trace.dat", [pages(CPU0) + many[0], many[1]])
    break_first_page(path)
    with utracefs.open(path) as recording:
        reading = iter(recording)
        with pytest.raises(TraceError, match="broken: cpu 0, page at 4096"):
            list(reading)
    with utracefs.open(path, recover=True) as recording:
        found = list(recording)
        assert len(found) == 1 + 2 * 600
        assert [r.lost for r in found if r.lost] == [-1]


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    per_cpu = [many_records(cpu, 600) for cpu in range(3)]
    path = write(tmp_path / "trace.dat", [pages(records) for records in per_cpu])
    whole = path.read_bytes()
    with utracefs.open(path) as recording:
        everything = {(r.time_ns, r.cpu, str(r.fields)) for r in recording}
    before = 0
    for length in range(4096, len(whole), 12000):
        path.write_bytes(whole[:length])
        with pytest.raises(TraceError, match="cut off or broken; --recover may read"):
            utracefs.open(path)
        with utracefs.open(path, recover=True) as recording:
            found = {(r.time_ns, r.cpu, str(r.fields)) for r in recording}
        assert found <= everything and len(found) >= before
        before = len(found)
    assert before > 1500
    path.write_bytes(whole[:24] + bytes(8) + whole[32:])  # the writer was killed before it named the options
    with utracefs.open(path, recover=True) as recording:
        assert {(r.time_ns, r.cpu, str(r.fields)) for r in recording} == everything
    path.write_bytes(whole[:300])
    with pytest.raises(TraceError, match="nothing can be recovered"):
        utracefs.open(path, recover=True)


@given(
    st.lists(st.tuples(st.integers(0, 20000), st.integers(0, 255)), min_size=1, max_size=8),
    st.integers(20, 20000),
)
@settings(max_examples=150)
def test_any_bytes_can_be_recovered_from(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], length: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.dat"
    data = bytearray(write(path, [pages(CPU0), pages(CPU1)]).read_bytes()[:length])
    for at, value in changes:
        data[at % len(data)] = value
    path.write_bytes(data)
    for recover in (False, True):
        try:
            with utracefs.open(path, recover=recover) as recording:
                assert len(list(recording)) < 3000
                assert b"".join(report_text(recording))
        except TraceError as error:
            assert error.errno == errno.EINVAL and str(path) in error.text


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Anonymous memory only: pages of a mapped file are the kernel's, which reclaims them at any time."""
    records = pages(many_records(0, 3000))
    program = """
import sys, utracefs
with utracefs.open(sys.argv[1]) as recording:
    count = sum(1 for _ in recording)
with open("/proc/self/status") as file:
    rss = next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))
print([count, rss])
"""
    used = []
    for times in (1, 100):
        path = write(tmp_path / "trace.dat", [records * times])
        done = subprocess.run(
            [sys.executable, "-c", program, path], capture_output=True, check=True, timeout=100
        )
        count, rss_kib = json.loads(done.stdout)
        assert count == 3000 * times
        used.append(rss_kib)
    assert path.stat().st_size > 8 << 20
    assert used[1] < used[0] + (2 << 10)


def test_a_record_outlives_its_file(file: Path) -> None:
    recording = utracefs.open(file)
    record = next(iter(recording))
    recording.close()
    assert isinstance(record, Record) and record.fields == {"count": 7}


def test_what_was_lost_behind_the_last_record_is_counted(tmp_path: Path) -> None:
    events = Events(1, b"ev u64 n")
    data = [sample(1, 1, 3, 4, events.entry(1, 4, 5)), lost(5, 2)]
    path = write_perf_data(tmp_path / "p", events, data)
    with utracefs.open(path) as recording:
        reading = recording.reading()
        assert [record.lost for record in reading] == [0]
        assert list(reading) == []
        assert (reading.records.lost, reading.records.lost_uncounted) == (5, False)
    with utracefs.open(path, until_ns=2) as recording:
        reading = recording.reading()
        assert len(list(reading)) == 1
        assert reading.records.lost == 0
