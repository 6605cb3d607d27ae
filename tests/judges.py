"""The real readers that judge written files, and the tools that tests need: one table.

    python -m tests.judges test|ci     installs the missing ones, if it may, or says how

`make ci` installs all of them, and there a test whose reader is missing fails. Elsewhere the test is left
out, and the last line of pytest names the reader: many are large. HIDDEN_JUDGES=NAME,NAME or =all runs the
tests as on a machine that has none of these.
"""

import functools
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any, NoReturn

import attrs
import pytest


@attrs.frozen
class Tool:
    """A program counts if it can do what tests need of it: `words` succeeds with `given` as its input."""

    package: str
    """Debian's."""
    installed_by: str = "ci"
    """`make test`, `make ci`, or neither."""
    words: tuple[str, ...] = ()
    """Without words it is enough that there is a program."""
    given: str = ""
    program: str = ""
    """Where it is not the name."""


C_MAIN = "#include <stdlib.h>\nint main(void) { return 0; }\n"
TOOLS = {
    "trace-cmd": Tool("trace-cmd", "test"),
    "fusermount3": Tool("fuse3", "test"),
    "g++": Tool("g++", "test", ("-x", "c++", "-"), C_MAIN),
    "pkg-config": Tool("pkg-config", "test"),
    "openssl": Tool("openssl", "test"),
    "gcc": Tool("gcc", "test", ("-x", "c", "-"), C_MAIN),
    "libbpf": Tool("libbpf-dev", "ci", ("--exists", "libbpf"), program="pkg-config"),
    "clang": Tool("clang", "ci", ("-x", "c", "-"), C_MAIN),
    "rustc": Tool("rustc", "", ("-",), "fn main() {}"),  # of rustup it may be without a toolchain
    "strace": Tool("strace", "", ("true",)),
    "musl-gcc": Tool("musl-tools", "ci", ("-x", "c", "-"), C_MAIN),
    "bpftrace": Tool("bpftrace", "ci", ("--version",)),
    "perf": Tool("linux-perf", "ci", ("version",)),  # it may be a script that looks for one of this kernel
    "babeltrace2": Tool("babeltrace2"),
    "bt2": Tool("python3-bt2", "ci", ("-c", "import bt2"), program="/usr/bin/python3"),
    "kernelshark": Tool("kernelshark"),
    "Xvfb": Tool("xvfb"),
    "xwininfo": Tool("x11-utils"),
    "import": Tool("imagemagick"),
    "convert": Tool("imagemagick"),
    "node": Tool("nodejs"),
    "chromium": Tool("chromium"),
    "systemd-analyze": Tool("systemd"),
    "systemd-socket-activate": Tool("systemd"),
    "systemd-sysusers": Tool("systemd"),
    "systemd-tmpfiles": Tool("systemd"),
    "cmake": Tool("cmake"),
    "make": Tool("make", "test"),
    "promtool": Tool("prometheus"),
    "prometheus": Tool("prometheus"),
    "nats-server": Tool("nats-server"),
}
LEFT_OUT = "left out without "
"""Beginning of the reason of a skipped test."""


class Judges:
    """Settings of this run."""

    all_needed = False
    """With --ci: a missing judge fails its tests."""


def hidden(name: str) -> bool:
    return bool({name, "all"} & set(os.environ.get("HIDDEN_JUDGES", "").split(",")))


@functools.cache
def found(name: str) -> str | None:
    """The path of a program that works."""
    tool = TOOLS[name]
    path = None if hidden(name) else shutil.which(tool.program or name)
    if path and tool.words:
        with tempfile.TemporaryDirectory() as folder:
            words = [path, *tool.words]
            done = subprocess.run(
                words, input=tool.given.encode(), capture_output=True, cwd=folder, check=False
            )
        return None if done.returncode else path
    return path


def missing(name: str, package: str) -> NoReturn:
    """Fail the test, or leave it out. At the top of a module: all of its tests."""
    if Judges.all_needed:
        pytest.fail(f"{name} is missing: `make ci` installs {package}")
    pytest.skip(LEFT_OUT + name, allow_module_level=True)


def judge(name: str) -> str:
    """The path of a program."""
    return found(name) or missing(name, f"the Debian package {TOOLS[name].package}")


def needs(name: str) -> pytest.MarkDecorator:
    """A test that is left out where the program is missing, also with --ci: not every machine can run it."""
    return pytest.mark.skipif(found(name) is None, reason=LEFT_OUT + name)


@attrs.frozen
class Library:
    """A module that is imported at its first use: not by all workers, which collect every test."""

    _name: str

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def library(name: str) -> Any:
    """A module of a large package from PyPI; for the top of a test module."""
    package = name.partition(".")[0]
    if hidden(package) or importlib.util.find_spec(package) is None:
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


def main(target: str) -> int:
    def lacking() -> list[str]:
        found.cache_clear()
        names = [name for name, tool in TOOLS.items() if tool.installed_by in ("test", target)]
        return sorted({TOOLS[name].package for name in names if not found(name)})

    packages = lacking()
    if packages and not os.geteuid() and shutil.which("apt-get"):
        print("installing the Debian packages", *packages, flush=True)
        for words in (
            ["install", "-y", "-q", *packages],
            ["update", "-q"],
            ["install", "-y", "-q", *packages],
        ):
            done = subprocess.run(
                ["apt-get", *words], stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
            if words[0] == "install" and not done.returncode:
                break
        packages = lacking()
    if packages:
        print("utracefs: please install Debian packages: apt install", *packages, file=sys.stderr)
    return bool(packages)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
