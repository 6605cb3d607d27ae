"""Helpers for tests of events: registering like a connection, and expected errors."""

import errno
from typing import Self

import pytest

from utracefs_protocol.errors import TraceError
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
