"""A daemon of one's own: where it lives, and that it ends."""

import os
import signal
import stat
from pathlib import Path

import pytest

from utracefs.cli import Failure
from utracefs.cli.run.embedded_daemon import embedded_daemon
from utracefs.tree.tracefs import Tracefs
from utracefsd.server.runtime import locate


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


def test_nothing_is_left_when_its_command_cannot_be_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    with pytest.raises(Failure, match="not found"), embedded_daemon() as directory:
        raise Failure("nosuch", "command not found")
    assert list(home.iterdir()) == []
    assert not locate(directory).status_folder.exists()


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
