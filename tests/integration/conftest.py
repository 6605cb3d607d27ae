"""Fixtures of the integration tests: real processes, each in a directory that is removed afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.forked import Popen
from tests.integration.mount.mounting import MountProcess, mounted, must_mount, wait_for
from utracefs.tree.tracefs import Tracefs
from utracefsd.server.runtime import locate


class DaemonProcess:
    """`python -m utracefsd` in `directory`; can be killed and started again there."""

    def __init__(self, directory: str | Path, *options: str) -> None:
        self.directory = str(directory)
        self.options = options
        self.within: Sequence[str] = ()
        """A command that runs it, as nsenter."""
        self.process: subprocess.Popen[bytes] | None = None
        self.log = b""

    def start(self) -> None:
        ready, ready_w = os.pipe()
        try:
            self.process = self._begin(ready_w)
            os.close(ready_w)
            answer = os.read(ready, 16)
        finally:
            os.close(ready)
        if not answer.startswith(b"READY"):
            raise AssertionError(f"the daemon did not start: {self.stop()!r}")

    def _begin(self, ready_w: int) -> subprocess.Popen[bytes]:
        """It writes to `ready_w` when it is there."""
        return Popen(
            [
                *self.within,
                *(sys.executable, "-m", "utracefsd", "--dir", self.directory, "--ready-fd", str(ready_w)),
                *self.options,
            ],
            pass_fds=[ready_w],
            stderr=subprocess.PIPE,
        )

    def stop(self, kill: bool = False) -> bytes:
        """End it and return its log since the start."""
        if self.process is None:
            return b""
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        _, log = self.process.communicate(timeout=60)
        self.process = None
        self.log += log
        return log

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def tree(self) -> Tracefs:
        return Tracefs(self.directory)


@contextlib.contextmanager
def own_directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="utracefs-test-") as path:
        try:
            yield path
        finally:
            # The state that a daemon keeps for the next one; here there is none.
            shutil.rmtree(locate(path).status_folder, ignore_errors=True)


@pytest.fixture
def directory() -> Iterator[str]:
    with own_directory() as path:
        yield path


@contextlib.contextmanager
def running(directory: str | Path, within: Sequence[str] = ()) -> Iterator[DaemonProcess]:
    process = DaemonProcess(directory)
    process.within = within
    process.start()
    try:
        yield process
    finally:
        process.stop()
        print(process.log.decode(errors="replace"))  # pytest shows it if the test fails
    assert b"Traceback" not in process.log, process.log.decode(errors="replace")


@pytest.fixture
def daemon(directory: str) -> Iterator[DaemonProcess]:
    with running(directory) as process:
        yield process


@pytest.fixture(scope="module")
def shared_mount_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, MountProcess]]:
    """One daemon and one mount for all tests of a file that leave them running: directory of its sockets,
    mount."""
    must_mount(tmp_path_factory.mktemp("probe"))
    with (
        own_directory() as directory,
        running(directory),
        mounted(directory, tmp_path_factory.mktemp("tree")) as mount,
    ):
        yield directory, mount


@pytest.fixture(scope="module")
def shared_mount(shared_mount_process: tuple[str, MountProcess]) -> tuple[str, Path]:
    """Directory of its sockets, mountpoint."""
    directory, mount = shared_mount_process
    return directory, mount.path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """For a mount."""
    must_mount(tmp_path / "tree")
    return tmp_path / "tree"


@pytest.fixture
def page_folder() -> Iterator[Path]:
    """For a page played by console.py; a short name, since socket paths are limited."""
    made = Path(tempfile.mkdtemp(prefix="ut-", dir="/tmp"))
    try:
        yield made
    finally:
        log = made / "daemon.log"
        found = re.search(r"/dev/shm/utracefs-[0-9a-f]{16}", log.read_text() if log.exists() else "")
        if found:
            shutil.rmtree(found[0], ignore_errors=True)
        shutil.rmtree(made)


@pytest.fixture
def environment(directory: str) -> dict[str, str]:
    """The environment of a program that uses this daemon."""
    return {**os.environ, "UTRACEFS_DIR": directory}


@pytest.fixture
def eventually() -> Callable[[Callable[[], object], str], None]:
    """Wait for a condition with a deadline, never for luck."""
    return wait_for
