"""The ioctls of user_events_data: numbers, structs, and their first checks.

    number           argument              kernel/trace/trace_events_user.c
    DIAG_IOCSREG     struct user_reg *     user_reg_get()
    DIAG_IOCSDEL     char *                user_events_ioctl_del()
    DIAG_IOCSUNREG   struct user_unreg *   user_unreg_get()

The size in a number is that of a pointer, not of the struct, which has its own size in its first member: a
longer one is valid if the unknown rest is zero (copy_struct_from_user()). Checks have the kernel's order,
each with its errno. 32-bit programs have other numbers, which a 64-bit kernel refuses (ENOTTY) and the mount
accepts.
"""

import enum
import errno
import platform
import struct
from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from utracefs.mount.abi import IoctlFlag
from utracefs.mount.operation import error
from utracefs_protocol.events.declaration import REG_MULTI_FORMAT, REG_PERSIST
from utracefs_protocol.limits import MAX_STRUCT_ARGUMENT, REG_STRUCT_SIZE, UNREG_STRUCT_SIZE

USER_REG: Final = struct.Struct("=IBBHQQI")
"""size, enable_bit, enable_size, flags, enable_addr, name_args, write_index: struct user_reg, packed."""

WRITE_INDEX_OFFSET: Final = 24

USER_UNREG: Final = struct.Struct("=IBBHQ")
"""size, disable_bit, reserved, reserved2, disable_addr: struct user_unreg, packed."""

_SIZE: Final = struct.Struct("=I")

Read: TypeAlias = Callable[[int, int], bytes]
"""Address and size to bytes of the caller's memory; OSError(EFAULT)."""

_USER_ADDRESSES: Final = {"x86_64": (1 << 47) - 4096, "aarch64": 1 << 48}
"""End of user addresses (access_ok()). Above it nothing is mapped."""


class Command(enum.Enum):
    REG = 0
    DEL = 1
    UNREG = 2


_READ_WRITE: Final = 3
_WRITE: Final = 1
_DIRECTIONS: Final = {Command.REG: _READ_WRITE, Command.DEL: _WRITE, Command.UNREG: _WRITE}


def is_32_bit(flags: int) -> bool:
    """Caller's ABI: `flags` of FUSE's IOCTL."""
    return bool(flags & (IoctlFlag.COMPAT | IoctlFlag.BITS_32))


def command_of(number: int, flags: int) -> Command | None:
    """None: not an ioctl of this file (ENOTTY). flags: those of FUSE's IOCTL."""
    pointer_size = 4 if is_32_bit(flags) else 8
    for command, direction in _DIRECTIONS.items():
        if number == direction << 30 | pointer_size << 16 | ord("*") << 8 | command.value:
            return command
    return None


@attrs.frozen
class UserReg:
    """struct user_reg, checked."""

    bit: int
    size: int
    """Size of the word at `address`: 4 or 8 bytes."""
    flags: int
    address: int
    name_args: int
    """Address of the command string."""

    @classmethod
    def read(cls, read: Read, address: int, *, is_32_bit: bool = False) -> "UserReg":
        """EFAULT, E2BIG, EINVAL."""
        data = _struct(read, address, USER_REG.size, REG_STRUCT_SIZE)
        _, bit, size, flags, word, name_args, _ = USER_REG.unpack(data)
        if flags & ~(REG_PERSIST | REG_MULTI_FORMAT):
            raise error(errno.EINVAL)
        if size not in ((4,) if is_32_bit else (4, 8)) or word % size or bit >= size * 8:
            raise error(errno.EINVAL)
        if word + size > _USER_ADDRESSES.get(platform.machine(), 1 << 63):
            raise error(errno.EFAULT)
        return cls(bit, size, flags, word, name_args)


@attrs.frozen
class UserUnreg:
    """struct user_unreg, checked."""

    bit: int
    address: int

    @classmethod
    def read(cls, read: Read, address: int) -> "UserUnreg":
        """EFAULT, E2BIG, EINVAL."""
        data = _struct(read, address, USER_UNREG.size, UNREG_STRUCT_SIZE)
        _, bit, reserved, reserved2, word = USER_UNREG.unpack(data)
        if reserved or reserved2:
            raise error(errno.EINVAL)
        return cls(bit, word)


def _struct(read: Read, address: int, known: int, least: int) -> bytes:
    (size,) = _SIZE.unpack(read(address, _SIZE.size))
    if size > MAX_STRUCT_ARGUMENT:
        raise error(errno.E2BIG)
    if size < least:
        raise error(errno.EINVAL)
    data = read(address, size)
    if any(data[known:]):
        raise error(errno.E2BIG)
    return data[:known]
