"""Mounts for tests: `utracefs mount` as a process, and whether this machine permits it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.forked import Popen
from utracefs.mount.attaching import attach, detach, is_attached

CLI = [sys.executable, "-m", "utracefs.cli"]


def why_no_mount(directory: Path) -> str | None:
    """None: mounts can be made here."""
    directory.mkdir(exist_ok=True)
    try:
        device = attach(str(directory))
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    detach(str(directory))
    os.close(device)
    return None


def must_mount(directory: Path) -> None:
    """Skip where mounting is not permitted."""
    reason = why_no_mount(directory)
    if reason is not None:
        pytest.skip(reason)


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


class MountProcess:
    """`utracefs mount --foreground`; `options` come before the directory."""

    def __init__(self, daemon_directory: str, path: Path, *options: str) -> None:
        self.path = path
        self.log = ""
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        self.process = Popen(
            [*CLI, "--dir", daemon_directory, "mount", "--foreground", *options, str(path)],
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> MountProcess:
        """It is mounted."""
        wait_for(lambda: self.process.poll() is not None or is_attached(str(self.path)), "mounted")
        assert self.process.poll() is None, self.ended()
        return self

    def ended(self, timeout_s: float = 60) -> int:
        """Its status, once it has ended by itself."""
        _, log = self.process.communicate(timeout=timeout_s)
        self.log += log
        return self.process.returncode

    def close(self) -> None:
        """However the test ends, nothing is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGCONT)
                self.process.terminate()
            if not self.process.stderr or not self.process.stderr.closed:
                self.ended(10)
        self.process.kill()
        self.process.wait()
        while is_attached(str(self.path)):
            detach(str(self.path))


@contextlib.contextmanager
def mounted(daemon_directory: str, path: Path, *options: str) -> Iterator[MountProcess]:
    mount = MountProcess(daemon_directory, path, *options)
    try:
        yield mount.ready()
    finally:
        mount.close()
        print(mount.log)  # pytest shows it if the test fails
    assert "Traceback" not in mount.log, mount.log


def run(
    command: Sequence[str] | str, cwd: Path, timeout_s: float = 100, **env: str
) -> subprocess.CompletedProcess[str]:
    """A command of a shell in that directory. env: further variables."""
    return subprocess.run(
        ["bash", "-c", command] if isinstance(command, str) else command,
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
