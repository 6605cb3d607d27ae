"""Parsing a command of the file `trigger`."""

import errno

from tests.daemon.tree.world import errno_of
from utracefsd.consumers.ftrace.trigger.kind import (
    memory_errors,
    parse_count,
)


def test_counts() -> None:
    assert parse_count(None) == (1 << 64) - 1
    assert [parse_count(t) for t in (b"0", b"+7", b"0x1F", b"017", b"5\n", b"3:x")] == [0, 7, 31, 15, 5, 3]


def test_want_of_room() -> None:
    def fail(error: Exception) -> None:
        raise error

    assert memory_errors(lambda: 5) == 5
    assert errno_of(memory_errors, lambda: fail(MemoryError("full"))) == errno.ENOMEM
    assert errno_of(memory_errors, lambda: fail(OSError(errno.ENOSPC, "no space"))) == errno.ENOSPC
