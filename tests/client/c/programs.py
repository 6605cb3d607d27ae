"""Test programs that answer line by line."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Program:
    """The program's answer to one line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, line: object) -> str:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def number(self, line: object) -> int:
        return int(self.ask(line))

    @property
    def pid(self) -> int:
        return self.process.pid


@contextmanager
def started(path: Path, *arguments: object, **environment: str) -> Iterator[Program]:
    """Ends at the end of its input, with status 0."""
    process = subprocess.Popen(
        [path, *map(str, arguments)],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Program(process)
        assert process.stdin
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe
            pipe.close()
