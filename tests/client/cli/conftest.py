"""Fixtures: a folder with a short path, a real daemon in it, and the command line with and without that
daemon."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.cli.kit import Cli
from tests.forked import Popen
from tests.integration.mount.mounting import wait_for


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path, since sockets live below it."""
    folder = tempfile.mkdtemp(prefix="ut-", dir="/tmp")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cli(home: Path) -> Iterator[Cli]:
    """Without a daemon."""
    with Cli(home) as cli:
        yield cli


PLUGIN = """
import pathlib, time

SLOW = pathlib.Path(__file__).with_name("slow")

class Tally:
    name = "tally"
    def __init__(self):
        self.count = 0
    def take(self, batch):
        if SLOW.with_name("raises").exists():
            raise KeyError("n")
        self.count += len(batch)
    def report(self):
        if SLOW.exists():  # longer than the daemon waits
            SLOW.unlink()
            time.sleep(0.6)
        return f"{self.count} records"
"""


@pytest.fixture
def plugin_path(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH in which the plug-in `tally` is installed."""
    (tmp_path / "tally_plugin.py").write_text(PLUGIN)
    info = tmp_path / "tally_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tally-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[utracefs.consumers]\ntally = tally_plugin:Tally\n")
    return tmp_path


@pytest.fixture
def daemon(home: Path, plugin_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """`python -m utracefsd` in home/d."""
    ready, ready_w = os.pipe()
    process = Popen(
        [sys.executable, "-m", "utracefsd", "--dir", str(home / "d"), "--ready-fd", str(ready_w)],
        env={**os.environ, "PYTHONPATH": str(plugin_path)},
        pass_fds=[ready_w],
        stderr=subprocess.PIPE,
    )
    os.close(ready_w)
    try:
        assert os.read(ready, 16).startswith(b"READY")
        yield process
    finally:
        os.close(ready)
        process.terminate()
        _, log = process.communicate(timeout=60)
        # A daemon that a test killed could not remove it.
        status_file = re.search(rb"status file (/dev/shm/utracefs-[0-9a-f]{16})/", log)
        if status_file:
            shutil.rmtree(status_file[1].decode(), ignore_errors=True)
    assert b"Traceback" not in log, log.decode()


@pytest.fixture
def traced(home: Path, daemon: object) -> Iterator[Cli]:
    """With a daemon."""
    with Cli(home, str(home / "d")) as cli:
        yield cli


@pytest.fixture
def eventually() -> Callable[[Callable[[], object], str], None]:
    """Wait for a condition with a deadline."""
    return wait_for
