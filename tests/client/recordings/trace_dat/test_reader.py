"""The reader: what a file tells, records in the order of time, both versions, files that are broken."""

import errno
import mmap
import struct
import subprocess
from pathlib import Path

import attrs
import pytest

from tests.client.recordings.events import trace_cmd
from tests.client.recordings.trace_dat.example import (
    CPU0,
    CPU1,
    EVENTS,
    EXPECTED,
    contents,
    many_records,
    pages,
    read_records,
    report,
    write,
)
from tests.judges import judge
from utracefs import Recording
from utracefs.recordings.recorded_file import RecordedFile, Selected
from utracefs.recordings.report import report_text
from utracefs.recordings.trace_dat.compression import compression_of
from utracefs.recordings.trace_dat.format import clock_in_use
from utracefs.recordings.trace_dat.reader import TraceDatReader
from utracefs.recordings.trace_dat.writer import TraceDatWriter
from utracefs_protocol.errors import TraceError
from utracefs_protocol.pages.subbuf import HEADER_EVENT_TEXT, header_page_text


def test_the_known_good_report(example: Path) -> None:
    assert "\n".join(report(example)) + "\n" == EXPECTED


def test_what_trace_cmd_converts_is_read_here(example: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.dat"
    subprocess.run(
        [judge("trace-cmd"), "convert", "-i", example, "-o", old, "--file-version", "6"],
        check=True,
        capture_output=True,
    )
    with TraceDatReader(old) as reader:
        assert reader.version == 6
    assert "\n".join(report(old)) + "\n" == EXPECTED
    split = [judge("trace-cmd"), "split", "-i", str(example), "-o", str(tmp_path / "part"), "100.4", "100.6"]
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


# Files that are broken, or not ours.


def opens(data: bytes, path: Path) -> str:
    """The reader's error, or `fine`; only its own exceptions are allowed."""
    path.write_bytes(data)
    try:
        with TraceDatReader(path) as reader:
            for _ in report_text(Recording([RecordedFile(reader, str(path), Selected())], Selected())):
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
        (lambda d: b"", "is not a trace.dat"),
        (lambda d: b"PERFILE2" + d, "is not a trace.dat"),
        (lambda d: d.replace(b"tracing7", b"tracing8", 1), "version 8"),
        (lambda d: d[:12] + b"\1" + d[13:], "big-endian"),
        (lambda d: d.replace(b"none\0\0", b"lzma\0\0", 1), "compressed (lzma)"),
        (lambda d: d.replace(b"none\0\0", b"zlib\0\0", 1), "plain records in a compressed file"),
        (lambda d: d[:24] + struct.pack("<Q", 32) + d[32:], "section 16 at 32, where 0 should be"),
        (lambda d: d[:24] + struct.pack("<Q", 1 << 60) + d[32:], "cut off or broken"),
        (lambda d: d[:24] + struct.pack("<Q", 1 << 63) + d[32:], "cut off or broken"),
        (lambda d: d[:14] + struct.pack("<I", 7) + d[18:], "cut off or broken"),
    ],
)
def test_broken_in_a_known_way(example: Path, tmp_path: Path, change: object, says: str) -> None:
    assert says in opens(change(example.read_bytes()), tmp_path / "broken.dat")  # type: ignore[operator]


OPTIONS_AT = 24
"""Where a file without compression says where its options are."""


def with_options(data: bytes, *options: tuple[int, bytes]) -> bytes:
    """With these options in front of the file's own."""
    own = data[OPTIONS_AT : OPTIONS_AT + 8]
    body = b"".join(struct.pack("<HI", number, len(more)) + more for number, more in [*options, (0, own)])
    head = data[:OPTIONS_AT] + struct.pack("<Q", len(data)) + data[OPTIONS_AT + 8 :]
    return head + struct.pack("<HHIQ", 0, 0, 0, len(body)) + body


def test_no_pages_twice(example: Path, tmp_path: Path) -> None:
    """Ten thousand cpus with the same pages make a file of 1 MB one of many GB."""
    with TraceDatReader(example) as reader:
        (buffer,) = reader.buffers
    places = b"".join(struct.pack("<IQQ", cpu, *attrs.astuple(buffer.extents[0])[1:]) for cpu in range(9))
    option = struct.pack("<Q", 0) + b"\0mono\0" + struct.pack("<II", 4096, 9) + places
    assert "of pages in a file of" in opens(
        with_options(example.read_bytes(), (3, option)), tmp_path / "broken.dat"
    )


def test_no_compressed_pages_twice(tmp_path: Path) -> None:
    compression = compression_of("zlib")
    assert compression is not None
    path = tmp_path / "packed.dat"
    with TraceDatWriter(path, nr_cpus=1, compression=compression) as writer:
        for page in pages(CPU0):
            writer.add_page(0, page)
        writer.finish(contents())
    data = bytearray(path.read_bytes())
    with TraceDatReader(path) as reader:
        assert [buffer.extents[0].size for buffer in reader.buffers] == [4096 * len(pages(CPU0))]
    # The size of the cpu's chunks, in the option of the buffer.
    at = data.index(b"mono\0" + struct.pack("<II", 4096, 1)) + 5 + 8 + 4 + 8
    assert opens(bytes(data), path) == "fine"
    data[at : at + 8] = struct.pack("<Q", len(data) + 1)
    assert "of compressed pages in a file of" in opens(bytes(data), path)


def test_no_options_twice(example: Path, tmp_path: Path) -> None:
    """Sections of options that have each other in theirs: memory for the square of the file's size."""
    data = example.read_bytes()
    number, filler = 100, 10_000
    heads, ends = len(data), len(data) + number * 22 + filler
    made = bytearray(data[:OPTIONS_AT] + struct.pack("<Q", heads) + data[OPTIONS_AT + 8 :])
    for k in range(number):
        end = ends + 14 * k
        made += struct.pack("<HHIQ", 0, 0, 0, end + 14 - len(made) - 16)
        made += struct.pack("<HI", 999, end - len(made) - 6)
    made += bytes(filler)
    for k in range(number):
        own = struct.unpack_from("<Q", data, OPTIONS_AT)[0]
        made += struct.pack("<HIQ", 0, 8, heads + 22 * (k + 1) if k + 1 < number else own)
    assert "of options in a file of" in opens(bytes(made), tmp_path / "broken.dat")


def test_no_table_of_cpus_twice(tmp_path: Path) -> None:
    """Version 6: instances that have one table of many cpus."""
    data = version_6(pages(CPU0)[0], pages(CPU1)[0], cpus=500, instances=30)
    assert "of places of cpus in a file of" in opens(data, tmp_path / "broken.dat")


def test_cut_off_anywhere(example: Path, tmp_path: Path) -> None:
    data = example.read_bytes()
    for length in [*range(0, 3000, 37), *range(3000, len(data), 500)]:
        assert opens(data[:length], tmp_path / "broken.dat") != "fine"


# Version 6, and several buffers.


def version_6(main: bytes, instance: bytes, cpus: int = 1, instances: int = 1) -> bytes:
    """Written by the table of trace-cmd.dat.v6(5): a main buffer and the instance `box`, one cpu each.
    Further cpus have no pages, further instances the place of that one."""

    def lstr(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text

    def build(main_at: int, instance_at: int) -> bytes:
        head = b"\x17\x08\x44tracing6\0\0\x08" + struct.pack("<I", 4096)
        head += b"header_page\0" + lstr(header_page_text()) + b"header_event\0" + lstr(HEADER_EVENT_TEXT)
        head += struct.pack("<I", 0) + struct.pack("<I", 1) + b"user_events\0"
        formats = EVENTS.formats()
        head += struct.pack("<I", len(formats)) + b"".join(map(lstr, formats))
        head += struct.pack("<I", 0) * 2 + lstr(b"11 alpha\n") + struct.pack("<I", cpus)
        head += b"options  \0" + struct.pack("<HI", 4, 7) + b"[mono]\0"
        head += (struct.pack("<HI", 3, 12) + struct.pack("<Q", instance_at) + b"box\0") * instances
        head += struct.pack("<H", 0)
        head += b"flyrecord\0" + struct.pack("<QQ", main_at, 4096) + others + lstr(b"[mono]")
        return head

    others = bytes(16 * (cpus - 1))
    main_at = -(-len(build(0, 0)) // 4096) * 4096
    instance_at = main_at + 4096
    data = build(main_at, instance_at).ljust(main_at, b"\0") + main
    data += b"flyrecord\0" + struct.pack("<QQ", instance_at + 4096, 4096) + others + lstr(b"[mono]")
    return data.ljust(instance_at + 4096, b"\0") + instance


def test_an_instance_in_both_versions(tmp_path: Path) -> None:
    old, new = tmp_path / "old.dat", tmp_path / "new.dat"
    old.write_bytes(version_6(pages(CPU0)[0], pages(CPU1)[0]))
    theirs = trace_cmd("report", "-t", "-i", str(old))
    assert report(old) == theirs.splitlines()
    assert sum(line.startswith("box: ") for line in report(old)) >= 1
    convert = [
        judge("trace-cmd"),
        "convert",
        "-i",
        str(old),
        "-o",
        str(new),
        "--file-version",
        "7",
        "--compression",
    ]
    subprocess.run([*convert, "none"], check=True, capture_output=True)
    with TraceDatReader(new) as reader:
        assert [buffer.name for buffer in reader.buffers] == ["", "box"]
    assert report(new) == trace_cmd("report", "-t", "-i", str(new)).splitlines()


def test_a_file_that_is_made_shorter_meanwhile(tmp_path: Path) -> None:
    """An opened file is read to its end. (A map would be SIGBUS.)"""
    path = tmp_path / "shorter.dat"
    write(path, [pages(many_records(1, 5000))])
    with TraceDatReader(path) as reader:
        before = read_records(reader)
        path.write_bytes(b"")
        assert read_records(reader) == before and len(before) == 5000


def test_a_file_that_is_too_large_to_be_read_is_mapped(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("utracefs.recordings.trace_dat.reader.READ_BYTES", 16)
    assert "\n".join(report(example)) + "\n" == EXPECTED
    with TraceDatReader(example) as reader:
        assert isinstance(reader.content, mmap.mmap)
