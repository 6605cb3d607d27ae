"""Fixtures of several tests of the daemon's parts."""

import errno
import gc
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon.record_path import Collecting
from tests.daemon.restarting import bury
from tests.daemon.status_files import nameless_status
from tests.daemon.tree.world import World
from utracefsd.events.event import CommandString, Event
from utracefsd.events.event_table import EventTable
from utracefsd.events.status_file import StatusFile
from utracefsd.machine import closing, disk


@pytest.fixture(autouse=True)
def _nothing_is_collected_or_closed_any_more() -> Iterator[None]:
    """The next test may compare its open descriptors before and after."""
    yield
    Collecting.close_all()
    deadline = time.monotonic() + 5  # a close may hang
    while closing.waiting() and time.monotonic() < deadline:
        time.sleep(0.001)


@pytest.fixture
def status() -> Iterator[StatusFile]:
    file = nameless_status()
    yield file
    file.close()


@pytest.fixture
def table(status: StatusFile) -> EventTable:
    return EventTable(status)


@pytest.fixture
def event(table: EventTable) -> Event:
    made = table.register(CommandString.parse(b"test u32 a"), privileged=True)
    table.acquire(made)
    return made


@pytest.fixture
def world() -> Iterator[World]:
    """A fresh tree."""
    world = World()
    yield world
    world.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """The folder of a daemon's state; in memory, as recommended."""
    path = Path(tempfile.mkdtemp(prefix="utracefs-test-", dir="/dev/shm"))
    yield path
    bury()
    shutil.rmtree(path)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """The daemon's log."""
    monkeypatch.setattr(logging.getLogger("utracefsd"), "propagate", True)
    return caplog


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """room(n): files whose names contain `of` get at most n bytes from now on, else `number`."""
    real = os.posix_fallocate

    def set_room(limit: int, number: int = errno.ENOSPC, of: str = "/cpu") -> None:
        def allocate(fd: int, offset: int, length: int) -> None:
            if of in os.readlink(f"/proc/self/fd/{fd}") and offset + length > limit:
                raise OSError(number, os.strerror(number))
            real(fd, offset, length)

        monkeypatch.setattr(disk, "posix_fallocate", allocate)

    return set_room


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Removed objects must be freed without the collector, which an idle daemon does not run."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
