"""The C library, built once by the first process that needs it, and compiler flags for programs of the
kernel's ABI."""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "client" / "c"


@functools.cache
def build(*targets: str, sanitize: str = "") -> Path:
    """The folder that the library and its test programs are built in; no two processes build at a time."""
    folder = SOURCE / (f"build-{sanitize.replace(',', '-')}" if sanitize else "build")
    folder.mkdir(exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(
            ["make", "-s", f"-j{os.cpu_count()}", "-C", SOURCE, f"SANITIZE={sanitize}", *targets],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    assert made.returncode == 0, made.stdout
    return folder


def sanitized(name: str, sanitize: str = "address,undefined") -> Path:
    """A program of client/c/tests with sanitizers. (To build all of them takes twice as long.)"""
    return build(f"build-{sanitize.replace(',', '-')}/tests/{name}", sanitize=sanitize) / "tests" / name


def kernel_abi() -> list[str]:
    """Flags with which a program finds <linux/user_events.h>: ours, where the system has none."""
    has_one = Path("/usr/include/linux/user_events.h").exists()
    return [] if has_one else ["-I", str(ROOT / "tests" / "abi" / "include")]


def preload_library() -> Path:
    return build("all") / "libutracefs-preload.so"
