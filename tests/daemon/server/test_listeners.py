"""Listening sockets: their modes, stale ones, those of other users, those of systemd."""

import errno
import grp
import logging
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from utracefs_protocol.errors import TraceError
from utracefsd.server.listeners import MAX_GID, given_sockets, group_id, listening
from utracefsd.server.sd_notify import ListenFd


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tracefs"


def test_for_the_owner_alone(path: Path) -> None:
    with listening(path, None) as sock:
        assert mode(path) == 0o600
        assert not sock.get_inheritable()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not path.exists()


def test_for_a_group(path: Path) -> None:
    gid = os.getgroups()[0] if os.getgroups() else os.getegid()
    with listening(path, gid):
        assert mode(path) == 0o660
        assert os.lstat(path).st_gid == gid


@pytest.mark.skipif(os.geteuid() == 0, reason="root may give a file to any group")
def test_for_a_group_that_we_are_not_in(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), listening(path, 1):
        assert mode(path) == 0o600
    assert "group" in caplog.text


def test_for_a_group_that_a_user_namespace_does_not_have(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chown(path: Path, uid: int, gid: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument", str(path))

    monkeypatch.setattr(os, "chown", chown)
    with caplog.at_level(logging.INFO), listening(path, 1):
        assert mode(path) == 0o600
    assert "group" in caplog.text


def test_a_stale_socket_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    assert path.exists()
    with listening(path, None), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_socket_that_answers_is_left_alone(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(TraceError) as caught, listening(path, None):
            pass
        assert caught.value.errno == errno.EADDRINUSE
        assert str(path) in caught.value.text
        assert path.exists()


def test_a_socket_whose_queue_is_full_answers(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(0)
        clients = []
        try:
            with pytest.raises(BlockingIOError):
                while True:
                    client = socket.socket(socket.AF_UNIX)
                    clients.append(client)
                    client.setblocking(False)
                    client.connect(str(path))
            with pytest.raises(TraceError) as caught, listening(path, None):
                pass
            assert caught.value.errno == errno.EADDRINUSE
        finally:
            for client in clients:
                client.close()


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_something_else_in_the_way_is_left_alone(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_bytes(b"mine")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("elsewhere")
    with pytest.raises(TraceError) as caught, listening(path, None):
        pass
    assert caught.value.errno == errno.EEXIST
    assert os.path.lexists(path)


def test_a_socket_that_replaced_ours_is_left_alone(path: Path) -> None:
    with listening(path, None):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.exists()


class TestGroups:
    def test_ours(self) -> None:
        name = grp.getgrgid(os.getegid()).gr_name
        assert group_id(name, required=True) == os.getegid()
        assert group_id(name, required=False) == os.getegid()

    def test_a_number_needs_no_name(self) -> None:
        assert group_id("54321", required=True) == 54321

    @pytest.mark.parametrize("name", [str(MAX_GID + 1), str(1 << 32), "1" * 5000])
    def test_a_number_that_no_group_has(self, name: str) -> None:
        with pytest.raises(TraceError, match="there is no group"):
            group_id(name, required=True)

    def test_missing(self) -> None:
        assert group_id("no-such-group", required=False) is None
        with pytest.raises(TraceError) as caught:
            group_id("no-such-group", required=True)
        assert caught.value.errno == errno.EINVAL
        assert "no-such-group" in caught.value.text


class TestGivenSockets:
    @pytest.fixture
    def made(self, tmp_path: Path) -> Iterator[list[socket.socket]]:
        sockets = []
        for name in ("user_events_data", "tracefs", "other"):
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(str(tmp_path / name))
            sock.listen()
            sockets.append(sock)
        yield sockets
        for sock in sockets:
            sock.close()

    def given(self, *pairs: tuple[socket.socket, str]) -> dict[str, str]:
        found = given_sockets([ListenFd(os.dup(sock.fileno()), name) for sock, name in pairs])
        try:
            return {name: os.path.basename(sock.getsockname()) for name, sock in found.items()}
        finally:
            for sock in found.values():
                sock.close()

    def test_by_name(self, made: list[socket.socket]) -> None:
        assert self.given((made[2], "tracefs"), (made[0], "user_events_data")) == {
            "tracefs": "other",
            "user_events_data": "user_events_data",
        }

    def test_by_path_where_the_names_say_nothing(self, made: list[socket.socket]) -> None:
        assert self.given((made[1], "unknown"), (made[0], "x")) == {
            "tracefs": "tracefs",
            "user_events_data": "user_events_data",
        }

    def test_strangers_are_closed(self, made: list[socket.socket], caplog: pytest.LogCaptureFixture) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams, caplog.at_level(logging.WARNING):
            assert self.given((made[2], "unknown"), (datagrams, "tracefs")) == {}
        assert len(caplog.records) == 2

    def test_none(self) -> None:
        assert given_sockets([]) == {}
