"""The files of a ring buffer: adopting them gives all committed records, whenever the writer was killed;
contents that no writer leaves are refused.
"""

import ctypes
import itertools
import mmap
import os
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from tests.daemon.consumers.ftrace.buffer.ring_model import HEADER, as_stored, entry, fill
from tests.protocol.pages.page_writer import decode_page
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.buffer.stats import BufferStats


def test_files_have_mode_0600(tmp_path: Path) -> None:
    buffer = RingBuffer(2, 8, folder=str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["cpu0", "cpu1"]
    assert all((tmp_path / name).stat().st_mode & 0o7777 == 0o600 for name in ("cpu0", "cpu1"))
    buffer.resize(100)
    assert sorted(os.listdir(tmp_path)) == ["cpu0", "cpu1"]


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RingBuffer(2, 8, folder=str(tmp_path / "missing"))
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    fill(buffer, 10)
    (tmp_path / "cpu0.new").mkdir()
    with pytest.raises(OSError):
        buffer.resize(100)
    assert buffer.entries() == 10
    assert buffer.size_kb(0) == 11


def run_child(work: Callable[[], None]) -> int:
    """Fork; the child does its work and exits, whatever happens in it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


PTRACE_TRACEME, PTRACE_SINGLESTEP = 0, 9


def test_a_writer_can_be_killed_between_any_two_instructions(tmp_path: Path) -> None:
    """Step a child through page turns, overwriting, swaps and a clear; adopt the state after each store."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    RingBuffer(1, 1, folder=str(tmp_path))
    copy = tmp_path / "copy"
    copy.mkdir()

    def work() -> None:
        buffer = RingBuffer.adopt(str(tmp_path))
        cursor = buffer.cursor(consume=True)
        data = [entry(serial, 1300) for serial in range(20)]
        if libc.ptrace(PTRACE_TRACEME, 0, None, None):
            os._exit(77)
        os.kill(os.getpid(), signal.SIGSTOP)
        for serial in range(11):  # three to a page: fills two pages, and overwrites
            buffer.append(0, serial << 27, data[serial])
        next(cursor)
        next(cursor)
        buffer.read_page(0, 4096)
        next(cursor)
        for serial in range(11, 16):
            buffer.append(0, serial << 27, data[serial])
        buffer.clear()
        buffer.append(0, 16 << 27, data[16])

    pid = run_child(work)
    try:
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            pytest.skip("ptrace is not allowed here")
        file = os.open(tmp_path / "cpu0", os.O_RDONLY)
        with mmap.mmap(file, 0, prot=mmap.PROT_READ) as shared:
            os.close(file)
            seen = []
            before = b""
            while os.WIFSTOPPED(status):
                content = shared[:]
                if content != before:
                    before = content
                    (copy / "cpu0").unlink(missing_ok=True)
                    (copy / "cpu0").write_bytes(content)
                    adopted = RingBuffer.adopt(str(copy))
                    stats = adopted.stats(0)
                    records = list(adopted.cursor())
                    assert len(records) == stats.entries
                    serials = [HEADER.unpack_from(data)[0] for _, _, data, _ in records]
                    assert [data for _, _, data, _ in records] == [as_stored(entry(n, 1300)) for n in serials]
                    assert [ts for _, ts, _, _ in records] == [n << 27 for n in serials]
                    assert serials == sorted(serials)
                    written = stats.entries + stats.overrun + stats.read_events
                    seen.append((written, stats.overrun, stats.read_events, serials))
                assert libc.ptrace(PTRACE_SINGLESTEP, pid, None, None) == 0
                _, status = os.waitpid(pid, 0)
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert seen[-1] == (1, 0, 0, [16])
    cleared = next(i for i, state in enumerate(seen) if i and state[0] < seen[i - 1][0])
    for first, second in itertools.pairwise(seen[:cleared]):
        # record by record, page by page: nothing unwritten, unread or un-overwritten again
        assert 0 <= second[0] - first[0] <= 1
        assert second[1] - first[1] in (0, 3)
        assert second[2] - first[2] in (0, 1, 3)
        # and the missing ones were counted
        assert len(second[3]) == second[0] - second[1] - second[2]
    assert seen[cleared - 1][:3] == (16, 6, 4)
    assert all(state in ((0, 0, 0, []), seen[-1]) for state in seen[cleared:])


CONTROL_STATE = 40
STATE_SIZE = 112
ORIGIN_SIZE = 24


def adopt_changed(folder: Path, offset: int, data: bytes) -> RingBuffer:
    """Adopt a copy of the buffer of one cpu, with other bytes at an offset."""
    content = bytearray((folder / "cpu0").read_bytes())
    content[offset : offset + len(data)] = data
    copy = folder / "copy"
    copy.mkdir(exist_ok=True)
    (copy / "cpu0").unlink(missing_ok=True)
    (copy / "cpu0").write_bytes(content)
    return RingBuffer.adopt(str(copy))


def test_an_interrupted_swap_is_finished(tmp_path: Path) -> None:
    """Killed after the reader page was swapped in, before the page it replaced got its slot."""
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    fill(buffer, 100)
    before = (tmp_path / "cpu0").read_bytes()
    ring_at = CONTROL_STATE + 2 * STATE_SIZE + ORIGIN_SIZE + 4 * 16
    assert struct.unpack_from("<3I", before, ring_at) == (0, 1, 2)
    next(buffer.cursor(consume=True))  # slot 2 % 3 gives its page to the reader
    assert struct.unpack_from("<3I", (tmp_path / "cpu0").read_bytes(), ring_at) == (0, 1, 3)
    adopted = adopt_changed(tmp_path, ring_at + 8, struct.pack("<I", 2))
    assert adopted.stats(0) == buffer.stats(0)
    fill(adopted, 600)
    assert sum(len(decode_page(p).records) for p in iter(lambda: adopted.read_page(0, 4096), None)) > 150


def test_an_interrupted_clear_is_finished(tmp_path: Path) -> None:
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    fill(buffer, 600)
    active = struct.unpack_from("<I", (tmp_path / "cpu0").read_bytes(), 32)[0]
    adopted = adopt_changed(tmp_path, CONTROL_STATE + active * STATE_SIZE + 88, struct.pack("<I", 1))
    assert adopted.stats(0) == attrs.evolve(
        BufferStats(0, 0, 0, 0, 0, 0, 0), oldest_ts=adopted.stats(0).oldest_ts
    )


def test_a_record_without_its_commit_does_not_exist(tmp_path: Path) -> None:
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    fill(buffer, 3)
    page = 4096 + 2 * 4096  # position 2 is page 2
    assert struct.unpack_from("<QQ", (tmp_path / "cpu0").read_bytes(), page) == (1000, 3 * 64)
    adopted = adopt_changed(tmp_path, page + 8, struct.pack("<Q", 2 * 64))
    assert adopted.entries() == 2
    assert [ts for _, ts, _, _ in adopted.cursor()] == [1000, 1001]


@pytest.mark.parametrize(
    ("offset", "data"),
    [
        (0, b"x"),  # magic
        (8, b"\1"),  # version
        (12, struct.pack("<I", 8192)),
        (12, struct.pack("<I", 0)),
        (16, struct.pack("<I", 4)),  # nr_subbufs that the file's length does not allow
        (16, struct.pack("<I", 0)),
        (16, struct.pack("<I", 0xFFFFFFFF)),
        (20, struct.pack("<I", 1)),  # cpu
        (24, struct.pack("<I", 0)),  # nr_cpus
        (28, struct.pack("<I", 2)),  # overwrite
        (32, struct.pack("<I", 2)),  # active
    ],
)
def test_nonsense_in_the_control_page_is_refused(tmp_path: Path, offset: int, data: bytes) -> None:
    fill(RingBuffer(1, 8, folder=str(tmp_path)), 600)
    with pytest.raises(ValueError, match="cpu0"):
        adopt_changed(tmp_path, offset, data)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        (0, 0),  # head
        (0, 1 << 63),
        (0, 50),
        (8, 0),  # tail
        (8, 1 << 62),
        (16, 99),  # reader_pos
        (24, 9),  # reader_id
        (24, 0xFFFFFFFF),
        (24, 0x100000000),  # read_off past commit
        (40, 1 << 40),  # last_overrun
        (88, 2),  # clearing
    ],
)
def test_nonsense_in_the_state_is_refused(tmp_path: Path, member: int, value: int) -> None:
    fill(RingBuffer(1, 8, folder=str(tmp_path)), 600)
    active = struct.unpack_from("<I", (tmp_path / "cpu0").read_bytes(), 32)[0]
    with pytest.raises(ValueError, match="cpu0"):
        adopt_changed(tmp_path, CONTROL_STATE + active * STATE_SIZE + member, struct.pack("<Q", value))


def test_nonsense_in_ring_and_pages_is_refused(tmp_path: Path) -> None:
    fill(RingBuffer(1, 8, folder=str(tmp_path)), 600)
    content = (tmp_path / "cpu0").read_bytes()
    ring_at = CONTROL_STATE + 2 * STATE_SIZE + ORIGIN_SIZE + 4 * 16
    for page_id in (99, 3, 2):  # no such page, the reader page, twice the same
        with pytest.raises(ValueError, match="page"):
            adopt_changed(tmp_path, ring_at, struct.pack("<I", page_id))
    pages = [at for at in range(4096, len(content), 4096) if struct.unpack_from("<Q", content, at + 8)[0]]
    assert len(pages) == 3
    for at in pages:
        if struct.unpack_from("<Q", content, at + 8)[0] == 4080:  # an empty page that is not the last
            with pytest.raises(ValueError, match="records"):
                adopt_changed(tmp_path, at + 8, bytes(8))
        for offset, data in [
            (8, struct.pack("<Q", 4084)),  # commit past the page
            (8, struct.pack("<Q", 63)),
            (8, struct.pack("<Q", 1 << 32)),
            (16, struct.pack("<II", 0, 0xFFFFFFFF)),
            (16, struct.pack("<II", 0, 3)),
            (16, struct.pack("<II", 0, 5000)),
            (16, struct.pack("<II", 1 << 5 | 29, 4076)),  # nothing but padding
            (16, struct.pack("<I", 1)),  # 4 bytes are no entry
        ]:
            with pytest.raises(ValueError, match="records"):
                adopt_changed(tmp_path, at + offset, data)


def test_every_byte_changed_is_refused_or_readable(tmp_path: Path) -> None:
    """For any contents of a file: ValueError, or a buffer that can be read to its end and written."""
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    fill(buffer, 600)
    for _ in range(10):
        next(buffer.cursor(consume=True))
    for offset in [*range(CONTROL_STATE + 2 * STATE_SIZE + ORIGIN_SIZE + 80), *range(8192, 8192 + 100)]:
        for value in (0xFF, 0x7F, 1, 30, 31):
            try:
                adopted = adopt_changed(tmp_path, offset, bytes([value]))
            except (ValueError, FileNotFoundError):  # the latter: it names more cpus than there are
                continue
            assert len(list(adopted.cursor())) == adopted.entries()
            for i in range(100):
                adopted.append(0, 10000 + i, entry(i, 60))
            while adopted.read_page(0, 500):
                pass
            assert adopted.is_empty()


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RingBuffer.adopt(str(tmp_path))
    path = tmp_path / "cpu0"
    for content in (b"", b"x" * 100, b"x" * 100000):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="cpu0"):
            RingBuffer.adopt(str(tmp_path))
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(OSError):
        RingBuffer.adopt(str(tmp_path))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="cpu0"):
        RingBuffer.adopt(str(tmp_path))


def test_files_of_different_buffers_do_not_go_together(tmp_path: Path) -> None:
    for name, cpus, subbuf_size in (("two", 2, 4096), ("three", 3, 4096), ("large", 2, 8192)):
        (tmp_path / name).mkdir()
        RingBuffer(cpus, 8, folder=str(tmp_path / name), subbuf_size=subbuf_size)
    for other in ("three", "large"):
        shutil.copy(tmp_path / other / "cpu1", tmp_path / "two" / "cpu1")
        with pytest.raises(ValueError, match="cpu1"):
            RingBuffer.adopt(str(tmp_path / "two"))
    (tmp_path / "two" / "cpu1").unlink()
    with pytest.raises(FileNotFoundError):
        RingBuffer.adopt(str(tmp_path / "two"))
    shutil.copy(tmp_path / "two" / "cpu0", tmp_path / "two" / "cpu1")
    with pytest.raises(ValueError, match="cpu1"):
        RingBuffer.adopt(str(tmp_path / "two"))
