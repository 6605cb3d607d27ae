"""The service manager's two protocols, with sockets of the test."""

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from utracefsd.server import sd_notify
from utracefsd.server.sd_notify import ListenFd, Notifier, take_listen_fds


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """A value of NOTIFY_SOCKET, and the socket behind it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(60)
        name = str(tmp_path / "notify")
        sock.bind("\0" + name if request.param == "abstract" else name)
        yield ("@" + name if request.param == "abstract" else name), sock


def test_what_is_said(manager: tuple[str, socket.socket]) -> None:
    name, sock = manager
    environ = {"NOTIFY_SOCKET": name, "OTHER": "1"}
    notifier = Notifier.from_environ(environ)
    assert environ == {"OTHER": "1"}
    assert notifier.watchdog_interval_s is None
    notifier.ready("sockets in /x")
    assert sock.recv(4096).split(b"\n") == [
        b"READY=1",
        b"STATUS=sockets in /x",
        b"MAINPID=%d" % os.getpid(),
    ]
    notifier.watchdog()
    assert sock.recv(4096) == b"WATCHDOG=1"
    notifier.stopping()
    assert sock.recv(4096).startswith(b"STOPPING=1\n")


def test_nobody_asked() -> None:
    notifier = Notifier.from_environ({})
    assert notifier == Notifier(None, None)
    notifier.ready("x")
    notifier.watchdog()
    notifier.stopping()


def test_a_manager_that_is_gone_is_no_reason_to_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier.from_environ({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    with caplog.at_level(logging.WARNING):
        notifier.ready("x")
    assert "READY=1" in caplog.text


def test_a_manager_that_does_not_read_costs_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sd_notify, "SEND_TIMEOUT_S", 0.01)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "full"))
        notifier = Notifier(str(tmp_path / "full"), None)
        with caplog.at_level(logging.WARNING):
            while not caplog.records:
                notifier.watchdog()
    assert "WATCHDOG=1" in caplog.text


def test_a_strange_address_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert Notifier.from_environ({"NOTIFY_SOCKET": "vsock:2:1"}).address is None
    assert "vsock:2:1" in caplog.text


@pytest.mark.parametrize(
    ("environ", "interval_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "42"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "43"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_watchdog(environ: dict[str, str], interval_s: float | None) -> None:
    environ["NOTIFY_SOCKET"] = "/x"
    assert Notifier.from_environ(environ, pid=42).watchdog_interval_s == interval_s
    assert environ == {}


class TestListenFds:
    @pytest.fixture
    def descriptors(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
        """Two neighbouring descriptors in the place of 3 and 4; the first is returned."""
        null = os.open("/dev/null", os.O_RDONLY)
        first = fcntl.fcntl(null, fcntl.F_DUPFD, 200)
        while (second := fcntl.fcntl(null, fcntl.F_DUPFD, first + 1)) != first + 1:
            os.close(first)
            first = second
        os.close(null)
        monkeypatch.setattr(sd_notify, "FIRST_LISTEN_FD", first)
        yield first
        os.close(first)
        os.close(first + 1)

    def test_with_names(self, descriptors: int) -> None:
        environ = {
            "LISTEN_PID": "42",
            "LISTEN_FDS": "2",
            "LISTEN_FDNAMES": "user_events_data:tracefs",
            "A": "b",
        }
        assert take_listen_fds(environ, pid=42) == [
            ListenFd(descriptors, "user_events_data"),
            ListenFd(descriptors + 1, "tracefs"),
        ]
        assert environ == {"A": "b"}
        assert not os.get_inheritable(descriptors)
        assert not os.get_inheritable(descriptors + 1)

    def test_without_names(self, descriptors: int) -> None:
        environ = {"LISTEN_PID": "42", "LISTEN_FDS": "1"}
        assert take_listen_fds(environ, pid=42) == [ListenFd(descriptors, "unknown")]

    @pytest.mark.parametrize(
        "environ",
        [
            {},
            {"LISTEN_FDS": "2"},
            {"LISTEN_PID": "42"},
            {"LISTEN_PID": "43", "LISTEN_FDS": "2"},
            {"LISTEN_PID": "42", "LISTEN_FDS": "many"},
            {"LISTEN_PID": "42", "LISTEN_FDS": "0"},
        ],
    )
    def test_none_for_us(self, environ: dict[str, str]) -> None:
        assert take_listen_fds(environ, pid=42) == []
        assert environ == {}
