"""The listener: requests, hostile clients, addresses, and the command as a process."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.client.cli.kit import Cli, interrupt
from utracefs.cli import Failure
from utracefs.cli.metrics.families import OPENMETRICS, PROMETHEUS, Metrics
from utracefs.cli.metrics.listener import (
    CLIENT_S,
    FRESH_S,
    MAX_CLIENTS,
    Address,
    Listener,
    listening,
    parse_address,
)

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
WANTS_NEW = b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n\r\n"
DEADLINE_S = 30


class World:
    """A listener whose steps the test makes, with a clock of its own."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.now_s = 1000.0
        self.scrapes = 0
        self.scrape_s = 0.0
        self.size = 1
        self._stack = stack
        self.address = parse_address(f"unix:{folder}/s")
        sock = stack.enter_context(listening(self.address))
        self.listener = Listener(sock, self.collect, clock=lambda: self.now_s)
        stack.callback(self.listener.close)

    def collect(self) -> Metrics:
        self.scrapes += 1
        self.now_s += self.scrape_s
        metrics = Metrics()
        for number in range(self.size):
            metrics.set("utracefs_event_emitted_records_total", self.scrapes, f"event {number}")
        return metrics

    def client(self, data: bytes = b"") -> socket.socket:
        """Connected, and accepted."""
        sock = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        sock.settimeout(DEADLINE_S)
        assert isinstance(self.address.value, str)
        sock.connect(self.address.value)
        sock.sendall(data)
        self.listener.step()
        return sock

    def answer(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers, body."""
        sock = self.client(data)
        self.listener.step()
        self.listener.step()
        return read(sock)


def read(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    response = http.client.HTTPResponse(sock)
    response.begin()
    with response:
        return response.status, dict(response.headers), response.read()


def is_dropped(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True
    except BlockingIOError:
        return False


@pytest.fixture
def world(home: Path) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        yield World(home, stack)


def test_both_formats(world: World) -> None:
    for request, content_type in ((GET, PROMETHEUS), (WANTS_NEW, OPENMETRICS)):
        status, headers, body = world.answer(request)
        assert (status, headers["Content-Type"], headers["Connection"]) == (200, content_type, "close")
        assert body.endswith(b"# EOF\n") == (content_type == OPENMETRICS)
        assert b'utracefs_event_emitted_records_total{event="event 0"} 1\n' in body


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/../x HTTP/1.1\r\n\r\n", 404),
        (b"GET http://x/metrics HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"get /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET /metrics HTTP/2\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ],
)
def test_requests(world: World, request_: bytes, status: int) -> None:
    found, headers, _ = world.answer(request_)
    assert found == status
    assert headers.get("Allow") == ("GET" if status == 405 else None)


def test_a_head_without_end(world: World) -> None:
    sock = world.client(b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * 1300)
    assert len(b"x: y\r\n" * 1300) < 8192
    world.listener.step()
    sock.sendall(b"x: y\r\n" * 200)
    world.listener.step()
    world.listener.step()
    assert read(sock)[0] == 431


def test_byte_by_byte(world: World) -> None:
    sock = world.client()
    for i in range(len(GET)):
        sock.sendall(GET[i : i + 1])
        world.listener.step()
    world.listener.step()
    assert read(sock)[0] == 200


def test_many_requests_are_one_scrape(world: World) -> None:
    assert [world.answer(GET)[2] for _ in range(3)] == [world.answer(GET)[2]] * 3
    assert world.scrapes == 1
    world.now_s += FRESH_S
    world.answer(GET)
    assert world.scrapes == 2


def test_slow_clients_are_dropped(world: World) -> None:
    """Each byte gives no more time."""
    slow = world.client()
    world.now_s += CLIENT_S - 1
    slow.sendall(b"G")
    world.listener.step()
    assert not is_dropped(slow)
    later = world.client()
    world.now_s += 1
    world.listener.step()
    assert is_dropped(slow) and not is_dropped(later)


def test_the_time_of_a_scrape_counts_for_nobody(world: World) -> None:
    slow = world.client()
    world.scrape_s = 2 * CLIENT_S
    assert world.answer(GET)[0] == 200
    assert not is_dropped(slow)
    world.now_s += CLIENT_S
    world.listener.step()
    assert is_dropped(slow)


def test_the_oldest_of_too_many_gives_way(world: World) -> None:
    slow = [world.client() for _ in range(MAX_CLIENTS)]
    assert world.answer(GET)[0] == 200
    assert [is_dropped(sock) for sock in slow] == [True] + [False] * (MAX_CLIENTS - 1)


def test_a_client_that_does_not_read(world: World) -> None:
    world.size = 20_000
    silent = world.client(GET)
    world.listener.step()
    assert world.answer(GET.replace(b"/metrics", b"/"))[0] == 404
    world.now_s += CLIENT_S
    world.listener.step()
    with silent.makefile("rb") as file, contextlib.suppress(ConnectionResetError):
        assert b"# EOF" not in file.read()


def test_a_client_that_is_gone(world: World) -> None:
    world.client(GET[:9]).close()
    world.listener.step()
    world.client(GET).close()
    world.listener.step()
    world.listener.step()
    assert world.answer(GET)[0] == 200


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
        assert b"\nutracefs_up 1\n" in scrape(home / "m")
        out, err = interrupt(process, number)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (0, b"", b"")
    assert not (home / "m").exists()


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
