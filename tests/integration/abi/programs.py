"""Programs that know only <linux/user_events.h>, and the two ways in which they reach a daemon.

`mount`: they open the file of a mounted tree. `preload`: the same path, with libutracefs-preload.so before
the C library. The rest of the tree is the mount's in both cases.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from tests.client.c.building import kernel_abi, preload_library
from tests.integration.conftest import DaemonProcess
from tests.integration.mount.mounting import MountProcess, mounted, must_mount

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "tests" / "abi"
VIA = ["mount", "preload"]
FLAGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"]


BUILT: dict[tuple[str, ...], Path] = {}


def built(name: str, folder: Path, *flags: str) -> Path:
    """The program tests/abi/NAME.c, compiled into the `folder` of the first test that needs it."""
    if (name, *flags) not in BUILT:
        BUILT[name, *flags] = program = folder / name
        source = PROGRAMS / f"{name}.c"
        subprocess.run(["gcc", *FLAGS, *flags, *kernel_abi(), source, "-o", program], check=True)
    return BUILT[name, *flags]


def run(
    program: Path, *arguments: object, timeout_s: float, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Its forks end with it, also after a timeout."""
    process = subprocess.Popen(
        [program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        **options,
    )
    try:
        out, log = process.communicate(timeout=timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, log)


@attrs.frozen
class World:
    """A daemon, its mounted tree, and the environment of a program for either way."""

    daemon: DaemonProcess
    mount: MountProcess
    environment: Mapping[str, str]

    @property
    def tree(self) -> Path:
        return self.mount.path


@contextlib.contextmanager
def world(via: str, daemon: DaemonProcess, folder: Path, *options: str) -> Iterator[World]:
    """`options` are those of `utracefs mount`."""
    must_mount(folder / "tracing")
    environment = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "UTRACEFS_DIR")}
    if via == "preload":
        environment["LD_PRELOAD"] = str(preload_library())
        environment["UTRACEFS_DIR"] = daemon.directory
    with mounted(daemon.directory, folder / "tracing", *options) as mount:
        yield World(daemon, mount, environment)
