"""The real readers that judge written files.

`make ci` installs all of them, and there a test whose reader is missing fails. Elsewhere the test is left
out, and the last line of pytest names the reader: many are large.

    python -m tests.judges [small]      Debian packages of the missing ones, for the Makefile
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Final, NoReturn

import attrs
import pytest


def _runs(*words: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="utracefs-judge-") as folder:
        done = subprocess.run(words, cwd=folder, capture_output=True, check=False, timeout=60)
    return done.returncode == 0


def _python_with_bt2() -> str | None:
    """Debian's Python has the binding of babeltrace2; the one of this environment hardly ever."""
    candidates = dict.fromkeys(["/usr/bin/python3", shutil.which("python3"), sys.executable])
    return next((one for one in candidates if one and _runs(one, "-c", "import bt2")), None)


def _rustc() -> str | None:
    """The one of rustup is there without a toolchain, too."""
    path = shutil.which("rustc")
    return path if path and _runs("sh", "-c", f"echo 'fn main() {{}}' | {path} -o main -") else None


@attrs.frozen
class Judge:
    """One that comes in a package of Debian."""

    package: str
    is_small: bool = False
    """`make test` installs it, too."""
    is_optional: bool = False
    """`make ci` does not install it."""
    find: Any = None
    """() -> path or None, if more is needed than a program of that name on PATH."""


JUDGES: Final = {
    "trace-cmd": Judge("trace-cmd", is_small=True),
    "g++": Judge("g++", is_small=True),
    "pkg-config": Judge("pkg-config", is_small=True),
    "fusermount3": Judge("fuse3", is_small=True),
    "openssl": Judge("openssl", is_small=True),
    "gcc": Judge("gcc", is_small=True),
    "perf": Judge("linux-perf", find=lambda: shutil.which("perf") if _runs("perf", "--version") else None),
    "babeltrace2": Judge("babeltrace2"),
    "bt2": Judge("python3-bt2", find=_python_with_bt2),
    "kernelshark": Judge("kernelshark"),
    "Xvfb": Judge("xvfb"),
    "xwininfo": Judge("x11-utils"),
    "import": Judge("imagemagick"),
    "convert": Judge("imagemagick"),
    "node": Judge("nodejs"),
    "chromium": Judge("chromium"),
    "systemd-analyze": Judge("systemd"),
    "systemd-socket-activate": Judge("systemd"),
    "systemd-sysusers": Judge("systemd"),
    "systemd-tmpfiles": Judge("systemd"),
    "cmake": Judge("cmake"),
    "clang": Judge("clang"),
    "promtool": Judge("prometheus"),
    "prometheus": Judge("prometheus"),
    "nats-server": Judge("nats-server"),
    "rustc": Judge("rustc", is_optional=True, find=_rustc),
    "strace": Judge("strace", is_optional=True),
}
"""By name; `bt2` is a Python."""

LEFT_OUT = "left out without "
"""Beginning of the reason of a skipped test."""


class Judges:
    """Settings of this run."""

    all_needed = False
    """With --ci: a missing judge fails its tests."""
    hidden = False
    """With --no-judges: as on a machine that has none."""


def missing(name: str, package: str) -> NoReturn:
    """Fail the test, or leave it out. At the top of a module: all of its tests."""
    if Judges.all_needed:
        pytest.fail(f"{name} is missing: `make ci` installs {package}")
    pytest.skip(LEFT_OUT + name, allow_module_level=True)


@functools.cache
def find(name: str) -> str | None:
    """The path of a judge that can be used."""
    one = JUDGES[name]
    return None if Judges.hidden else one.find() if one.find else shutil.which(name)


def judge(name: str) -> str:
    """The path of a program."""
    return find(name) or missing(name, f"the Debian package {JUDGES[name].package}")


def needs(name: str) -> pytest.MarkDecorator:
    """A test that is left out where the program is missing, also with --ci: not every machine can run it."""
    return pytest.mark.skipif(find(name) is None, reason=LEFT_OUT + name)


@attrs.frozen
class Library:
    """A module that is imported at its first use: not by all workers, which collect every test."""

    _name: str

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def library(name: str) -> Any:
    """A module of a large package from PyPI; for the top of a test module."""
    package = name.partition(".")[0]
    if Judges.hidden or importlib.util.find_spec(package) is None:
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


if __name__ == "__main__":
    wanted = [name for name, one in JUDGES.items() if one.is_small or sys.argv[1:] != ["small"]]
    print(*dict.fromkeys(JUDGES[n].package for n in wanted if not JUDGES[n].is_optional and not find(n)))
