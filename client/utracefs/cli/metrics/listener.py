"""`utracefs metrics --listen`: GET /metrics over HTTP/1.1, on loopback or a Unix socket.

    accept ─▶ read the head of the request ─▶ collect, once for all waiting ─▶ write the answer ─▶ close

One thread, which waits for no single client. A slow client is disconnected after CLIENT_S, or earlier for a
new one if it is the oldest of MAX_CLIENTS. So slow clients cannot keep others out. The daemon gets at most
one scrape in FRESH_S, however many clients ask.
"""

import contextlib
import ipaddress
import os
import selectors
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

import attrs
import click

from utracefs.cli import Failure
from utracefs.cli.common import tell
from utracefs.cli.metrics.families import OPENMETRICS, PROMETHEUS, Metrics

MAX_CLIENTS: Final = 64

MAX_HEAD: Final = 8192
"""Bytes of a request's head; Prometheus sends some 300."""

CLIENT_S: Final = 5.0
"""Time limit of a client: from its connection to the last byte of the answer, without the time to collect."""

FRESH_S: Final = 0.5
"""Time for which a collected answer is reused for other clients."""


@attrs.frozen
class Address:
    """A socket's address; `str` is what users write."""

    family: socket.AddressFamily
    value: str | tuple[str, int]

    def __str__(self) -> str:
        if isinstance(self.value, str):
            return f"unix:{self.value}"
        host, port = self.value
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


def parse_address(text: str) -> Address:
    """`unix:PATH`, `127.0.0.1:PORT`, `[::1]:PORT`. click.BadParameter, also for all that is not loopback."""
    kind, _, path = text.partition(":")
    if kind == "unix" and path:
        return Address(socket.AF_UNIX, os.path.abspath(path))
    host, _, port = text.rpartition(":")
    try:
        ip = ipaddress.ip_address(host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither unix:PATH nor 127.0.0.1:PORT") from None
    if not ip.is_loopback:
        raise click.BadParameter(
            f"{ip} is not loopback: the answer has no protection; put a proxy with TLS in front"
        )
    if not (port.isascii() and port.isdecimal() and int(port) < 65536):
        raise click.BadParameter(f"{port!r} is not a port")
    return Address(socket.AF_INET6 if ip.version == 6 else socket.AF_INET, (str(ip), int(port)))


@contextlib.contextmanager
def listening(address: Address) -> Iterator[socket.socket]:
    """A listening socket. A Unix socket has mode 0660; its path is removed at the end. Failure."""
    with socket.socket(address.family) as sock:
        path = address.value if isinstance(address.value, str) else None
        try:
            if path is not None:
                _make_way(path)
                before = os.umask(0o117)
                try:
                    sock.bind(path)
                finally:
                    os.umask(before)
            else:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(address.value)
            sock.listen(MAX_CLIENTS)
        except OSError as error:
            raise Failure(str(address), error.strerror or str(error)) from None
        sock.setblocking(False)
        try:
            yield sock
        finally:
            if path is not None:
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _make_way(path: str) -> None:
    """Remove a socket that a killed process has left; OSError(EADDRINUSE) by bind if it is in use."""
    with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as probe:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            probe.settimeout(1)
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)


class _Ended(Exception):
    """SIGTERM or SIGINT."""


def _end(_number: int, _frame: object) -> NoReturn:
    raise _Ended


def serve(address: Address, collect: Callable[[], Metrics]) -> None:
    """Serve until SIGTERM or SIGINT. Failure: the address cannot be used."""
    with contextlib.ExitStack() as stack, contextlib.suppress(_Ended):
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.signal(number, _end))
        sock = stack.enter_context(listening(address))
        listener = stack.enter_context(contextlib.closing(Listener(sock, collect)))
        name = sock.getsockname()
        tell(f"metrics at {Address(address.family, name if isinstance(name, str) else name[:2])}")
        while True:
            listener.step()


@attrs.define(eq=False)
class _Client:
    sock: socket.socket
    deadline_s: float
    head: bytearray = attrs.field(factory=bytearray)
    answer: memoryview | None = None
    """The unsent part of the answer."""


class Listener:
    """The loop's state; `close` ends all connections, but not `sock`."""

    def __init__(
        self,
        sock: socket.socket,
        collect: Callable[[], Metrics],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sock = sock
        self._collect = collect
        self._clock = clock
        self._clients: dict[_Client, None] = {}
        """Oldest first."""
        self._metrics = Metrics()
        self._collected_s = float("-inf")
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)

    def close(self) -> None:
        for client in list(self._clients):
            self._drop(client)
        self._selector.close()

    def step(self) -> None:
        """Wait for clients, and serve the ready ones."""
        first = next(iter(self._clients), None)
        timeout_s = None if first is None else max(0.0, first.deadline_s - self._clock())
        asking = []
        for key, _ in self._selector.select(timeout_s):
            client: _Client | None = key.data
            if client is None:
                self._accept()
            elif client in self._clients:  # else it has given way
                try:
                    if client.answer is None:
                        if self._has_asked(client):
                            asking.append(client)
                    else:
                        self._send(client)
                except OSError:
                    self._drop(client)
        now_s = self._clock()
        for client in list(self._clients):
            if client.deadline_s <= now_s and client not in asking:
                self._drop(client)
        self._answer(asking)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                sock = self._sock.accept()[0]
                sock.setblocking(False)
                if len(self._clients) >= MAX_CLIENTS:
                    self._drop(next(iter(self._clients)))
                client = _Client(sock, self._clock() + CLIENT_S)
                self._clients[client] = None
                self._selector.register(sock, selectors.EVENT_READ, client)

    def _drop(self, client: _Client) -> None:
        del self._clients[client]
        self._selector.unregister(client.sock)
        client.sock.close()

    def _has_asked(self, client: _Client) -> bool:
        """Read; whether the head of its request is complete, or too long. OSError if it has gone."""
        try:
            data = client.sock.recv(MAX_HEAD)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionResetError
        client.head += data
        return b"\r\n\r\n" in client.head or len(client.head) > MAX_HEAD

    def _answer(self, asking: list[_Client]) -> None:
        for client in asking:
            if client not in self._clients:
                continue
            status, content_type, body = self._respond(bytes(client.head))
            allow = "Allow: GET\r\n" if status.startswith("405") else ""
            head = (
                f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
                f"{allow}Connection: close\r\n\r\n"
            )
            client.answer = memoryview(head.encode() + body)
            self._selector.modify(client.sock, selectors.EVENT_WRITE, client)

    def _respond(self, head: bytes) -> tuple[str, str, bytes]:
        """(status, content type, body)."""
        plain = "text/plain; charset=utf-8"
        lines = head.partition(b"\r\n\r\n")[0].split(b"\r\n")
        words = lines[0].split(b" ")
        if b"\r\n\r\n" not in head[: MAX_HEAD + 4]:
            return "431 Request Header Fields Too Large", plain, b"the head of the request is too long\n"
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return "400 Bad Request", plain, b"not a request of HTTP/1.1\n"
        if words[0] != b"GET":
            return "405 Method Not Allowed", plain, b"only GET\n"
        if words[1].partition(b"?")[0] != b"/metrics":
            return "404 Not Found", plain, b"the metrics are at /metrics\n"
        accept = b",".join(line for line in lines[1:] if line[:7].lower() == b"accept:")
        content_type = OPENMETRICS if b"application/openmetrics-text" in accept.lower() else PROMETHEUS
        return "200 OK", content_type, self._fresh().text(content_type)

    def _fresh(self) -> Metrics:
        """Collected within FRESH_S. Nobody's time runs meanwhile."""
        began_s = self._clock()
        if began_s - self._collected_s >= FRESH_S:
            self._metrics = self._collect()
            self._collected_s = self._clock()
            for client in self._clients:
                client.deadline_s += self._collected_s - began_s
        return self._metrics

    def _send(self, client: _Client) -> None:
        assert client.answer is not None
        try:
            client.answer = client.answer[client.sock.send(client.answer) :]
        except BlockingIOError:
            return
        if not client.answer:
            client.sock.shutdown(socket.SHUT_WR)
            self._drop(client)
