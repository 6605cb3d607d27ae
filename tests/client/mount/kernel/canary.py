"""A program that is looked at and written to from outside (canary.c), as an object."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("canary.c")


def build(folder: Path) -> Path:
    """The program, made in this folder."""
    program = folder / "canary"
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run([*command, SOURCE, "-o", program], check=True)
    return program


class Canary:
    """One that runs, until `close`. Its children end with it.

    options: of subprocess.Popen.
    """

    def __init__(self, program: Path, *wrapper: str, **options: Any) -> None:
        self._process: subprocess.Popen[str] = subprocess.Popen(
            [*wrapper, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        self.at = self.where()

    @property
    def pid(self) -> int:
        return self.at["pid"]

    def say(self, command: str) -> str:
        """The answer to a command of canary.c."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def where(self) -> dict[str, int]:
        return _numbers(self.say("where"))

    def words(self) -> dict[str, int]:
        """The values of the words; nothing else has changed."""
        answer = self.say("check")
        assert answer.startswith("ok "), answer
        return _numbers(answer[3:])

    def fork(self, count: int = 1) -> list[int]:
        return [int(pid) for pid in self.say(f"fork {count}").split()]

    def exec(self) -> None:
        """It begins anew; `at` stays as it was before."""
        assert self.say("exec") == "ok"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Twice is harmless."""
        self._process.kill()
        self._process.communicate()


def _numbers(text: str) -> dict[str, int]:
    return {name: int(value) for name, _, value in (part.partition("=") for part in text.split())}
