"""A directory for sockets, a fake daemon in it, sessions that are closed again; and nothing left behind."""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.fake_daemon import FakeDaemon, running, wait_for
from utracefs import Session


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short enough for a socket's path, which tmp_path may not be. Children find it, too."""
    path = Path(tempfile.mkdtemp(prefix="utracefs-test-"))
    monkeypatch.setenv("UTRACEFS_DIR", str(path))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def daemon(directory: Path) -> Iterator[FakeDaemon]:
    yield from running(directory)


@pytest.fixture
def new_session(directory: Path) -> Iterator[Callable[..., Session]]:
    made: list[Session] = []
    descriptors = len(os.listdir("/proc/self/fd"))

    def make(**options: int) -> Session:
        made.append(Session(directory, **options))
        return made[-1]

    yield make
    for session in made:
        session.close()
    wait_for(lambda: not [t for t in threading.enumerate() if t.name == "utracefs"])
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)


@pytest.fixture
def session(daemon: FakeDaemon, new_session: Callable[..., Session]) -> Session:
    return new_session()
