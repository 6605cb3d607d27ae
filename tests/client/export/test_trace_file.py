"""Every record, read back by trace-cmd and by our own reader."""

from pathlib import Path

import pytest

import utracefs
from tests.client.export.example import ROWS, write
from tests.client.recordings.events import Events, trace_cmd
from tests.client.recordings.perf_data.example import lost, sample
from tests.client.recordings.perf_data.example import write as write_perf
from tests.client.recordings.test_recording import break_first_page
from tests.client.recordings.trace_dat.example import CPU0, many_records, pages, report
from tests.client.recordings.trace_dat.example import write as write_pages
from utracefs.export import Exported, write_trace_dat
from utracefs.recordings.trace_dat.reader import TraceDatReader
from utracefs_protocol.errors import TraceError


def exported(source: Path, out: Path, **selection: object) -> Exported:
    with utracefs.open(source, **selection) as recording:  # type: ignore[arg-type]
        return write_trace_dat(recording, out)


def test_all_records(tmp_path: Path) -> None:
    source, out = write(tmp_path / "trace.dat", lost=3), tmp_path / "out.dat"
    assert exported(source, out) == Exported(len(ROWS), 3, False)
    assert report(out) == report(source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.dat", "trace.dat"]


@pytest.mark.parametrize("cpus", [None, [0, 2]])
def test_whole_pages_are_copied(tmp_path: Path, cpus: list[int] | None) -> None:
    made = [pages(many_records(cpu, 3000)) for cpu in range(3)]
    source, out = write_pages(tmp_path / "trace.dat", made), tmp_path / "out.dat"
    done: list[float] = []
    with utracefs.open(source, cpus=cpus) as recording:
        found = write_trace_dat(recording, out, progress=done.append)
    assert found == Exported(3000 * (3 if cpus is None else 2), 0, False)
    assert done and max(done) <= 1
    with TraceDatReader(source) as before, TraceDatReader(out) as after:
        for extent in after.buffers[0].extents:
            if cpus is None or extent.cpu in cpus:
                there = before.buffers[0].extents[extent.cpu]
                pages_before = source.read_bytes()[there.offset : there.offset + there.size]
                assert out.read_bytes()[extent.offset : extent.offset + extent.size] == pages_before
            else:
                assert extent.size == 0
    assert trace_cmd("report", "-t", "-i", str(out)).splitlines() == report(out)


def test_a_perf_data(tmp_path: Path) -> None:
    """With records that are larger than a page."""
    events = Events(1000, b"big __rel_loc char[] text")
    texts = ["x" * 100, "y" * 5000, "z" * 60000]
    records = [sample(n + 1, n, 7, 7 + n, events.entry(1000, 7 + n, text)) for n, text in enumerate(texts)]
    source = write_perf(tmp_path / "perf.data", events, [*records[:2], lost(4, 3), records[2]])
    out = tmp_path / "out.dat"
    assert exported(source, out) == Exported(3, 4, False)
    with utracefs.open(out) as there:
        assert [(r.cpu, r.tid, r.fields["text"]) for r in there] == [
            (n, 7 + n, text) for n, text in enumerate(texts)
        ]
    with utracefs.open(out) as there:
        assert sum(r.lost for r in there) == 4


@pytest.mark.parametrize("room", range(0, 60, 4))
def test_a_lost_count_never_goes(tmp_path: Path, room: int) -> None:
    """Also where the page would be full without it."""
    events = Events(1000, b"ev char[100] text")
    records = [sample(n + 1, 0, 7, 7, events.entry(1000, 7, "x" * 100)) for n in range(40)]
    events_2 = Events(1001, b"other char[%d] text" % (room + 4))
    events.declared |= events_2.declared
    tail = [sample(50, 0, 7, 7, events.entry(1001, 7, "y"))]
    source = write_perf(tmp_path / "perf.data", events, [lost(9, 0), *records[:33], *tail, *records[33:]])
    assert exported(source, tmp_path / "out.dat") == Exported(41, 9, False)
    with utracefs.open(tmp_path / "out.dat") as there:
        assert [r.lost for r in there if r.lost] == [9]


def test_a_broken_recording_makes_a_complete_file(tmp_path: Path) -> None:
    source = break_first_page(write_pages(tmp_path / "trace.dat", [pages(CPU0)]))
    with pytest.raises(TraceError, match="broken: cpu 0"):
        exported(source, tmp_path / "out.dat")
    assert len(report(tmp_path / "out.dat")) == 2


def test_cpus_that_no_machine_has(tmp_path: Path) -> None:
    events = Events(1000, b"ev u32 n")
    source = write_perf(tmp_path / "perf.data", events, [sample(1, 1 << 30, 7, 7, events.entry(1000, 7, 1))])
    with pytest.raises(TraceError, match="cpu 1073741824; a trace"):
        exported(source, tmp_path / "out.dat")
