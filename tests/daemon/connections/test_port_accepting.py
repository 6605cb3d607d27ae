"""A port that is full: of one user, in all, and when accept(2) finds no descriptor or no memory."""

import errno
import logging
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.connections.ports import Around, error_in, read_all
from utracefsd.connections import port as port_module
from utracefsd.connections.port import (
    ACCEPT_PAUSE_NS,
)
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource, Shares


class TestTooMany:
    def test_of_one_user(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        around = Around(tmp_path / "data", shares=Shares({Resource.CONNECTIONS: 3}), owner_uid=12345)
        monkeypatch.setattr(
            port_module, "peer_of", lambda sock, owner_uid: Peer(pid=1, uid=7, gid=7, privileged=False)
        )
        try:
            clients = [around.connect() for _ in range(5)]
            around.turn()
            assert len(around.port) == 3
            for client in clients[3:]:
                number, text = error_in(read_all(client))
                assert number == errno.EMFILE
                assert "user 7" in text
            clients[0].close()
            around.turn()
            around.connect()
            around.turn()
            assert len(around.port) == 3
        finally:
            around.close()

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


class TestNoDescriptorLeft:
    """accept(2) fails; trio's serve_listeners survives these errors, and so does this."""

    class FailingListener:
        """A listener whose accept fails `times` times."""

        def __init__(self, listener: socket.socket, number: int, times: int) -> None:
            self.listener = listener
            self.number = number
            self.times = times

        def fileno(self) -> int:
            return self.listener.fileno()

        def accept(self) -> tuple[socket.socket, Any]:
            if self.times:
                self.times -= 1
                raise OSError(self.number, os.strerror(self.number))
            return self.listener.accept()

    def failing(self, around: Around, number: int, times: int) -> None:
        listener: Any = self.FailingListener(around.listener, number, times)
        around.port._listener = listener

    def test_the_reserve_turns_one_away(self, around: Around, caplog: pytest.LogCaptureFixture) -> None:
        first, second = around.connect(), around.connect()
        self.failing(around, errno.EMFILE, 1)
        with caplog.at_level(logging.ERROR):
            around.turn()
        assert first.recv(1) == b""
        second.sendall(b"x")
        around.turn()
        assert around.made[0].data == b"x"
        assert "turned away" in caplog.text
        assert around.port.next_deadline_ns() is None

    @pytest.mark.parametrize("number", [errno.ENOMEM, errno.ENOBUFS])
    def test_without_memory_it_pauses(
        self, around: Around, number: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = around.connect()
        client.sendall(b"x")
        self.failing(around, number, 1)
        with caplog.at_level(logging.ERROR):
            around.turn()
        assert not around.made
        assert around.idle()  # no busy loop
        assert around.port.next_deadline_ns() == around.now_ns + ACCEPT_PAUSE_NS
        around.port.on_time(around.now_ns + ACCEPT_PAUSE_NS)
        assert around.port.next_deadline_ns() is None
        around.turn()
        assert around.made[0].data == b"x"

    def test_really(self, around: Around, caplog: pytest.LogCaptureFixture) -> None:
        """With RLIMIT_NOFILE in the way of the next descriptor."""
        import resource

        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        client = around.connect()
        lowest = os.dup(client.fileno())
        os.close(lowest)
        with caplog.at_level(logging.ERROR):
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
            try:
                around.turn()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert client.recv(1) == b""
        assert "turned away" in caplog.text
        around.connect()
        around.turn()
        assert len(around.made) == 1

    def test_other_errors_are_not_hidden(self, around: Around) -> None:
        around.connect()
        self.failing(around, errno.EBADF, 1)
        with pytest.raises(OSError, match="Bad file descriptor"):
            around.turn()
