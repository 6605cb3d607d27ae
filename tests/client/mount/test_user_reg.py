"""Numbers and structs of the ioctls, and what is checked first."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.client.mount.kernel.fake_kernel import PAGE, FakeSpace
from utracefs.mount.abi import IoctlFlag
from utracefs.mount.user_reg import USER_REG, USER_UNREG, Command, UserReg, command_of, is_32_bit

AT = 0x10000


def reg(
    size: int = 28, bit: int = 0, width: int = 4, flags: int = 0, address: int = 0x7000, name: int = 0x8000
) -> bytes:
    return USER_REG.pack(size, bit, width, flags, address, name, 0)


def space_with(data: bytes) -> FakeSpace:
    """At the end of a page that no other follows."""
    space = FakeSpace(1)
    space.map(AT, bytes(PAGE - len(data)) + data)
    return space


def read_reg(data: bytes, **options: bool) -> UserReg:
    return UserReg.read(space_with(data).read, AT + PAGE - len(data), **options)


def fails(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:
        call()
    assert caught.value.errno == number


@pytest.mark.parametrize(
    ("number", "flags", "command"),
    [
        (0xC0082A00, 0, Command.REG),
        (0x40082A01, 0, Command.DEL),
        (0x40082A02, 0, Command.UNREG),
        (0xC0042A00, IoctlFlag.COMPAT, Command.REG),
        (0x40042A01, IoctlFlag.BITS_32, Command.DEL),
        (0xC0042A00, 0, None),
        (0xC0082A00, IoctlFlag.COMPAT, None),
        (0x40082A00, 0, None),
        (0x00002A02, 0, None),
        (0x5401, 0, None),
    ],
)
def test_numbers(number: int, flags: int, command: Command | None) -> None:
    assert command_of(number, flags) is command


def test_sizes() -> None:
    assert (USER_REG.size, USER_UNREG.size) == (28, 16)
    assert is_32_bit(IoctlFlag.COMPAT) and not is_32_bit(0)


class TestReg:
    def test_members(self) -> None:
        assert read_reg(reg(28, 63, 8, 3, 0x7008, 0x123456789)) == UserReg(63, 8, 3, 0x7008, 0x123456789)

    def test_words_of_32_bit_programs(self) -> None:
        assert read_reg(reg(), is_32_bit=True).size == 4
        fails(errno.EINVAL, lambda: read_reg(reg(width=8), is_32_bit=True))
