"""What the tests of the command line share: the command line as a process, events to write files from, the
real reader."""

import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from utracefs_protocol.declaration import Declaration, parse
from utracefs_protocol.event_format import format_text
from utracefs_protocol.layout import Layout

ANSWER_S = 60

Eventually = Callable[[Callable[[], object], str], None]
"""Of the fixture `eventually`."""


class Cli:
    """`python -m utracefs.cli` in an environment where no daemon but ours can be found."""

    def __init__(self, home: Path, directory: str | None = None) -> None:
        self.home = home
        self.env = {k: v for k, v in os.environ.items() if k != "UTRACEFS_DIR"}
        self.env["XDG_RUNTIME_DIR"] = str(home)
        if directory:
            self.env["UTRACEFS_DIR"] = directory

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "utracefs.cli", *words]

    def run(self, *words: str, status: int = 0, data: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        done = subprocess.run(
            self.command(*words),
            env=self.env,
            cwd=self.home,
            input=data,
            capture_output=True,
            timeout=ANSWER_S,
            check=False,
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
        return done

    def out(self, *words: str, data: bytes = b"") -> str:
        return self.run(*words, data=data).stdout.decode("utf-8", "surrogateescape")

    def fails(self, *words: str, status: int = 1) -> str:
        """One line on stderr that begins with our name."""
        error = self.run(*words, status=status).stderr.decode()
        assert error.startswith("utracefs: ") and error.endswith("\n") and error.count("\n") == 1, error
        return error

    def start(self, *words: str, **options: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self.command(*words),
            env=self.env,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )


class Events:
    """Declarations by event id, and entries of them."""

    def __init__(self, first_id: int, *declarations: bytes) -> None:
        self.declared: dict[int, Declaration] = {
            first_id + n: parse(text) for n, text in enumerate(declarations)
        }

    def formats(self) -> list[bytes]:
        return [format_text(d.name, number, d.fields) for number, d in self.declared.items()]

    def entry(self, number: int, pid: int, *values: Any) -> bytes:
        payload = Layout(self.declared[number].fields).pack(*values)
        return struct.pack("<HBBi", number, 0, 0, pid) + payload


needs_trace_cmd = pytest.mark.skipif(
    shutil.which("trace-cmd") is None, reason="the Debian package trace-cmd is the judge"
)


def trace_cmd(*words: str) -> str:
    """stdout of the real reader; its stderr must be empty."""
    done = subprocess.run(["trace-cmd", *words], capture_output=True, timeout=60, check=True)
    assert done.stderr == b"", done.stderr
    return done.stdout.decode("utf-8", "surrogateescape")


def interrupt(
    process: "subprocess.Popen[bytes]", number: signal.Signals = signal.SIGINT
) -> tuple[bytes, bytes]:
    process.send_signal(number)
    return process.communicate(timeout=30)
