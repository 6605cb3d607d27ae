"""The rest of a recording: after a kill of its writer, with a full disk, after an error at the end."""

import contextlib
import errno
import functools
import mmap
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import attrs
import pytest

import utracefs
from tests.client.recordings.events import trace_cmd
from tests.client.recordings.trace_dat.example import (
    CPU0,
    CPU1,
    EVENTS,
    contents,
    many_records,
    pages,
    read_records,
    records_of,
    report,
    write,
)
from utracefs.cli.losses import lost_in_file
from utracefs.recordings import partial_files, trace_dat
from utracefs.recordings.trace_dat._pages import count_events, take_out
from utracefs.recordings.trace_dat.part import Part
from utracefs.recordings.trace_dat.reader import TraceDatReader
from utracefs.recordings.trace_dat.writer import TraceDatWriter
from utracefs_protocol.errors import TraceError
from utracefs_protocol.pages._subbuf import missed_events


def test_what_a_killed_recorder_wrote_is_there(tmp_path: Path) -> None:
    """Every page, joined or not, of the cpu that it came from; the clock and what else was known."""
    program = (
        "import os, signal, sys, pickle; from utracefs.recordings.trace_dat.writer import *\n"
        "cpus, contents = pickle.loads(sys.stdin.buffer.read())\n"
        "w = TraceDatWriter(sys.argv[1], nr_cpus=len(cpus))\n"
        "w.add_texts(contents)\n"
        "for cpu, pages in enumerate(cpus):\n"
        "    for page in pages:\n"
        "        w.add_page(cpu, page)\n"
        "w.add_texts(contents)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    cpus = [pages(CPU0), [], [*pages(many_records(1, 600)), *pages(CPU1)]]
    said = contents(trace_clock=b"local [boot]\n", uname="Linux here")
    path = tmp_path / "trace.dat"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], input=pickle.dumps((cpus, said)), check=False
        )
        assert done.returncode == -signal.SIGKILL
    assert sorted(os.listdir(tmp_path)) == ["trace.dat.part", "trace.dat.part.2"]
    whole = sorted(records_of(write(tmp_path / "whole.dat", cpus)))
    for name in ("trace.dat.part", "trace.dat.part.2"):
        with pytest.raises(TraceError, match="--recover"):
            TraceDatReader(tmp_path / name)
        with TraceDatReader(tmp_path / name, recover=True) as reader:
            assert sorted(read_records(reader)) == whole
            assert (reader.nr_cpus, reader.buffers[0].clock, reader.uname) == (3, "boot", "Linux here")
            assert reader.cmdlines == {11: "alpha", 12: "beta task"}


def test_what_cannot_be_read_is_noted(tmp_path: Path) -> None:
    """Records without a format; and the last account of losses is there."""
    known = contents(formats={b"user_events": EVENTS.formats()[:1]})
    with TraceDatWriter(tmp_path / "t.dat", nr_cpus=1) as writer:
        writer.add_texts(known)
        for page in pages(CPU0):
            writer.add_page(0, page)
        writer.add_texts(attrs.evolve(known, event_stats=lambda _: b"lost in data rings: 3\n"))
        writer.add_texts(attrs.evolve(known, event_stats=lambda _: b"lost in data rings: 5\n"))
        writer.leave()
    with utracefs.open(tmp_path / "t.dat.part", recover=True) as recording:
        unknown = Counter(one.name for one in recording)["[UNKNOWN EVENT]"]
        ends = [note.partition(": ")[2] for note in recording.notes]
        assert unknown and ends[0].startswith("was not finished")
        assert ends[1].startswith(f"{unknown} records of events without a format: id 2002 (")
        assert lost_in_file(recording.cpu_stats) == {"in_rings": 5}


def test_a_disk_that_is_full_at_the_beginning(tmp_path: Path, full_at: Callable[[int], None]) -> None:
    full_at(1 << 15)
    path = str(tmp_path / "full.dat")
    with pytest.raises(OSError) as caught:
        TraceDatWriter(path, nr_cpus=1)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, path)
    assert list(tmp_path.iterdir()) == []


@functools.cache
def many_pages() -> list[bytes]:
    """30,000 records."""
    return pages([(n + 1, EVENTS.entry(2002, 11, "x" * 100, n, n)) for n in range(30_000)])


@pytest.mark.parametrize("room", [3 << 18, (1 << 20) + 5000, (2 << 20) + 4096])
def test_a_disk_that_is_full_costs_what_does_not_fit(
    tmp_path: Path, full_at: Callable[[int], None], room: int
) -> None:
    """Kept and lost records add up to all; the file is valid; losses are reported at their place."""
    path = tmp_path / "full.dat"
    with TraceDatWriter(path, nr_cpus=2) as writer:
        full_at(room)
        writer.add_texts(contents())
        for number, page in enumerate(many_pages()):
            writer.add_page(number % 2, page)
        assert writer.error is not None
        full_at(resource.RLIM_INFINITY if room > 2 << 20 else room)
        writer.add_texts(contents())
        for page in pages([(10**9, EVENTS.entry(2001, 11, 7))]):
            writer.add_page(0, page)
        size = writer.finish(contents())
    assert os.listdir(tmp_path) == ["full.dat"]
    assert path.stat().st_size == size > room / 2
    found = records_of(path)
    assert len(found) + writer.given_up == 30_001
    assert {ts for ts, *_ in found} <= {*range(1, 30_001), 10**9}
    if room > 2 << 20:
        assert found[-1][0] == 10**9 and any(lost > 1000 or lost == -1 for *_, lost in found)
    assert trace_cmd("report", "-t", "-i", str(path)).splitlines() == report(path)


def test_a_write_that_ends_within_a_page(tmp_path: Path, full_at: Callable[[int], None]) -> None:
    """It is short and no error; what follows must not be needed to know why."""
    records = [(n + 1, EVENTS.entry(2002, 11, "x" * 100, n, n)) for n in range(30)]
    with TraceDatWriter(str(tmp_path / "full.dat"), nr_cpus=1) as writer:
        writer.add_texts(contents())
        (page, *_) = pages(records)
        writer.add_page(0, page)
        writer.sync()
        full_at(os.stat(tmp_path / "full.dat.part").st_size + 100)
        writer.add_page(0, page)
        writer.sync()
        assert (writer.given_up > 0, writer.error and writer.error.errno) == (True, errno.EFBIG)


def test_another_takes_the_room_that_was_kept(tmp_path: Path, full_at: Callable[[int], None]) -> None:
    """While the file is finished; then the last pages make room for its end."""
    path = tmp_path / "full.dat"
    with TraceDatWriter(path, nr_cpus=1) as writer:
        for page in many_pages():
            writer.add_page(0, page)
        full_at(2 << 20)
        writer.finish(contents(event_stats=lambda given_up: b"given up: %d\n" % given_up))
    assert path.stat().st_size <= 2 << 20
    assert (found := len(records_of(path))) > 5000
    assert found + writer.given_up == 30_000
    with TraceDatReader(path) as reader:
        assert reader.cpu_stats == [f"given up: {writer.given_up}\n"]


def test_an_error_while_pages_are_moved_keeps_both_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [(n + 1, EVENTS.entry(2001, 11, n)) for n in range(60000)]
    path = tmp_path / "trace.dat"
    path.write_bytes(b"old")
    steps = 0

    def fail(*_: object) -> int:
        nonlocal steps
        steps += 1
        if steps > 2:
            raise OSError(errno.EIO, "no")
        raise OSError(errno.EXDEV, "through memory")

    monkeypatch.setattr("utracefs.recordings.trace_dat.part.take_out", cannot)
    with pytest.raises(OSError, match=str(path)), TraceDatWriter(path, nr_cpus=1) as writer:
        writer.add_texts(contents())
        for page in pages(records):
            writer.add_page(0, page)
        monkeypatch.setattr(os, "copy_file_range", fail)
        writer.finish(contents())
    assert path.read_bytes() == b"old"
    found = []
    for name in ("trace.dat.part", "trace.dat.part.end"):
        with TraceDatReader(tmp_path / name, recover=True) as reader:
            found += [ts for ts, *_ in read_records(reader)]
    assert sorted(found) == [ts for ts, _ in records]


def cannot(*_: object) -> None:
    raise OSError(errno.EOPNOTSUPP, "no")


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_file_is_finished_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """The holes are taken out from the last on. After a kill or an error between two all is recovered."""
    path = tmp_path / "trace.dat"
    calls = 0

    def take_out_some(fd: int, at: int, size: int) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(errno.EIO, "no")
        take_out(fd, at, size)

    with contextlib.suppress(OSError), TraceDatWriter(path, nr_cpus=3) as writer:
        writer.add_texts(contents(formats={}))
        if writer.part.places() is None:  # this file system keeps holes
            failing = 0
        for n, cpu in enumerate((0, 2, 0, 2)):
            for page in pages(many_records(n, 600)):
                writer.add_page(cpu, page)
            writer.add_texts(contents())
        monkeypatch.setattr("utracefs.recordings.trace_dat.part.take_out", take_out_some)
        writer.finish(contents())
    found = path.with_name("trace.dat.part") if failing else path
    assert os.listdir(tmp_path) == [found.name]
    expected = sum(len(many_records(n, 600)) for n in range(4))
    for recover in (False, True)[bool(failing) :]:
        with TraceDatReader(found, recover=recover) as reader:
            assert len(read_records(reader)) == expected and reader.nr_cpus == 3
    if not failing:
        assert len(trace_cmd("report", "-i", str(path)).splitlines()) == expected + 1
        assert len(report(path)) == expected + 1
        assert os.stat(path).st_size < 1 << 21


def test_losses_on_a_full_disk_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page after them is written at the third attempt: it has the number of the two before it."""
    part = Part(str(tmp_path / "t.dat"), nr_cpus=1, page_size=4096)
    page, write, left = pages(many_records(0, 90))[0], os.pwrite, 2

    def pwrite(fd: int, data: bytes, at: int) -> int:
        nonlocal left
        if len(data) % 4096 == 0 and left:
            left -= 1
            raise OSError(errno.ENOSPC, "full")
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    part.add_pages(0, memoryview(page * 3))
    (written,) = part.pages_of(0)
    assert missed_events(written) == part.given_up == 2 * count_events(page) > 0
    part.remove()


@pytest.mark.parametrize("refused", ["nothing", "open", "write"])
def test_pages_written_directly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """The file has the same, also where the file system refuses that."""
    opened, written = os.open, os.pwrite
    direct: list[int] = []

    def open_(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT and refused == "open":
            raise OSError(errno.EINVAL, "no direct writes")
        fd = opened(path, flags, *rest)
        direct.extend([fd] if flags & os.O_DIRECT else [])
        return fd

    def pwrite(fd: int, data: bytes, at: int) -> int:
        if fd in direct and refused == "write":
            raise OSError(errno.EINVAL, "no direct writes")
        return written(fd, data, at)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "pwrite", pwrite)
    found = [pages(many_records(n, 90))[0] for n in range(6)]
    buffer = mmap.mmap(-1, 2 * 4096)
    part = Part(str(tmp_path / "t.dat"), nr_cpus=2, page_size=4096)
    fds = len(os.listdir("/proc/self/fd"))
    for n in range(0, 6, 2):
        buffer[:] = found[n] + found[n + 1]
        part.add_pages(1, memoryview(buffer), is_direct=n != 2)
    assert b"".join(part.pages_of(1)) == b"".join(found)
    part.leave()
    assert len(os.listdir("/proc/self/fd")) == fds - 1 - (refused != "open")


def test_direct_writes_go_to_the_file_that_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to one by which the owner of the folder has replaced it, a link to a file of others, say."""
    other = tmp_path / "other"
    other.touch()

    def open_part(path: str) -> BinaryIO:
        file = partial_files.open_part(path)
        os.unlink(file.name)
        os.symlink(other, file.name)
        return file

    monkeypatch.setattr(trace_dat.part, "open_part", open_part)
    part, page = Part(str(tmp_path / "t.dat"), nr_cpus=1, page_size=4096), mmap.mmap(-1, 4096)
    page[:] = pages(many_records(1, 9))[0]
    part.add_pages(0, memoryview(page), is_direct=True)
    assert list(part.pages_of(0)) == [page[:]]
    assert not other.read_bytes()
    part.leave()


def test_error_of_the_disk_in_a_direct_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised: the page cache would take the pages, and lose them later."""
    part, written = Part(str(tmp_path / "t.dat"), nr_cpus=1, page_size=4096), os.pwrite

    def pwrite(fd: int, data: bytes, at: int) -> int:
        if fd == part.direct:
            raise OSError(errno.EIO, "Input/output error")
        return written(fd, data, at)

    if part.direct is None:
        part.direct = os.dup(part.file.fileno())
    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="Input/output"):
        part.add_pages(0, memoryview(pages(CPU0)[0]), is_direct=True)
    part.remove()
