"""A fork of the template behaves as a new interpreter does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import ROOT, Popen, Template

CLI = [sys.executable, "-m", "utracefs.cli"]


def both(*words: str, data: bytes = b"", **options: Any) -> tuple[tuple[bytes, bytes, int], ...]:
    """Output, errors and status of the command, by a fork and by a new interpreter."""
    found = []
    for make in (Popen, subprocess.Popen):
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        with make([*CLI, *words], **pipes, **options) as process:
            out, error = process.communicate(data, 60)
        found.append((out, error, process.returncode))
    return tuple(found)


@pytest.mark.parametrize("words", [["--help"], ["nonsense"], ["report", "nosuch"], ["completion", "zsh"]])
def test_output_and_status(words: list[str], tmp_path: Path) -> None:
    forked, real = both(*words, cwd=tmp_path)
    assert forked == real and any(forked)


def test_environment_and_descriptors(tmp_path: Path) -> None:
    """A daemon that reports that it is ready, with a plug-in found by PYTHONPATH only."""
    (tmp_path / "tally.py").write_text("class Tally:\n    name = 'tally'\n    take = report = None\n")
    info = tmp_path / "tally-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tally\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[utracefs.consumers]\ntally = tally:Tally\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "UTRACEFS_DIR": str(tmp_path / "d")}
    ready, ready_w = os.pipe()
    words = [sys.executable, "-m", "utracefsd", "--ready-fd", str(ready_w), "--plugin", "tally"]
    with Popen(
        words, env=environ, pass_fds=[ready_w], stderr=subprocess.PIPE, start_new_session=True
    ) as daemon:
        os.close(ready_w)
        assert os.read(ready, 10) == b"READY\n"
        os.close(ready)
        assert (tmp_path / "d" / "tracefs").is_socket()
        assert os.getsid(daemon.pid) == daemon.pid
        assert daemon.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            daemon.wait(0.01)
        daemon.send_signal(signal.SIGINT)
        assert b"SIGINT" in daemon.communicate(timeout=60)[1]
    assert daemon.returncode == 0


def test_killed(tmp_path: Path) -> None:
    with Popen([*CLI, "--dir", str(tmp_path), "daemon"], stderr=subprocess.DEVNULL) as process:
        process.kill()
    assert process.returncode == -signal.SIGKILL


def test_a_real_interpreter_where_it_matters() -> None:
    (out, error, status), real = both("--version", env={**os.environ, "PYTHONVERBOSE": "1"})
    assert b"import 'utracefs.cli'" in error and (out, status) == (real[0], real[2])


def test_a_descriptor_with_a_high_number(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out:
        os.dup2(out.fileno(), 1700)
    try:
        program = "import os; os.write(1700, b'here')"
        with Popen([sys.executable, "-c", program], pass_fds=[1700]) as process:
            assert process.wait(60) == 0
    finally:
        os.close(1700)
    assert (tmp_path / "out").read_bytes() == b"here"


STOPPED = """
import signal, subprocess, sys
from tests.forked import Popen
with subprocess.Popen(["sleep", "60"]) as stopped:
    stopped.send_signal(signal.SIGSTOP)
    fork = Popen([sys.executable, "-c", "pass"])
    print(fork.wait(60))
    stopped.kill()
"""


def test_a_stopped_process_while_a_fork_ends() -> None:
    """The kernel does not send SIGHUP to their process group."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPED], start_new_session=True, capture_output=True, cwd=ROOT, check=False
    )
    assert (done.stdout, done.returncode) == (b"0\n", 0), done.stderr


def test_a_template_that_cannot_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "utracefsd.py").write_text("raise ImportError('broken today')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    template = Template()
    for _ in range(2):
        with pytest.raises(ChildProcessError, match="broken today"):
            template.fork({}, [])
    template.end()


ORPHANS = """
import os, subprocess, sys
from pathlib import Path
from tests.forked import Popen
from tests.left_over import watch
watch(Path('/nonexistent'))
Popen([sys.executable, "-c", "import time; time.sleep(600)"])
subprocess.Popen(["sleep", "600"])
print("running", flush=True)
input()
"""


def test_programs_end_when_their_tests_are_killed() -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", ORPHANS], cwd=ROOT, **pipes) as tests:
        assert tests.stdout and tests.stdout.readline() == "running\n"
        tests.kill()
        assert tests.stdout.read() == ""  # until no program has it open
