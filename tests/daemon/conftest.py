"""Fixtures of several tests of the daemon's parts."""

import contextlib
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
from utracefsd.events.event_table import EventTable
from utracefsd.events.status_file import StatusFile


def descriptors() -> set[tuple[str, str]]:
    """Number and target of each open descriptor."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists them is closed
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


NOT_YET = {
    "test_daemon.py",
    "test_daemon_restart_sync.py",
    "test_data_ring.py",
    "test_living.py",
    "test_log_file.py",
    "test_port_hostile.py",
    "test_serve.py",
}
"""Files whose tests leave descriptors open. Remove names; add none."""


@pytest.fixture(scope="module", autouse=True)
def no_descriptor_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """The last test of a file fails if its tests left descriptors open. Objects of a test and of its
    fixtures are freed only after it."""
    before = descriptors()
    yield
    if request.path.name in NOT_YET:
        return
    gc.collect()
    deadline = time.monotonic() + 5  # threads close what might block
    while left := descriptors() - before:
        assert time.monotonic() < deadline, f"open: {sorted(left)}"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _nothing_is_collected_any_more() -> Iterator[None]:
    yield
    Collecting.close_all()


@pytest.fixture
def status() -> Iterator[StatusFile]:
    file = StatusFile()
    yield file
    file.close()


@pytest.fixture
def table(status: StatusFile) -> EventTable:
    return EventTable(status)


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

        monkeypatch.setattr(os, "posix_fallocate", allocate)

    return set_room


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Removed objects must be freed without the collector, which an idle daemon does not run."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
