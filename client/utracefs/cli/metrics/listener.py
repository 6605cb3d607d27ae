"""`utracefs metrics --listen`: GET over HTTP, on loopback or a Unix socket, by prometheus_client and wsgiref.

Each client has a thread. It waits CLIENT_S for each piece that it reads or writes, and gives way to a new
client if it is the oldest of MAX_CLIENTS, so slow clients cannot keep others out. The daemon gets at most one
scrape in FRESH_S, however many clients ask.
"""

import contextlib
import ipaddress
import os
import signal
import socket
import socketserver
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import attrs
import click
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric

from utracefs.cli import Failure
from utracefs.cli.common import handling, tell
from utracefs.cli.metrics.families import Metrics

MAX_CLIENTS: Final = 64

CLIENT_S: Final = 5.0
"""Time limit of each read from a client, and of each write."""

FRESH_S: Final = 0.5
"""Time for which a collected answer is reused for other clients."""

NO_DESCRIPTOR_S: Final = 0.1
"""Pause after an accept that failed, as at EMFILE; the client waits."""


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


def serve(address: Address, collect: Callable[[], Metrics]) -> None:
    """Serve until SIGTERM or SIGINT. Failure: the address cannot be used."""
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
        stack.enter_context(handling(signal.default_int_handler, signal.SIGINT, signal.SIGTERM))
        sock = stack.enter_context(listening(address))
        name = sock.getsockname()
        tell(f"metrics at {Address(address.family, name if isinstance(name, str) else name[:2])}")
        Listener(sock, collect).serve_forever(poll_interval=3600)


class _Fresh:
    """Collects for all clients that ask within FRESH_S."""

    def __init__(self, collect: Callable[[], Metrics]) -> None:
        self._collect = collect
        self._lock = threading.Lock()
        self._metrics = Metrics()
        self._collected_s = float("-inf")

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            if time.monotonic() - self._collected_s >= FRESH_S:
                self._metrics = self._collect()
                self._collected_s = time.monotonic()
            return self._metrics.collect()


class Handler(WSGIRequestHandler):
    timeout = CLIENT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


class Listener(socketserver.ThreadingMixIn, WSGIServer):
    """Serves on a listening socket that it does not close."""

    daemon_threads = True

    def __init__(self, sock: socket.socket, collect: Callable[[], Metrics]) -> None:
        super().__init__(("", 0), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.server_name, self.server_port = "utracefs", 0  # its own way would ask the DNS
        self.setup_environ()
        registry = CollectorRegistry()
        registry.register(_Fresh(collect))
        self.set_app(make_wsgi_app(registry))
        self._clients: dict[socket.socket, None] = {}
        """Oldest first."""

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        try:
            return self.socket.accept()[0], ("client", 0)  # (a Unix socket has no address)
        except OSError:
            time.sleep(NO_DESCRIPTOR_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._clients) >= MAX_CLIENTS:
            with contextlib.suppress(OSError, StopIteration, RuntimeError):
                next(iter(self._clients)).shutdown(socket.SHUT_RDWR)
        self._clients[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that has gone
            super().handle_error(request, client_address)
