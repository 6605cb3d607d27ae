"""The writer: byte by byte as known good, judged by trace-cmd; pages that are joined; what is left of a file
that was not finished."""

import errno
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.recordings.events import trace_cmd
from tests.client.recordings.trace_dat.example import (
    CPU0,
    EVENTS,
    EXPECTED,
    contents,
    many_records,
    pages,
    records_of,
    report,
    write,
)
from tests.protocol.pages.page_writer import PageWriter
from utracefs.recordings.trace_dat.reader import TraceDatReader
from utracefs.recordings.trace_dat.writer import TraceDatWriter
from utracefs_protocol.pages.subbuf import header_page_text


def test_the_known_good_file(example: Path) -> None:
    """Offsets, sizes and pages of a file that trace-cmd, KernelShark and libtraceevent read."""
    data = example.read_bytes()
    assert data[:24] == b"\x17\x08\x44tracing7\0\0\x08\0\x10\0\0none\0\0"[:24]
    assert struct.unpack_from("<Q", data, 24) == (12288,)
    sections = {}
    at = 32
    while at < len(data):
        number, flags, _, size = struct.unpack_from("<HHIQ", data, at)
        assert flags == 0
        sections[number] = (at, size)
        at += 16 + size
    assert at == len(data)
    assert list(sections) == [16, 17, 18, 19, 20, 21, 3, 0, 15]
    assert sections[16] == (32, 451)
    assert sections[17] == (499, 4)
    assert sections[18][0] == 519
    assert sections[0][0] == 12288
    page = bytes.fromhex(
        "01e8764817000000 4800000000000000"
        "03000000 d10700000b00000007000000"
        "c72b0000 d20700000c0000000c000400dc05000000000000feffffff47657400"
        "3e14597307000000"
        "03000000 d10700000b00000008000000"
    )
    assert data[4096:8192] == page.ljust(4096, b"\0")
    assert data[8192:8208] == bytes.fromhex("004d446617000000 2400000000000000")


def test_trace_cmd_prints_the_known_good_report(example: Path) -> None:
    assert trace_cmd("report", "-t", "-i", str(example)) == EXPECTED
    assert "is a valid trace-cmd file" in trace_cmd("dump", "--validate", "-i", str(example))
    assert "[9 sections]" in trace_cmd("dump", "--summary", "-i", str(example))


def test_no_events_at_all(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.dat", [[], []], formats={})
    assert report(path) == ["cpus=2"]
    assert trace_cmd("report", "-i", str(path)) == "cpus=2\n"


# Joining.


@given(st.lists(st.integers(0, 200), min_size=1, max_size=40), st.integers(0, 2**32))
@settings(max_examples=60)
def test_short_pages_are_joined(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
) -> None:
    records = many_records(seed, sum(min(size, 3) for size in sizes))
    path = tmp_path_factory.mktemp("joined") / "trace.dat"
    made = []
    at = 0
    for size in sizes:
        made += pages(records[at : at + min(size, 3)])
        at += min(size, 3)
    write(path, [made])
    got = records_of(path)
    assert [ts for ts, *_ in got] == [ts for ts, _ in records]
    assert all(g[2].startswith(r[1]) for g, r in zip(got, records, strict=True))


def test_a_reader_that_is_often_early_writes_few_pages(tmp_path: Path) -> None:
    records = [(n * 10**8, EVENTS.entry(2001, 11, n)) for n in range(1, 1000)]
    path = write(tmp_path / "trace.dat", [[page for record in records for page in pages([record])]])
    assert path.stat().st_size < 16 * 4096
    assert [ts for ts, *_ in records_of(path)] == [ts for ts, _ in records]
    assert trace_cmd("report", "-t", "-i", str(path)).splitlines() == report(path)


@pytest.mark.parametrize("lost", [5, -1])
def test_lost_events_stay_where_they_were(tmp_path: Path, lost: int) -> None:
    first = [(100, EVENTS.entry(2001, 11, 1))]
    second = [(200, EVENTS.entry(2001, 11, 2))]
    third = [(300, EVENTS.entry(2001, 11, 3))]
    path = write(tmp_path / "trace.dat", [[*pages(first), *pages(second, lost=lost), *pages(third)]])
    assert [r[3] for r in records_of(path)] == [0, lost, 0]
    count = f"{lost} " if lost > 0 else ""
    assert report(path)[2] == f"CPU:0 [{count}EVENTS DROPPED]"
    assert trace_cmd("report", "-t", "-i", str(path)).splitlines() == report(path)


def test_empty_pages_take_no_room(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.dat", [[PageWriter().page(), *pages(CPU0), PageWriter().page()]])
    with TraceDatReader(path) as reader:
        assert reader.buffers[0].extents[0].size == 4096


def test_time_that_goes_back_is_not_joined(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.dat", [[*pages(CPU0[1:2]), *pages(CPU0[:1])]])
    assert [ts for ts, *_ in records_of(path)] == [100000000351, 100000000001]


# The file as such.


def test_files_beside_it_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / ("t" * 251)
    (tmp_path / "victim").write_bytes(b"precious")
    path.with_name(f"{path.name}.tmp").symlink_to("victim")
    assert len(records_of(write(path, [pages(CPU0)]))) == len(CPU0)
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, f"{path.name}.tmp", "victim"])


def test_a_link_is_followed(tmp_path: Path, example: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("target.dat")
    write(link, [pages(CPU0)])
    assert link.is_symlink()
    assert len(report(tmp_path / "target.dat")) == 4


@pytest.mark.parametrize(
    ("path", "number"),
    [("nowhere/trace.dat", errno.ENOENT), (".", errno.EISDIR), ("/dev/null", errno.EINVAL)],
)
def test_where_no_file_can_be(tmp_path: Path, path: str, number: int) -> None:
    with pytest.raises(OSError) as caught:
        TraceDatWriter(tmp_path / path, nr_cpus=1)
    assert caught.value.errno == number
    assert caught.value.filename == str(tmp_path / path)


def test_a_page_of_another_size(tmp_path: Path) -> None:
    with TraceDatWriter(tmp_path / "t", nr_cpus=1) as writer, pytest.raises(ValueError, match="100 bytes"):
        writer.add_page(0, bytes(100))


def test_larger_pages(tmp_path: Path) -> None:
    writer = PageWriter(65536)
    for n in range(500):
        assert writer.add(n, EVENTS.entry(2002, 11, "x" * 50, n, 0))
    path = tmp_path / "trace.dat"
    with TraceDatWriter(path, nr_cpus=1, page_size=65536) as file:
        file.add_page(0, writer.page())
        file.finish(contents(header_page=header_page_text(65536)))
    assert len(records_of(path)) == 500
    assert trace_cmd("report", "-t", "-i", str(path)).splitlines() == report(path)
