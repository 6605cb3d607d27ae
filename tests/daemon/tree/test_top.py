"""What only the top directory has, and the plug-ins' files."""

import errno
import os
from collections.abc import Iterator
from importlib import metadata

import pytest

from tests.daemon.tree.world import ADMIN, World, errno_of
from utracefsd.consumers import Record
from utracefsd.consumers.plugins.plugins import Plugins
from utracefsd.machine.peer import Peer

PRODUCER = Peer(99, 1000, 1000, privileged=False)


def test_available_events_newest_first(world: World) -> None:
    assert world.cat(b"available_events") == b""
    world.event(b"old")
    world.event(b"new u32 a", 2)
    assert world.cat(b"available_events") == b"user_events_multi:new.0\nuser_events:old\n"


def test_user_events_status(world: World) -> None:
    assert world.cat(b"user_events_status") == b"\nActive: 0\nBusy: 0\n"
    world.event(b"one")
    world.event(b"two")
    world.w(b"events/user_events/two/enable", b"1")
    assert world.cat(b"user_events_status") == b"one\ntwo # Used by ftrace\n\nActive: 2\nBusy: 1\n"


def test_records_do_not_go_through_the_tree(world: World) -> None:
    for flags in (os.O_RDWR, os.O_WRONLY):
        assert errno_of(world.open(b"user_events_data", flags).write, b"\0\0\0\0") == errno.EPERM
    assert errno_of(world.open(b"user_events_data").read, 16) == errno.EINVAL


def test_dynamic_events(world: World) -> None:
    assert world.wa(b"dynamic_events", b"u:one u32 a;u32 b") == 18
    assert world.wa(b"dynamic_events", b"# nothing\n\nu:two\nu:three u8 x") == 30
    assert world.cat(b"dynamic_events") == b"u:one u32 a; u32 b\nu:two\nu:three u8 x\n"
    assert errno_of(world.wa, b"dynamic_events", b"u:one u32 c") == errno.EADDRINUSE
    assert errno_of(world.wa, b"dynamic_events", b"p:kprobe") == errno.EINVAL
    assert errno_of(world.wa, b"dynamic_events", b"u:four", PRODUCER) == errno.EPERM
    world.w(b"events/user_events/two/enable", b"1")
    assert errno_of(world.open, b"dynamic_events", os.O_WRONLY | os.O_TRUNC) == errno.EBUSY
    assert errno_of(world.w, b"dynamic_events", b"u:five") == errno.EBUSY
    world.w(b"events/user_events/two/enable", b"0")
    world.open(b"dynamic_events", os.O_RDONLY | os.O_TRUNC).close()
    assert world.cat(b"dynamic_events").count(b"\n") == 3
    assert world.wa(b"dynamic_events", b"!u:three u8 x") == 14
    assert errno_of(world.wn, b"dynamic_events", b"", PRODUCER) == errno.EPERM
    assert world.w(b"dynamic_events", b"u:five") == 7
    assert world.cat(b"dynamic_events") == b"u:five\n"


def test_removing_through_dynamic_events_clears_marked_buffers(world: World) -> None:
    """Golden scenario 30, in short."""
    gone = world.event(b"en u32 a")
    world.w(b"events/user_events/en/enable", b"1")
    world.w(b"events/user_events/en/enable", b"0")
    world.let_go(gone)  # marks the buffer; records stay
    for name in (b"x1", b"x2", b"x3"):
        world.wa(b"dynamic_events", b"u:%s u32 a" % name)
    x1, x2 = world.event(b"x1 u32 a"), world.event(b"x2 u32 a")
    world.w(b"events/user_events/x1/enable", b"1")
    world.w(b"events/user_events/x2/enable", b"1")
    world.emit(x1, b"\1\0\0\0")
    world.emit(x2, b"\2\0\0\0")
    assert len(world.trace_lines()) == 2
    world.wa(b"dynamic_events", b"!u:x3 u32 a")  # never enabled here, but the buffer is marked
    assert world.trace_lines() == []
    world.emit(x1, b"\1\0\0\0")
    world.wa(b"dynamic_events", b"u:x4")
    world.wa(b"dynamic_events", b"!u:x4")
    assert len(world.trace_lines()) == 1  # not marked any more
    world.let_go(x1)
    world.w(b"events/user_events/x1/enable", b"0")
    world.wa(b"dynamic_events", b"!u:x1 u32 a")
    assert world.trace_lines() == []


def test_readme_promises_only_what_is_there(world: World) -> None:
    text = world.cat(b"README")
    assert b"<synthetic_event>" not in text
    for path in (b"set_event", b"standing_events", b"trace_clock", b"buffer_size_kb"):
        assert path in text
        world.cat(path)


# consumers/


class Counting:
    """Counts, and reports without a newline at the end."""

    def __init__(self) -> None:
        self.count = 0

    def take(self, batch: list[Record]) -> None:
        self.count += len(batch)

    def report(self) -> str:
        return f"{self.count} records"


class Point(metadata.EntryPoint):
    """An installed plug-in."""

    def load(self) -> type[Counting]:
        return Counting


@pytest.fixture
def plugged() -> Iterator[World]:
    points = [Point("count", "x:y", "utracefs.consumers"), Point("z\xe4hler", "x:y", "utracefs.consumers")]
    world = World(plugins=lambda table: Plugins(table, entry_points=lambda: points))
    yield world
    world.close()


def test_no_plugins(world: World) -> None:
    assert world.tree.list_dir(b"consumers") == []
    assert errno_of(world.cat, b"consumers/count/report") == errno.ENOENT


def test_a_plugins_files(plugged: World) -> None:
    assert plugged.tree.list_dir(b"consumers") == [(b"count", "d"), ("z\xe4hler".encode(), "d")]
    assert plugged.tree.list_dir("consumers/z\xe4hler".encode()) == [(b"report", "f"), (b"set_event", "f")]
    one, two, other = plugged.event(b"web_one"), plugged.event(b"web_two"), plugged.event(b"other")
    assert plugged.wa(b"consumers/count/set_event", b"user_events:web_*") == 18
    assert plugged.cat(b"consumers/count/set_event") == b"user_events:web_two\nuser_events:web_one\n"
    assert (one.status, two.status, other.status) == (0x80, 0x80, 0)
    plugged.emit(one, b"")
    plugged.emit(two, b"")
    assert plugged.cat(b"consumers/count/report") == b"2 records\n"
    assert plugged.wa(b"consumers/count/set_event", b"!web_one other") == 9
    assert plugged.cat(b"consumers/count/set_event") == b"user_events:web_two\n"
    assert errno_of(plugged.wa, b"consumers/count/set_event", b"nothing*") == errno.EINVAL
    assert errno_of(plugged.wa, b"consumers/count/set_event", b"!nothing") == errno.EINVAL
    assert plugged.wa(b"consumers/count/set_event", b"") == 1
    assert plugged.tree.write_file(b"consumers/count/set_event", b"other", True, ADMIN) == 5
    assert plugged.cat(b"consumers/count/set_event") == b"user_events:other\n"
    assert two.status == 0
    assert errno_of(plugged.w, b"consumers/count/report", b"x") == errno.EINVAL
