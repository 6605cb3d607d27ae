"""The status file: access, allocated indexes, and leftovers."""

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from utracefs_protocol.errors import TraceError
from utracefsd.events.status_file import PAGE_SIZE, StatusFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "user_events_status"


def mapped(fd: int, size: int = PAGE_SIZE) -> mmap.mmap:
    return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)


def test_index_0_is_never_given_out_and_the_lowest_free_one_is(status: StatusFile) -> None:
    assert [status.allocate() for _ in range(4)] == [1, 2, 3, 4]
    status.free(3)
    status.free(1)
    assert [status.allocate() for _ in range(3)] == [1, 3, 5]


def test_giving_an_index_back_zeroes_its_byte(status: StatusFile) -> None:
    index = status.allocate()
    status.set(index, 0x83)
    status.free(index)
    assert status.get(index) == 0


def test_a_page_holds_4095_events(status: StatusFile) -> None:
    assert status.capacity == 4095
    assert [status.allocate() for _ in range(4095)][-1] == 4095
    status.free(17)
    assert status.allocate() == 17


def test_more_pages_hold_more(path: Path) -> None:
    file = StatusFile(path, pages=3)
    assert file.size == 3 * PAGE_SIZE
    assert file.capacity == 3 * PAGE_SIZE - 1
    file.close()


def test_only_indexes_that_were_given_out_can_be_set(status: StatusFile) -> None:
    for index in (-1, 0, 1, PAGE_SIZE):
        with pytest.raises(ValueError, match="not given out"):
            status.set(index, 1)


def test_readers_see_a_byte_at_once(status: StatusFile) -> None:
    index = status.allocate()
    fd = status.readonly_fd()
    page = mapped(fd)
    os.close(fd)
    assert page[index] == 0
    status.set(index, 0x81)
    assert page[index] == 0x81
    page.close()


def test_a_reader_cannot_write(path: Path) -> None:
    file = StatusFile(path)
    fd = file.readonly_fd()
    with pytest.raises(OSError, match="Permission denied"):
        mmap.mmap(fd, PAGE_SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(fd, b"x")
    # 0600 keeps other users from opening /proc/self/fd/N for writing.
    assert os.fstat(fd).st_mode & 0o777 == 0o600
    os.close(fd)
    file.close()


def test_the_end_turns_everything_off_and_removes_the_file(path: Path) -> None:
    file = StatusFile(path)
    fd = file.readonly_fd()
    page = mapped(fd)
    index = file.allocate()
    file.set(index, 1)
    file.close()
    file.close()
    assert page[index] == 0
    assert not path.exists()
    page.close()
    os.close(fd)


def test_a_successor_turns_off_the_mappings_of_a_killed_predecessor(path: Path) -> None:
    killed = StatusFile(path)
    fd = killed.readonly_fd()
    page = mapped(fd)
    index = killed.allocate()
    killed.set(index, 0x80)

    successor = StatusFile(path)

    assert page[index] == 0
    assert os.fstat(fd).st_ino != path.stat().st_ino
    successor.set(successor.allocate(), 1)
    assert page[1] == 0
    killed.close()
    assert path.exists(), "a late end must not remove the successor's file"
    successor.close()
    page.close()
    os.close(fd)


@pytest.mark.parametrize("kind", ["directory", "link", "fifo", "huge"])
def test_what_is_no_status_file_makes_way(path: Path, tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    if kind == "directory":
        path.mkdir()
        (path / "file").touch()
    elif kind == "link":
        path.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, 1 << 40)
    StatusFile(path).close()
    assert not path.exists()
    assert victim.read_bytes() == b"precious"


def test_no_descriptor_is_leaked(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        file = StatusFile(path)
        os.close(file.readonly_fd())
        file.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_room(folder: Path, room: Callable[..., None]) -> None:
    room(0, of="user_events_status")
    path = folder / "user_events_status"
    with pytest.raises(TraceError) as failure:
        StatusFile(path)
    assert failure.value.errno == errno.ENOSPC
    assert failure.value.text == f"no room for the status file {path} (4096 bytes): No space left on device"
    assert list(folder.iterdir()) == []
    room(1 << 40)
    made = StatusFile(folder / "user_events_status", 3)
    assert (folder / "user_events_status").stat().st_blocks * 512 >= 3 * 4096
    made.close()
