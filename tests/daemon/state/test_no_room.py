"""The folder of the state has too little room: the ring buffer goes to memory with all that is in it, and what cannot do
without its file says so in one line."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace._ring_buffer import RingBuffer
from utracefsd.daemon import Daemon
from utracefsd.events.event import Event
from utracefsd.events.status_file import StatusFile
from utracefsd.machine.peer import Peer
from utracefsd.state.living import parse_log

ROOT = Peer(pid=os.getpid(), uid=0, gid=0, privileged=True)
NO_ROOM = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG]
WARNING = "will not survive a restart"

_dead: list[Daemon] = []


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="utracefs-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("utracefsd"), "propagate", True)
    return caplog


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """room(n): files whose names contain `of` get at most n bytes from now on, else `number`."""
    real = os.posix_fallocate

    def set_room(limit: int, number: int = errno.ENOSPC, of: str = "/cpu") -> None:
        def allocate(fd: int, offset: int, length: int) -> None:
            if of in os.readlink(f"/proc/self/fd/{fd}") and offset + length > limit:
                raise OSError(number, os.strerror(number))
            real(fd, offset, length)

        monkeypatch.setattr(os, "posix_fallocate", allocate)

    return set_room


def daemon_in(folder: Path, **options: Any) -> Daemon:
    return Daemon(
        now_ns=time.monotonic_ns,
        status_path=folder / "user_events_status",
        state_folder=folder,
        plugins=[],
        **options,
    )


def die(daemon: Daemon) -> None:
    """As SIGKILL leaves things; the object stays, so that nothing is unmapped."""
    _dead.append(daemon)


def register(daemon: Daemon, command: bytes) -> Event:
    event = daemon.table.register(command, 0, privileged=True)
    daemon.table.acquire(event)
    return event


def write(daemon: Daemon, path: bytes, data: bytes) -> None:
    daemon.take_in_all()
    daemon.tree.write_file(path, data, True, ROOT)
    daemon.save()


def read(daemon: Daemon, path: bytes) -> bytes:
    return daemon.tree.read_file(path, ROOT)


def emit(event: Event, n: int) -> None:
    assert (
        event.tracepoint.write(struct.pack("<I", n), ts_ns=time.monotonic_ns(), cpu=n % 2, pid=os.getpid())
        == 0
    )


def contents(daemon: Daemon) -> list[bytes]:
    cpus = range(daemon.instance.nr_cpus)
    stats = [read(daemon, b"per_cpu/cpu%d/stats" % cpu).partition(b"now ts")[0] for cpu in cpus]
    return [read(daemon, b"trace"), *stats]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# The ring buffer itself


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

    monkeypatch.setattr(os, "fstatvfs", lambda fd: Room())
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


# The instance


@pytest.mark.parametrize("number", NO_ROOM)
def test_expanding_goes_on_in_memory(
    folder: Path, room: Callable[..., None], log: pytest.LogCaptureFixture, number: int
) -> None:
    old = daemon_in(folder)
    event = register(old, b"a u32 n")
    write(old, b"buffer_size_kb", b"64")
    write(old, b"options/overwrite", b"0")
    write(old, b"events/enable", b"1")
    for n in range(20):
        emit(event, n)
    before = contents(old)
    assert before[0].count(b"n=0x") == 20
    room(100 << 10, number)
    write(old, b"buffer_size_kb", b"2048")
    assert contents(old) == before
    assert read(old, b"buffer_size_kb") == b"2051\n"
    assert files(folder) == ["journal", "state", "user_events_status"]
    taken = parse_log((folder / "state").read_bytes())
    assert taken.buffer_folder == ""
    assert taken.settings["in_memory"] == (4096, *[2051] * old.instance.nr_cpus)
    emit(event, 20)
    write(old, b"per_cpu/cpu0/buffer_size_kb", b"4000")
    write(old, b"buffer_subbuf_size_kb", b"8")
    write(old, b"per_cpu/cpu0/buffer_size_kb", b"100")
    emit(event, 21)
    warnings = [r.getMessage() for r in log.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert WARNING in warnings[0]
    assert str(folder) in warnings[0]
    assert os.strerror(number) in warnings[0]
    paths = [b"buffer_size_kb", b"per_cpu/cpu0/buffer_size_kb", b"per_cpu/cpu1/buffer_size_kb"]
    paths += [b"buffer_subbuf_size_kb", b"set_event", b"trace_options", b"user_events_status"]
    paths = [path for path in paths if old.instance.nr_cpus > 1 or b"cpu1" not in path]
    settings = {path: read(old, path) for path in paths}
    die(old)

    log.clear()
    new = daemon_in(folder)  # there is still no room
    assert {path: read(new, path) for path in paths} == settings
    assert new.instance.buffer.is_empty()
    assert not new.instance.buffer.overwrite
    assert log.text.count(WARNING) == 1
    again = register(new, b"a u32 n")
    assert again.id == event.id
    assert again.status
    emit(again, 22)
    assert read(new, b"trace").count(b"n=0x") == 1
    die(new)

    log.clear()
    room(1 << 40)
    last = daemon_in(folder)  # and now there is: it is kept in files again
    assert {path: read(last, path) for path in paths} == settings
    assert last.instance.buffer.folder is not None
    assert parse_log((folder / "state").read_bytes()).settings["in_memory"] == ()
    assert WARNING not in log.text
    emit(register(last, b"a u32 n"), 23)
    die(last)
    adopted = daemon_in(folder)
    assert read(adopted, b"trace").count(b"n=0x17 (23)") == 1
    adopted.close()
    assert files(folder) == []


@pytest.mark.parametrize(
    "operation",
    [
        lambda daemon: write(daemon, b"events/enable", b"1"),
        lambda daemon: write(daemon, b"standing_events", b"b*\n"),
        lambda daemon: write(daemon, b"per_cpu/cpu0/buffer_size_kb", b"100"),
        lambda daemon: write(daemon, b"buffer_subbuf_size_kb", b"64"),
    ],
)
def test_each_operation_that_needs_room(
    folder: Path,
    room: Callable[..., None],
    log: pytest.LogCaptureFixture,
    operation: Callable[[Daemon], None],
) -> None:
    daemon = daemon_in(folder)
    register(daemon, b"a u32 n")
    room(20 << 10)
    operation(daemon)
    assert daemon.instance.buffer.folder is None
    assert log.text.count(WARNING) == 1
    assert files(folder) == ["journal", "state", "user_events_status"]
    daemon.close()


def test_shrinking_needs_room_too(
    folder: Path, room: Callable[..., None], log: pytest.LogCaptureFixture
) -> None:
    """The smaller file is made beside the larger one."""
    daemon = daemon_in(folder, buffer_size_kb=100)
    room(0)
    daemon.instance.store.shrink_to_minimum()
    assert daemon.instance.buffer.nr_subbufs(0) == 2
    assert log.text.count(WARNING) == 1
    daemon.close()


@pytest.mark.parametrize("size_kb", [None, 64])
def test_no_room_from_the_start(
    folder: Path, room: Callable[..., None], log: pytest.LogCaptureFixture, size_kb: int | None
) -> None:
    room(0)
    old = daemon_in(folder, buffer_size_kb=size_kb)
    assert log.text.count(WARNING) == 1
    event = register(old, b"a u32 n")
    write(old, b"events/enable", b"1")
    emit(event, 1)
    assert b"n=0x1" in read(old, b"trace")
    shown = read(old, b"buffer_size_kb")
    die(old)
    new = daemon_in(folder)
    assert read(new, b"buffer_size_kb") == shown
    assert read(new, b"set_event") == b"user_events:a\n"
    new.close()


def test_no_room_for_another_folder(folder: Path, log: pytest.LogCaptureFixture) -> None:
    """A tmpfs without inodes left."""
    daemon = daemon_in(folder)
    assert daemon.state is not None

    def full() -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    daemon.state.folder.new_folder = full  # type: ignore[method-assign]
    write(daemon, b"buffer_subbuf_size_kb", b"8")
    assert daemon.instance.buffer.subbuf_size == 8192
    assert log.text.count(WARNING) == 1
    daemon.close()


@pytest.mark.parametrize("path", [b"buffer_size_kb", b"buffer_subbuf_size_kb"])
@pytest.mark.parametrize("logged", [False, True])
def test_death_on_the_way_to_memory(
    folder: Path, room: Callable[..., None], path: bytes, logged: bool
) -> None:
    """Until the log says so the files are what a successor takes over, and nothing is missing in them."""
    old = daemon_in(folder)
    event = register(old, b"a u32 n")
    write(old, b"events/enable", b"1")
    emit(event, 5)
    assert old.state is not None
    old.state.folder.clean = lambda: None  # type: ignore[method-assign]
    if not logged:
        old.state.folder.changed = lambda: None
    room(1 << 20)
    size = {b"buffer_size_kb": b"2000", b"buffer_subbuf_size_kb": b"512"}[path]
    daemon_writes(old, path, size)
    assert old.instance.buffer.folder is None
    die(old)
    room(1 << 40)
    new = daemon_in(folder)
    assert (b"n=0x5" in read(new, b"trace")) != logged
    assert (read(new, path) == read(old, path)) == logged
    assert len(list(folder.glob("buffer.*"))) == 1
    new.close()


def daemon_writes(daemon: Daemon, path: bytes, data: bytes) -> None:
    """Killed before the step's end: without the last `save`."""
    daemon.tree.write_file(path, data, True, ROOT)


def test_the_log_has_no_room_before_the_files_go(
    folder: Path, room: Callable[..., None], log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = daemon_in(folder)
    register(daemon, b"a u32 n")
    daemon.save()
    real = os.write

    def full(fd: int, data: bytes) -> int:
        name = os.readlink(f"/proc/self/fd/{fd}")
        if name.startswith(str(folder)) and list(folder.glob("buffer.*")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    room(20 << 10)
    write(daemon, b"events/enable", b"1")
    die(daemon)
    new = daemon_in(folder)
    assert read(new, b"set_event") == b"user_events:a\n"
    new.close()


def test_when_memory_is_short_the_operation_fails(
    folder: Path, room: Callable[..., None], log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = daemon_in(folder)
    event = register(daemon, b"a u32 n")
    write(daemon, b"events/enable", b"1")
    emit(event, 1)
    room(0)
    monkeypatch.setattr(daemon.instance.store, "free_memory_kb", lambda: 100)
    with pytest.raises(TraceError) as failure:
        write(daemon, b"buffer_size_kb", b"4096")
    assert failure.value.errno == errno.ENOMEM
    monkeypatch.setattr(daemon.instance.store, "free_memory_kb", lambda: 1 << 62)
    with pytest.raises(TraceError) as failure:
        write(daemon, b"buffer_size_kb", b"%d" % (1 << 40))
    assert failure.value.errno == errno.ENOMEM
    assert b"n=0x1" in read(daemon, b"trace")
    daemon.close()


def test_the_size_of_before_cannot_be_had(folder: Path, log: pytest.LogCaptureFixture) -> None:
    old = daemon_in(folder)
    register(old, b"a u32 n")
    write(old, b"events/enable", b"1")
    assert old.state is not None
    nr_cpus = old.instance.nr_cpus
    old.instance.settings.in_memory = (4096, *[1 << 40] * nr_cpus)
    old.state.folder.buffer_folder = ""
    old.state.folder.changed()
    die(old)
    new = daemon_in(folder)
    assert log.text.count("stays at its smallest size") == 1
    event = register(new, b"a u32 n")
    emit(event, 1)
    assert b"n=0x1" in read(new, b"trace")
    new.close()


def test_another_number_of_cpus(
    folder: Path, room: Callable[..., None], log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    room(0)
    die(daemon_in(folder))
    monkeypatch.setattr("utracefsd.daemon.possible_cpus", lambda: 77)
    new = daemon_in(folder)
    assert "and there are 77" in log.text
    new.close()


# What cannot do without


def test_the_status_file(folder: Path, room: Callable[..., None]) -> None:
    room(0, of="user_events_status")
    for path in (folder / "user_events_status", None):
        with pytest.raises(TraceError) as failure:
            StatusFile(path)
        assert failure.value.errno == errno.ENOSPC
        assert failure.value.text == (
            f"no room for the status file {path or 'in memory'} (4096 bytes): No space left on device"
        )
    assert files(folder) == []
    room(1 << 40)
    made = StatusFile(folder / "user_events_status", 3)
    assert (folder / "user_events_status").stat().st_blocks * 512 >= 3 * 4096
    made.close()


def test_the_journal(folder: Path, room: Callable[..., None]) -> None:
    room(0, of="/journal")
    with pytest.raises(TraceError) as failure:
        daemon_in(folder)
    assert failure.value.errno == errno.ENOSPC
    assert failure.value.text == f"{folder}/journal cannot be made: No space left on device"
    assert not (folder / "user_events_status").exists()
