"""The files of plug-ins: writing and reading set_event, and their reports."""

import errno
import os
import time
from collections.abc import Iterator
from importlib import metadata

import pytest

from tests.daemon.tree.world import World, errno_of
from utracefsd.consumers import Record
from utracefsd.consumers.plugins.plugins import Plugins

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


def test_detaching_may_be_the_end_of_an_event(plugged: World) -> None:
    event = plugged.event(b"one")
    plugged.wa(SET_EVENT, b"one")
    plugged.let_go(event)
    assert len(plugged.table) == 1
    plugged.wa(SET_EVENT, b"!one")
    plugged.reap()
    assert len(plugged.table) == 0


def test_the_report(plugged: World) -> None:
    event = plugged.event(b"one")
    assert plugged.cat(REPORT) == b"0 records\n"
    plugged.wa(SET_EVENT, b"one")
    plugged.emit(event, b"")
    plugged.emit(event, b"")
    assert plugged.cat(REPORT) == b"2 records\n"
    assert errno_of(plugged.w, REPORT, b"x") == errno.EINVAL


def test_a_report_of_any_text(plugged: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, shown in (
        ("", b""),
        ("a\n", b"a\n"),
        ("a\n\nb", b"a\n\nb\n"),
        ("\xe4\udcff", b"\xc3\xa4\xff\n"),
    ):
        monkeypatch.setattr(Counting, "report", lambda self, text=text: text)
        assert plugged.cat(REPORT) == shown
