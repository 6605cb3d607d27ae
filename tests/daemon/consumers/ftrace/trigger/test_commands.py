"""The file `trigger`: reading and writing it, for all kinds."""

import errno
import os

import pytest

from tests.daemon.consumers.ftrace.trigger.desk import Desk
from tests.daemon.tree.world import ADMIN, errno_of
from utracefsd.consumers.ftrace.buffer.buffer_store import memory_errors
from utracefsd.consumers.ftrace.event.event_file import MAX_TRIGGERS
from utracefsd.consumers.ftrace.trigger.kind import parse_count

EMPTY = (
    b"# Available triggers:\n# traceon traceoff snapshot stacktrace enable_event disable_event "
    b"enable_hist disable_hist hist\n"
)


def test_without_triggers_it_lists_the_kinds(desk: Desk) -> None:
    assert desk.instance.triggers.text(desk.a) == EMPTY
    assert desk.write(desk.a, b"traceoff") == ""
    assert desk.instance.triggers.text(desk.a) == b"traceoff:unlimited\n"
    assert desk.instance.triggers.text(desk.b) == EMPTY
    assert desk.write(desk.a, b"!traceoff") == ""
    assert desk.instance.triggers.text(desk.a) == EMPTY


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ""),
        (b"\n", "EINVAL"),
        (b" \t ", "EINVAL"),
        (b"!", "EINVAL"),
        (b"nonsense", "EINVAL"),
        (b"!nonsense", "EINVAL"),
        (b"Traceon", "EINVAL"),
        (b"! traceon", "EINVAL"),
        (b"traceon\0garbage", ""),
        (b"\xff\xfe", "EINVAL"),
        (b" \ttraceon:5 \n", ""),
    ],
)
def test_a_write_is_one_command(desk: Desk, data: bytes, error: str) -> None:
    assert desk.write(desk.a, data) == error
    assert bool(desk.lines(desk.a)) == (error == "" and data != b"")


def test_the_file(desk: Desk) -> None:
    path = b"events/user_events/a/trigger"
    tree = desk.world.tree
    file = tree.open(path, os.O_RDWR, peer=ADMIN)
    assert file.write(b"traceon:2\n") == 10
    assert file.read(100) == b"traceon:count=2\n"
    assert errno_of(file.write, b"x" * 4096) == 22
    file.close()
    tree.open(path, os.O_WRONLY | os.O_TRUNC, peer=ADMIN).close()
    assert desk.lines(desk.a) == [b"traceon:count=2"], "truncating leaves simple triggers"


def test_how_many_triggers_an_event_may_have(desk: Desk) -> None:
    for i in range(MAX_TRIGGERS):
        assert desk.write(desk.a, b"hist:keys=v if v == %d" % i) == ""
    before = desk.lines(desk.a)
    assert desk.write(desk.a, b"traceoff") == "E2BIG"
    assert desk.write(desk.a, b"hist:keys=v if v == 1000") == "E2BIG"
    for command in (b"snapshot", b"hist:keys=s:x=v:onmax($x).snapshot()"):
        assert desk.write(desk.a, command) == "E2BIG"
        assert desk.instance.snapshot.buffer is None, "nothing is made for a trigger that is refused"
    assert desk.lines(desk.a) == before
    assert desk.write(desk.b, b"traceoff") == ""
    assert desk.write(desk.a, b"!hist:keys=v if v == 7") == ""
    assert desk.write(desk.a, b"traceoff") == ""


def test_counts() -> None:
    assert parse_count(None) == (1 << 64) - 1
    assert [parse_count(t) for t in (b"0", b"+7", b"0x1F", b"017", b"5\n", b"3:x")] == [0, 7, 31, 15, 5, 3]


def test_want_of_room() -> None:
    def fail(error: Exception) -> None:
        with memory_errors("a trigger"):
            raise error

    assert errno_of(fail, MemoryError("full")) == errno.ENOMEM
    assert errno_of(fail, OSError(errno.ENOSPC, "no space")) == errno.ENOSPC
