"""A test that is too slow prints its stacks, also in a worker; a test that leaves something behind fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(folder: Path, program: str, *options: str, status: int = 1) -> str:
    """The output of pytest with our conftest."""
    (folder / "test_it.py").write_text(program)
    words = [sys.executable, "-m", "pytest", "-p", "tests.conftest", f"--rootdir={folder}", *options]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environ["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [*words, "-c", os.devnull, f"--basetemp={folder}/base", folder / "test_it.py"],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def test_the_stacks_of_a_test_that_kills_its_worker(tmp_path: Path) -> None:
    program = "import time\ndef test_slow() -> None:\n    time.sleep(1000)\n"
    text = run(tmp_path, program, "-n1", "--timeout=1", "--timeout-method=thread")
    assert "crashed while running" in text
    assert "line 3 in test_slow" in text


def test_a_failure_with_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    text = run(tmp_path, "def test_bytes() -> None:\n    assert '\\udcff' == ''\n", "-n1")
    assert "1 failed" in text and "\\udcff" in text


def test_a_file_that_is_left_out(tmp_path: Path) -> None:
    program = "import pytest\npytest.skip('why', allow_module_level=True)\n"
    assert "1 skipped" in run(tmp_path, program, "-n2", status=5)


def test_what_a_test_leaves(tmp_path: Path) -> None:
    program = (
        "import subprocess, tempfile\ndef test_careless() -> None:\n"
        "    subprocess.Popen(['sleep', '1000'])\n    tempfile.mkdtemp(prefix='left-')\n"
    )
    text = run(tmp_path, program)
    assert "AssertionError: tests left behind:\n" in text and " sleep 1000" in text
    left = re.search("(/.*/left-.*), made in test_it.py::test_careless", text)
    assert left and not Path(left[1]).exists()
