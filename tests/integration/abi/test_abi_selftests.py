"""The kernel's own tests of user_events, unmodified, in both ways: tools/testing/selftests/user_events.

They open files below /sys/kernel/tracing, where a mount namespace of their own shows the tree.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.integration.abi.programs import VIA, run, world
from tests.integration.conftest import DaemonProcess
from tests.kernel_source import TIMEOUT_S, kernel_source

TRACEFS = "/sys/kernel/tracing"
INSIDE = f'mount --make-rprivate / && mount --bind "$1" {TRACEFS} && LD_PRELOAD=$3 exec "$2"'

EXPECTED = {
    "perf_test": dict.fromkeys(
        ("user.perf_write", "user.perf_empty_events"),
        "perf_event_open is a system call: the kernel knows no event of a daemon",
    )
}
"""Program -> test -> why it fails."""


def built(name: str, folder: Path, *flags: str) -> Path:
    kernel = kernel_source()
    program = folder / name
    source = kernel / f"tools/testing/selftests/user_events/{name}.c"
    command: list[str | Path] = [
        "gcc",
        *flags,
        "-I",
        kernel / "include/uapi",
        source,
        "-o",
        program,
        "-lpthread",
    ]
    subprocess.run(command, check=True, capture_output=True)
    return program


@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.skipif(os.geteuid() != 0, reason="they want to be root")
@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize(
    ("name", "count"), [("ftrace_test", 6), ("dyn_test", 4), ("abi_test", 6), ("perf_test", 2)]
)
def test_hold(name: str, count: int, via: str, daemon: DaemonProcess, tmp_path: Path) -> None:
    if (
        not os.path.isdir(TRACEFS)
        or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"no {TRACEFS}, or no mount namespaces")
    # A program for the mount may be static, one with a preloaded library not.
    program = built(name, tmp_path, *(["-static"] if via == "mount" else []))
    with world(via, daemon, tmp_path) as there:
        environment = dict(there.environment)
        preloaded = environment.pop("LD_PRELOAD", "")
        words = ["-m", "bash", "-c", INSIDE, "bash", there.tree, program, preloaded]
        done = run(Path("/usr/bin/unshare"), *words, env=environment, timeout_s=100)
    said = done.stdout.decode() + done.stderr.decode()
    held = re.findall(r"^ok \d+ (\S+)", said, re.MULTILINE)
    failed = re.findall(r"^not ok \d+ (\S+)", said, re.MULTILINE)
    assert (sorted(failed), len(held) + len(failed)) == (sorted(EXPECTED.get(name, {})), count), said
