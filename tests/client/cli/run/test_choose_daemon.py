"""Which daemon a command works with."""

import signal
import subprocess
from typing import Any

import pytest

from tests.client.cli.kit import Cli
from utracefs.cli import Failure
from utracefs.cli.common import NoAnswer, connect
from utracefs.cli.run.choose_daemon import running_or_own


def test_the_one_that_runs(traced: Cli) -> None:
    directory = traced.env["UTRACEFS_DIR"]
    for has_command in (False, True):
        with running_or_own(directory, has_command=has_command) as (tree, own):
            assert (tree.directory, own) == (directory, False)


def test_one_of_our_own_for_a_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UTRACEFS_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(cli.home))
    with running_or_own(None, has_command=True) as (tree, own):
        assert own and tree.read_file("tracing_on") == b"1\n"
    with pytest.raises(Failure, match="no daemon is there"), running_or_own(None, has_command=False):
        pass


def test_a_directory_that_was_named_must_have_one() -> None:
    with (
        pytest.raises(Failure, match="no daemon is there"),
        running_or_own("/nonexistent", has_command=True),
    ):
        pass


def test_our_own_beside_one_that_runs(traced: Cli, daemon: "subprocess.Popen[bytes]") -> None:
    with running_or_own(None, has_command=True, embedded=True) as (tree, own):
        assert own and tree.directory != traced.env["UTRACEFS_DIR"]


def test_a_stopped_one_keeps_no_command_from_running(
    traced: Cli,
    daemon: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stopped = traced.env["UTRACEFS_DIR"]

    def soon(directory: str) -> Any:
        return connect(directory, hello_s=0.1) if directory == stopped else connect(directory)

    monkeypatch.setattr("utracefs.cli.run.choose_daemon.connect", soon)
    daemon.send_signal(signal.SIGSTOP)
    try:
        with running_or_own(stopped, has_command=True) as (tree, own):
            assert own and tree.directory != stopped
        with pytest.raises(NoAnswer), running_or_own(stopped, has_command=False):
            pass
    finally:
        daemon.send_signal(signal.SIGCONT)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("does not answer within 0.1 s; is it stopped?; recording with a daemon of its own")
