"""The loop around a mount: signals, ends, connections that are refused. With the real kernel and daemon:
tests/integration/test_mount*.py."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import DaemonProcess, running
from tests.integration.mount.mounting import must_mount
from utracefs.mount import Mount, connect, signals
from utracefs.mount.attaching import detach


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    must_mount(tmp_path / "tree")
    with running(tmp_path / "d") as one:
        yield one
    detach(str(tmp_path / "tree"))


@pytest.fixture
def mount(daemon: DaemonProcess, tmp_path: Path) -> Iterator[Mount]:
    with Mount(str(tmp_path / "tree"), connect(daemon.directory)) as one:
        yield one


class TestSignals:
    def test_they_are_seen_and_given_back(self) -> None:
        before = signal.getsignal(signal.SIGTERM)
        with signals() as stop:
            assert not stop.wait(0)
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wait(60)
            assert stop.wait(0)
        assert signal.getsignal(signal.SIGTERM) is before

    def test_what_our_parent_ignores_stays_ignored(self) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with signals() as stop:
                os.kill(os.getpid(), signal.SIGHUP)
                assert not stop.wait(0)
        finally:
            signal.signal(signal.SIGHUP, before)


def test_nothing_is_left_where_it_cannot_be_mounted(daemon: DaemonProcess, tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    with pytest.raises(FileNotFoundError):
        Mount(str(tmp_path / "none"), connect(daemon.directory))
    assert descriptors() == before


def test_a_daemon_that_accepts_no_further_connection(mount: Mount, daemon: DaemonProcess) -> None:
    """A further connection is refused at once, not waited for."""
    full = socket.socket(socket.AF_UNIX)
    path = daemon.directory + "/full"
    full.bind(path)
    full.listen(0)
    mount.address = path
    with pytest.raises(OSError) as caught:
        for _ in range(10):
            mount.connect()
    assert caught.value.errno == errno.EAGAIN
    full.close()
