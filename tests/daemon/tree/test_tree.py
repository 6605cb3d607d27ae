"""Paths and the system calls of a filesystem over the tree."""

import errno
import os

import pytest

from tests.daemon.tree.world import World, errno_of
from utracefs_protocol.errors import TraceError


@pytest.mark.parametrize(
    "path", [b"", b".", b"/", b"events/..", b"../..", b"./events/../.", b"events/ftrace/../../../.."]
)
def test_ways_to_the_root(world: World, path: bytes) -> None:
    assert (b"trace", "f") in world.tree.list_dir(path)
    assert world.tree.stat(path) == world.tree.stat(b"")


def test_every_path_that_is_listed_can_be_looked_at(world: World) -> None:
    world.event(b"alpha u32 a")
    world.event(b"alpha u32 a", 2)
    seen = 0
    folders = [b""]
    while folders:
        folder = folders.pop()
        names = [name for name, _ in world.tree.list_dir(folder)]
        assert len(names) == len(set(names))
        for name, kind in world.tree.list_dir(folder):
            path = folder + b"/" + name
            stat = world.tree.stat(path)
            assert (stat.kind, stat.size) == (kind, 0)
            seen += 1
            if kind == "d":
                folders.append(path)
                world.open(path).close()
            elif stat.mode & 0o400 and name != b"user_events_data":
                assert isinstance(world.cat(path), bytes)
                assert isinstance(world.cat(path.removeprefix(b"/")), bytes)
    assert seen > 100


@pytest.mark.parametrize(
    ("path", "number"),
    [
        (b"nothing", errno.ENOENT),
        (b"events/user_events/none/enable", errno.ENOENT),
        (b"events/nosys", errno.ENOENT),
        (b"per_cpu/cpu2", errno.ENOENT),
        (b"per_cpu/cpu01/trace", errno.ENOENT),
        (b"per_cpu/cpu", errno.ENOENT),
        (b"per_cpu/cpu99999999999999999999", errno.ENOENT),
        (b"options/no_such", errno.ENOENT),
        (b"instances/x/trace", errno.ENOENT),
        (b"trace/x", errno.ENOTDIR),
        (b"trace/..", errno.ENOTDIR),
        (b"trace/", errno.ENOTDIR),
        (b"x" * 4096, errno.ENAMETOOLONG),
    ],
)
def test_paths_that_lead_nowhere(world: World, path: bytes, number: int) -> None:
    assert errno_of(world.open, path) == number
    assert errno_of(world.tree.stat, path) == number
    assert errno_of(world.cat, path) == number


def test_creating_is_not_possible(world: World) -> None:
    with pytest.raises(TraceError, match=r"^new: no such file, and files cannot be created here$") as caught:
        world.w(b"new", b"1")
    assert caught.value.errno == errno.EACCES
    assert errno_of(world.w, b"events/new", b"1") == errno.EACCES
    assert errno_of(world.w, b"nothing/new", b"1") == errno.ENOENT
    assert errno_of(world.w, b"trace/new", b"1") == errno.ENOTDIR
    assert errno_of(world.open, b"trace", os.O_WRONLY | os.O_CREAT | os.O_EXCL) == errno.EEXIST
    assert errno_of(world.open, b"new/", os.O_RDONLY | os.O_CREAT) == errno.EACCES


def test_access_modes(world: World) -> None:
    reader = world.open(b"tracing_on")
    assert reader.read(10) == b"1\n"
    assert errno_of(reader.write, b"0") == errno.EBADF
    writer = world.open(b"tracing_on", os.O_WRONLY)
    assert errno_of(writer.read, 1) == errno.EBADF
    assert writer.write(b"0\n") == 2
    both = world.open(b"tracing_on", os.O_RDWR)
    assert both.read(10) == b"0\n"
    assert both.write(b"1") == 1
    both.close()
    both.close()
    for call in (lambda: both.read(1), lambda: both.write(b"0"), lambda: both.seek(0)):
        assert errno_of(call) == errno.EBADF
    assert errno_of(world.open, b"tracing_on", os.O_ACCMODE) == errno.EINVAL


def test_what_a_file_cannot_do_is_einval(world: World) -> None:
    for path in (b"available_events", b"user_events_status", b"trace_pipe", b"per_cpu/cpu0/stats", b"README"):
        assert errno_of(world.w, path, b"1") == errno.EINVAL
    for path in (b"trace_marker", b"trace_marker_raw", b"free_buffer", b"user_events_data"):
        assert errno_of(world.cat, path) == errno.EINVAL


def test_directories_are_not_files(world: World) -> None:
    assert errno_of(world.cat, b"events") == errno.EISDIR
    assert errno_of(world.w, b"events", b"1") == errno.EISDIR
    assert errno_of(world.open, b"events", os.O_RDWR) == errno.EISDIR
    assert errno_of(world.open, b"", os.O_WRONLY | os.O_CREAT) == errno.EISDIR
    assert errno_of(world.open, b"trace", os.O_DIRECTORY) == errno.ENOTDIR
    assert errno_of(world.tree.list_dir, b"trace") == errno.ENOTDIR
    folder = world.open(b"events", os.O_DIRECTORY)
    assert errno_of(folder.read, 10) == errno.EISDIR
    folder.close()


def test_reading_in_pieces_and_from_the_beginning(world: World) -> None:
    file = world.open(b"trace_clock")
    whole = world.cat(b"trace_clock")
    assert file.read(0) == b""
    assert file.read(5) + file.read(1) + file.read(1000) + file.read(10) == whole
    assert file.read(10) == b""
    assert file.seek(0) == 0
    assert file.read(1000) == whole
    assert file.seek(8) == 8
    assert file.read(1000) == whole[8:]
    assert errno_of(file.seek, -1) == errno.EINVAL
    assert errno_of(file.read, -1) == errno.EINVAL


def test_streams_cannot_be_positioned(world: World) -> None:
    assert errno_of(world.open(b"trace_marker", os.O_WRONLY).seek, 0) == errno.ESPIPE
    assert errno_of(world.open(b"trace_pipe").seek, 0) == errno.ESPIPE
    assert errno_of(world.open(b"per_cpu/cpu0/trace_pipe_raw").seek, 0) == errno.ESPIPE


def test_making_and_removing_directories(world: World) -> None:
    mkdir, rmdir = world.tree.mkdir, world.tree.rmdir
    assert errno_of(mkdir, b"notinst") == errno.EPERM
    assert errno_of(mkdir, b"events/x") == errno.EPERM
    assert errno_of(mkdir, b"events") == errno.EEXIST
    assert errno_of(mkdir, b"trace") == errno.EEXIST
    assert errno_of(mkdir, b"") == errno.EEXIST
    assert errno_of(mkdir, b"instances/a/b") == errno.ENOENT
    assert errno_of(mkdir, b"trace/a") == errno.ENOTDIR
    assert errno_of(rmdir, b"instances/nope") == errno.ENOENT
    assert errno_of(rmdir, b"instances") == errno.EPERM
    assert errno_of(rmdir, b"nope") == errno.ENOENT
    assert errno_of(rmdir, b"trace") == errno.ENOTDIR
    assert errno_of(rmdir, b"") == errno.EPERM


def test_modes(world: World) -> None:
    world.event(b"alpha u32 a")
    modes = {
        b"": 0o700,
        b"events": 0o755,
        b"events/user_events": 0o755,
        b"events/user_events/alpha": 0o755,
        b"events/user_events/alpha/enable": 0o640,
        b"events/user_events/alpha/format": 0o440,
        b"instances": 0o750,
        b"options": 0o750,
        b"options/overwrite": 0o640,
        b"per_cpu": 0o750,
        b"per_cpu/cpu1": 0o750,
        b"trace": 0o640,
        b"trace_pipe": 0o440,
        b"trace_marker": 0o220,
        b"free_buffer": 0o200,
        b"user_events_data": 0o640,
        b"user_events_status": 0o440,
        b"dynamic_events": 0o640,
    }
    assert {path: world.tree.stat(path).mode for path in modes} == modes


def test_too_much_for_one_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utracefsd.tree.tree.MAX_READ_FILE", 100)
    assert errno_of(world.cat, b"README") == errno.EFBIG
    assert world.cat(b"tracing_on") == b"1\n"


def test_files_are_closed_when_a_read_or_write_fails(world: World) -> None:
    assert errno_of(world.w, b"trace_pipe", b"1") == errno.EINVAL
    world.open(b"trace_pipe", os.O_NONBLOCK).close()
    assert world.cat(b"trace_pipe") == b""
