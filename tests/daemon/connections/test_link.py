"""A socket that never waits: descriptors beside their message, a full buffer, and its end."""

import array
import errno
import os
import socket
import time
from collections.abc import Iterator

import pytest

from utracefsd.connections.link import DESCRIPTORS_IN_A_MESSAGE, Link
from utracefsd.machine.peer import Peer

PEER = Peer(pid=1, uid=2, gid=3, privileged=False)


class Ends:
    """Both ends of a connection; `other` is the peer's and waits."""

    def __init__(self) -> None:
        mine, self.other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.other.settimeout(60)
        self.link = Link(mine, PEER)

    def read_all(self) -> bytes:
        return b"".join(iter(lambda: self.other.recv(1 << 16), b""))


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.link.close()
    both.other.close()


@pytest.fixture
def descriptors() -> Iterator[list[int]]:
    """Pipes, so that they can be told apart; closed at the end if still open."""
    made: list[int] = []
    while len(made) < DESCRIPTORS_IN_A_MESSAGE:
        made += os.pipe()
    os.close(made.pop())
    yield made
    for fd in made:
        try:
            os.close(fd)
        except OSError as error:
            assert error.errno == errno.EBADF


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_received_descriptors(ends: Ends, descriptors: list[int]) -> None:
    socket.send_fds(ends.other, [b"x"], descriptors[:DESCRIPTORS_IN_A_MESSAGE])
    received = ends.link.receive(100)
    assert received is not None
    data, fds = received
    assert data == b"x"
    assert [os.fstat(fd).st_ino for fd in fds] == [
        os.fstat(fd).st_ino for fd in descriptors[:DESCRIPTORS_IN_A_MESSAGE]
    ]
    assert not any(os.get_inheritable(fd) for fd in fds)
    for fd in fds:
        os.close(fd)


def test_a_message_loses_no_descriptor(ends: Ends, descriptors: list[int]) -> None:
    """The kernel would close descriptors that do not fit into the buffer in recvmsg(2), which may block."""
    assert len(descriptors) == DESCRIPTORS_IN_A_MESSAGE, "SCM_MAX_FD"
    with pytest.raises(OSError):
        socket.send_fds(ends.other, [b"x"], [*descriptors, descriptors[0]])
    socket.send_fds(ends.other, [b"x"], descriptors)
    received = ends.link.receive(100)
    assert received is not None
    assert len(received[1]) == DESCRIPTORS_IN_A_MESSAGE
    for fd in received[1]:
        os.close(fd)


def test_descriptors_go_with_the_first_byte_and_are_closed(ends: Ends, descriptors: list[int]) -> None:
    """Messages without any are sent with them; those of another message are not."""
    used = descriptors[:3]
    inodes = [os.fstat(fd).st_ino for fd in used]
    ends.link.queue(b"before")
    ends.link.queue(b"two", used[:2])
    ends.link.queue(b"after")
    ends.link.queue(b"more", used[2:])
    assert ends.link.flush()
    assert not any(map(is_open, used))
    seen: list[tuple[bytes, list[int]]] = []
    while len(seen) < 2:
        data, ancillary, _, _ = ends.other.recvmsg(100, socket.CMSG_SPACE(4 * len(used)))
        for _level, _kind, payload in ancillary:
            fds = array.array("i", payload)
            seen.append((data, [os.fstat(fd).st_ino for fd in fds]))
            for fd in fds:
                os.close(fd)
    # a receive may begin earlier, but ends with what was sent with the descriptors
    assert seen == [
        (b"beforetwoafter", inodes[:2]),
        (b"more", inodes[2:]),
    ]


def test_descriptors_that_went_do_not_go_again_with_the_rest(ends: Ends, descriptors: list[int]) -> None:
    """The socket took a part of the message."""
    ends.link.queue(bytes(1 << 20), descriptors[:2])
    while not ends.link.flush():
        _, fds, _, _ = socket.recv_fds(ends.other, 1 << 16, 8)
        assert len(fds) in (0, 2)
        for fd in fds:
            os.close(fd)
    assert not is_open(descriptors[0])
    assert not is_open(descriptors[1])
    ends.link.finish()
    while data := socket.recv_fds(ends.other, 1 << 16, 8):
        assert not data[1]
        if not data[0]:
            break


def test_descriptors_of_a_message_that_waits_stay_open(ends: Ends, descriptors: list[int]) -> None:
    while ends.link.flush():
        ends.link.queue(bytes(1 << 16))
    ends.link.queue(b"later", [descriptors[0]])
    assert not ends.link.flush()
    assert is_open(descriptors[0])
    ends.link.close()
    assert not is_open(descriptors[0])


def test_queueing_on_a_closed_link(ends: Ends, descriptors: list[int]) -> None:
    ends.link.close()
    ends.link.close()
    ends.link.queue(b"x", [descriptors[0]])
    assert ends.link.waiting_bytes == 0
    assert not is_open(descriptors[0])
    assert ends.link.fileno() == -1


def test_finish_closes_descriptors_that_were_sent_along(ends: Ends, descriptors: list[int]) -> None:
    socket.send_fds(ends.other, [b"x"], descriptors[:2])
    before = len(os.listdir("/proc/self/fd"))
    ends.link.finish()
    deadline = time.monotonic() + 60
    while len(os.listdir("/proc/self/fd")) != before - 1:
        assert time.monotonic() < deadline
