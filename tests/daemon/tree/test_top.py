"""Files of the top directory only."""

import errno
import os

from tests.daemon.tree.world import World, errno_of
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


def test_readme_promises_only_what_is_there(world: World) -> None:
    text = world.cat(b"README")
    # In the kernel's words, which test suites and tools look for.
    for feature in (
        b"s:[synthetic/]",
        b"' >> synthetic_events",
        b"<var1>=<field|var_ref|numeric_literal>",
        b"onchange(var)",
        b"trace(<synthetic_event>",
        b"snapshot()",
    ):
        assert feature in text
    for missing in (b"[gid=<gid>]", b"long[]", b"e[:[<group>/]", b"common_stacktrace", b"place:"):
        assert missing not in text
    for path in (b"set_event", b"standing_events", b"trace_clock", b"buffer_size_kb"):
        assert path in text
        world.cat(path)


# instances/


def paths_below(world: World, folder: bytes) -> list[bytes]:
    """All files, with their path from `folder` on."""
    files: list[bytes] = []
    for name, kind in world.tree.list_dir(folder):
        path = folder + b"/" + name
        files += [path] if kind == "f" else paths_below(world, path)
    return files


def test_a_further_instance_has_the_same_files(world: World) -> None:
    assert world.tree.list_dir(b"instances") == []
    world.event(b"alpha u32 n")
    world.instances.make(b"x")
    assert world.tree.list_dir(b"instances") == [(b"x", "d")]
    assert world.tree.stat(b"instances/x").mode == 0o750
    of_instance = {path.removeprefix(b"instances/x/") for path in paths_below(world, b"instances/x")}
    of_top = {path.removeprefix(b"./") for path in paths_below(world, b".")}
    assert of_instance - of_top == {b"remove_on_close", b"options/copy_trace_marker"}
    only_top = {path for path in of_top - of_instance if not path.startswith(b"instances/")}
    assert only_top == {
        b"README",
        b"available_events",
        b"daemon_stats",
        b"dynamic_events",
        b"event_counts",
        b"options/printk-msg-only",
        b"options/record-cmd",
        b"options/trace_printk",
        b"printk_formats",
        b"refused_events",
        b"saved_cmdlines",
        b"saved_cmdlines_size",
        b"saved_tgids",
        b"synthetic_events",
        b"user_events_data",
        b"user_events_status",
    }


def test_every_file_of_a_further_instance_can_be_read(world: World) -> None:
    world.event(b"alpha u32 n")
    world.instances.make(b"x")
    world.instances.top.store.expand()
    different = set()
    for path in paths_below(world, b"instances/x"):
        own = path.removeprefix(b"instances/x/")
        if own in (b"free_buffer", b"remove_on_close", b"options/copy_trace_marker"):
            continue  # closing the first two does what their names say, and only the first is in the top one
        assert world.tree.stat(path) == world.tree.stat(own)
        if not world.tree.stat(path).mode & 0o400:
            refusal = errno.EPERM if path.endswith(b"/inject") else errno.EINVAL
            assert errno_of(world.cat, path) == refusal
        elif b"now ts" not in world.cat(path) and world.cat(path) != world.cat(own):
            different.add(own)
    assert different == {b"options/trace_printk_dest", b"trace_options"}


def test_what_is_written_stays_in_the_instance(world: World) -> None:
    event = world.event(b"alpha u32 n")
    world.instances.make(b"x")
    before = {
        path: world.cat(path) for path in (b"tracing_on", b"trace_clock", b"buffer_size_kb", b"set_event")
    }
    for path, text in (
        (b"trace_clock", b"counter"),
        (b"buffer_size_kb", b"64"),
        (b"events/user_events/alpha/enable", b"1"),
        (b"options/raw", b"1"),
        (b"per_cpu/cpu1/buffer_size_kb", b"100"),
        (b"standing_events", b"beta"),
        (b"set_event_pid", b"46"),
    ):
        world.w(b"instances/x/" + path, text)
    world.emit(event, b"\5\0\0\0")
    world.w(b"instances/x/trace_marker", b"hello")
    world.w(b"instances/x/tracing_on", b"0")
    assert {path: world.cat(path) for path in before} == before
    assert world.trace_lines() == []
    first, second = world.trace_lines(b"instances/x/trace")
    assert b"type: %d" % event.id in first
    assert b"hello" in second
    assert world.cat(b"instances/x/set_event") == b"user_events:alpha\n"
    assert world.cat(b"instances/x/buffer_size_kb") == b"X\n"
    assert world.event(b"beta").status == 1
    assert world.cat(b"events/user_events/beta/enable") == b"0\n"
    assert world.cat(b"instances/x/events/user_events/beta/enable") == b"1\n"
    assert world.cat(b"user_events_status") == (
        b"alpha # Used by ftrace\nbeta # Used by ftrace\n\nActive: 2\nBusy: 2\n"
    )


def test_making_and_removing_an_instance(world: World) -> None:
    event = world.event(b"alpha u32 a")
    world.tree.mkdir(b"instances/x")
    assert errno_of(world.tree.mkdir, b"instances/x") == errno.EEXIST
    assert world.tree.list_dir(b"instances") == [(b"x", "d")]
    world.w(b"instances/x/events/user_events/alpha/enable", b"1")
    world.emit(event, b"\1\0\0\0")
    assert b"alpha: a=0x1 (1)\n" in world.cat(b"instances/x/trace")
    assert world.trace_lines() == []
    file = world.open(b"instances/x/trace")
    assert errno_of(world.tree.rmdir, b"instances/x") == errno.EBUSY
    file.close()
    world.tree.rmdir(b"instances/x")
    assert errno_of(world.tree.rmdir, b"instances/x") == errno.ENOENT
    assert errno_of(world.cat, b"instances/x/trace") == errno.ENOENT
    assert event.status == 0


def test_remove_on_close(world: World) -> None:
    event = world.event(b"alpha u32 a")
    world.tree.mkdir(b"instances/x")
    world.w(b"instances/x/events/user_events/alpha/enable", b"1")
    world.open(b"instances/x/remove_on_close").close()  # opening for reading removes nothing
    owner = world.open(b"instances/x/remove_on_close", os.O_WRONLY)
    other = world.open(b"instances/x/trace")
    assert errno_of(world.tree.rmdir, b"instances/x") == errno.EBUSY
    owner.close()
    assert event.status == 1, "another file is open still"
    other.close()
    assert world.tree.list_dir(b"instances") == []
    assert event.status == 0
    assert errno_of(world.open, b"remove_on_close") == errno.ENOENT  # the top instance stays


def test_user_nobody_is_not_taken_for_the_owner(world: World) -> None:
    """Without the file an instance stays when its open files are closed."""
    world.tree.mkdir(b"instances/x")
    world.open(b"instances/x/trace").close()
    assert world.tree.list_dir(b"instances") == [(b"x", "d")]


def test_markers_that_other_instances_want(world: World) -> None:
    """copy_trace_marker of Linux 6.16: whatever becomes of it in the top instance."""
    for name in (b"wants", b"does not"):
        world.tree.mkdir(b"instances/" + name)
    world.w(b"instances/wants/options/copy_trace_marker", b"1")
    world.w(b"trace_marker", b"hello")
    world.w(b"tracing_on", b"0")
    assert errno_of(world.w, b"trace_marker", b"only there") == errno.EBADF
    assert world.cat(b"trace").count(b"tracing_mark_write") == 1
    assert world.cat(b"instances/wants/trace").count(b"tracing_mark_write") == 2
    assert world.cat(b"instances/does not/trace").count(b"tracing_mark_write") == 0
    world.w(b"instances/wants/tracing_on", b"0")
    world.w(b"tracing_on", b"1")
    world.w(b"trace_marker", b"not there")
    assert errno_of(world.w, b"trace_options", b"copy_trace_marker") == errno.EINVAL
    assert errno_of(world.cat, b"options/copy_trace_marker") == errno.ENOENT
