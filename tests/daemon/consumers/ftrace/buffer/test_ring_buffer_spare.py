"""The spare of a ring buffer: swaps, its readers, and the state that a killed process leaves."""

import ctypes
import errno
import mmap
import os
import shutil
import signal
import struct
from pathlib import Path

import pytest

from tests.daemon.consumers.ftrace.buffer.ring_model import as_stored, entry
from tests.daemon.consumers.ftrace.buffer.test_ring_buffer_files import run_child
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer

PTRACE_TRACEME, PTRACE_SINGLESTEP = 0, 9
HEADER_SIZE, STATE_HEAD = 24, 40
"""Bytes of the file `spare`: the header, and a state's part before its byte for each cpu."""


def add(buffer: RingBuffer, *serials: int, cpu: int = 0) -> None:
    for serial in serials:
        assert buffer.append(cpu, serial, entry(serial, 16))


def serials(buffer: RingBuffer | None, cpu: int = -1) -> list[int]:
    assert buffer is not None
    return [ts for _, ts, _, _ in buffer.cursor(cpu)]


def both(buffer: RingBuffer) -> tuple[list[int], list[int]]:
    """The records, and the snapshot."""
    return serials(buffer), serials(buffer.spare)


def test_there_is_none_at_first() -> None:
    buffer = RingBuffer(2, 8)
    assert buffer.spare is None
    assert not buffer.swap()
    buffer.remove_spare()
    assert list(buffer.cursor(snapshot=True)) == []


def test_a_swap_changes_all_there_is() -> None:
    buffer = RingBuffer(2, 8)
    add(buffer, 1, 2)
    add(buffer, 3, cpu=1)
    buffer.add_spare()
    assert both(buffer) == ([1, 2, 3], [])
    assert buffer.swap()
    assert both(buffer) == ([], [1, 2, 3])
    add(buffer, 4)
    assert buffer.stats(0).entries == 1
    assert buffer.swap()
    assert both(buffer) == ([1, 2, 3], [4])
    add(buffer, 5)  # behind the records that are there
    assert serials(buffer, 0) == [1, 2, 5]


def test_one_cpu() -> None:
    buffer = RingBuffer(2, 8)
    buffer.add_spare()
    add(buffer, 1)
    add(buffer, 2, cpu=1)
    assert buffer.swap(1)
    assert both(buffer) == ([1], [2])
    with pytest.raises(IndexError):
        buffer.swap(2)


def test_the_spare_is_the_sizes_and_the_overwrite_of_the_buffer() -> None:
    buffer = RingBuffer(2, 8, subbuf_size=8192)
    buffer.resize(64, 1)
    buffer.overwrite = False
    buffer.add_spare()
    assert buffer.spare is not None
    buffer.add_spare()
    assert [buffer.spare.nr_subbufs(cpu) for cpu in (0, 1)] == [buffer.nr_subbufs(cpu) for cpu in (0, 1)]
    assert buffer.spare.subbuf_size == 8192
    assert not buffer.spare.overwrite
    buffer.overwrite = True
    assert buffer.spare.overwrite
    add(buffer, 1)
    buffer.swap()
    buffer.resize(100)
    assert buffer.spare.size_kb(0) == buffer.size_kb(0) == buffer.spare.size_kb(1)
    assert both(buffer) == ([], [1])


def test_resizing_is_for_both_or_for_none(tmp_path: Path) -> None:
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    buffer.add_spare()
    add(buffer, 1)
    (tmp_path / "cpu0.b.new").mkdir()
    with pytest.raises(OSError):
        buffer.resize(100)
    assert buffer.spare is not None
    assert buffer.size_kb(0) == buffer.spare.size_kb(0) == 11
    assert sorted(os.listdir(tmp_path)) == ["cpu0", "cpu0.b", "cpu0.b.new", "spare"]
    buffer.spare.resize(20)  # as one that died in between leaves it
    (tmp_path / "cpu0.b.new").rmdir()
    buffer.fit_spare()
    assert buffer.spare.size_kb(0) == 11
    assert both(buffer) == ([1], [])


# Readers


def test_a_walk_stays_on_the_ring_that_it_began_on() -> None:
    buffer = RingBuffer(1, 8)
    buffer.add_spare()
    add(buffer, 1, 2, 3)
    walk = buffer.cursor()
    assert next(walk)[1] == 1
    buffer.swap()
    add(buffer, 10, 11)
    assert [ts for _, ts, _, _ in walk] == [2, 3]
    fresh = buffer.cursor(snapshot=True)
    assert next(fresh)[1] == 1
    buffer.swap()
    assert [ts for _, ts, _, _ in fresh] == [2, 3]
    assert serials(buffer) == [1, 2, 3]


def test_a_walk_whose_ring_is_gone_continues_with_the_present_one() -> None:
    buffer = RingBuffer(1, 8)
    buffer.add_spare()
    add(buffer, 1, 2)
    walk, snapshot = buffer.cursor(), buffer.cursor(snapshot=True)
    next(walk)
    buffer.swap()
    buffer.remove_spare()
    add(buffer, 7)
    assert [ts for _, ts, _, _ in walk] == [7]
    assert list(snapshot) == []


def test_a_consumer_takes_from_what_is_recorded() -> None:
    buffer = RingBuffer(1, 8)
    buffer.add_spare()
    add(buffer, 1, 2)
    pipe = buffer.cursor(consume=True)
    assert next(pipe)[1] == 1
    buffer.swap()
    add(buffer, 5, 6)
    assert [ts for _, ts, _, _ in pipe] == [5, 6]
    assert both(buffer) == ([], [2])


# The next daemon


def test_a_spare_is_taken_over_with_what_it_holds(tmp_path: Path) -> None:
    buffer = RingBuffer(2, 8, folder=str(tmp_path))
    add(buffer, 1)
    buffer.add_spare()
    buffer.swap()
    add(buffer, 2)
    buffer.swap(1)
    add(buffer, 3, cpu=1)
    assert all((tmp_path / name).stat().st_mode & 0o7777 == 0o600 for name in os.listdir(tmp_path))
    del buffer
    adopted = RingBuffer.adopt(str(tmp_path))
    assert both(adopted) == ([2, 3], [1])
    adopted.swap()
    add(adopted, 4)
    assert both(RingBuffer.adopt(str(tmp_path))) == ([1, 4], [2, 3])


def test_giving_it_up_leaves_the_live_rings(tmp_path: Path) -> None:
    buffer = RingBuffer(2, 8, folder=str(tmp_path))
    buffer.add_spare()
    add(buffer, 1)
    buffer.swap()
    add(buffer, 2)
    buffer.remove_spare()
    assert sorted(os.listdir(tmp_path)) == ["cpu0.b", "cpu1.b", "spare"]
    adopted = RingBuffer.adopt(str(tmp_path))
    assert serials(adopted) == [2]
    assert adopted.spare is None
    adopted.resize(100)
    adopted.add_spare()
    add(adopted, 3)
    assert both(RingBuffer.adopt(str(tmp_path))) == ([2, 3], [])


def test_what_making_one_left_is_removed(tmp_path: Path) -> None:
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    add(buffer, 1)
    buffer.add_spare()
    buffer.remove_spare()
    shutil.copy(tmp_path / "cpu0", tmp_path / "cpu0.b")
    adopted = RingBuffer.adopt(str(tmp_path))
    assert adopted.spare is None
    assert serials(adopted) == [1]
    assert sorted(os.listdir(tmp_path)) == ["cpu0", "spare"]


def test_no_room_for_one(tmp_path: Path) -> None:
    buffer = RingBuffer(2, 8, folder=str(tmp_path))
    add(buffer, 1)
    (tmp_path / "cpu1.b.new").mkdir()
    with pytest.raises(OSError):
        buffer.add_spare()
    assert buffer.spare is None
    assert sorted(os.listdir(tmp_path)) == ["cpu0", "cpu1", "cpu1.b.new", "spare"]
    buffer.move_to_memory()
    assert buffer.folder is None
    buffer.add_spare()
    buffer.swap()
    assert both(buffer) == ([], [1])


@pytest.mark.parametrize(
    ("offset", "data"),
    [
        (0, b"x"),  # magic
        (8, struct.pack("<I", 99)),  # version
        (12, struct.pack("<I", 2)),  # cpus
        (16, struct.pack("<I", 2)),  # active
        (HEADER_SIZE + 48, struct.pack("<I", 2)),  # allocated
        (HEADER_SIZE + 48 + STATE_HEAD, b"\2"),  # a third ring
    ],
)
def test_nonsense_in_the_map_is_refused(tmp_path: Path, offset: int, data: bytes) -> None:
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    buffer.add_spare()
    del buffer
    content = bytearray((tmp_path / "spare").read_bytes())
    assert len(content) == HEADER_SIZE + 2 * 48
    assert struct.unpack_from("<I", content, 16) == (1,)
    content[offset : offset + len(data)] = data
    (tmp_path / "spare").write_bytes(content)
    with pytest.raises(ValueError):
        RingBuffer.adopt(str(tmp_path))


def test_a_map_of_another_length_is_refused(tmp_path: Path) -> None:
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    buffer.add_spare()
    del buffer
    os.truncate(tmp_path / "spare", 10)
    with pytest.raises(ValueError):
        RingBuffer.adopt(str(tmp_path))
    (tmp_path / "spare").unlink()
    (tmp_path / "spare").symlink_to("cpu0")
    with pytest.raises(OSError) as caught:
        RingBuffer.adopt(str(tmp_path))
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("swaps", [1, 2])
def test_without_the_map_the_ring_with_the_later_record_is_live(tmp_path: Path, swaps: int) -> None:
    folder = str(tmp_path)
    buffer = RingBuffer(2, 8, folder=folder)
    add(buffer, 1, 2)
    buffer.add_spare()
    for _ in range(swaps):
        buffer.swap()
    add(buffer, 3, cpu=1)
    add(buffer, 4)
    now = both(buffer)
    del buffer
    (tmp_path / "spare").unlink()
    with pytest.raises(ValueError, match="spare is missing"):
        RingBuffer.adopt(folder)
    assert both(RingBuffer.adopt(folder, guess=True)) == now
    assert both(RingBuffer.adopt(folder)) == now


def test_without_the_map_the_only_ring_is_live(tmp_path: Path) -> None:
    folder = str(tmp_path)
    buffer = RingBuffer(2, 8, folder=folder)
    buffer.add_spare()
    buffer.swap(1)
    add(buffer, 1)
    add(buffer, 2, cpu=1)
    buffer.remove_spare()
    del buffer
    (tmp_path / "spare").unlink()
    (tmp_path / "spare").mkdir()
    found = RingBuffer.adopt(folder, guess=True)
    assert (serials(found), found.spare) == ([1, 2], None)


def test_a_process_can_be_killed_between_any_two_instructions(tmp_path: Path) -> None:
    """Step a child through swaps of two cpus; adopt the state after each store: all swapped, or none."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    buffer = RingBuffer(2, 1, folder=str(tmp_path))
    buffer.add_spare()
    del buffer
    copy = tmp_path / "copy"
    copy.mkdir()
    names = ("cpu0", "cpu0.b", "cpu1", "cpu1.b", "spare")

    def work() -> None:
        buffer = RingBuffer.adopt(str(tmp_path))
        data = [entry(serial, 16) for serial in range(8)]
        if libc.ptrace(PTRACE_TRACEME, 0, None, None):
            os._exit(77)
        os.kill(os.getpid(), signal.SIGSTOP)
        buffer.append(0, 1, data[1])
        buffer.append(1, 2, data[2])
        buffer.swap()
        buffer.append(1, 3, data[3])
        buffer.swap()
        buffer.swap(1)
        buffer.append(1, 4, data[4])
        buffer.append(0, 5, data[5])

    pid = run_child(work)
    seen: list[tuple[list[int], list[int]]] = []
    try:
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            pytest.skip("ptrace is not allowed here")
        maps = []
        for name in names:
            fd = os.open(tmp_path / name, os.O_RDONLY)
            maps.append(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
            os.close(fd)
        before: list[bytes] = []
        while os.WIFSTOPPED(status):
            content = [shared[:] for shared in maps]
            if content != before:
                before = content
                for name, data in zip(names, content, strict=True):
                    (copy / name).unlink(missing_ok=True)
                    (copy / name).write_bytes(data)
                adopted = RingBuffer.adopt(str(copy))
                for _, ts, data, _ in adopted.cursor():
                    assert data == as_stored(entry(ts, 16))
                state = both(adopted)
                if not seen or seen[-1] != state:
                    seen.append(state)
            assert libc.ptrace(PTRACE_SINGLESTEP, pid, None, None) == 0
            _, status = os.waitpid(pid, 0)
        pid = 0
        for shared in maps:
            shared.close()
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert seen == [
        ([], []),
        ([1], []),
        ([1, 2], []),
        ([], [1, 2]),
        ([3], [1, 2]),
        ([1, 2], [3]),
        ([1, 3], [2]),
        ([1, 3, 4], [2]),
        ([1, 3, 4, 5], [2]),
    ]
