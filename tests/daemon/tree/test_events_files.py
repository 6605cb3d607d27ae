"""`events/`: enable switches, formats, ids, and files of removed events."""

import errno
import os
import time

import pytest

from tests.daemon.tree.world import World, errno_of
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import format_text
from utracefs_protocol.pages.subbuf import HEADER_EVENT_TEXT, header_page_text
from utracefsd.machine.comms import Task


def test_files_of_an_event(world: World) -> None:
    command = b"alpha u32 count; __rel_loc char[] msg; char[16] tag"
    event = world.event(command)
    folder = b"events/user_events/alpha"
    assert [name for name, _ in world.tree.list_dir(folder)] == [
        b"enable",
        b"filter",
        b"format",
        b"hist",
        b"id",
        b"inject",
        b"stats",
        b"trigger",
    ]
    assert world.cat(folder + b"/id") == b"%d\n" % event.id
    assert world.cat(folder + b"/format") == format_text(b"alpha", event.id, parse(command).fields)
    assert world.cat(folder + b"/stats") == b"emitted: 0\n"
    assert errno_of(world.w, folder + b"/id", b"1") == errno.EINVAL


def test_enable_switches_and_sums(world: World) -> None:
    one, two = world.event(b"one"), world.event(b"two")
    multi = world.event(b"one u8 a", 2)
    files = (b"events/enable", b"events/user_events/enable", b"events/user_events_multi/enable")
    assert [world.cat(file) for file in files] == [b"0\n", b"0\n", b"0\n"]
    assert world.w(b"events/user_events/one/enable", b"1") == 2
    assert world.cat(b"events/user_events/one/enable") == b"1\n"
    assert world.cat(b"events/user_events/two/enable") == b"0\n"
    assert [world.cat(file) for file in files] == [b"X\n", b"X\n", b"0\n"]
    assert world.status.get(one.status_index) == 1
    assert world.status.get(two.status_index) == 0
    world.w(b"events/user_events/enable", b"1")
    assert [world.cat(file) for file in files] == [b"X\n", b"1\n", b"0\n"]
    world.w(b"events/enable", b"1")
    assert [world.cat(file) for file in files] == [b"1\n", b"1\n", b"1\n"]
    assert multi.status == 1
    world.w(b"events/enable", b"0")
    assert [world.cat(file) for file in files] == [b"0\n", b"0\n", b"0\n"]
    assert [world.status.get(event.status_index) for event in (one, two, multi)] == [0, 0, 0]


def test_files_of_an_event_that_goes_away(world: World) -> None:
    event = world.event(b"alpha u32 a")
    folder = b"events/user_events/alpha/"
    names = (b"enable", b"format", b"id", b"stats")
    held = {name: world.open(folder + name) for name in names}
    writer = world.open(folder + b"enable", os.O_WRONLY)
    part = world.open(folder + b"format")
    assert part.read(6) == b"name: "
    system = world.open(b"events/user_events/enable", os.O_RDWR)
    world.let_go(event)
    for file in (*held.values(), part):
        assert errno_of(file.read, 100) == errno.ENODEV
    assert errno_of(writer.write, b"1") == errno.ENODEV
    for name in names:
        assert errno_of(world.open, folder + name) == errno.ENOENT
    assert system.read(10) == b"?\n"
    assert errno_of(system.write, b"1") == errno.EINVAL
    world.event(b"alpha u32 a")
    assert errno_of(held[b"id"].read, 100) == errno.ENODEV  # a new event, not the one that was opened
    assert world.cat(folder + b"enable") == b"0\n"


def test_header_page_and_header_event(world: World) -> None:
    assert world.cat(b"events/header_page") == header_page_text()
    assert world.cat(b"events/header_event") == HEADER_EVENT_TEXT
    world.w(b"buffer_subbuf_size_kb", b"8")
    assert b"size:8176;" in world.cat(b"events/header_page")


def test_records_of_the_kernels_own(world: World) -> None:
    assert world.tree.list_dir(b"events/ftrace") == [(b"print", "d"), (b"raw_data", "d")]
    assert errno_of(world.open, b"events/ftrace/enable") == errno.ENOENT
    assert world.cat(b"events/ftrace/print/id") == b"5\n"
    assert world.cat(b"events/ftrace/raw_data/id") == b"19\n"
    text = world.cat(b"events/ftrace/print/format")
    assert text.startswith(b"name: print\nID: 5\nformat:\n\tfield:unsigned short common_type;\toffset:0;")
    assert text.endswith(
        b"\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n"
        b"\n"
        b"\tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;\n"
        b"\tfield:char buf[];\toffset:16;\tsize:0;\tsigned:1;\n"
        b"\n"
        b'print fmt: "%ps: %s", (void *)REC->ip, REC->buf\n'
    )
    assert b"\tfield:unsigned int id;\toffset:8;\tsize:4;\tsigned:0;\n" in world.cat(
        b"events/ftrace/raw_data/format"
    )


def test_an_event_called_like_a_file(world: World) -> None:
    world.event(b"enable u32 a")
    world.event(b"filter u32 a")
    assert world.tree.list_dir(b"events/user_events") == [(b"enable", "f"), (b"filter", "f")]
    assert world.cat(b"events/user_events/filter").startswith(b"### global filter ###\n")
    assert world.cat(b"events/user_events/enable") == b"0\n"
    world.w(b"set_event", b"user_events:enable")
    assert world.cat(b"events/user_events/enable") == b"X\n"


def test_names_are_bytes(world: World) -> None:
    world.event(b"na\xefve:".rstrip(b":") + b" u32 a")
    assert world.cat(b"events/user_events/na\xefve/enable") == b"0\n"


def test_thousands_of_events(world: World) -> None:
    for number in range(4000):
        world.event(b"event_%d u32 a" % number)
    start = time.process_time()
    assert len(world.tree.list_dir(b"events/user_events")) == 4002
    assert world.wa(b"set_event", b"*:*") == 4
    assert world.cat(b"events/enable") == b"1\n"
    assert world.cat(b"set_event").count(b"\n") == 4000
    for number in range(4000):
        assert world.tree.stat(b"events/user_events/event_%d/enable" % number).kind == "f"
    world.wn(b"set_event", b"")
    assert world.cat(b"events/enable") == b"0\n"
    assert time.process_time() - start < 1.0  # about 0.1 s; a quadratic algorithm takes several seconds


def test_the_filter_of_a_system(world: World) -> None:
    fits, other = world.event(b"fits u32 a"), world.event(b"other u32 b")
    multi = world.event(b"multi u32 a", 2)
    path = b"events/user_events/filter"
    text = world.cat(path)
    assert text.startswith(b"### global filter ###\n") and text.endswith(b"displayed here\n")
    world.w(b"events/user_events/other/filter", b"b == 7")
    assert world.w(path, b"a == 3") == 7
    assert world.cat(path) == text
    assert world.cat(b"events/user_events/fits/filter") == b"a == 3\n"
    assert world.cat(b"events/user_events/other/filter") == (
        b"a == 3\n^\nparse_error: Couldn't find or set field in one of a subsystem's events\n\n"
    )
    assert world.cat(b"events/user_events_multi/multi.0/filter") == b"none\n"
    assert world.cat(b"error_log").count(b"error: Couldn't find or set field") == 1
    assert world.w(path, b"nope") == 5, "no event fits, and it is no error"
    assert world.cat(b"error_log").count(b"error: Couldn't find or set field") == 3
    assert world.w(path, b"0") == 2
    assert world.cat(b"events/user_events/other/filter") == b"none\n"
    file = world.open(path, os.O_WRONLY)
    for event in (fits, other):
        world.let_go(event)
    with pytest.raises(TraceError, match="no events any more"):
        file.write(b"a == 1")
    assert world.cat(b"events/user_events_multi/%b/filter" % multi.tracepoint_name) == b"none\n"


def test_a_filter_on_the_writer(world: World) -> None:
    event = world.event(b"e u32 a")
    world.tasks[47] = Task(b"other", 1)
    world.w(b"events/user_events/e/enable", b"1")
    world.w(b"events/user_events/e/filter", b'comm == "other" && CPU == 1')
    for pid in (46, 47):
        for cpu in (0, 1):
            world.emit(event, bytes([pid]) + bytes(3), cpu=cpu, pid=pid)
    assert world.bodies() == [b"e: a=0x2f (47)"]


def test_files_of_an_event_in_an_instance_that_is_gone(world: World) -> None:
    """None of them keeps the instance; the results after that were seen on 6.18."""
    world.event(b"alpha u32 a")
    world.tree.mkdir(b"instances/x")
    folder = b"instances/x/events/user_events/alpha/"
    held = {name: world.open(folder + name, os.O_RDONLY) for name in (b"format", b"id", b"trigger")}
    writer = world.open(folder + b"trigger", os.O_WRONLY)
    world.tree.rmdir(b"instances/x")
    assert errno_of(held[b"format"].read, 100) == errno.ENODEV
    assert errno_of(held[b"trigger"].read, 100) == errno.ENODEV
    assert errno_of(writer.write, b"traceoff") == errno.ENODEV
    assert held[b"id"].read(100).endswith(b"\n")
    for file in (*held.values(), writer):
        file.close()
