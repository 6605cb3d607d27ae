"""The C library, built once, a daemon, and programs in C that find it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import DaemonProcess
from utracefsd.server.runtime import locate

SOURCE = Path(__file__).parents[3] / "client" / "c"


def build(*targets: str, sanitize: str = "") -> Path:
    """The folder that the library and its test programs are built in; no two processes build at a time."""
    folder = SOURCE / (f"build-{sanitize.replace(',', '-')}" if sanitize else "build")
    folder.mkdir(exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(
            ["make", "-s", "-C", SOURCE, f"SANITIZE={sanitize}", *targets],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    assert made.returncode == 0, made.stdout
    return folder


@pytest.fixture(scope="session")
def built() -> Path:
    return build("all", "tests")


@pytest.fixture
def daemon(directory: Path) -> Iterator[DaemonProcess]:
    """That `directory` names."""
    process = DaemonProcess(str(directory))
    process.start()
    try:
        yield process
    finally:
        process.stop()
        shutil.rmtree(locate(str(directory)).status_folder, ignore_errors=True)
    assert b"Traceback" not in process.log, process.log.decode(errors="replace")


@pytest.fixture
def events_on(daemon: DaemonProcess, patience: None) -> None:
    """Every event of the test programs is enabled as soon as it is registered."""
    with daemon.tree() as tree:
        tree.write_file("standing_events", b"user_events:c_*\n")


Run = Callable[..., str]


@pytest.fixture
def run(built: Path) -> Run:
    """Runs a test program to its end; what it printed."""

    def run(program: str, *arguments: object, folder: Path = built, **environment: str) -> str:
        done = subprocess.run(
            [folder / "tests" / program, *map(str, arguments)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        return done.stdout

    return run
