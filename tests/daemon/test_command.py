"""`utracefsd` without the packages that it needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.test_command import run_python


@pytest.mark.parametrize("missing", ["trio", "click", "attr"])
def test_it_says_what_to_install(missing: str, tmp_path: Path) -> None:
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('no', name={missing!r})")
    done = run_python(tmp_path, "-m", "utracefsd")
    said = f"utracefsd: {missing} is not installed: pip install 'utracefs[daemon]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_a_fault_of_its_own_is_shown_whole(tmp_path: Path) -> None:
    (tmp_path / "trio.py").write_text("import nothing_of_that_name")
    done = run_python(tmp_path, "-m", "utracefsd")
    assert done.returncode == 1 and "Traceback" in done.stderr and "nothing_of_that_name" in done.stderr


@pytest.mark.parametrize("broken", ["closed", "full"])
def test_the_status_of_a_daemon_whose_log_cannot_be_written(broken: str, tmp_path: Path) -> None:
    """Python would make it 120."""
    ready, ready_w = os.pipe()
    log, log_w = os.pipe() if broken == "closed" else (-1, os.open("/dev/full", os.O_WRONLY))
    words = ["-m", "utracefsd", "--dir", str(tmp_path / "d"), "--ready-fd", str(ready_w)]
    process = subprocess.Popen([sys.executable, *words], pass_fds=[ready_w], stderr=log_w)
    try:
        for fd in (ready_w, log_w):
            os.close(fd)
        assert os.read(ready, 10) == b"READY\n"
        if log >= 0:
            os.close(log)
    finally:
        os.close(ready)
        process.terminate()
        status = process.wait(60)
    assert status == 0
