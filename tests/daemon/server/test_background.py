"""`utracefsd --background` and `--stop`."""

import re
import subprocess
from pathlib import Path
from typing import IO

from tests.daemon.test_main import COMMAND, DEADLINE_S, call
from tests.forked import Popen


def run(folder: Path, *options: str, errors: int | IO[bytes] = subprocess.PIPE) -> tuple[int, str]:
    """A command for the daemon in folder/d: its exit status and errors."""
    process = Popen([*COMMAND, "--dir", "d", *options], cwd=folder, stderr=errors, text=True)
    _, error = process.communicate(timeout=DEADLINE_S)
    return process.returncode, error


def test_in_the_background_it_is_there_when_the_command_returns(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    try:
        # (with a pipe as stderr: the daemon must not keep it open, or this would not return)
        status, error = run(tmp_path, "--background")
        assert status == 0, error
        assert call(directory / "tracefs", "read_file", "current_tracer")
        status, error = run(tmp_path, "--background")
        assert status == 1 and error.count("\n") == 1, error
    finally:
        stopped = run(tmp_path, "--stop")
    assert stopped == (0, "")
    assert not (directory / "tracefs").exists()
    assert run(tmp_path, "--stop") == (1, f"utracefsd: {directory}: no daemon is there\n")


def test_in_the_background_it_logs_into_a_file(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as log:
        assert run(tmp_path, "--background", errors=log)[0] == 0
    assert run(tmp_path, "--stop") == (0, "")
    assert "ending: SIGTERM" in (tmp_path / "log").read_text()


def test_stop_says_where_the_state_is(tmp_path: Path) -> None:
    assert run(tmp_path, "--background", "--keep-state")[0] == 0
    call(tmp_path / "d" / "tracefs", "mkdir", "instances/mine")
    status, error = run(tmp_path, "--stop")
    assert status == 0
    folder = re.fullmatch(
        r"utracefsd: events, settings and records stay in (\S+) for the next daemon;"
        r" --discard-state starts without them\n",
        error,
    )
    assert folder is not None and (Path(folder[1]) / "state").exists(), error
    assert run(tmp_path, "--background", "--discard-state")[0] == 0
    assert call(tmp_path / "d" / "tracefs", "list_dir", "instances") == []
    assert run(tmp_path, "--stop") == (0, "")
