"""Compressed files: what is written is read, by us and by trace-cmd; invalid ones are refused."""

import errno
import os
import struct
import subprocess
from pathlib import Path

import attrs
import pytest

import utracefs.recordings.trace_dat.format as layout
from tests.client.recordings.events import trace_cmd
from tests.client.recordings.trace_dat.example import (
    contents,
    many_records,
    pages,
    read_records,
    records_in,
    records_of,
    report,
    write,
)
from tests.judges import judge, missing
from utracefs.recordings.trace_dat.compression import NAMES, Compression, compression_of
from utracefs.recordings.trace_dat.reader import TraceDatReader
from utracefs.recordings.trace_dat.writer import TraceDatWriter
from utracefs_protocol.errors import TraceError

CPUS = [pages(many_records(1, 3000)), [], pages(many_records(2, 500), lost=7)]


def found(name: str) -> Compression:
    try:
        made = compression_of(name)
    except ImportError:
        missing(f"{name}'s library", "the dependency group `judges`")
    assert made is not None
    return made


def write_packed(path: Path, name: str, cpus: list[list[bytes]] | None = None) -> Path:
    cpus = CPUS if cpus is None else cpus
    with TraceDatWriter(path, nr_cpus=len(cpus), compression=found(name)) as writer:
        for cpu, its_pages in enumerate(cpus):
            for page in its_pages:
                writer.add_page(cpu, page)
        assert writer.finish(contents(cpu_stats={0: b"entries: 0"})) == path.stat().st_size
    assert os.listdir(path.parent) == [path.name]
    return path


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "c").mkdir()
    plain, packed = write(tmp_path / "p/t.dat", CPUS), write_packed(tmp_path / "c/t.dat", name)
    assert records_of(packed) == records_of(plain)
    assert report(packed) == report(plain)
    assert packed.stat().st_size * 4 < plain.stat().st_size
    with TraceDatReader(packed, read_bytes=1000) as mapped, TraceDatReader(packed, recover=True) as recovered:
        expected = records_of(plain)
        assert read_records(mapped) == read_records(recovered) == expected
        with TraceDatReader(plain) as reader:
            assert mapped.last_ns() == reader.last_ns()
            since = expected[len(expected) // 2][0]
            late = [record.time_ns for record in records_in(mapped, since)]
            assert late[-1] == expected[-1][0] and len(late) < len(expected)
            assert late == [record.time_ns for record in records_in(reader, since)]


def test_trace_cmd_reads_it(tmp_path: Path) -> None:
    supported = trace_cmd("list", "-c")
    for name in NAMES:
        if f"\t{name}, " in supported:
            (tmp_path / name).mkdir()
            path = str(write_packed(tmp_path / name / "t.dat", name))
            assert "is a valid trace-cmd file" in trace_cmd("dump", "--validate", "-i", path)
            assert trace_cmd("report", "-t", "-i", path).splitlines() == report(Path(path))
            assert "entries: 0" in trace_cmd("report", "--stat", "-i", path)


def test_trace_cmd_s_own(tmp_path: Path) -> None:
    plain, packed = write(tmp_path / "plain.dat", CPUS), tmp_path / "packed.dat"
    convert = [judge("trace-cmd"), "convert", "-i", str(plain), "-o", str(packed), "--compression", "any"]
    subprocess.run(convert, check=True, capture_output=True)
    name = packed.read_bytes()[18:].split(b"\0")[0].decode()
    found(name)
    assert report(packed) == trace_cmd("report", "-t", "-i", str(packed)).splitlines()


def test_without_a_record(tmp_path: Path) -> None:
    assert records_of(write_packed(tmp_path / "t.dat", "zlib", [[], []])) == []


def test_a_full_disk_leaves_it_uncompressed(tmp_path: Path) -> None:
    """Nothing is lost: to move the pages needs no space."""

    def no_space(_data: object) -> bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "t.dat"
    compression = attrs.evolve(found("zlib"), compress=no_space)
    with TraceDatWriter(path, nr_cpus=1, compression=compression) as writer:
        for page in CPUS[0]:
            writer.add_page(0, page)
        size = writer.finish(contents())
    assert size == path.stat().st_size > len(CPUS[0]) * 4096
    assert len(records_of(path)) == 3000 and os.listdir(tmp_path) == ["t.dat"]


def section(data: bytes, wanted: int) -> int:
    """Offset of a section's header."""
    at = data.index(b"\0", data.index(b"\0", 18) + 1) + 9
    while True:
        number, _, _, size = layout.SECTION_HEADER.unpack_from(data, at)
        if number == wanted:
            return at
        at += layout.SECTION_HEADER.size + size


def damaged(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


@pytest.mark.parametrize("name", NAMES)
def test_invalid_files_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "d").mkdir()
    good = write_packed(tmp_path / "d/t.dat", name).read_bytes()
    header = layout.SECTION_HEADER.size
    texts, buffer = section(good, 18) + header, section(good, 3) + header
    u32 = struct.Struct("<I").pack
    for at, new in [
        (texts, u32(1 << 31)),  # longer than the section
        (texts, u32(3)),
        (texts + 4, u32(1 << 31)),  # claims 2 GB
        (texts + 4, u32(0)),
        (texts + 8, b"\xff" * 20),
        (buffer, u32((1 << 32) - 1)),  # the number of chunks
        (buffer + 4, u32((1 << 32) - 1)),  # the size of one
        (buffer + 8, u32(0xFFFFF000)),  # claims 4 GB
        (buffer + 8, u32(4097)),
        (buffer + 8, u32(4096)),
        (buffer + 8, u32(1 << 21)),
        (buffer + 12, b"\0" * 30),
        (buffer + 40, bytes(100)),
    ]:
        path = tmp_path / "broken.dat"
        path.write_bytes(damaged(good, at, new))
        with pytest.raises(TraceError, match=r"broken\.dat: ") as caught:
            TraceDatReader(path)
        assert caught.value.errno == errno.EINVAL, (at, new)
    end = section(good, 15)  # the names of sections, which nobody needs
    for length in range(0, end, max(end // 60, 1)):
        path.write_bytes(good[:length])
        with pytest.raises(TraceError):
            TraceDatReader(path)
        with pytest.raises(TraceError):
            TraceDatReader(path, recover=True)


def test_a_library_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_packed(tmp_path / "t.dat", "zstd")

    def missing(_name: str) -> Compression | None:
        raise ImportError

    monkeypatch.setattr("utracefs.recordings.trace_dat.reader.compression_of", missing)
    with pytest.raises(TraceError, match=r"is compressed \(zstd\); pip install 'utracefs\[zstd\]'"):
        TraceDatReader(path)
