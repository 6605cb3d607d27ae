"""trace.dat: written byte by byte as known good, read back, judged by trace-cmd; broken files; joined
pages."""

import errno
import os
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.cli.kit import Events, needs_trace_cmd, trace_cmd
from utracefs.trace_dat import Contents, TraceDatReader, TraceDatWriter, clock_in_use
from utracefs.trace_report import ReportOptions, report_lines
from utracefs_protocol.errors import TraceError
from utracefs_protocol.subbuf import HEADER_EVENT_TEXT, PageWriter, header_page_text

CLOCKS = b"local global counter uptime perf [mono] mono_raw boot tai\n"
assert len(CLOCKS) == 58

EVENTS = Events(
    2001,
    b"test u32 count",
    b"rpc __rel_loc char[] method; u64 latency_ns; int status",
    b"blob unsigned char[16] digest; char[8] tag",
)

Record = tuple[int, bytes]


def contents(**more: object) -> Contents:
    known: dict[str, object] = {
        "header_page": header_page_text(),
        "header_event": HEADER_EVENT_TEXT,
        "formats": {b"user_events": EVENTS.formats()},
        "cmdlines": b"11 alpha\n12 beta task\n",
        "trace_clock": CLOCKS,
    }
    return Contents(**{**known, **more})  # type: ignore[arg-type]


def pages(records: Sequence[Record], *, lost: int = 0) -> list[bytes]:
    """Full pages, as a reader that comes late gets them."""
    made = []
    writer = PageWriter()
    for ts, data in records:
        if not writer.add(ts, data):
            made.append(writer.page(lost))
            lost = 0
            writer = PageWriter()
            assert writer.add(ts, data)
    made.append(writer.page(lost))
    return made


def write(path: Path, cpus: Sequence[Sequence[bytes]], **more: object) -> Path:
    with TraceDatWriter(path, nr_cpus=len(cpus)) as writer:
        for cpu, its_pages in enumerate(cpus):
            for page in its_pages:
                writer.add_page(cpu, page)
        size = writer.finish(contents(**more))
    assert size == path.stat().st_size
    return path


def report(path: Path, *, full_ns: bool = True) -> list[str]:
    with TraceDatReader(path) as reader:
        return list(report_lines(reader, ReportOptions(full_ns=full_ns)))


def records_of(path: Path) -> list[tuple[int, int, bytes, int]]:
    with TraceDatReader(path) as reader:
        return [(r.ts, r.cpu, bytes(r.data), r.lost) for r in reader.records()]


CPU0 = [
    (100000000001, EVENTS.entry(2001, 11, 7)),
    (100000000351, EVENTS.entry(2002, 12, "Get", 1500, -2)),
    (101000000000, EVENTS.entry(2001, 11, 8)),
]
CPU1 = [(100500000000, EVENTS.entry(2003, 11, b"0123456789abcdef", b"t1"))]

EXPECTED = """\
cpus=2
           alpha-11    [000]   100.000000001: test:                 count=7
       beta task-12    [000]   100.000000351: rpc:                  method=Get latency_ns=1500 status=-2
           alpha-11    [001]   100.500000000: blob:                 digest=0123456789abcdef tag=t1
           alpha-11    [000]   101.000000000: test:                 count=8
"""


@pytest.fixture
def example(tmp_path: Path) -> Path:
    return write(tmp_path / "trace.dat", [pages(CPU0), pages(CPU1)])


def test_the_known_good_file(example: Path) -> None:
    """Offsets, sizes and pages of a file that was checked with every reader (trace-cmd, KernelShark, libtraceevent)."""
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


def test_the_known_good_report(example: Path) -> None:
    assert "\n".join(report(example)) + "\n" == EXPECTED


@needs_trace_cmd
def test_trace_cmd_prints_the_known_good_report(example: Path) -> None:
    assert trace_cmd("report", "-t", "-i", str(example)) == EXPECTED
    assert "is a valid trace-cmd file" in trace_cmd("dump", "--validate", "-i", str(example))
    assert "[9 sections]" in trace_cmd("dump", "--summary", "-i", str(example))


@needs_trace_cmd
def test_what_trace_cmd_converts_is_read_here(example: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.dat"
    subprocess.run(
        ["trace-cmd", "convert", "-i", example, "-o", old, "--file-version", "6"],
        check=True,
        capture_output=True,
    )
    with TraceDatReader(old) as reader:
        assert reader.version == 6
        assert "\n".join(report_lines(reader, ReportOptions(full_ns=True))) + "\n" == EXPECTED
    split = ["trace-cmd", "split", "-i", str(example), "-o", str(tmp_path / "part"), "100.4", "100.6"]
    subprocess.run(split, check=True, capture_output=True)
    (part,) = tmp_path.glob("part*")
    assert report(part) == trace_cmd("report", "-t", "-i", str(part)).splitlines()


def test_everything_that_a_file_tells(tmp_path: Path) -> None:
    path = write(
        tmp_path / "trace.dat",
        [pages(CPU0), []],
        uname="Linux box 6.12 x86_64",
        version="utracefs 1",
        trace_id=77,
        offset_ns=1_000_000_000_000,
        cpu_stats={0: b"entries: 0\noverrun: 3\n", 1: b"entries: 0\n"},
        kallsyms=b"ffffffff81000000 t tracing_mark_write\n",
        printk_formats=b"",
    )
    with TraceDatReader(path) as reader:
        assert reader.version == 7
        assert reader.nr_cpus == 2
        assert reader.uname == "Linux box 6.12 x86_64"
        assert reader.producer == "utracefs 1"
        assert reader.offset_ns == 1_000_000_000_000
        assert reader.cpu_stats[0] == "CPU: 0\nentries: 0\noverrun: 3\n"
        assert reader.kallsyms == {0xFFFFFFFF81000000: "tracing_mark_write"}
        assert reader.cmdlines == {11: "alpha", 12: "beta task"}
        assert [reader.comm(tid) for tid in (11, 0, 5)] == ["alpha", "<idle>", "<...>"]
        assert reader.systems[2002] == "user_events"
        assert clock_in_use(reader.trace_clock) == reader.buffers[0].clock == "mono"
        assert [extent.size for extent in reader.buffers[0].extents] == [4096, 0]
    assert report(path)[1].split()[2] == "1100.000000001:"


def many_records(seed: int, count: int) -> list[Record]:
    """Gaps from nanoseconds to hours, entries from none to thousands of bytes."""
    chance = random.Random(seed)
    ts = 10**9
    made = []
    for n in range(count):
        ts += chance.choice([0, 1, 350, 10**5, (1 << 27) - 1, 1 << 27, 7 * 10**9, 3600 * 10**9 + 1])
        method = "x" * chance.choice([0, 1, 5, 70, 90, 400, 3000])
        made.append((ts, EVENTS.entry(2002, 11, method, n, -n)))
    return made


@pytest.mark.parametrize("cpus", [1, 3])
def test_records_come_back_merged_by_time(tmp_path: Path, cpus: int) -> None:
    per_cpu = [many_records(cpu, 150) for cpu in range(cpus)]
    path = write(tmp_path / "trace.dat", [pages(records) for records in per_cpu])
    expected = sorted(
        ((ts, cpu, n, data) for cpu, records in enumerate(per_cpu) for n, (ts, data) in enumerate(records)),
        key=lambda item: item[:2],
    )
    got = records_of(path)
    assert [(ts, cpu) for ts, cpu, _, _ in got] == [(ts, cpu) for ts, cpu, _, _ in expected]
    assert all(g[2].startswith(e[3]) for g, e in zip(got, expected, strict=True))
    if needs_trace_cmd.args[0] is False:
        assert trace_cmd("report", "-t", "-i", str(path)).splitlines() == report(path)


def test_no_events_at_all(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.dat", [[], []], formats={})
    assert report(path) == ["cpus=2"]
    if needs_trace_cmd.args[0] is False:
        assert trace_cmd("report", "-i", str(path)) == "cpus=2\n"


# Joining.


@given(st.lists(st.integers(0, 200), min_size=1, max_size=40), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
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
    if needs_trace_cmd.args[0] is False:
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
    if needs_trace_cmd.args[0] is False:
        assert trace_cmd("report", "-t", "-i", str(path)).splitlines() == report(path)


def test_empty_pages_take_no_room(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.dat", [[PageWriter().page(), *pages(CPU0), PageWriter().page()]])
    with TraceDatReader(path) as reader:
        assert reader.buffers[0].extents[0].size == 4096


def test_time_that_goes_back_is_not_joined(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.dat", [[*pages(CPU0[1:2]), *pages(CPU0[:1])]])
    assert [ts for ts, *_ in records_of(path)] == [100000000351, 100000000001]


# The file as such.


def test_nothing_is_left_without_finish(tmp_path: Path) -> None:
    path = tmp_path / "trace.dat"
    path.write_bytes(b"old")
    with TraceDatWriter(path, nr_cpus=2) as writer:
        writer.add_page(0, pages(CPU0)[0])
        assert os.listdir(tmp_path) == ["trace.dat"]
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["trace.dat"]


def test_a_killed_recorder_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from utracefs.trace_dat import *\n"
        "w = TraceDatWriter(sys.argv[1], nr_cpus=2)\n"
        "for n in range(1000): w.add_page(0, bytes(8) + (4000).to_bytes(8, 'little') + bytes(4080))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "trace.dat")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == []


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
    if needs_trace_cmd.args[0] is False:
        assert trace_cmd("report", "-t", "-i", str(path)).splitlines() == report(path)


# Files that are broken, or not ours.


def opens(data: bytes, path: Path) -> str:
    """What the reader says, or `fine`; nothing else than its own errors may come."""
    path.write_bytes(data)
    try:
        with TraceDatReader(path) as reader:
            for _ in report_lines(reader, ReportOptions()):
                pass
    except TraceError as error:
        assert error.errno == errno.EINVAL
        return error.text
    except ValueError as error:
        return str(error)
    return "fine"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: b"", "is no trace.dat"),
        (lambda d: b"PERFILE2" + d, "is no trace.dat"),
        (lambda d: d.replace(b"tracing7", b"tracing8", 1), "version 8"),
        (lambda d: d[:12] + b"\1" + d[13:], "big-endian"),
        (lambda d: d.replace(b"none\0\0", b"zlib\0\0", 1), "compressed (zlib)"),
        (lambda d: d[:24] + struct.pack("<Q", 32) + d[32:], "section 16 at 32, where 0 should be"),
        (lambda d: d[:24] + struct.pack("<Q", 1 << 60) + d[32:], "cut off or broken"),
        (lambda d: d[:14] + struct.pack("<I", 7) + d[18:], "cut off or broken"),
    ],
)
def test_broken_in_a_known_way(example: Path, tmp_path: Path, change: object, says: str) -> None:
    assert says in opens(change(example.read_bytes()), tmp_path / "broken.dat")  # type: ignore[operator]


def test_cut_off_anywhere(example: Path, tmp_path: Path) -> None:
    data = example.read_bytes()
    for length in [*range(0, 3000, 37), *range(3000, len(data), 500)]:
        assert opens(data[:length], tmp_path / "broken.dat") != "fine"


@given(st.lists(st.tuples(st.integers(0, 14000), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_any_byte_may_be_wrong(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.dat"
    data = bytearray(write(path, [pages(CPU0), pages(CPU1)]).read_bytes())
    for at, value in changes:
        data[at % len(data)] = value
    opens(bytes(data), path)


# Version 6, and several buffers.


def version_6(main: bytes, instance: bytes) -> bytes:
    """Written by the table of trace-cmd.dat.v6(5): a main buffer and the instance `box`, one cpu each."""

    def lstr(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text

    def build(main_at: int, instance_at: int) -> bytes:
        head = b"\x17\x08\x44tracing6\0\0\x08" + struct.pack("<I", 4096)
        head += b"header_page\0" + lstr(header_page_text()) + b"header_event\0" + lstr(HEADER_EVENT_TEXT)
        head += struct.pack("<I", 0) + struct.pack("<I", 1) + b"user_events\0"
        formats = EVENTS.formats()
        head += struct.pack("<I", len(formats)) + b"".join(map(lstr, formats))
        head += struct.pack("<I", 0) * 2 + lstr(b"11 alpha\n") + struct.pack("<I", 1)
        head += b"options  \0" + struct.pack("<HI", 4, 7) + b"[mono]\0"
        head += struct.pack("<HI", 3, 12) + struct.pack("<Q", instance_at) + b"box\0" + struct.pack("<H", 0)
        head += b"flyrecord\0" + struct.pack("<QQ", main_at, 4096) + lstr(b"[mono]")
        return head

    main_at = -(-len(build(0, 0)) // 4096) * 4096
    instance_at = main_at + 4096
    data = build(main_at, instance_at).ljust(main_at, b"\0") + main
    data += b"flyrecord\0" + struct.pack("<QQ", instance_at + 4096, 4096) + lstr(b"[mono]")
    return data.ljust(instance_at + 4096, b"\0") + instance


@needs_trace_cmd
def test_an_instance_in_both_versions(tmp_path: Path) -> None:
    old, new = tmp_path / "old.dat", tmp_path / "new.dat"
    old.write_bytes(version_6(pages(CPU0)[0], pages(CPU1)[0]))
    theirs = trace_cmd("report", "-t", "-i", str(old))
    assert report(old) == theirs.splitlines()
    assert sum(line.startswith("box: ") for line in report(old)) >= 1
    convert = ["trace-cmd", "convert", "-i", str(old), "-o", str(new), "--file-version", "7", "--compression"]
    subprocess.run([*convert, "none"], check=True, capture_output=True)
    with TraceDatReader(new) as reader:
        assert [buffer.name for buffer in reader.buffers] == ["", "box"]
    assert report(new) == trace_cmd("report", "-t", "-i", str(new)).splitlines()


@needs_trace_cmd
def test_a_compressed_file_says_how_to_make_it_readable(example: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.dat"
    subprocess.run(
        ["trace-cmd", "convert", "-i", example, "-o", packed, "--compression", "any"],
        check=True,
        capture_output=True,
    )
    with pytest.raises(TraceError, match="trace-cmd convert --compression none"):
        TraceDatReader(packed)
