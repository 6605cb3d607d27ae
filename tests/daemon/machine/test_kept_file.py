"""Files for the next daemon: complete or absent."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from utracefsd.machine import disk
from utracefsd.machine.kept_file import made_whole, open_kept


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_made_and_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    (tmp_path / "file.new").write_bytes(b"of a daemon that was killed")
    with made_whole(path, 4096) as fd:
        assert path.read_bytes() == b"before"
        assert os.fstat(fd).st_mode & 0o777 == 0o600
        os.pwrite(fd, b"now", 0)
    os.close(fd)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    opened = open_kept(path)
    assert opened is not None
    fd, size = opened
    assert (os.read(fd, size), size) == (b"now".ljust(4096, bytes(1)), 4096)
    os.close(fd)


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    before = descriptors()
    with pytest.raises(MemoryError), made_whole(path, 4096):
        raise MemoryError
    assert (path.read_bytes(), os.listdir(tmp_path), descriptors()) == (b"before", ["file"], before)


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disk, "posix_fallocate", full)
    before = descriptors()
    with pytest.raises(OSError, match="No space left"), made_whole(tmp_path / "file", 4096):
        pass
    assert (os.listdir(tmp_path), descriptors()) == ([], before)


def test_what_is_no_file(tmp_path: Path) -> None:
    assert open_kept(tmp_path / "file") is None
    os.mkfifo(tmp_path / "fifo")
    opened = open_kept(tmp_path / "fifo")
    assert opened is not None
    os.close(opened[0])
    assert opened[1] == -1
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError) as caught:
        open_kept(tmp_path / "link")
    assert caught.value.errno == errno.ELOOP
