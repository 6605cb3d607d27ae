"""Ctrl-C before the command line is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

IMPORTED_BY_THE_COMMAND_LINE = """
import os, signal, sys
os.kill(os.getpid(), signal.SIGINT)
print("continued", flush=True)
sys.exit(0)
"""


def run_python(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Modules in `folder` come before the installed ones."""
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def run(folder: Path, *, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    (folder / "click.py").write_text(IMPORTED_BY_THE_COMMAND_LINE)
    ignore = (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignored else None
    words = ["-c", "from utracefs.command import main; main()", "status"]
    return run_python(folder, *words, preexec_fn=ignore)


def test_it_ends_without_a_word(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    done = run(tmp_path, ignored=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "continued\n", "")


def test_it_says_what_to_install(tmp_path: Path) -> None:
    for missing in ("click", "attr"):
        (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('no', name={missing!r})")
        done = run_python(tmp_path, "-m", "utracefs", "report", "trace.dat")
        (tmp_path / f"{missing}.py").unlink()
        said = f"utracefs: {missing} is not installed: pip install 'utracefs[daemon]'\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_so_does_the_reader_of_recordings(tmp_path: Path) -> None:
    (tmp_path / "attr.py").write_text("raise ModuleNotFoundError('no', name='attr')")
    (tmp_path / "attrs.py").write_text("raise ModuleNotFoundError('no', name='attrs')")
    for name in ("open", "attach"):
        done = run_python(tmp_path, "-c", f"import utracefs; utracefs.event('a u32 b'); utracefs.{name}")
        assert "pip install 'utracefs[tools]'" in done.stderr.splitlines()[-1], done.stderr
        assert f"utracefs.{name}: attr" in done.stderr
