"""The C library, built once, a daemon, and programs in C that find it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.c.building import build
from tests.integration.conftest import DaemonProcess, running


@pytest.fixture(scope="session")
def built() -> Path:
    return build("all", "tests")


@pytest.fixture
def daemon(directory: Path) -> Iterator[DaemonProcess]:
    """A daemon in `directory`."""
    with running(directory) as process:
        yield process


@pytest.fixture
def events_on(daemon: DaemonProcess) -> None:
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
