"""The parsers of control files, where test_bad_input.py and the tests of the files show less."""

import errno
from collections.abc import Callable

import pytest

from utracefs_protocol.errors import TraceError
from utracefsd.tree import values


def errno_of(parse: Callable[..., object], *args: object) -> int:
    with pytest.raises(TraceError) as caught:
        parse(*args)
    return caught.value.errno


def test_word() -> None:
    assert values.word(b"  mono \n") == b"mono"
    assert values.word(b"two words") == b"two words"
    assert values.word(b"") == b""
    assert values.word(b"a\0b") == b"a"
    assert values.word(b"x" * 63) == b"x" * 63
    assert errno_of(values.word, b"x" * 64) == errno.EINVAL


def test_cpumask_refuses() -> None:
    """More digits, and more groups, than it can have, also where they are zero (bitmap_parse())."""
    for data in (b"4", b"000000003", b"0,3"):
        assert errno_of(values.cpumask, data, 2) == errno.EOVERFLOW


@pytest.mark.parametrize(
    ("mask", "nr_cpus", "text"),
    [
        (3, 2, b"3"),
        (3, 16, b"0003"),
        (0, 1, b"0"),
        (1 << 32, 40, b"01,00000000"),
        (2**64 - 1, 64, b"ffffffff,ffffffff"),
    ],
)
def test_cpumask_text(mask: int, nr_cpus: int, text: bytes) -> None:
    assert values.cpumask_text(mask, nr_cpus) == text
    assert values.cpumask(text + b"\n", nr_cpus) == mask


def test_pids() -> None:
    """As 6.18 takes them: trace_pid_write() of kernel/trace/trace_pid.c reads C's notation."""
    assert values.pids(b"1 2\n3\t0") == [1, 2, 3, 0]
    assert values.pids(b" \n") == []
    assert values.pids(b"010 0x1F +7 1\0002 6\0") == [8, 31, 7, 1, 2, 6]
    assert values.pids(b"4194304 1073741823 4294967297") == [4194304, 1073741823, 1]
    assert values.pids(b"0" * 125 + b"7") == [7]
    for data in (b"1 x", b"1,2", b"09", b"0x", b"0b1", b"+", b"0" * 126 + b"7"):
        assert errno_of(values.pids, data) == errno.EINVAL
    for data in (b"1073741824", b"2147483648", b"4294967295"):
        assert errno_of(values.pids, data) == errno.EPERM


def test_an_error_shows_what_was_written_without_the_newline_of_echo() -> None:
    with pytest.raises(TraceError, match=r"^'abc' is not a number: write decimal digits$"):
        values.unsigned_decimal(b"abc\n")
    with pytest.raises(TraceError, match=r"^'fff' names cpus beyond the 2 there are$"):
        values.cpumask(b"fff\n", 2)
