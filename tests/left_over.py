"""Leftovers of tests: folders, daemons' folders in /dev/shm, mounts, processes, and open descriptors.

Other runs of these tests may be in progress, so only what this run made counts: `watch` records, by Python's
audit events, every temporary file and folder that this process makes, and the daemon directory of every
program that it starts. Programs are recognised by a variable of their environment. The helpers of
multiprocessing, and their folder, end with this process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

from utracefsd.server.runtime import directory_hash

VARIABLE = "UTRACEFS_TESTS"
FOLDER_VARIABLE = "UTRACEFS_TESTS_FOLDER"
SHARED_MEMORY = Path("/dev/shm")
MOUNTS = Path("/proc/self/mounts")


class LeftOver:
    """Things made since, and by which test."""

    def __init__(self, folder: Path | None = None) -> None:
        """folder: pytest's own, which stays; mounts in it are leftovers."""
        self.folder = folder
        self.paths: dict[Path, str] = {}
        self.directories: dict[Path, str] = {}
        self.word = secrets.token_hex(8)
        self.pid = os.getpid()

    def note(self, event: str, arguments: tuple[object, ...]) -> None:
        """An audit hook. Forked children are ignored: they end without notice."""
        if event in ("tempfile.mkdtemp", "tempfile.mkstemp") and os.getpid() == self.pid:
            self.paths[Path(str(arguments[0]))] = _test()
        elif event == "subprocess.Popen" and os.getpid() == self.pid:
            _, words, _, environ = arguments
            for directory in _directories(words, environ if environ is not None else os.environ):
                self.directories.setdefault(Path(os.path.abspath(directory)), _test())

    def found(self) -> Iterator[tuple[Path, str]]:
        """Things that still exist, and the test that made them."""
        for path, test in self.paths.items():
            if os.path.lexists(path) and not path.name.startswith("pymp-"):
                yield path, test
        for directory, test in self.directories.items():
            for path in SHARED_MEMORY.glob(f"utracefs-{directory_hash(directory)}*"):
                yield path, test

    def processes(self) -> Iterator[str]:
        """Programs of this run that still run: pid and command line."""
        mine = f"{VARIABLE}={self.word}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environ = (folder / "environ").read_bytes().split(b"\0")
                words = (folder / "cmdline").read_bytes()
                if mine in environ and int(folder.name) != self.pid and b"from multiprocessing." not in words:
                    yield f"{folder.name} {words.replace(bytes(1), b' ').decode(errors='replace')}"

    def mounts(self) -> Iterator[str]:
        """Mount points in folders of this run, also of a file system whose server has ended."""
        folders = [*self.paths, *filter(None, [self.folder])]
        for line in MOUNTS.read_text().splitlines():
            point = line.split()[1].encode().decode("unicode_escape")  # a space is \040
            if any(Path(point).is_relative_to(folder) for folder in folders):
                yield point

    def report(self) -> list[str]:
        """All leftovers, a line each."""
        made = [f"{path}, made in {test}" for path, test in self.found()]
        return [*(f"{point} is mounted" for point in self.mounts()), *made, *self.processes()]

    def kill(self) -> None:
        """Kill the programs of this run, until none is left."""
        deadline = time.monotonic() + 10
        while (lines := list(self.processes())) and time.monotonic() < deadline:
            for line in lines:
                with contextlib.suppress(OSError):
                    os.kill(int(line.split()[0]), signal.SIGKILL)

    def remove(self) -> None:
        self.kill()
        for point in list(self.mounts()):
            subprocess.run(["umount", "--lazy", point], check=False)
        for path, _ in list(self.found()):
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):
                path.unlink()


def descriptors() -> set[tuple[str, str]]:
    """Number and target of each open descriptor of this process."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists them is closed
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


def descriptors_since(before: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Descriptors that stay open when garbage is collected and threads have had time to close theirs."""
    gc.collect()
    deadline = time.monotonic() + 5
    while (left := descriptors() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return sorted(left)


def watch(folder: Path, environ: MutableMapping[str, str] = os.environ) -> LeftOver:
    """From now on to the end of this process: an audit hook cannot be removed."""
    left_over = LeftOver(folder)
    environ[VARIABLE] = left_over.word
    environ[FOLDER_VARIABLE] = str(folder)
    sys.addaudithook(left_over.note)
    return left_over


def _test() -> str:
    return os.environ.get("PYTEST_CURRENT_TEST", "?").removesuffix(" (setup)").removesuffix(" (call)")


def _directories(words: object, environ: object) -> Iterator[str]:
    if isinstance(words, (str, bytes)) or not isinstance(words, Sequence):
        words = [words]
    texts = [os.fsdecode(word) if isinstance(word, (str, bytes, os.PathLike)) else "" for word in words]
    for option, value in zip(texts, [*texts[1:], ""], strict=True):
        if option == "--dir" and value:
            yield value
        elif option.startswith("--dir="):
            yield option.removeprefix("--dir=")
    if isinstance(environ, Mapping):
        for name, value in environ.items():
            if os.fsdecode(name) == "UTRACEFS_DIR" and value:
                yield os.fsdecode(value)
