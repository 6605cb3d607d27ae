"""Foreign descriptors: all kinds are closed, and nothing waits for it."""

from __future__ import annotations

import os
import resource
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from utracefsd.machine import closing
from utracefsd.machine.closing import MAX_THREADS, MAX_THREADS_IN_ALL, MAX_WAITING, close_foreign

LINGER_S = 60


def is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"


def wait_until_closed(*fds: int, timeout_s: float = 60) -> None:
    wait_until(lambda: not any(map(is_open, fds)), timeout_s)


@pytest.fixture
def peers() -> Iterator[list[socket.socket]]:
    peers: list[socket.socket] = []
    yield peers
    for peer in peers:
        peer.close()


@pytest.fixture
def lingering(peers: list[socket.socket]) -> Iterator[list[int]]:
    """Sockets whose close waits for LINGER_S, or until the peers, which do not read, are closed."""
    made: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(2):
            one = socket.create_connection(server.getsockname())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
            one.setblocking(False)
            peers.append(server.accept()[0])
            with pytest.raises(BlockingIOError):
                while True:
                    one.send(bytes(1 << 16))
            made.append(one.detach())
        yield made


def test_nothing_waits_for_a_close_that_blocks(lingering: list[int]) -> None:
    before = time.monotonic()
    pipe = os.pipe()
    close_foreign([*lingering, *pipe], 7)
    assert time.monotonic() - before < LINGER_S / 2
    wait_until_closed(*pipe, timeout_s=LINGER_S / 2)


def test_a_close_that_fails_is_no_error() -> None:
    gone = os.dup(0)
    os.close(gone)
    pipe = os.pipe()
    close_foreign([gone, *pipe], 7)
    wait_until_closed(*pipe)


def test_memory_and_eventfds_are_closed_at_once() -> None:
    fds = [os.memfd_create("x"), os.eventfd(0)]
    close_foreign(fds, 7)
    assert not any(map(is_open, fds))


def test_many() -> None:
    """More than threads; the threads end."""
    fds = [fd for _ in range(4 * MAX_THREADS) for fd in os.pipe()]
    for fd in fds:
        close_foreign([fd], fd % 3)
    wait_until_closed(*fds)
    deadline = time.monotonic() + 60
    while closing.nr_threads:
        assert time.monotonic() < deadline


def test_without_threads_it_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    first, second = os.pipe(), os.pipe()
    with monkeypatch.context() as patched:
        patched.setattr("_thread.start_new_thread", refuse)
        close_foreign(first, 7)
    assert all(map(is_open, first))
    close_foreign(second, 8)
    wait_until_closed(*first, *second)


def test_what_waits_is_counted_as_its_users(lingering: list[int], peers: list[socket.socket]) -> None:
    one, other = lingering
    close_foreign([one], 1000)
    close_foreign([other, os.memfd_create("x")], 1001)
    assert (closing.waiting_of(1000), closing.waiting_of(1001), closing.waiting_of(1002)) == (1, 1, 0)
    assert closing.waiting() == 2
    for peer in peers:
        peer.close()
    wait_until_closed(one, other)
    wait_until(lambda: not closing.waiting())
    assert closing.waiting_of(1000) == 0


class Hanging:
    """Closes of some descriptors hang until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fds: set[int] = set()
        self.begun: list[int] = []
        self.released = threading.Event()
        self._close = closing.close_here
        monkeypatch.setattr(closing, "close_here", self.close)

    def close(self, fd: int) -> None:
        if fd in self.fds:
            self.begun.append(fd)
            assert self.released.wait(60)
        self._close(fd)

    def make(self, number: int) -> list[int]:
        made = [os.open("/dev/null", os.O_RDONLY) for _ in range(number)]
        self.fds |= set(made)
        return made


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    made = Hanging(monkeypatch)
    yield made
    made.released.set()
    deadline = time.monotonic() + 60
    while closing.waiting() or closing.nr_threads:
        assert time.monotonic() < deadline


def test_one_thread_frees_the_numbers_of_all_connections_of_a_user(lingering: list[int]) -> None:
    """A user who makes ever more of them whose close waits used up the daemon's descriptors."""
    for fd in lingering + [0] * 40:
        ours, theirs = socket.socketpair()
        socket.send_fds(theirs, [b"unread"], [fd])
        theirs.close()
        with closing._lock:
            closing._queues.setdefault(~1000, deque()).append(ours.detach())
    for fd in lingering:
        os.close(fd)
    numbers = list(closing._queues[~1000])
    assert closing.close_most()
    wait_until_closed(*numbers)
    middle = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
    wait_until(lambda: max(map(int, os.listdir("/proc/self/fd"))) < middle)
    assert closing.waiting_of(~1000) == 1, "it hangs"
    assert not closing.close_most()


def test_closes_that_hang_are_their_users_alone(hanging: Hanging) -> None:
    close_foreign(hanging.make(10 * MAX_THREADS), 1000)
    for _ in range(3 * MAX_THREADS):
        pipe = os.pipe()
        close_foreign(pipe, 1001)
        wait_until_closed(*pipe)
    assert len(hanging.begun) == MAX_THREADS
    assert closing.waiting_of(1000) == 10 * MAX_THREADS
    wait_until(lambda: closing.waiting_of(1001) == 0)  # counted until just after the close


def test_what_comes_behind_closes_that_hang_is_closed_after_them(hanging: Hanging) -> None:
    close_foreign([*hanging.make(MAX_THREADS), *(pipe := os.pipe())], 1000)
    assert all(map(is_open, pipe))
    hanging.released.set()
    wait_until_closed(*pipe)


def test_threads_are_bounded_in_all(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late user is served when a thread is free, whichever user it served before."""
    monkeypatch.setattr(closing, "MAX_THREADS_IN_ALL", 2 * MAX_THREADS)
    for uid in range(3):
        close_foreign(hanging.make(2 * MAX_THREADS), uid)
    pipe = os.pipe()
    close_foreign(pipe, 3)
    assert closing.nr_threads == 2 * MAX_THREADS < MAX_THREADS_IN_ALL
    assert all(map(is_open, pipe))
    hanging.released.set()
    wait_until_closed(*hanging.fds, *pipe)


def test_a_late_reader(hanging: Hanging) -> None:
    close_foreign(hanging.make(MAX_WAITING), 1000)
    assert not closing.is_behind(1000)
    close_foreign(hanging.make(1), 1000)
    assert (closing.is_behind(1000), closing.is_behind(1001)) == (True, False)


def test_unread_connections_do_not_wait_for_descriptors_that_hang(hanging: Hanging) -> None:
    close_foreign(hanging.make(2 * MAX_THREADS), 1000)
    one, other = socket.socketpair()
    with other:
        socket.send_fds(other, [b"x"], [0])
        fd = one.detach()
        closing.close_unread(fd, 1000)
        wait_until_closed(fd)
    assert closing.waiting_of(1000) == 2 * MAX_THREADS
