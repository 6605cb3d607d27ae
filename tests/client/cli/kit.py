"""Shared parts of the tests of the command line: the command line as a process."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from tests.forked import Popen
from tests.integration.mount.mounting import wait_for
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.text import text_of

ANSWER_S = 60

Eventually = Callable[[Callable[[], object], str], None]
"""Type of the fixture `eventually`."""


class Cli:
    """`python -m utracefs.cli` in an environment where it finds only our daemon."""

    def __init__(self, home: Path, directory: str | None = None) -> None:
        self.home = home
        self.env = {k: v for k, v in os.environ.items() if k != "UTRACEFS_DIR"}
        self.env["XDG_RUNTIME_DIR"] = str(home)
        if directory:
            self.env["UTRACEFS_DIR"] = directory
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """However the test ends, none of its processes is left."""
        for process in self._started:
            with process:
                process.kill()

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "utracefs.cli", *words]

    def run(self, *words: str, status: int = 0, data: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        with self.start(*words, stdin=subprocess.PIPE) as process:
            try:
                out, error = process.communicate(data, ANSWER_S)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(process.args, process.returncode, out, error)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
        return done

    def out(self, *words: str, data: bytes = b"") -> str:
        return text_of(self.run(*words, data=data).stdout)

    def fails(self, *words: str, status: int = 1) -> str:
        """One line on stderr that begins with our name."""
        error = self.run(*words, status=status).stderr.decode()
        assert error.startswith("utracefs: ") and error.endswith("\n") and error.count("\n") == 1, error
        return error

    def start(self, *words: str, **options: Any) -> "subprocess.Popen[bytes]":
        """Without buffers: communicate() would leave out what a readline() has read ahead."""
        process = Popen(
            self.command(*words),
            env=self.env,
            cwd=self.home,
            bufsize=0,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        self._started.append(process)
        return process

    def recording(self, *words: str, event: str = "web u32 n; u32 usec") -> "subprocess.Popen[bytes]":
        """A recorder that is attached to an event which somebody has declared."""
        self.run("reg", event)
        process = self.start("record", *words)
        wait_for(lambda: "Used by" in self.out("cat", "user_events_status"), "it records")
        return process

    def standing(self) -> str:
        """`standing_events` of all instances, without any that of the top one: recorders write it last."""
        names = self.out("ls", "instances").split()
        return self.out("cat", *[f"instances/{name}standing_events" for name in names] or ["standing_events"])


class Files(Tracefs):
    """A tree whose files are in a dict."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)

    def read_file(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def read_files(self, paths: Iterable[str]) -> list[bytes | OSError]:
        return [self.files.get(path, FileNotFoundError()) for path in paths]

    def write_file(self, path: str, data: bytes, truncate: bool = True) -> int:
        self.files[path] = data if truncate else self.files.get(path, b"") + data
        return len(data)


def interrupt(
    process: "subprocess.Popen[bytes]", number: signal.Signals = signal.SIGINT
) -> tuple[bytes, bytes]:
    process.send_signal(number)
    return process.communicate(timeout=60)
