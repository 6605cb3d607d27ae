"""Ctrl-C before the command line is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

IMPORTED_BY_THE_COMMAND_LINE = """
import os, signal, sys
os.kill(os.getpid(), signal.SIGINT)
print("continued", flush=True)
sys.exit(0)
"""


def run(folder: Path, *, ignored: bool = False) -> subprocess.CompletedProcess[bytes]:
    (folder / "click.py").write_text(IMPORTED_BY_THE_COMMAND_LINE)
    return subprocess.run(
        [sys.executable, "-c", "from utracefs.command import main; main()", "status"],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        timeout=60,
        preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignored else None,
        check=False,
    )


def test_it_ends_without_a_word(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    done = run(tmp_path, ignored=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"continued\n", b"")


def test_it_says_what_to_install(tmp_path: Path) -> None:
    for missing in ("click", "attr"):
        (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('no', name={missing!r})")
        done = subprocess.run(
            [sys.executable, "-m", "utracefs", "report", "trace.dat"],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        (tmp_path / f"{missing}.py").unlink()
        said = f"utracefs: {missing} is not installed: pip install 'utracefs[tools]'\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_so_does_the_reader_of_recordings(tmp_path: Path) -> None:
    (tmp_path / "attr.py").write_text("raise ModuleNotFoundError('no', name='attr')")
    (tmp_path / "attrs.py").write_text("raise ModuleNotFoundError('no', name='attrs')")
    for name in ("open", "attach"):
        done = subprocess.run(
            [sys.executable, "-c", f"import utracefs; utracefs.event('a u32 b'); utracefs.{name}"],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "pip install 'utracefs[tools]'" in done.stderr.splitlines()[-1], done.stderr
        assert f"utracefs.{name}: attr" in done.stderr
