"""`utracefsd --background` and `--stop`."""

import functools
import subprocess
from pathlib import Path

from tests.daemon.test_main import COMMAND, DEADLINE_S, call


def test_in_the_background_it_is_there_when_the_command_returns(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    words = [*COMMAND, "--dir", "d"]
    run = functools.partial(
        subprocess.run, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    try:
        # (with a pipe as stderr: the daemon must not keep it open, or this would not return)
        begun = run([*words, "--background"])
        assert begun.returncode == 0, begun.stderr
        assert call(directory / "tracefs", "read_file", "current_tracer")
        second = run([*words, "--background"])
        assert second.returncode == 1 and second.stderr.count("\n") == 1, second.stderr
    finally:
        stopped = run([*words, "--stop"])
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert not (directory / "tracefs").exists()
    again = run([*words, "--stop"])
    assert (again.returncode, again.stderr) == (1, f"utracefsd: {directory}: no daemon is there\n")


def test_in_the_background_it_logs_into_a_file(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as log:
        subprocess.run(
            [*COMMAND, "--dir", tmp_path / "d", "--background"], stderr=log, check=True, timeout=60
        )
    subprocess.run([*COMMAND, "--dir", tmp_path / "d", "--stop"], check=True, timeout=60)
    assert "ending: SIGTERM" in (tmp_path / "log").read_text()
