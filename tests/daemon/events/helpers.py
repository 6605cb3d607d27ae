"""Helpers for tests of events: registering like a connection, expected errors, a program's words."""

import errno
import fcntl
import os
import struct
from typing import Self

import pytest

from utracefs_protocol.errors import TraceError
from utracefsd.events._enable_word import PAGE_SIZE
from utracefsd.events.event import CommandString, Event
from utracefsd.events.event_table import EventTable


def register(
    table: EventTable, command: bytes, flags: int = 0, *, privileged: bool = True, uid: int = 0
) -> Event:
    """Register and hold, as a connection does."""
    event = table.register(CommandString.parse(command), flags, privileged=privileged, owner_uid=uid)
    table.acquire(event)
    return event


class refused:
    """`with refused(errno.EINVAL):`: a TraceError with this errno and a text for people."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            pytest.fail(f"expected {errno.errorcode[self.number]}, it succeeded")
        if not isinstance(error, TraceError):
            return False
        assert errno.errorcode[error.errno] == errno.errorcode[self.number], error.text
        assert error.text
        assert "\n" not in error.text
        self.text = error.text
        return True


class Memory:
    """A memfd, one page unless said; a program keeps the words of its enablers in such memory."""

    def __init__(self, size: int = PAGE_SIZE, seals: int = fcntl.F_SEAL_SHRINK) -> None:
        self.fd = os.memfd_create("words", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)

    def word(self, offset: int, size: int = 4) -> int:
        return int.from_bytes(os.pread(self.fd, size, offset), "little")

    def set(self, offset: int, value: int) -> None:
        os.pwrite(self.fd, struct.pack("<I", value), offset)


def mappings() -> int:
    """How many pages of such memory this process has mapped."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:words" in line for line in maps)
