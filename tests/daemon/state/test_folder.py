"""The folder: its files over time, and unusable states."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemon.restarting import (
    daemon_in,
    die,
    emit,
    finish,
    packed,
    read,
    register,
    write,
)
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import REG_PERSIST
from utracefsd.daemon import FIRST_EVENT_ID
from utracefsd.events.event import CommandString
from utracefsd.machine import disk
from utracefsd.machine.procfs import possible_cpus
from utracefsd.state.folder import StateFolder
from utracefsd.state.log import MAGIC, VERSION
from utracefsd.state.log_file import LogFile

HEAD = [MAGIC, VERSION]
TOP = ["instance", 0, b""]
START = packed(HEAD, TOP)
EVENT = ["event", 1039, 1, 0, 1000, b"a", b"a u32 n"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folders_of_each_instance(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    moved: list[tuple[int, list[str]]] = []
    state.on_buffer_moved = lambda number: moved.append((number, names(tmp_path)))
    top, other = state.buffers_of(0), state.buffers_of(10)
    assert state.buffers_of(10) is other
    for buffers in (top, other):
        buffers.switch_to(buffers.new_folder())
    assert names(tmp_path) == ["buffer.0.1", "buffer.10.1"]
    spare = other.new_folder()
    other.remove_folder(spare)
    other.switch_to(other.new_folder())
    assert names(tmp_path) == ["buffer.0.1", "buffer.10.2"]
    assert moved == [
        (0, ["buffer.0.1"]),
        (10, ["buffer.0.1", "buffer.10.1"]),
        (10, ["buffer.0.1", "buffer.10.1", "buffer.10.2"]),
    ], "told of the new one before the old one goes"
    other.remove()
    assert (names(tmp_path), other.folder) == (["buffer.0.1"], "")


def test_a_buffer_that_leaves_for_memory(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    state = StateFolder(tmp_path)
    moved: list[list[str]] = []
    state.on_buffer_moved = lambda number: moved.append(names(tmp_path))
    for number in (0, 1):
        buffers = state.buffers_of(number)
        buffers.switch_to(buffers.new_folder())
        moved.clear()
        buffers.leave(OSError(28, "No space left on device"))
        assert buffers.folder == ""
        assert moved == [[f"buffer.{number}.1"], []], (
            "again once its files are gone: the log may need the room"
        )
    assert log.text.count("has too little room") == 1


def test_files_are_ours_alone(folder: Path) -> None:
    daemon = daemon_in(folder)
    register(daemon, b"a")
    write(daemon, b"buffer_subbuf_size_kb", b"8")
    for path in folder.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    finish(daemon)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("state", b"nonsense"),
        ("state", packed([MAGIC, VERSION + 1], TOP)),
        ("state", packed([MAGIC, 1, "buffer.1"])),
        ("state", START + packed([*EVENT[:6], b"b u32 n"])),
        ("state", START + packed([*EVENT[:6], b"a not a field"])),
        ("state", START + packed(EVENT, [EVENT[0], 5, *EVENT[2:]])),
        ("state", START + packed([*EVENT[:1], 1 << 20, *EVENT[2:]])),
        ("state", START + packed(["event", 5, 1, 2, 0, b"a.zz", b"a"])),
        ("state", START + packed(["event", 5, 1, 99, 0, b"a", b"a"])),
        (
            "state",
            START + packed(*(["event", 40_000 + n, n, 0, 0, b"e%d" % n, b"e%d" % n] for n in range(4100))),
        ),
    ],
)
def test_a_state_of_no_use_is_set_aside(
    folder: Path,
    name: str,
    content: bytes,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("utracefsd"), "propagate", True)
    for _ in range(2):  # and the state set aside before makes space
        old = daemon_in(folder)
        register(old, b"x")
        old.save()
        die(old)
        LogFile.make(folder / name, 1, content).close()
        for other in ("buffer.1", "hist.1"):  # also names of an older version
            (folder / other).mkdir()
        caplog.clear()
        new = daemon_in(folder)
        warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert "\n" not in warnings[0].getMessage()
        assert {"state", "hist.1", *["buffer.1"] * (b"buffer.1" in content)} <= {*names(folder / "set-aside")}
        assert not (folder / "set-aside" / "old").exists()
        (folder / "set-aside" / "old").touch()
        assert len(new.table) == 0
        assert new.table.register(CommandString.parse(b"y"), privileged=True).id == FIRST_EVENT_ID
        new.save()
        die(new)
        successor = daemon_in(folder)
        assert len(successor.table) == 1
        die(successor)
    finish(daemon_in(folder))
    assert list(folder.iterdir()) == []


def remove_files(folder: Path) -> None:
    shutil.rmtree(folder)


def remove_a_cpu(folder: Path) -> None:
    for path in folder.glob("*cpu0*"):  # its snapshot, too
        path.unlink()


def damage(folder: Path) -> None:
    for path in folder.glob("*cpu0*"):
        path.write_bytes(b"nonsense")


def replace_by_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("break_it", [remove_files, remove_a_cpu, damage, replace_by_a_file])
def test_a_damaged_ring_buffer_is_lost_alone(
    folder: Path, number: int, break_it: Callable[[Path], None], log: pytest.LogCaptureFixture
) -> None:
    old = daemon_in(folder)
    event = register(old, b"a u32 n", REG_PERSIST)
    old.instances.make(b"one")
    traces = [b"trace", b"instances/one/trace"]
    write(old, b"events/user_events/a/enable", b"1")
    write(old, b"instances/one/events/user_events/a/enable", b"1")
    write(old, b"instances/one/snapshot", b"1")
    emit(event, 5)
    die(old)
    (buffer,) = folder.glob(f"buffer.{number}.*")
    break_it(buffer)
    log.clear()
    new = daemon_in(folder)
    (warning,) = [r.getMessage() for r in log.records if r.levelno >= logging.WARNING]
    assert "all records of " + ["the top instance", "the instance 'one'"][number] in warning
    assert [b"n=0x5" in read(new, path) for path in traces] == [number == 1, number == 0]
    (event,) = new.table.named(b"a")
    assert event.id == FIRST_EVENT_ID
    emit(event, 6)
    assert all(b"n=0x6" in read(new, path) for path in traces)
    write(new, b"instances/one/snapshot", b"1")
    log.clear()
    die(new)
    last = daemon_in(folder)
    assert b"n=0x6" in read(last, b"trace") and b"n=0x6" in read(last, b"instances/one/snapshot")
    assert not log.records
    finish(last)


HIST = b"hist:keys=n"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("name", ["state", "buffer.0.1", "spare", "cpu0", "hist.1"])
def test_a_file_that_cannot_be_read_now_is_not_damaged(
    folder: Path, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon does not start, and the next attempt has all."""
    old = daemon_in(folder)
    event = register(old, b"a u32 n", REG_PERSIST)
    write(old, b"events/user_events/a/enable", b"1")
    write(old, b"events/user_events/a/trigger", HIST, truncate=False)
    write(old, b"snapshot", b"1")
    emit(event, 5)
    die(old)
    real = disk.open

    def fail(path: str | Path, *args: int) -> int:
        if name in Path(path).parts:
            raise OSError(number, os.strerror(number), path)
        return real(path, *args)

    before = sorted(path for path in folder.rglob("*") if path.name != "user_events_status")
    with monkeypatch.context() as patch:
        patch.setattr(disk, "open", fail)
        with pytest.raises(TraceError, match=f"{os.strerror(number)}; it is kept as it is") as failure:
            daemon_in(folder)
    assert failure.value.errno == number
    assert sorted(folder.rglob("*")) == before
    new = daemon_in(folder)
    assert b"n=0x5" in read(new, b"trace") + read(new, b"snapshot")
    assert b"hitcount:          1" in read(new, b"events/user_events/a/hist")
    finish(new)


def test_other_cpus_make_another_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    die(daemon_in(folder))
    monkeypatch.setattr("utracefsd.daemon.possible_cpus", lambda: possible_cpus() + 1)
    new = daemon_in(folder)
    assert (folder / "set-aside").exists()
    finish(new)


def test_room_is_kept_for_starts(folder: Path, room: Callable[..., None]) -> None:
    """Some, if the pages of the old status files do not come back; then the existing ones are kept."""
    daemon = daemon_in(folder)
    kept = folder / "room"
    assert kept.stat().st_size == kept.stat().st_blocks * 512 == 8 * 4096
    room(0, of="/room")
    for left in (7, 6, 5):
        die(daemon)
        daemon = daemon_in(folder)
        assert kept.stat().st_size == left * 4096
    room(6 * 4096, of="/room")
    daemon.on_time(0)
    assert kept.stat().st_size == 6 * 4096
    room(1 << 40, of="/room")
    daemon.on_time(0)
    assert kept.stat().st_size == kept.stat().st_blocks * 512 == 8 * 4096
    finish(daemon)
    assert names(folder) == []


def test_something_else_where_room_is_kept(folder: Path) -> None:
    (folder / "room").mkdir()
    (folder / "room" / "file").touch()
    daemon = daemon_in(folder)
    assert (folder / "set-aside" / "room" / "file").exists()
    finish(daemon)
