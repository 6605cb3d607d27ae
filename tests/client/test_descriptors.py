"""What is ours under a number, and what is the program's: only the first is written to and closed."""

from __future__ import annotations

import errno
import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from utracefs._descriptors import Descriptor, connect_to, receive, send_with


@pytest.fixture
def mine() -> Iterator[Descriptor]:
    mine = Descriptor(os.memfd_create("mine"))
    yield mine
    mine.close()


@pytest.fixture
def pair() -> Iterator[tuple[Descriptor, socket.socket]]:
    near, far = socket.socketpair()
    sock = Descriptor(near.detach())
    yield sock, far
    sock.close()
    far.close()


def test_it_stands_out_of_the_way_and_is_not_inherited_by_exec(mine: Descriptor) -> None:
    assert mine.fd >= 40
    assert not os.get_inheritable(mine.fd)
    assert mine.is_ours()


def test_it_is_closed_once(mine: Descriptor) -> None:
    number = mine.fd
    mine.close()
    assert (mine.fd, mine.is_ours()) == (-1, False)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(number)
    mine.close()


@pytest.mark.parametrize("kind", ["file", "socket", "another memfd", "another socket"])
def test_what_the_program_put_there_is_left_alone(mine: Descriptor, tmp_path: Path, kind: str) -> None:
    if kind == "another socket":
        mine.close()
        mine = Descriptor(socket.socket(socket.AF_UNIX).detach())
    number = mine.fd
    theirs = {
        "file": lambda: os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR),
        "another memfd": lambda: os.memfd_create("theirs"),
    }.get(kind, lambda: socket.socket(socket.AF_UNIX).detach())()
    os.dup2(theirs, number)
    try:
        assert not mine.is_ours()
        mine.close()
        assert mine.fd == -1
        assert os.fstat(number).st_ino == os.fstat(theirs).st_ino
    finally:
        os.close(number)
        os.close(theirs)


def test_an_eventfd_is_known_by_what_came_with_it(mine: Descriptor) -> None:
    """All eventfds have the same inode."""
    bell = Descriptor(os.eventfd(0), mine)
    number = bell.fd
    assert bell.is_ours()
    theirs = os.eventfd(0)
    try:
        os.close(mine.fd)  # by the program, which closes all there is and makes an eventfd of its own
        os.dup2(theirs, number)
        assert not bell.is_ours()
        bell.close()
        assert os.fstat(number)
    finally:
        os.close(number)
        os.close(theirs)


def test_standard_descriptors_that_are_closed_stay_free() -> None:
    pid = os.fork()
    if not pid:
        result = 1
        try:
            os.closerange(0, 3)
            mine = Descriptor(os.memfd_create("mine"))
            held = []
            for _ in range(3):
                held.append(os.open("/dev/null", os.O_RDWR))
            result = 0 if mine.fd > 2 and held == [0, 1, 2] else 2
        finally:
            os._exit(result)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize(("limit", "ends"), [(30, "low"), (3, "refused")])
def test_where_there_are_few_numbers(limit: int, ends: str) -> None:
    """Below the limit there is no number as high as ours; then any will do but 0, 1 and 2."""
    pid = os.fork()
    if not pid:
        result = 1
        try:
            import resource

            os.closerange(2 if ends == "refused" else 3, 200)  # what other tests have open
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            try:
                result = 0 if 2 < Descriptor(os.memfd_create("mine")).fd < limit and ends == "low" else 2
            except OSError:
                result = 0 if ends == "refused" and os.open("/dev/null", 0) == 2 else 3
        finally:
            os._exit(result)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_nothing_to_take_over() -> None:
    with pytest.raises(OSError, match="Bad file"):
        Descriptor(-1)


def test_it_belongs_to_one_process(mine: Descriptor) -> None:
    with pytest.raises(TypeError, match="one process"):
        pickle.dumps(mine)


# ---- a socket


def test_bytes_and_descriptors_both_ways(pair: tuple[Descriptor, socket.socket], mine: Descriptor) -> None:
    sock, far = pair
    bell = Descriptor(os.eventfd(0), mine)
    assert send_with(sock, b"request", [mine, bell]) == 7
    data, fds, _, _ = socket.recv_fds(far, 100, 4)
    assert data == b"request"
    came: dict[int, Descriptor] = {}
    assert receive(sock, came) is None
    socket.send_fds(far, [b"answer"], fds)
    assert receive(sock, came) == b"answer"
    memory, doorbell = came.values()
    assert list(came) == [memory.fd, doorbell.fd]
    assert os.fstat(memory.fd).st_ino == os.fstat(mine.fd).st_ino
    assert doorbell.beside is memory
    far.close()
    assert receive(sock, came) == b""
    with pytest.raises(BrokenPipeError):
        send_with(sock, b"request", [mine])
    for one in (bell, doorbell, memory):
        one.close()
    for fd in fds:
        os.close(fd)


def test_a_socket_that_is_not_ours_is_at_its_end(pair: tuple[Descriptor, socket.socket]) -> None:
    sock, _ = pair
    number = sock.fd
    theirs, other = socket.socketpair()
    other.send(b"for the program")
    os.dup2(theirs.fileno(), number)
    try:
        assert receive(sock, {}) == b""
        with pytest.raises(OSError, match="Bad file"):
            send_with(sock, b"x", [])
        assert theirs.recv(100) == b"for the program"
    finally:
        os.close(number)
        theirs.close()
        other.close()


def test_a_descriptor_that_is_not_ours_is_not_sent(
    pair: tuple[Descriptor, socket.socket], mine: Descriptor
) -> None:
    with open("/dev/null") as theirs:
        os.dup2(theirs.fileno(), number := mine.fd)
        try:
            with pytest.raises(OSError, match="Bad file"):
                send_with(pair[0], b"x", [mine])
        finally:
            os.close(number)


@pytest.mark.parametrize(
    ("name", "number"),
    [("nothing", errno.ENOENT), ("x" * 200, errno.ENAMETOOLONG), ("file", errno.ECONNREFUSED)],
)
def test_connecting_to_what_does_not_listen(tmp_path: Path, name: str, number: int) -> None:
    (tmp_path / "file").write_text("")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError) as raised:
        connect_to(str(tmp_path / name))
    assert raised.value.errno == number
    assert os.listdir("/proc/self/fd") == before


def test_a_full_backlog_does_not_block(directory: Path) -> None:
    path = str(directory / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        first = connect_to(path)
        with pytest.raises(BlockingIOError):
            connect_to(path)
        first.close()
