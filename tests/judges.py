"""The real readers that judge written files.

`make ci` installs all of them, and there a test whose reader is missing fails. Elsewhere the test is left
out, and the last line of pytest names the reader: many are large.
"""

import importlib
import importlib.util
import os
import shutil
import subprocess
from typing import Any, NoReturn

import attrs
import pytest

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
    "systemd-analyze": "systemd",
    "systemd-socket-activate": "systemd",
    "systemd-sysusers": "systemd",
    "systemd-tmpfiles": "systemd",
    "cmake": "cmake",
    "g++": "g++",
    "pkg-config": "pkg-config",
    "fusermount3": "fuse3",
    "openssl": "openssl",
    "gcc": "gcc",
    "clang": "clang",
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "nats-server": "nats-server",
}
"""A program, and the Debian package that has it."""

SYSTEM_PYTHON = "/usr/bin/python3"
"""The Python that has python3-bt2, the binding of babeltrace2."""


LEFT_OUT = "left out without "
"""Beginning of the reason of a skipped test."""


class Judges:
    """Settings of this run."""

    all_needed = False
    """With --ci: a missing judge fails its tests."""


def missing(name: str, package: str) -> NoReturn:
    """Fail the test, or leave it out. At the top of a module: all of its tests."""
    if Judges.all_needed:
        pytest.fail(f"{name} is missing: `make ci` installs {package}")
    pytest.skip(LEFT_OUT + name, allow_module_level=True)


def judge(name: str) -> str:
    """The path of a program."""
    path = shutil.which(name)
    return path or missing(name, f"the Debian package {PACKAGES[name]}")


def needs(name: str) -> pytest.MarkDecorator:
    """A test that is left out where the program is missing, also with --ci: not every machine can run it."""
    return pytest.mark.skipif(shutil.which(name) is None, reason=LEFT_OUT + name)


@attrs.frozen
class Library:
    """A module that is imported at its first use: not by all workers, which collect every test."""

    _name: str

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def library(name: str) -> Any:
    """A module of a large package from PyPI; for the top of a test module."""
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        missing(package, "the dependency group `judges`")
    return Library(name)


def run_judge(name: str, *words: object, timeout_s: float = 100, may_warn: bool = False) -> bytes:
    """Its output; a judge that fails, or writes to stderr, disagrees.

    may_warn: ignore its stderr.
    """
    environ = {**os.environ, "LC_ALL": "C.UTF-8", "PERF_PAGER": "cat", "PERF_CONFIG": os.devnull}
    done = subprocess.run(
        [judge(name), *map(str, words)], capture_output=True, timeout=timeout_s, check=False, env=environ
    )
    assert done.returncode == 0 and (may_warn or done.stderr == b""), done
    return done.stdout
