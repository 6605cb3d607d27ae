"""A ring buffer in files when there is too little room for them: nothing is lost, nothing is left."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemon.restarting import (
    NO_ROOM,
    files,
)
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.machine import disk


@pytest.mark.parametrize("number", NO_ROOM)
def test_a_resize_without_room_changes_nothing(
    tmp_path: Path, room: Callable[..., None], number: int
) -> None:
    buffer = RingBuffer(3, 8, folder=str(tmp_path))
    for n in range(30):
        buffer.append(n % 3, n, struct.pack("<QQ", 0, n))
    before = list(buffer.cursor())
    room(1000, number, of="/cpu2.new")
    with pytest.raises(OSError) as failure:
        buffer.resize(100)
    assert failure.value.errno == number
    assert files(tmp_path) == ["cpu0", "cpu1", "cpu2"], "what was made for the other cpus takes no room"
    assert [buffer.size_kb(cpu) for cpu in range(3)] == [11] * 3
    assert buffer.folder == str(tmp_path)
    assert list(buffer.cursor()) == list(RingBuffer.adopt(str(tmp_path)).cursor()) == before


def test_making_one_without_room_leaves_no_file(tmp_path: Path, room: Callable[..., None]) -> None:
    room(1000, of="/cpu2.new")
    with pytest.raises(OSError):
        RingBuffer(3, 8, folder=str(tmp_path))
    assert files(tmp_path) == []


def test_some_room_is_left_to_the_journal_and_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 1 << 20

    class Room:
        f_blocks, f_frsize = 1, 1

        @property
        def f_bavail(self) -> int:
            return free

    monkeypatch.setattr(disk, "fstatvfs", lambda fd: Room())
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    free -= 1
    with pytest.raises(OSError) as failure:
        buffer.resize(100)
    assert failure.value.errno == errno.ENOSPC
    Room.f_blocks = 0  # a tmpfs without a limit says 0 and 0
    buffer.resize(100)
    assert buffer.size_kb(0) == 103


def test_one_cpu_is_resized_and_all_leave_their_files(tmp_path: Path) -> None:
    buffer = RingBuffer(2, 8, folder=str(tmp_path))
    for n in range(400):
        buffer.append(n % 2, n, struct.pack("<QQ", 0, n))
    cursor, taking = buffer.cursor(), buffer.cursor(consume=True)
    expected = list(buffer.cursor())
    assert [next(cursor) for _ in range(10)] == expected[:10]
    assert [next(taking) for _ in range(5)] == expected[:5]
    stats = buffer.stats(0), buffer.stats(1)
    buffer.resize(100, 1, in_memory=True)
    assert buffer.folder is None
    assert [buffer.size_kb(cpu) for cpu in range(2)] == [11, 103]
    assert (buffer.stats(0), buffer.stats(1)) == stats
    assert list(cursor) == expected[10:]
    assert [next(taking) for _ in range(5)] == expected[5:10]
    buffer.append(0, 1000, struct.pack("<QQ", 0, 1000))
    left = RingBuffer.adopt(str(tmp_path))
    assert left.entries() == 395, "the files are what they were"
    assert buffer.entries() == 391


def test_no_memory_either(tmp_path: Path) -> None:
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    with pytest.raises(MemoryError):
        buffer.resize(1 << 34, in_memory=True)
    assert buffer.folder == str(tmp_path)
