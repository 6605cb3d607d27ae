"""Plays the `console` blocks of a page in a shell, one after the other, and compares their output.

    ```python, ```c           a file, named in its first line: # app.py, // app.c (c++ and toml, too)
    ```console                `$ COMMAND`, and below it its output, stderr included

In the expected output `...` stands for anything within a line, and a line `...` for any lines; the number of
blanks is ignored, since the width of columns depends on their contents.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import attrs

from tests.left_over import VARIABLE

END = "=== the end of the output ==="
ANSWER_S = 60
NAMED = re.compile(r"(?:#|//) (\w[\w-]*\.\w+)\b")


@attrs.frozen
class Step:
    """One command of the page."""

    line: int
    command: str
    expected: str


def _blocks(page: str, kind: str) -> Iterator[tuple[int, str]]:
    for found in re.finditer(rf"^```{kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        yield page.count("\n", 0, found.start(1)) + 1, found[1]


def steps(page: str) -> list[Step]:
    """All commands, in their order."""
    found = []
    for first, block in _blocks(page, "console"):
        for part in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            found.append(Step(first + block.count("\n", 0, part.start()), part[1], part[2]))
    return found


def files(page: str) -> dict[str, str]:
    """Programs of the page, by name."""
    texts = [text for kind in ("python", "c", r"c\+\+", "toml") for _, text in _blocks(page, kind)]
    named = [(NAMED.match(text), text) for text in texts]
    return {name[1]: text for name, text in named if name}


VARYING = [
    (r"(?<=\\-)\d+", r"\\d+"),
    (r"\\\[\d{3}\\\]", r"\\[\\d{3}\\]"),
    (r"\d+\\\.\d{6}:", r"\\d+\\.\\d{6}:"),
]
"""Thread id, cpu and time in a line of a trace, as `re.escape` writes them."""


def as_pattern(expected: str) -> str:
    """A regular expression for the expected output."""
    pattern = ""
    for line in expected.splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
            continue
        words = [re.escape(word).replace(r"\.\.\.", ".*?") for word in line.split()]
        if ":" in line and re.search(r"\[\d{3}\]", line):
            for value, any_value in VARYING:
                words = [re.sub(value, any_value, word) for word in words]
        pattern += r"[ \t]*" + r"[ \t]+".join(words) + r"[ \t]*\n"
    return pattern


def prepare(page: str, folder: Path) -> dict[str, str]:
    """Write its programs into the folder; returns the environment of its reader."""
    for name, text in files(page).items():
        (folder / name).write_text(text)
    (folder / "run").mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("UTRACEFS_") or k == VARIABLE}
    env["XDG_RUNTIME_DIR"] = str(folder / "run")
    return env


class Shell:
    """One bash for all commands, with job control; a context manager that ends its programs."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        tools = folder / "bin"
        tools.mkdir()
        # As an installer makes it: the kernel names the process after the script.
        installed = f"#!{sys.executable}\nfrom utracefs.command import main\nmain()\n"
        programs = {
            "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
            "utracefs": installed,
            "utracefsd": installed.replace("utracefs.", "utracefsd."),
        }
        for name, text in programs.items():
            script = tools / name
            script.write_text(text)
            script.chmod(0o755)
        self._stop = [str(tools / "utracefs"), "--dir", str(folder / "d"), "daemon", "--stop"]
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env={**env, "PATH": f"{tools}:{env['PATH']}", "COLUMNS": "100"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGTERM)
        self._bash.communicate(timeout=ANSWER_S)
        # Programs still run there only after a failure.
        subprocess.run(self._stop, stderr=subprocess.DEVNULL, timeout=ANSWER_S, check=False)

    def run(self, command: str) -> str:
        """Its output."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.write(f"{command}\necho; echo '{END}'\n".encode())
        self._bash.stdin.flush()
        lines: list[str] = []
        for line in self._bash.stdout:
            text = line.decode("utf-8", "replace")
            if text == f"{END}\n":
                return "".join(lines).removesuffix("\n")
            lines.append(text)
        raise AssertionError(f"the shell ended at {command!r}: {''.join(lines)}")

    def play(self, page: str, found: Iterable[Step]) -> None:
        """Compare the output of each."""
        for step in found:
            said = self.run(step.command)
            where = f"{page}:{step.line}: {step.command}\nprinted:\n{said}"
            assert re.fullmatch(as_pattern(step.expected), said), where

    def wait_for(self, command: str) -> None:
        """Until it succeeds."""
        deadline = time.monotonic() + ANSWER_S
        while "yes" not in self.run(f"{command} > /dev/null 2>&1 && echo yes"):
            assert time.monotonic() < deadline, command
