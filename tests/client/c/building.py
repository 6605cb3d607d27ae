"""The C library, built by whoever asks first."""

from __future__ import annotations

import fcntl
import functools
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "client" / "c"


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


def preload_library() -> Path:
    return build("all") / "libutracefs-preload.so"
