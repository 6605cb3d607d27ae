"""The listener: requests, slow clients, addresses, and the command as a process."""

from __future__ import annotations

import contextlib
import errno
import gzip
import http.client
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.client.cli.kit import Cli, interrupt
from utracefs.cli import Failure
from utracefs.cli.metrics import listener
from utracefs.cli.metrics.families import Metrics
from utracefs.cli.metrics.listener import MAX_CLIENTS, Address, Listener, listening, parse_address

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
NEW = b"application/openmetrics-text;version=1.0.0"
WANTS_NEW = b"GET /metrics HTTP/1.1\r\naccept: %s,*/*;q=0.1\r\n\r\n" % NEW
DEADLINE_S = 60


class World:
    """A listener in a thread."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.scrapes = 0
        self._stack = stack
        self._path = f"{folder}/s"
        self.sock = stack.enter_context(listening(parse_address(f"unix:{self._path}")))
        self.listener = Listener(self.sock, self.collect)
        thread = threading.Thread(target=self.listener.serve_forever, args=(0.01,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(self.listener.shutdown)

    def collect(self) -> Metrics:
        self.scrapes += 1
        metrics = Metrics()
        metrics.set("utracefs_event_emitted_records_total", self.scrapes, "an event")
        return metrics

    def client(self, data: bytes = b"") -> socket.socket:
        sock = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        sock.settimeout(DEADLINE_S)
        sock.connect(self._path)
        sock.sendall(data)
        return sock

    def answer(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers, body."""
        return read(self.client(data))


def read(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    response = http.client.HTTPResponse(sock)
    response.begin()
    with response:
        return response.status, dict(response.headers), response.read()


@pytest.fixture
def world(home: Path) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        yield World(home, stack)


@pytest.mark.parametrize(
    ("accept", "is_new"),
    [(b"", False), (NEW, True), (b"text/plain, */*;q=0.1", False), (b"%s, text/plain;q=0.5" % NEW, True)],
)
def test_both_formats(world: World, accept: bytes, is_new: bool) -> None:
    request = GET[:-2] + (b"Accept: %s\r\n\r\n" % accept if accept else b"\r\n")
    status, headers, body = world.answer(request)
    assert status == 200
    assert headers["Content-Type"].startswith("application/openmetrics-text" if is_new else "text/plain")
    assert body.endswith(b"# EOF\n") == is_new
    assert b'utracefs_event_emitted_records_total{event="an event"} 1.0\n' in body


def test_compressed(world: World) -> None:
    _, headers, body = world.answer(GET[:-2] + b"Accept-Encoding: gzip\r\n\r\n")
    assert headers["Content-Encoding"] == "gzip" and b'{event="an event"} 1.0\n' in gzip.decompress(body)


def test_requests_that_are_refused(world: World) -> None:
    assert world.answer(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200 + b"\r\n")[0] == 431
    world.client(GET[:9]).close()
    world.client(GET).close()
    assert world.answer(GET)[0] == 200


def test_many_requests_are_one_scrape(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "FRESH_S", 3600)
    assert len({world.answer(GET)[2] for _ in range(3)}) == world.scrapes == 1
    monkeypatch.setattr(listener, "FRESH_S", 0)
    assert len({world.answer(GET)[2] for _ in range(3)}) == 3


def test_slow_clients_are_dropped(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener.Handler, "timeout", 0.1)
    with contextlib.ExitStack() as stack:
        assert World(home, stack).client(b"G").recv(1) == b""


def test_the_oldest_of_too_many_gives_way(world: World) -> None:
    slow = [world.client() for _ in range(MAX_CLIENTS)]
    assert world.answer(GET)[0] == 200
    assert slow[0].recv(1) == b""
    slow[-1].sendall(GET)
    assert read(slow[-1])[0] == 200


def test_no_descriptor_is_free(world: World) -> None:
    class Full:
        """Its first accepts fail."""

        failed = 0

        def fileno(self) -> int:
            return world.sock.fileno()

        def accept(self) -> object:
            self.failed += 1
            if self.failed < 3:
                raise OSError(errno.EMFILE, "Too many open files")
            return world.sock.accept()

    full = Full()
    world.listener.socket = full  # type: ignore[assignment]
    began = time.monotonic()
    assert world.answer(GET)[0] == 200
    assert full.failed >= 3 and time.monotonic() - began >= 2 * listener.NO_DESCRIPTOR_S


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("127.0.0.1:9847", "http://127.0.0.1:9847/metrics"),
        ("127.1.2.3:0", "http://127.1.2.3:0/metrics"),
        ("[::1]:80", "http://[::1]:80/metrics"),
        ("unix:/a/b", "unix:/a/b"),
    ],
)
def test_addresses(text: str, shown: str) -> None:
    assert str(parse_address(text)) == shown


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0.0.0.0:9847", "0.0.0.0 is not loopback"),
        ("[::]:9847", ":: is not loopback"),
        ("[::ffff:10.0.0.1]:9847", "is not loopback"),
        ("10.0.0.1:9847", "not loopback"),
        ("localhost:9847", "neither unix:PATH nor"),
        ("9847", "neither"),
        (":9847", "neither"),
        ("unix:", "neither"),
        ("", "neither"),
        ("127.0.0.1:", "not a port"),
        ("127.0.0.1:65536", "not a port"),
        ("127.0.0.1:-1", "not a port"),
        ("127.0.0.1:\u0661", "not a port"),
    ],
)
def test_addresses_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(click.BadParameter, match=why):
        parse_address(text)


def test_a_path(home: Path) -> None:
    """A socket left behind is replaced, one in use and other files are not."""
    address = parse_address(f"unix:{home}/s")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{home}/s")
    with listening(address):
        assert stat.S_IMODE(os.stat(f"{home}/s").st_mode) == 0o660
        with pytest.raises(Failure, match="in use"), listening(address):
            pass
        assert os.path.exists(f"{home}/s")
    assert not os.path.exists(f"{home}/s")
    (home / "s").write_text("mine")
    with pytest.raises(Failure, match="in use"), listening(address):
        pass
    assert (home / "s").read_text() == "mine"
    with pytest.raises(Failure, match="too long"), listening(Address(socket.AF_UNIX, "/" + "x" * 200)):
        pass


def scrape(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(DEADLINE_S)
        sock.connect(str(path))
        sock.sendall(WANTS_NEW)
        return read(sock)[2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command(traced: Cli, daemon: object, home: Path, number: signal.Signals) -> None:
    """It outlives its daemon, says so, and finds the next one."""
    process = traced.start("metrics", "--listen", f"unix:{home}/m")
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == b"utracefs: metrics at unix:%s/m\n" % os.fsencode(home)
        assert b"\nutracefs_up 1.0\n" in scrape(home / "m")
        out, err = interrupt(process, number)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (0, b"", b"")
    assert not (home / "m").exists()


def test_a_signal_between_accept_and_the_clients_thread(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listener, "process_request", lambda *_: signal.raise_signal(signal.SIGTERM))

    @contextlib.contextmanager
    def with_a_client(address: Address) -> Iterator[socket.socket]:
        with listening(address) as sock, socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{home}/s")
            yield sock

    monkeypatch.setattr(listener, "listening", with_a_client)
    listener.serve(parse_address(f"unix:{home}/s"), Metrics)


def test_without_a_daemon_it_serves(cli: Cli, home: Path) -> None:
    process = cli.start("metrics", "--listen", "127.0.0.1:0")
    try:
        assert process.stderr is not None
        assert b"metrics at http://127.0.0.1:" in process.stderr.readline()
        interrupt(process)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0


def test_wrong_usage(cli: Cli) -> None:
    assert "--text goes without --listen" in cli.fails(
        "metrics", "--text", "--listen", "127.0.0.1:0", status=2
    )
    assert "is not loopback" in cli.fails("metrics", "--listen", "0.0.0.0:9847", status=2)
