"""The log's file: at whatever point a daemon was killed, it has the lines before or after the change, and
needs no new page."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.left_over import descriptors
from utracefsd.machine import disk
from utracefsd.state import log_file
from utracefsd.state.log import StateError, parse_log
from utracefsd.state.log_file import FIRST_ROOM, MAX_ROOM, PAGE, LogFile, read_log_file

WORD = 8


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "state"


@pytest.fixture
def made(path: Path) -> Iterator[LogFile]:
    file = LogFile.make(path, 3 * PAGE)
    yield file
    file.close()


def blocks(path: Path) -> int:
    return path.stat().st_blocks


def test_what_is_written_is_read(path: Path, made: LogFile) -> None:
    assert read_log_file(path) is None, "nothing was ever said"
    assert made.append(b"one")
    assert made.append(b"two")
    assert read_log_file(path) == (b"onetwo", False)
    assert (made.length, made.left) == (6, 3 * PAGE - 6)
    assert made.replace(b"three")
    assert made.append(b"four")
    assert read_log_file(path) == (b"threefour", False)
    assert made.replace(b"x" * 3 * PAGE)
    assert made.left == 0
    assert read_log_file(path) == (b"x" * 3 * PAGE, False)
    assert sorted(os.listdir(path.parent)) == ["state"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_does_not_fit_changes_nothing(path: Path, made: LogFile) -> None:
    assert made.append(b"a" * (3 * PAGE - 1))
    before = path.read_bytes()
    assert not made.append(b"bc")
    assert not made.replace(b"x" * (3 * PAGE + 1))
    assert path.read_bytes() == before


def test_behind(path: Path, made: LogFile) -> None:
    assert made.append(b"one")
    made.mark_behind()
    assert read_log_file(path) == (b"one", True)
    assert made.append(b"two"), "what still fits is true, too"
    assert read_log_file(path) == (b"onetwo", True)
    again = LogFile.open(path)
    assert again is not None
    assert again.behind
    assert again.replace(b"all")
    assert read_log_file(path) == (b"all", False)
    again.close()


def test_another_continues(path: Path, made: LogFile) -> None:
    made.append(b"one")
    made.replace(b"two")
    again = LogFile.open(path)
    assert again is not None
    assert (again.length, again.room, again.behind) == (3, 3 * PAGE, False)
    again.append(b"three")
    assert read_log_file(path) == (b"twothree", False)
    again.close()


def test_no_page_is_needed_later(path: Path, made: LogFile) -> None:
    before = blocks(path)
    assert before * 512 == 7 * PAGE
    for _ in range(5):
        while made.append(b"x" * 1000):
            pass
        assert made.replace(b"y" * 2 * PAGE)
    assert blocks(path) == before


def test_no_room(path: Path, room: Callable[..., None]) -> None:
    first = LogFile.make(path, PAGE, b"first")
    room(20 * PAGE, of="/state")
    with pytest.raises(OSError, match="No space left"):
        LogFile.make(path, 10 * PAGE)
    with pytest.raises(OSError, match="too large"):
        LogFile.make(path, log_file.MAX_ROOM + 1)
    assert read_log_file(path) == (b"first", False)
    assert os.listdir(path.parent) == ["state"]
    assert first.append(b"second")
    larger = LogFile.make(path, 0, b"x" * (9 * PAGE))
    assert larger.room == 9 * PAGE
    assert read_log_file(path) == (b"x" * 9 * PAGE, False)
    first.close()
    larger.close()


def test_a_file_that_may_not_be_so_large(path: Path, made: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """RLIMIT_FSIZE, a disk in place of memory: for any result of a write."""
    made.append(b"one")
    real = os.pwrite
    monkeypatch.setattr(disk, "pwrite", lambda fd, data, at: real(fd, data[: len(data) // 2], at))
    assert not made.append(b"two")
    assert not made.replace(b"three")

    def refuse(fd: int, data: bytes, at: int) -> int:
        raise OSError(27, "File too large")

    monkeypatch.setattr(disk, "pwrite", refuse)
    assert not made.append(b"two")
    made.mark_behind()
    with pytest.raises(OSError, match="no room"):
        LogFile.make(path, PAGE, b"x")
    monkeypatch.setattr(disk, "pwrite", real)
    assert made.append(b"four")
    assert read_log_file(path) == (b"onefour", False)


Act = Callable[[LogFile], object]


@pytest.mark.parametrize(
    "act",
    [
        lambda file: file.append(b"more" * 50),
        lambda file: file.replace(b"else" * 50),
        lambda file: file.replace(b""),
        lambda file: file.mark_behind(),
    ],
)
def test_killed_at_each_byte(path: Path, act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write may end anywhere, except for the word, which is one store; old contents of the areas are
    ignored."""
    file = LogFile.make(path, PAGE)
    for _ in range(2):
        file.replace(b"O" * 2000)
    file.append(b"before")
    writes: list[tuple[bytes, int]] = []
    real = os.pwrite

    def note(fd: int, data: bytes, at: int) -> int:
        writes.append((data, at))
        return real(fd, data, at)

    image = bytearray(path.read_bytes())
    before = read_log_file(path)
    monkeypatch.setattr(disk, "pwrite", note)
    act(file)
    after = read_log_file(path)
    assert after != before
    states = []
    for data, at in writes:
        for cut in (0, WORD) if len(data) == WORD else range(len(data) + 1):
            path.write_bytes(image[:at] + data[:cut] + image[at + cut :])
            states.append(read_log_file(path))
        image[at : at + len(data)] = data
    assert [state for state, _ in itertools.groupby(states)] == [before, after]
    assert all(at % WORD == 0 for data, at in writes if len(data) == WORD)
    file.close()


def test_a_larger_one_takes_the_name_when_it_is_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LogFile.make(path, PAGE, b"old")
    real, seen = os.rename, []

    def look(new: str, old: str) -> None:
        seen.append((read_log_file(Path(old)), read_log_file(Path(new))))
        real(new, old)

    monkeypatch.setattr(disk, "rename", look)
    LogFile.make(path, FIRST_ROOM, b"new").close()
    assert seen == [((b"old", False), (b"new", False))]
    file.close()


def test_what_is_no_such_file(path: Path) -> None:
    """A piece of a log is not a log."""
    file = LogFile.make(path, PAGE, b"lines")
    file.close()
    data = path.read_bytes()
    wrong = [data[:cut] for cut in [*range(64), PAGE - 1, PAGE, PAGE + 3, 2 * PAGE, len(data) - 1]]
    wrong += [data + b"\0", b"x" + data[1:]]
    wrong += [data[:16] + struct.pack("<I", room) + data[20:] for room in (0, 1, 2 * PAGE, 1 << 31)]
    wrong += [data[:24] + struct.pack("<I", at) + data[28:] for at in (0, PAGE + 2, 3 * PAGE, 1 << 31)]
    wrong += [data[:28] + struct.pack("<I", length) + data[32:] for length in (PAGE + 1, 1 << 31)]
    for one in wrong:
        path.write_bytes(one)
        assert read_log_file(path) == (b"", False)
    with pytest.raises(StateError):
        parse_log(b"")
    path.unlink()
    assert read_log_file(path) is None
    path.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        read_log_file(path)
    path.unlink()
    path.mkdir()
    before = descriptors()
    with pytest.raises(OSError, match="directory"):
        read_log_file(path)
    assert descriptors() == before
    shutil.rmtree(path)


def test_what_is_too_long_for_a_log_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.touch()
    os.truncate(path, PAGE + 2 * MAX_ROOM + 1)
    with pytest.raises(OSError) as caught:
        read_log_file(path)
    assert caught.value.errno == errno.EFBIG
