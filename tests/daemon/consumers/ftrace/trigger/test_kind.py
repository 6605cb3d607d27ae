"""Parsing a command of the file `trigger`."""

import errno

import pytest

from tests.daemon.tree.world import errno_of
from utracefsd.consumers.ftrace.trigger.kind import (
    Command,
    filter_text,
    memory_errors,
    parse_count,
    separate_filter,
    split_command,
)


@pytest.mark.parametrize(
    ("data", "name", "rest", "removes"),
    [
        (b"traceon", b"traceon", None, False),
        (b"!traceon:5", b"traceon", b"5", True),
        (b"  x:  y z \n", b"x", b"y z", False),
        (b"x \t:y", b"x", b":y", False),
        (b"x\0y", b"x", None, False),
        (b"!", b"", None, True),
        (b"!!x", b"!x", None, True),
    ],
)
def test_name_and_rest(data: bytes, name: bytes, rest: bytes | None, removes: bool) -> None:
    command = split_command(data)
    assert (command.name, command.rest, command.removes) == (name, rest, removes)


def test_all_of_a_command() -> None:
    assert split_command(b" hist:keys=x if y == 1\n") == Command(
        b"hist", b"keys=x if y == 1", False, b"hist:keys=x if y == 1"
    )


@pytest.mark.parametrize(
    ("rest", "needs_param", "found"),
    [
        (None, False, (None, None)),
        (b"5", False, (b"5", None)),
        (b"5  if x", False, (b"5", b"if x")),
        (b"if x", False, (None, b"if x")),
        (b"a:b if x", True, (b"a:b", b"if x")),
        (b"a:b ", True, (b"a:b", None)),
    ],
)
def test_parameter_and_filter(
    rest: bytes | None, needs_param: bool, found: tuple[bytes | None, bytes | None]
) -> None:
    assert separate_filter(rest, needs_param=needs_param) == found


def test_a_parameter_that_is_missing() -> None:
    assert errno_of(separate_filter, None, needs_param=True) == errno.EINVAL


def test_the_text_of_a_filter() -> None:
    assert filter_text(None) is None
    assert filter_text(b"if x == 1") == b"x == 1"
    assert filter_text(b"if\t  x  ") == b"  x  "
    for clause in (b"if", b"iff x", b"x", b"IF x"):
        assert errno_of(filter_text, clause) == errno.EINVAL


@pytest.mark.parametrize("text", [b"", b"+", b"-1", b"x", b"0xg", b"09", b"1_0", b"1 ", b"\xff"])
def test_no_count(text: bytes) -> None:
    assert errno_of(parse_count, text) == errno.EINVAL


def test_counts() -> None:
    assert parse_count(None) == (1 << 64) - 1
    assert [parse_count(t) for t in (b"0", b"+7", b"0x1F", b"017", b"5\n", b"3:x")] == [0, 7, 31, 15, 5, 3]


def test_want_of_room() -> None:
    def fail(error: Exception) -> None:
        raise error

    assert memory_errors(lambda: 5) == 5
    assert errno_of(memory_errors, lambda: fail(MemoryError("full"))) == errno.ENOMEM
    assert errno_of(memory_errors, lambda: fail(OSError(errno.ENOSPC, "no space"))) == errno.ENOSPC
