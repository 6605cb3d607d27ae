"""Sockets with one deadline. A socket's own timeout is of each call, so a peer that takes or sends a byte a
second would hold its user for ever.
"""

import socket
import ssl
import time
from typing import Any


class Limited(socket.socket):
    """`makefile` reads, and `sendall` writes, up to `deadline`: TimeoutError."""

    deadline = 0.0
    """CLOCK_MONOTONIC."""

    def recv_into(self, *args: Any) -> int:
        limit(self, self.deadline)
        return super().recv_into(*args)

    def send(self, *args: Any) -> int:  # by which TLS sends all
        limit(self, self.deadline)
        return super().send(*args)

    def sendall(self, *args: Any) -> None:
        limit(self, self.deadline)
        super().sendall(*args)


class _LimitedTls(Limited, ssl.SSLSocket):
    pass


def limit(sock: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    sock.settimeout(left)


def connect(host: str, port: int, deadline: float) -> Limited:
    """Try all addresses of a name, each for its share of the time. OSError: that of the last one."""
    addresses = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    for n, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = Limited(family, kind, protocol)
        now = time.monotonic()
        try:
            limit(sock, now + (deadline - now) / (len(addresses) - n))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            sock.close()
            if n + 1 == len(addresses):
                raise
        else:
            sock.deadline = deadline
            return sock
    raise OSError(f"{host} has no address")


def secured(sock: Limited, context: ssl.SSLContext, host: str) -> Limited:
    limit(sock, sock.deadline)
    context.sslsocket_class = _LimitedTls
    made = context.wrap_socket(sock, server_hostname=host)
    assert isinstance(made, _LimitedTls)
    made.deadline = sock.deadline
    return made
