"""The real readers that judge what is written. A test that needs one fails where it is missing: `make
test-tools` installs all of them, by the packages named here.
"""

import os
import shutil
import subprocess

import pytest

__all__ = ["PACKAGES", "SYSTEM_PYTHON", "judge", "run_judge"]

PACKAGES = {
    "trace-cmd": "trace-cmd",
    "perf": "linux-perf",
    "babeltrace2": "babeltrace2",
    "/usr/bin/python3": "python3-bt2",
    "kernelshark": "kernelshark",
    "Xvfb": "xvfb",
    "xwininfo": "x11-utils",
    "import": "imagemagick",
    "convert": "imagemagick",
    "node": "nodejs",
    "chromium": "chromium",
    "fusermount3": "fuse3",
    "gcc": "gcc",
}
"""A program, and the Debian package that has it."""

SYSTEM_PYTHON = "/usr/bin/python3"
"""The one that sees python3-bt2, the binding of babeltrace2."""


def judge(name: str) -> str:
    """The path of a program; fails the test where it is missing."""
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is missing: `make test-tools` installs the Debian package {PACKAGES[name]}")
    return path


def run_judge(name: str, *words: object, timeout_s: float = 100, may_warn: bool = False) -> bytes:
    """What it prints; a judge that fails, or says something on stderr, does not agree.

    may_warn: what it says on stderr is no matter.
    """
    environ = {**os.environ, "LC_ALL": "C.UTF-8", "PERF_PAGER": "cat", "PERF_CONFIG": os.devnull}
    done = subprocess.run(
        [judge(name), *map(str, words)], capture_output=True, timeout=timeout_s, check=False, env=environ
    )
    assert done.returncode == 0 and (may_warn or done.stderr == b""), done
    return done.stdout
