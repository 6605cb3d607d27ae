"""Connections to a real nats-server, and to servers that break the protocol, hang, or refuse."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.nats.server import WAIT_S, NatsServer, serving
from utracefs.nats.connection import Connection, Server, servers
from utracefs.nats.errors import NoResponders
from utracefs.nats.login import Login

INFO = b'INFO {"max_payload": 1000, "headers": true}\r\n'


@contextlib.contextmanager
def fake(talk: Callable[[socket.socket], object]) -> Iterator[Server]:
    """A server of one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                accepted, _ = listening.accept()
                with accepted:
                    talk(accepted)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Server(*listening.getsockname())
        finally:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def greeted(*after: bytes) -> Callable[[socket.socket], object]:
    """Accepts the login, sends these bytes after the next that it reads, and waits for the end."""

    def talk(sock: socket.socket) -> None:
        sock.sendall(INFO)
        seen = b""
        while b"PING\r\n" not in seen:
            seen += sock.recv(1000)
        sock.sendall(b"PONG\r\n")
        sock.recv(1000)
        sock.sendall(b"".join(after))
        while sock.recv(1 << 16):
            pass

    return talk


# Calls


def answers(connection: Connection) -> bool:
    """So all that was sent before has arrived."""
    with pytest.raises(NoResponders):
        connection.request("nobody")
    return True


def test_listening(server: NatsServer) -> None:
    one = server.connection(timeout_s=0.5)
    one.subscribe("a.*")
    with one, server.connection() as two:
        assert one.has_message(WAIT_S) and not one.has_message(0)  # a new connection
        two.begin("b.a")
        assert answers(two) and not one.has_message(0.1)
        two.begin("a.b", bytes(100_000), {"K": "v"})
        two.begin("a.c")
        assert answers(two) and one.has_message(WAIT_S)
        while one.has_message(0.1):
            pass
        with pytest.raises(TimeoutError):
            one.request("a.b")
        server.kill()
        with pytest.raises(ConnectionError):
            while one.has_message(WAIT_S):
                pass
        server.start()
        assert answers(one) and one.has_message(0)


def test_too_large_a_message(server: NatsServer) -> None:
    with server.connection() as connection:
        connection.begin("a", bytes(connection.info.max_payload))
        for headers in ({}, {"K": "v"}):
            with pytest.raises(ValueError, match="takes 1048576"):
                connection.begin("a", bytes(connection.info.max_payload + 1 - 10 * bool(headers)), headers)
        assert answers(connection)


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB x 0"])
def test_invalid_subjects(server: NatsServer, subject: str) -> None:
    with server.connection() as connection:
        for call in (connection.subscribe, connection.request):
            with pytest.raises(ValueError, match="is no subject"):
                call(subject)
        assert answers(connection)


# Failures


def test_it_connects_again(server: NatsServer) -> None:
    with server.connection() as connection:
        number = connection.begin("a")
        server.kill()
        with pytest.raises(ConnectionError):
            connection.request("a")
        with pytest.raises(ConnectionError, match="refused"):
            connection.request("a")
        server.start()
        assert answers(connection)
        assert connection.generation == 2
        with pytest.raises(ConnectionError, match="ended before the answer"):
            connection.end(number)


def test_the_next_server(server: NatsServer, tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        serving(tmp_path / "second") as second,
        Connection([Server(*silent.getsockname()), server.at, second.at], timeout_s=1) as connection,
    ):
        assert connection.server == server.at
        server.kill()
        assert answers(connection)
        assert connection.server == second.at


@pytest.mark.parametrize(
    "talk",
    [
        lambda sock: None,
        lambda sock: sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"),
        lambda sock: sock.sendall(b"x" * (1 << 20)),
        lambda sock: sock.sendall(INFO),
        lambda sock: (sock.sendall(INFO), sock.sendall(b"MSG a 1 9999999999\r\n")),
        greeted(b"nonsense\r\n"),
        greeted(b"MSG a 1 999999999\r\n"),
    ],
)
def test_broken_servers(talk: Callable[[socket.socket], object]) -> None:
    with fake(talk) as at, pytest.raises(ConnectionError), Connection([at], timeout_s=WAIT_S) as connection:
        connection.request("a")


def test_a_server_that_takes_no_data() -> None:
    def talk(sock: socket.socket) -> None:
        sock.sendall(b'INFO {"max_payload": 60000000}\r\n')
        sock.recv(1000)
        sock.sendall(b"PONG\r\n")
        over.wait(WAIT_S)

    over = threading.Event()
    with fake(talk) as at:
        connection = Connection([at], timeout_s=0.3)
        try:
            with pytest.raises(TimeoutError, match="takes no more data"):
                connection.begin("a", bytes(50_000_000))
            assert not connection.is_open
        finally:
            over.set()


def test_pings_are_answered() -> None:
    def talk(sock: socket.socket) -> None:
        sock.sendall(INFO)
        while b"PING" not in sock.recv(1000):
            pass
        sock.sendall(b"PONG\r\n")
        sock.recv(1000)
        sock.sendall(b"PING\r\n")
        sent.append(sock.recv(1000))

    sent: list[bytes] = []
    with fake(talk) as at, Connection([at], timeout_s=WAIT_S) as connection, pytest.raises(ConnectionError):
        connection.request("a")
    assert sent == [b"PONG\r\n"]


@pytest.mark.parametrize("data", [b"PING\r\n", b"+OK\r\n"])
def test_servers_that_send_without_end(data: bytes) -> None:
    """And read nothing."""

    def talk(sock: socket.socket) -> None:
        sock.sendall(INFO)
        sock.recv(1000)
        sock.sendall(b"PONG\r\n")
        while not over.is_set():
            sock.sendall(data * 10_000)

    over = threading.Event()
    end = threading.Timer(WAIT_S, over.set)
    end.start()
    try:
        with fake(talk) as at, Connection([at], timeout_s=0.3) as connection:
            with pytest.raises((TimeoutError, ConnectionError)):
                connection.request("a")
            assert not over.is_set()
    finally:
        end.cancel()
        over.set()


# Logins


USERS = """
authorization { users: [
    { user: a, password: secret, permissions: { publish: ["ok", "_INBOX.>"], subscribe: ["_INBOX.>"] } }
] }
"""


def test_passwords(tmp_path: Path) -> None:
    logins = [Login(), Login("a", "wrong"), Login(token="t"), Login("a", "secret")]
    with serving(tmp_path / "nats", USERS) as server:
        connection = server.connection(login=lambda: logins[0])
        for _ in range(3):
            with pytest.raises(PermissionError, match=r"127\.0\.0\.1:\d+: Authorization Violation"):
                connection.open()
            del logins[0]
        with pytest.raises(NoResponders):
            connection.request("ok")
        with pytest.raises(PermissionError, match='Publish to "no"'):
            connection.request("no")
        connection.close()
        connection.subscribe("no")
        with pytest.raises(PermissionError, match='Subscription to "no"'):
            connection.open()


def test_a_secret_is_in_no_text() -> None:
    assert "secret" not in repr(Login("a", "secret", "secret", "secret", "secret"))


# Addresses


def test_servers() -> None:
    assert servers("a") == [Server("a", 4222)]
    assert servers("a:1,[::1]:2,[fe80::1],b") == [
        Server("a", 1),
        Server("::1", 2),
        Server("fe80::1", 4222),
        Server("b", 4222),
    ]
    assert str(Server("::1", 2)) == "[::1]:2"
    for text in ("", "a,", "a:0", "a:x", "a:99999", "::1", "[::1", "a:", "user:pass@host:1", "a:٣"):
        with pytest.raises(ValueError, match="is no HOST:PORT"):
            servers(text)
