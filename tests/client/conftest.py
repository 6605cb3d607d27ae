"""A directory for sockets, a fake daemon in it, sessions that are closed again; and nothing left behind."""

import contextlib
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.client.daemons.fake_daemon import FakeDaemon, running, wait_for
from tests.client.daemons.real_daemon import Work, working
from tests.client.html.chromium import Chromium
from tests.client.workbench import Workbench
from tests.integration import conftest as integration
from utracefs import Session
from utracefsd.server.runtime import locate


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short enough for a socket's path, which tmp_path may not be. Children find it, too."""
    path = Path(tempfile.mkdtemp(prefix="utracefs-test-"))
    monkeypatch.setenv("UTRACEFS_DIR", str(path))
    yield path
    shutil.rmtree(path)
    # The state that a daemon keeps for its successor; here there is none.
    shutil.rmtree(locate(path).status_folder, ignore_errors=True)


@pytest.fixture
def daemon(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """It offers no data ring, so requests can be counted without the one for a ring."""
    monkeypatch.setenv("UTRACEFS_DATA_RING", "0")
    yield from running(directory)


@pytest.fixture
def utracefsd(directory: Path) -> Iterator[integration.DaemonProcess]:
    with integration.running(directory) as process:
        yield process


def descriptors() -> set[str]:
    """Number and file of each open descriptor of this process."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return found


def native_threads() -> list[str]:
    """Names of this process's threads, including those outside of Python's threading."""
    found = []
    for number in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append(Path(f"/proc/self/task/{number}/comm").read_text().strip())
    return found


@pytest.fixture
def new_session(directory: Path) -> Iterator[Callable[..., Session]]:
    made: list[Session] = []
    before = descriptors()

    def make(**options: int) -> Session:
        made.append(Session(directory, **options))
        return made[-1]

    yield make
    for session in made:
        session.close()
    wait_for(lambda: "utracefs" not in native_threads())
    # (Their number: a daemon that was started again has other ones than before.)
    wait_for(lambda: len(descriptors()) <= len(before), what=lambda: descriptors() - before)


@pytest.fixture
def session(daemon: FakeDaemon, new_session: Callable[..., Session]) -> Session:
    return new_session()


@pytest.fixture
def bench() -> Iterator[Workbench]:
    bench = Workbench()
    yield bench
    bench.close()


@pytest.fixture
def work(directory: Path, tmp_path: Path) -> Iterator[Work]:
    yield from working(directory, tmp_path)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    with Chromium() as browser:
        yield browser


@pytest.fixture
def full_at() -> Iterator[Callable[[int], None]]:
    """From now on, until the test function ends, no file may be larger: to a file that is a full disk."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    signal.signal(signal.SIGXFSZ, handler)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Ends the limit of `full_at`: pytest prints a result, maybe to a large file, before the fixtures end."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        return (yield)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
