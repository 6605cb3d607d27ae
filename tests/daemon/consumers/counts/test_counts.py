"""event_counts: its events, its text, its end, its limits."""

import errno
import os

import pytest

from tests.daemon.record_path import write
from tests.daemon.tree.world import World, errno_of
from utracefsd.consumers.counts import counts as counts_module
from utracefsd.consumers.counts.counts import MAX_COUNTS, MAX_GLOBS
from utracefsd.machine.comms import Task
from utracefsd.tree import OpenFile


def opened(world: World, *globs: bytes) -> OpenFile:
    file = world.open(b"event_counts", os.O_RDWR)
    for glob in globs:
        assert file.write(glob + b"\n") == len(glob) + 1
    return file


def text(file: OpenFile) -> list[bytes]:
    file.seek(0)
    found = b""
    while piece := file.read(100):
        found += piece
    return found.splitlines()


def emit(world: World, name: bytes, pid: int, size: int = 4) -> int:
    event = world.table.get(b"user_events", name)
    assert event is not None
    return write(event.tracepoint, bytes(size), ts_ns=1, cpu=0, pid=pid)


def test_events_now_and_later(world: World) -> None:
    world.event(b"alpha u32 n")
    world.event(b"beta u32 n")
    world.tasks[47] = Task(b"new\nline", 1)
    file = opened(world, b"a*", b"gamma")
    assert emit(world, b"beta", 46) == -errno.EBADF
    world.event(b"gamma u32 n")
    assert text(file) == [b"user_events:alpha 0 0 0 0 ", b"user_events:gamma 0 0 0 0 "]
    for pid in (46, 47, 47):
        assert emit(world, b"gamma", pid, 6) == 0
    assert sorted(text(file)) == [
        b"user_events:alpha 0 0 0 0 ",
        b"user_events:gamma 46 1 6 0 drv",
        b"user_events:gamma 47 2 12 0 new?line",
    ]
    assert b"counts:1: recorded 3 filtered 0 lost 0" in world.cat(b"events/user_events/gamma/stats")
    assert b"gamma # Used by other" in world.cat(b"user_events_status")
    file.close()
    file.close()
    assert emit(world, b"gamma", 46) == -errno.EBADF
    world.event(b"alphabet u32 n")
    assert b"Used by" not in world.cat(b"user_events_status")


def test_processes_that_have_no_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.event(b"alpha u32 n")
    monkeypatch.setattr(counts_module.EventCounts.__init__, "__defaults__", (2,))
    file = opened(world, b"alpha")
    for pid in (46, 50, 51, 52):
        emit(world, b"alpha", pid)
    assert sorted(text(file)) == sorted(
        [
            b"user_events:alpha 46 1 4 0 drv",
            b"user_events:alpha 50 1 4 0 <...>",
            b"user_events:alpha -1 2 8 0 ",
        ]
    )
    text(file)
    assert sorted(text(file)) == [b"user_events:alpha -1 3 12 0 ", b"user_events:alpha 46 1 4 0 drv"]


def test_an_event_that_has_to_go_goes(world: World) -> None:
    event = world.event(b"alpha u32 n")
    file = opened(world, b"*")
    emit(world, b"alpha", 46)
    world.let_go(event)
    assert world.table.idle.let_one_go(None) is event
    assert text(file) == []


def test_limits_and_mistakes(world: World) -> None:
    file = opened(world)
    assert file.write(b" \n") == 2
    for word, number in ((b"a:b:c", errno.EINVAL), (b"x" * 128, errno.EINVAL)):
        assert errno_of(file.write, word) in (number, errno.E2BIG)
    assert world.cat(b"event_counts") == b""
    for number in range(MAX_GLOBS):
        file.write(b"e%d" % number)
    assert errno_of(file.write, b"more") == errno.E2BIG
    files = [opened(world) for _ in range(MAX_COUNTS - 1)]
    assert errno_of(world.open, b"event_counts", os.O_RDWR) == errno.EMFILE
    files[0].close()
    opened(world)
