"""Messages to the service manager's store. With a daemon: test_restart_fd_store.py."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from utracefsd.server.fd_store import FdStore, take_stored
from utracefsd.server.sd_notify import ListenFd, Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


@pytest.fixture
def notifier(tmp_path: Path) -> Notifier:
    return Notifier(str(tmp_path / "notify"), None)


@pytest.fixture
def memory() -> Iterator[int]:
    fd = os.memfd_create("x")
    yield fd
    os.close(fd)


def heard(manager: socket.socket) -> tuple[str, list[tuple[int, int]]]:
    """A message, and its files."""
    data, fds, _, _ = socket.recv_fds(manager, 4096, 10)
    files = [(os.fstat(fd).st_dev, os.fstat(fd).st_ino) for fd in fds]
    for fd in fds:
        os.close(fd)
    return data.decode(), files


def count_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_kept_once_and_dropped_once(manager: socket.socket, notifier: Notifier, memory: int) -> None:
    store = FdStore(notifier)
    before = count_fds()
    store.keep("data-ring.1", memory)
    store.keep("data-ring.1", memory)
    found = os.fstat(memory)
    assert heard(manager) == (
        "FDSTORE=1\nFDNAME=data-ring.1\nFDPOLL=0",
        [(found.st_dev, found.st_ino)],
    )
    store.drop("data-ring.1")
    store.drop("data-ring.1")
    store.drop("data-ring.2")
    assert heard(manager) == ("FDSTOREREMOVE=1\nFDNAME=data-ring.1", [])
    with pytest.raises(BlockingIOError):
        heard(manager)
    assert count_fds() == before
    store.close()


def test_what_is_there_already_counts(manager: socket.socket, notifier: Notifier, memory: int) -> None:
    store = FdStore.from_environ(notifier, [ListenFd(9, "data-ring.1")], environ={"FDSTORE": "2"})
    assert store.limit == 2
    assert store.keep("data-ring.1", memory)
    assert store.keep("data-ring.2", memory)
    assert "data-ring.2" in heard(manager)[0]
    store.drop("data-ring.1")
    assert "FDSTOREREMOVE=1" in heard(manager)[0]
    store.close()
    assert store.limit == 0


def test_a_manager_that_does_not_read(manager: socket.socket, notifier: Notifier, memory: int) -> None:
    """Nothing waits; messages keep their order, and those of dropped descriptors are not sent."""
    store = FdStore(notifier, limit=2000)
    blocked: list[bool] = []
    store.on_blocked = lambda: blocked.append(True)
    before = count_fds()
    names = [f"data-ring.{n}" for n in range(2000)]
    for name in names:
        store.keep(name, memory)
    for _ in range(3):
        store.drop(names[-1])
        assert store.keep(names[-1], memory)
    store.drop(names[0])
    assert not store.keep(names[0], memory), "its removal comes first"
    store.drop(names[-1])
    names.pop()
    assert blocked
    assert not store.flush()
    said: list[str] = []
    while len(said) < len(names) + 1:
        store.flush()
        said.append(heard(manager)[0].split("\n")[1])
    assert said == [f"FDNAME={name}" for name in [*names, names[0]]]
    assert store.flush()
    assert count_fds() == before
    store.close()


def test_closed_while_something_waits(manager: socket.socket, notifier: Notifier, memory: int) -> None:
    before = count_fds()
    store = FdStore(notifier, limit=2000)
    for n in range(2000):
        store.keep(f"data-ring.{n}", memory)
    store.close()
    store.keep("data-ring.x", memory)
    assert count_fds() == before


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_manager_that_is_gone(
    tmp_path: Path, memory: int, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    before = count_fds()
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    if when == "before":
        manager.close()
    store = FdStore(Notifier(str(tmp_path / "notify"), None))
    manager.close()
    for n in range(3):
        store.keep(f"data-ring.{n}", memory)
    store.close()
    assert len(caplog.records) == 1
    assert count_fds() == before


def test_no_manager(memory: int) -> None:
    store = FdStore(Notifier(None, None))
    store.keep("data-ring.1", memory)
    store.drop("data-ring.1")
    assert store.flush()
    store.close()


def test_sockets_and_what_was_stored() -> None:
    passed = [ListenFd(3, "tracefs"), ListenFd(4, "data-ring.7"), ListenFd(5, "unknown")]
    assert take_stored(passed) == ([passed[0], passed[2]], [passed[1]])
