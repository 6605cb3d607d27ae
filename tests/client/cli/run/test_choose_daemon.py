"""Which daemon a command works with."""

import os
import signal
import socket
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.client.cli.kit import Cli
from utracefs.cli import Failure
from utracefs.cli.common import NoAnswer, connect
from utracefs.cli.run.choose_daemon import embedded_daemon, running_or_own
from utracefs.tree.tracefs import Tracefs
from utracefsd.server.runtime import locate


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
    with pytest.raises(Failure, match="no daemon is there") as error, running_or_own(None, has_command=False):
        pass
    assert error.value.about == f"{cli.home}/utracefs/tracefs and /run/utracefs/tracefs"


def test_it_does_not_report_to_the_service_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would take READY=1 for that of the command."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with embedded_daemon():
            pass
        with pytest.raises(BlockingIOError):
            manager.recv(4096)


def test_a_directory_that_was_named_must_have_one() -> None:
    with (
        pytest.raises(Failure, match="no daemon is there"),
        running_or_own("/nonexistent", has_command=True),
    ):
        pass


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
    assert line.startswith("utracefs: recording with a daemon of its own: ")
    assert line.endswith(": the daemon does not answer within 0.1 s; is it stopped?")


def test_it_answers_and_is_gone_afterwards(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    with embedded_daemon("--buffer-size-kb", "64") as directory:
        assert Path(directory).parent == home
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        status_folder = locate(directory).status_folder
        assert status_folder.is_dir()
        with Tracefs(directory, timeout_s=30) as tree:
            assert tree.read_file("tracing_on") == b"1\n"
    assert not os.path.exists(directory)
    assert not status_folder.exists()
    with pytest.raises(FileNotFoundError):
        Tracefs(directory)


def test_a_relative_runtime_dir_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As everywhere: the XDG Base Directory specification."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", ".")
    with embedded_daemon() as directory:
        assert directory.startswith("/tmp/utracefs-")


def test_it_does_not_start(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    with pytest.raises(Failure, match="did not start") as caught, embedded_daemon("--no-such-option"):
        raise AssertionError
    assert caught.value.reason == "did not start (exit status 2)"
    assert "--no-such-option" in capfd.readouterr().err, "what it says is for the user"
    assert list(home.iterdir()) == []


def test_the_rest_of_a_killed_daemon_is_removed_by_the_next(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its parent: a cgroup is killed as a whole."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    ready, ready_w = os.pipe()
    pid = os.fork()
    if not pid:
        with embedded_daemon("--buffer-size-kb", "64") as directory:
            lock = Path(directory, "utracefsd.lock").read_bytes()
            os.write(ready_w, lock + directory.encode())
            signal.pause()
    os.close(ready_w)
    daemon, _, directory = os.read(ready, 4096).decode().partition("\n")
    os.close(ready)
    folder = locate(directory).status_folder
    os.kill(int(daemon), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with embedded_daemon("--buffer-size-kb", "64"):
        assert not folder.exists()
        assert not os.path.exists(directory)
    assert list(home.iterdir()) == []
