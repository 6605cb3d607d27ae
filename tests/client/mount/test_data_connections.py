"""Connections on behalf of processes, with daemons that are away, busy, or somebody else's."""

from __future__ import annotations

import errno
import logging
from typing import Any

import pytest

from tests.client.mount.kernel.fake_kernel import NIL, Kernel
from utracefs.mount.data_connections import AWAY_S, Asking
from utracefs.mount.operation import Operation, Steps
from utracefs_protocol.messages.data import OpenFor
from utracefs_protocol.messages.rows import Params

OWNER = OpenFor(77, 5000, 1000, 100)


class Daemon:
    """The answers for OpenFor."""

    error = 0
    is_silent = False

    def __call__(self, params: Params) -> Any:
        if self.is_silent:
            return None
        if isinstance(params, OpenFor) and self.error:
            raise OSError(self.error, "refused")
        return NIL


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def kernel(daemon: Daemon) -> Kernel:
    return Kernel(daemon)


class Run:
    """Steps, and how they ended."""

    def __init__(self, steps: Asking[Any]) -> None:
        self.result: Any = None
        self.error: int | None = None

        def whole() -> Steps:
            self.result = yield from steps
            return b""

        def done(_reply: bytes, number: int) -> None:
            self.error = number

        Operation(whole(), done).start()


def connect(kernel: Kernel) -> Run:
    return Run(kernel.connections.connected(OWNER))


def test_the_daemon_of_another_user(kernel: Kernel, daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    """Connections count as ours then; it is logged once, and the daemon gets no second request."""
    daemon.error = errno.EPERM
    with caplog.at_level(logging.WARNING):
        assert [connect(kernel).error for _ in range(2)] == [0, 0]
    assert len(caplog.records) == 1 and "another user's" in caplog.text
    assert [len(channel.log) for channel in kernel.data_channels] == [1, 0]
    assert not kernel.connections.speaks_for_others


def test_a_daemon_that_is_away(kernel: Kernel) -> None:
    kernel.connections.is_away = True
    runs = [connect(kernel), connect(kernel)]
    kernel.pass_time(0.5)
    assert kernel.data_channels == []
    kernel.connections.is_away = False
    kernel.pass_time(0.1)
    assert [run.error for run in runs] == [0, 0]
    kernel.connections.is_away = True
    run = connect(kernel)
    kernel.pass_time(AWAY_S + 0.5)
    assert run.error == errno.ENOTCONN


@pytest.mark.parametrize("reconnects", [True, False])
def test_a_socket_that_is_not_there(kernel: Kernel, reconnects: bool) -> None:
    kernel.connections.reconnects |= reconnects
    answers = [OSError(errno.ENOTCONN, "x"), OSError(errno.ENOTCONN, "x")]
    make = kernel.connections.connect

    def refuse(*args: Any) -> Any:
        if answers:
            raise answers.pop(0)
        return make(*args)

    kernel.connections.connect = refuse
    run = connect(kernel)
    kernel.pass_time(0.5)
    assert run.error == (0 if reconnects else errno.ENOTCONN)


def test_steps_without_an_owner(kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Asking[None]:
        yield from ()
        raise OSError(errno.EMFILE, "too many")

    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            kernel.connections.begin(fail())
    assert len(caplog.records) == 1 and "Too many open files" in caplog.text


def test_the_log_is_bounded(kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for number in range(200):
            kernel.connections.say("pid %d", number)
    assert len(caplog.records) == 100
