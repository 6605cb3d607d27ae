"""A perf.data that was written: what the real perf and our reader find in it."""

import errno
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import utracefs
from tests.judges import judge, run_judge
from utracefs.recordings.perf_data.reader import PerfDataReader
from utracefs.recordings.perf_data.writer import Contents, PerfDataEvent, PerfDataWriter
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import format_text, parse_format
from utracefs_protocol.pages.perf_ring import Sample

HEADER_PAGE = (
    b"\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n"
    b"\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n"
    b"\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n"
    b"\tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n"
)


def event(name: bytes, number: int, fields: bytes, **options: int) -> PerfDataEvent:
    declaration = parse(name + b" " + fields)
    text = format_text(name, number, declaration.fields)
    return PerfDataEvent(b"user_events", name, number, number - 1000, text, **options)


EVENTS = (
    event(b"http", 1020, b"u16 status; s32 usec; char[8] path"),
    event(b"work", 1021, b"u64 n", sample_freq=99),
)


def sample(identifier: int, raw: bytes, *, pid: int, tid: int, time: int, cpu: int) -> bytes:
    raw += bytes(-(len(raw) + 4) % 8)
    body = struct.pack("<QQIIQIIQI", identifier, 0, pid, tid, time, cpu, 0, 1, len(raw)) + raw
    return struct.pack("<IHH", 9, 2, 8 + len(body)) + body


def common(number: int, tid: int) -> bytes:
    return struct.pack("<HBBi", number, 0, 0, tid)


def http(time: int, status: int, usec: int, path: bytes, tid: int = 8) -> bytes:
    raw = common(1020, tid) + struct.pack("<Hi8s", status, usec, path)
    return sample(20, raw, pid=7, tid=tid, time=time, cpu=1)


def work(time: int, n: int) -> bytes:
    return sample(21, common(1021, 9) + struct.pack("<Q", n), pid=9, tid=9, time=time, cpu=0)


def written(path: Path) -> None:
    with PerfDataWriter(path) as writer:
        writer.add(http(2_000_000_100, 200, -5, b"/a") + http(4_000_000_000, 503, 7, b"/b c"))
        writer.add(work(1_000_000_000, 1) + work(3_000_000_000, (1 << 64) - 1))
        writer.add_lost(21, 5, 3_000_000_001)
        writer.finish(
            Contents(
                events=EVENTS,
                header_page=HEADER_PAGE,
                header_event=b"",
                comms={(7, 8): b"server one", (9, 9): b"w"},
                first_ns=1_000_000_000,
                last_ns=4_000_000_000,
                command=(b"utracefs", b"perf", b"record"),
                version=b"1",
            )
        )


def test_our_reader_finds_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    written(path)
    with PerfDataReader(path) as reader:
        source = reader.samples()
        samples = list(source)
        assert [one.time for one in samples] == [1_000_000_000, 2_000_000_100, 3_000_000_000, 4_000_000_000]
        raw = common(1021, 9) + struct.pack("<Q", 1)
        assert samples[0] == Sample(21, 0, 9, 9, 1_000_000_000, 0, 1, raw + bytes(4))
        assert reader.cmdlines == source.comms == {8: "server one", 9: "w"}
        assert (source.lost, source.gaps) == (5, 0)
        assert reader.formats == {one.config: parse_format(one.format) for one in EVENTS}
        assert reader.systems == {one.config: "user_events" for one in EVENTS}


def test_perf_reads_every_field(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    written(path)
    done = subprocess.run(
        [judge("perf"), "script", "--ns", "-f", "-F", "comm,pid,tid,cpu,time,event,period,trace", "-i", path],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines == [
        "w 9/9 [000] 1.000000000: 1 user_events:work: n=1",
        "server one 7/8 [001] 2.000000100: 1 user_events:http: status=200 usec=-5 path=/a",
        "w 9/9 [000] 3.000000000: 1 user_events:work: n=18446744073709551615",
        "server one 7/8 [001] 4.000000000: 1 user_events:http: status=503 usec=7 path=/b c",
    ]
    assert "lost 1 chunks" in done.stderr
    names = subprocess.run(
        [judge("perf"), "evlist", "-f", "-i", path], capture_output=True, text=True, timeout=60, check=True
    )
    assert names.stdout.split()[:2] == ["user_events:http", "user_events:work"]


def test_files_beside_it_are_left_alone(tmp_path: Path) -> None:
    """A file of another recorder, and the target of a link."""
    path = tmp_path / ("p" * 251)
    (tmp_path / "victim").write_bytes(b"precious")
    path.with_name(f"{path.name}.tmp").symlink_to("victim")
    with PerfDataWriter(path) as one, PerfDataWriter(path) as other:
        for writer, n in ((one, 1), (other, 2)):
            writer.add(work(n, n))
            writer.finish(Contents(events=EVENTS, header_page=HEADER_PAGE, header_event=b""))
    assert (tmp_path / "victim").read_bytes() == b"precious"
    for name, n in ((path.name, 2), (f"{path.name}.old", 1)):
        with PerfDataReader(tmp_path / name) as reader:
            assert [sample.time for sample in reader.samples()] == [n]
    assert sorted(os.listdir(tmp_path)) == [path.name, f"{path.name}.old", f"{path.name}.tmp", "victim"]


def test_what_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with PerfDataWriter(tmp_path / "perf.data") as writer:
        writer.add(work(1, 1))
    assert os.listdir(tmp_path) == []


def test_targets_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        PerfDataWriter(tmp_path)
    with pytest.raises(FileNotFoundError, match="no/such"):
        PerfDataWriter("/no/such/folder")
    with pytest.raises(OSError, match="not a regular file"):
        PerfDataWriter("/dev/null")


def test_what_a_killed_recorder_wrote_is_there(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    contents = Contents(events=EVENTS, header_page=HEADER_PAGE, header_event=b"", comms={(7, 8): b"server"})
    with PerfDataWriter(path) as writer:
        writer.add(http(2, 200, -5, b"/a"))
        writer.describe(contents)
        writer.add(work(1, 1) + work(3, 2) + http(4, 200, -5, b"/a")[:-8])
        writer.leave()
    part = Path(writer.part)
    assert sorted(os.listdir(tmp_path)) == ["perf.data.part", "perf.data.part.events"]
    with pytest.raises(TraceError, match="--recover"):
        PerfDataReader(part)
    with utracefs.open(part, recover=True) as recording:
        assert [(r.time_ns, r.name, r.comm) for r in recording] == [
            (1, "work", "<...>"),
            (2, "http", "server"),
            (3, "work", "<...>"),
        ]
    os.truncate(part, 80)
    with utracefs.open(part, recover=True) as recording:
        assert list(recording) == []
    (tmp_path / "perf.data.part.events").unlink()
    with pytest.raises(FileNotFoundError, match=r"part\.events"):
        PerfDataReader(part, recover=True)


@pytest.mark.parametrize("room", [300 << 10, (300 << 10) + 12, 265 << 10])
def test_a_disk_that_is_full_costs_what_does_not_fit(
    tmp_path: Path, full_at: Callable[[int], None], room: int
) -> None:
    """Kept and told to be lost are all that there was; perf reads the file."""
    path = tmp_path / "perf.data"
    contents = Contents(events=EVENTS, header_page=HEADER_PAGE, header_event=b"")
    with PerfDataWriter(path) as writer:
        full_at(room)
        for n in range(1000):
            writer.add(b"".join(work(10 * n + k + 1, k) for k in range(10)))
        assert writer.finish(contents) == path.stat().st_size <= room
    assert writer.error is not None and writer.error.errno == errno.EFBIG
    with PerfDataReader(path) as reader:
        samples = reader.samples()
        kept = len(list(samples))
        assert kept > 2500 and kept + writer.given_up == kept + samples.lost == 10000
    text = run_judge("perf", "script", "-f", "-i", path, may_warn=True)  # of what is lost
    assert text.count(b" user_events:work: ") == kept
    assert os.listdir(tmp_path) == ["perf.data"]


def test_a_short_write_is_a_full_disk(tmp_path: Path, full_at: Callable[[int], None]) -> None:
    """Nothing in a later part of the file may be needed for the reason."""
    with PerfDataWriter(tmp_path / "perf.data") as writer:
        full_at(2000)
        writer.add(b"".join(work(n + 1, 0) for n in range(100)))
        assert writer.given_up
        assert writer.error is not None and writer.error.errno == errno.EFBIG


def test_another_name_for_what_is_complete(tmp_path: Path) -> None:
    with PerfDataWriter(tmp_path / "perf.data") as writer:
        writer.add(work(1, 1))
        writer.finish(Contents(events=EVENTS, header_page=HEADER_PAGE, header_event=b""), str(tmp_path / "x"))
    assert os.listdir(tmp_path) == ["x"]
