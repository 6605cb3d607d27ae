"""One deadline for a socket, however many calls there are."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from utracefs.nats.sockets import Limited, connect


def test_all_reads_and_writes_have_one_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = connect("127.0.0.1", server.getsockname()[1], time.monotonic() + 0.3)
        peer, _ = server.accept()
        with peer, sock, sock.makefile("rb") as file:
            end = threading.Event()

            def drip() -> None:
                while not end.wait(0.02):
                    peer.send(b"x")

            thread = threading.Thread(target=drip)
            thread.start()
            with pytest.raises(TimeoutError):
                file.read(1000)
            end.set()
            thread.join()
            with pytest.raises(TimeoutError):
                sock.sendall(b"x")


def test_each_address_has_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        waiting = [socket.create_connection(full.getsockname())]
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", one.getsockname()) for one in (full, full, server)
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: addresses)
        shares: list[float] = []

        def wait_a_tenth(sock: socket.socket, share_s: float) -> None:
            shares.append(share_s)
            socket.socket.settimeout(sock, 0.1)

        monkeypatch.setattr(Limited, "settimeout", wait_a_tenth)
        connect("name", 1, time.monotonic() + 60).close()
        assert [round(share_s, -1) for share_s in shares] == [20, 30, 60]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: addresses[:1])
        with pytest.raises(TimeoutError):
            connect("name", 1, time.monotonic() + 0.1)
        for one in waiting:
            one.close()
