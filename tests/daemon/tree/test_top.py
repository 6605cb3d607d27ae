"""Files of the top directory only."""

import errno
import os
import time
from collections.abc import Iterator
from importlib import metadata

import pytest

from tests.daemon.tree.world import World, errno_of
from utracefsd.consumers import Record
from utracefsd.consumers.plugins.plugins import Plugins
from utracefsd.machine.peer import Peer

PRODUCER = Peer(99, 1000, 1000, privileged=False)


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


SET_EVENT = b"consumers/count/set_event"
REPORT = b"consumers/count/report"


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
    world = World(plugins=lambda table: Plugins(table, time.monotonic_ns, entry_points=lambda: points))
    yield world
    world.close()


def test_no_plugins(world: World) -> None:
    assert world.tree.list_dir(b"consumers") == []
    assert errno_of(world.cat, b"consumers/count/report") == errno.ENOENT


def test_the_directories(plugged: World) -> None:
    assert plugged.tree.list_dir(b"consumers") == [(b"count", "d"), ("z\xe4hler".encode(), "d")]
    assert plugged.tree.list_dir("consumers/z\xe4hler".encode()) == [(b"report", "f"), (b"set_event", "f")]
    modes = {
        path: plugged.tree.stat(path).mode for path in (b"consumers", b"consumers/count", SET_EVENT, REPORT)
    }
    assert list(modes.values()) == [0o750, 0o750, 0o640, 0o440]


@pytest.mark.parametrize("name", [b"nobody", b"COUNT", b"coun", b"\xff", "z\xe4hler".encode("latin-1")])
def test_a_plugin_that_is_not_installed(plugged: World, name: bytes) -> None:
    assert errno_of(plugged.cat, b"consumers/%s/report" % name) == errno.ENOENT
    assert errno_of(plugged.wa, b"consumers/%s/set_event" % name, b"one") == errno.ENOENT


def test_events_are_attached_by_word_and_by_glob(plugged: World) -> None:
    one, two, other = plugged.event(b"web_one"), plugged.event(b"web_two"), plugged.event(b"other")
    assert plugged.cat(SET_EVENT) == b""
    assert plugged.wa(SET_EVENT, b"user_events:web_*") == 18
    assert plugged.cat(SET_EVENT) == b"user_events:web_two\nuser_events:web_one\n"
    assert (one.status, two.status, other.status) == (0x80, 0x80, 0)
    assert plugged.wa(SET_EVENT, b"user_events:") == 13
    assert plugged.cat(SET_EVENT).count(b"\n") == 3


def test_one_word_of_a_write_is_used(plugged: World) -> None:
    """The caller writes the rest again."""
    for name in (b"one", b"two"):
        plugged.event(name)
    assert plugged.wa(SET_EVENT, b"one two") == 4
    assert plugged.cat(SET_EVENT) == b"user_events:one\n"


def test_detaching(plugged: World) -> None:
    for name in (b"web_one", b"web_two", b"other"):
        plugged.event(name)
    plugged.wa(SET_EVENT, b"web_*")
    for _ in range(2):  # the second time it is detached already
        assert plugged.wa(SET_EVENT, b"!web_one") == 9
    assert plugged.cat(SET_EVENT) == b"user_events:web_two\n"
    assert plugged.wa(SET_EVENT, b"!*") == 3
    assert plugged.cat(SET_EVENT) == b""


@pytest.mark.parametrize("word", [b"nothing*", b"!nothing", b"!", b"nosys:one", b"user_events:two", b"\xff"])
def test_a_word_that_means_no_event(plugged: World, word: bytes) -> None:
    plugged.event(b"one")
    plugged.wa(SET_EVENT, b"one")
    assert errno_of(plugged.wa, SET_EVENT, word) == errno.EINVAL
    assert plugged.cat(SET_EVENT) == b"user_events:one\n"


@pytest.mark.parametrize("blank", [b"", b" \t", b"\n\n"])
def test_blanks_mean_nothing(plugged: World, blank: bytes) -> None:
    plugged.event(b"one")
    assert plugged.wa(SET_EVENT, blank) == len(blank) + 1
    assert plugged.cat(SET_EVENT) == b""


def test_truncating_detaches_all(plugged: World) -> None:
    one, other = plugged.event(b"one"), plugged.event(b"other")
    plugged.wa(SET_EVENT, b"one")
    assert plugged.wn(SET_EVENT, b"other") == 5
    assert plugged.cat(SET_EVENT) == b"user_events:other\n"
    assert (one.status, other.status) == (0, 0x80)
    plugged.open(SET_EVENT, os.O_RDONLY | os.O_TRUNC).close()
    assert other.status == 0x80, "truncating needs a file open for writing"
    plugged.open(SET_EVENT, os.O_WRONLY | os.O_TRUNC).close()
    assert other.status == 0


def test_a_report_of_any_text(plugged: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, shown in (
        ("", b""),
        ("a\n", b"a\n"),
        ("a\n\nb", b"a\n\nb\n"),
        ("\xe4\udcff", b"\xc3\xa4\xff\n"),
    ):
        monkeypatch.setattr(Counting, "report", lambda self, text=text: text)
        assert plugged.cat(REPORT) == shown
