"""A port that is full: of one user, in all, and when accept(2) finds no descriptor or no memory."""

import errno
import os
import socket
from pathlib import Path

import pytest

from tests.daemon.connections.ports import Around, error_in, read_all
from utracefsd.connections import acceptor
from utracefsd.connections import port as port_module
from utracefsd.connections.acceptor import BEHIND_PART, MAX_ARRIVED
from utracefsd.connections.port import FEW, MOST_TO_SERVE
from utracefsd.machine import closing
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import LIMITS, Resource


class TestTooMany:
    def test_in_all(self, tmp_path: Path) -> None:
        around = Around(tmp_path / "data", max_connections=10)
        try:
            clients = [around.connect() for _ in range(1000)]
            while not around.idle():
                around.turn()
            assert len(around.port) == 10
            assert error_in(read_all(clients[-1]))[0] == errno.EMFILE
        finally:
            around.close()


class TestFloods:
    """Users 1, 2, ... connect; one of them as often as possible."""

    @pytest.fixture(autouse=True)
    def users(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
        """The users of the connections, by the name of the client's socket; 1 without one."""
        users: dict[str, int] = {}

        def peer(sock: socket.socket, owner_uid: int = 0) -> Peer:
            uid = users.get(sock.getpeername(), 1)
            return Peer(pid=1, uid=uid, gid=uid, privileged=False)

        monkeypatch.setattr(port_module, "peer_of", peer)
        monkeypatch.setattr(port_module, "stranger", peer)
        monkeypatch.setattr(acceptor, "stranger", peer)
        return users

    def of_user(self, around: Around, users: dict[str, int], uid: int) -> socket.socket:
        name = f"{around.path}.{len(around.clients)}"
        users[name] = uid
        client = socket.socket(socket.AF_UNIX)
        client.bind(name)
        client.settimeout(60)
        client.connect(around.path)
        around.clients.append(client)
        return client

    def test_the_least_served_user_comes_first(self, around: Around, users: dict[str, int]) -> None:
        def slow() -> None:
            around.now_ns += 1_000_000

        around.opening = slow
        around.connect()
        around.turn()
        for _ in range(200):
            around.connect()
        self.of_user(around, users, 2)
        around.turn()
        assert [made.peer.uid for made in around.made[:2]] == [1, 2]
        assert len(around.port) < 100
        while not around.idle():
            around.turn()
        assert len(around.port) == 202

    def test_they_are_taken_off_the_queue_before_they_are_made(
        self, around: Around, users: dict[str, int]
    ) -> None:
        for _ in range(300):
            around.connect()
        around.port.acceptor.take(lambda: around.now_ns)
        assert len(around.port.acceptor) == 300
        assert around.port.has_more

    def test_too_many_of_one_user(
        self, around: Around, users: dict[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(acceptor, "MAX_ARRIVED", 10)
        clients = [around.connect() for _ in range(11)]
        other = self.of_user(around, users, 2)
        around.port.acceptor.take(lambda: around.now_ns)
        number, text = error_in(read_all(clients[10]))
        assert number == errno.EMFILE
        assert "10 connections of user 1 wait" in text
        assert len(around.port.acceptor) == 11
        around.turn()
        other.sendall(b"x")
        around.turn()
        assert sum(bool(made.data) for made in around.made) == 1

    def test_children_wait_before_sockets_of_their_user_are_refused(
        self, tmp_path: Path, users: dict[str, int]
    ) -> None:
        told: list[tuple[int, bool]] = []
        around = Around(tmp_path / "behind")
        around.port.acceptor.on_behind = lambda share, is_behind: told.append((share, is_behind))
        try:
            for _ in range(MAX_ARRIVED // BEHIND_PART - 1):
                around.connect()
            self.of_user(around, users, 2)
            around.port.acceptor.take(lambda: around.now_ns)
            assert told == []
            around.connect()
            around.connect()
            around.port.acceptor.take(lambda: around.now_ns)
            assert told == [(1, True)]
            while len(around.port.acceptor) > MAX_ARRIVED // BEHIND_PART // 2:
                assert told == [(1, True)]
                around.turn()
            assert told == [(1, True), (1, False)]
        finally:
            around.close()

    def test_too_many_of_all(
        self, around: Around, users: dict[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Then sockets of the user with most waiting ones are refused."""
        monkeypatch.setattr(acceptor, "MAX_ARRIVED_IN_ALL", 10)
        for _ in range(9):
            around.connect()
        of_two = self.of_user(around, users, 2)
        refused = around.connect()
        of_three = self.of_user(around, users, 3)
        around.port.acceptor.take(lambda: around.now_ns)
        assert error_in(read_all(refused))[0] == errno.EMFILE
        assert len(around.port.acceptor) == 11
        for client in (of_two, of_three):
            client.sendall(b"x")
        around.turn()
        around.turn()
        assert sum(bool(made.data) for made in around.made) == 2

    def test_the_end_comes_before_they_are_made(self, around: Around, users: dict[str, int]) -> None:
        client = around.connect()
        around.port.acceptor.take(lambda: around.now_ns)
        around.port.close()
        assert client.recv(1) == b""

    def test_reserved_connections_come_first(self, around: Around, users: dict[str, int]) -> None:
        """A flood of existing connections: of new ones only a few are set up."""
        flood = [around.connect() for _ in range(MOST_TO_SERVE)]
        around.look_ns = 100
        while not around.idle():
            around.turn()
        around.look_ns = 0
        for client in flood:
            client.sendall(b"x")
        for _ in range(100):
            around.connect()
        self.of_user(around, users, 2)
        around.port.ready()
        assert len(around.port) == MOST_TO_SERVE + FEW
        assert 2 in [made.peer.uid for made in around.made]
        while not around.idle():
            around.turn()
        assert len(around.port) == MOST_TO_SERVE + 101

    def test_all_programs_of_a_user_may_come_back_at_once(self) -> None:
        assert LIMITS[Resource.CONNECTIONS].most <= 2 * MAX_ARRIVED


class TestNoDescriptorLeft:
    """accept(2) fails with the errors that trio's serve_listeners survives, and so does this."""

    @pytest.mark.parametrize("has_threads", [True, False])
    def test_one_user_s_connections_that_do_not_close_keep_no_other_out(
        self, around: Around, has_threads: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Accepting paused for as long as his sockets lingered; now only where there are no threads."""
        around.connect()
        with monkeypatch.context() as patched:
            patched.setattr(closing, "waiting", lambda: 1 << 20)
            patched.setattr(closing, "close_most", lambda: has_threads)
            around.turn()
            assert bool(around.made) == has_threads
            assert (around.port.next_deadline_ns() is None) == has_threads

    def test_other_errors_are_not_hidden(self, around: Around, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_: socket.socket) -> None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

        around.connect()
        monkeypatch.setattr(socket.socket, "accept", fail)
        with pytest.raises(OSError, match="Bad file descriptor"):
            around.turn()
