"""Programs with libutracefs-preload.so in front of the C library."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.client.c.building import SOURCE, kernel_abi, preload_library

# Warnings about the wrong pointers and sizes that these programs pass on purpose.
FLAGS = "-std=gnu11 -Wall -Wextra -Werror -Wno-nonnull -Wno-stringop-overflow -Wno-stringop-overread"


def compiled(name: str, folder: Path, *flags: str) -> Path:
    """client/c/tests/NAME as a program in `folder`."""
    program = folder / Path(name).stem
    command = [
        "gcc",
        *FLAGS.split(),
        *kernel_abi(),
        *flags,
        "-pthread",
        str(SOURCE / "tests" / name),
        "-o",
        str(program),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def environment(*before: str, **others: str) -> dict[str, str]:
    """With the library in LD_PRELOAD, after the libraries that must come first. Without coverage's start."""
    here = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_PROCESS")}
    return {**here, "LD_PRELOAD": ":".join([*before, str(preload_library())]), **others}


def run(*command: object, env: Mapping[str, str] | None = None, input: str = "") -> str:
    """Returns its output; it must exit with 0 and without output on standard error."""
    done = subprocess.run(
        [str(word) for word in command],
        env=environment() if env is None else env,
        input=input,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{command}: {done.returncode}: {done.stderr}"
    return done.stdout
