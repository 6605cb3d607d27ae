"""The C library, built once by the first process that needs it, and compiler flags for programs of the
kernel's ABI."""

from __future__ import annotations

import fcntl
import functools
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
            ["make", "-s", "-C", SOURCE, f"SANITIZE={sanitize}", *targets],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    assert made.returncode == 0, made.stdout
    return folder


def kernel_abi() -> list[str]:
    """Flags with which a program finds <linux/user_events.h>: ours, where the system has none."""
    has_one = Path("/usr/include/linux/user_events.h").exists()
    return [] if has_one else ["-I", str(ROOT / "tests" / "abi" / "include")]


def preload_library() -> Path:
    return build("all") / "libutracefs-preload.so"
