"""Every scenario script, played by a C program over the kernel's own interface, gives the transcript of a
6.12 kernel, over the mount and with the preload library.

Differing operations are listed here with the reason, and `docs/differences.md` tells users. The comparison is
exact in both directions: a difference that no longer exists must be removed from the list.

Run `python -m tests.integration.abi.test_abi_conformance VIA [SCRIPT]` to see the differences as text.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import transcript
from tests.daemon.restarting import one_cpu
from tests.integration.abi.programs import ROOT, VIA, World, built, run, world
from tests.integration.conftest import DaemonProcess
from utracefs_protocol.text import text_of
from utracefsd.server.runtime import locate

NOT_HERE = "the files of other tracers (set_ftrace_*, tracing_max_latency) do not exist"
EVENT_FILES = "ours has inject, which that kernel was built without, and stats"
NO_BYTES = "FUSE does not ask for a write of no bytes"
NO_POSITION = "the mounted file has no position (ESPIPE); the record in `trace` is missing, too"
UNREADABLE = "FUSE passes on what lies before the unreadable memory, as a record that ends there"
BUSYBOX = "`ls` of another make"
EXPECTED: dict[str, dict[int, str]] = {
    "01_types": {136: EVENT_FILES, 138: NOT_HERE + "; ours has standing_events and consumers/"},
    "08_writes": {182: BUSYBOX},
    "12_filter": dict.fromkeys((503, 504), NO_BYTES),
    "25_instances": {
        7: NOT_HERE + "; ours has standing_events and remove_on_close",
        8: EVENT_FILES,
    },
    "30_lifetime": dict.fromkeys((129, 133), "no event gets the id of a removed one that has records"),
}
"""Script -> {operation number -> why} on both ways."""

EXPECTED_VIA: dict[str, dict[str, dict[int, str]]] = {
    "mount": {
        "08_writes": {
            **dict.fromkeys((21, 47), NO_BYTES),
            **dict.fromkeys((32, 33, 53), NO_POSITION),
            143: "FUSE reads the argument of an unknown request, too, and answers EFAULT",
            **dict.fromkeys((165, 166, 167, 169, 171), UNREADABLE),
        }
    },
    "preload": {},
}
"""In addition to these."""

PERHAPS = {"08_writes": {88, 126}, "30_lifetime": {11, 12}}
"""Texts that show bytes of the writer's pid, which may be equal by chance; whether events without references
have been removed already."""

IN_TIME = {("08_writes", "preload"): {136}}
"""A record with invalid fields that no tracer looks at: EFAULT if the daemon does not say so in 0.75 ms.
test_abi_invalid.py has that it is taken otherwise."""


def play(script: str, there: World, folder: Path) -> str:
    side = subprocess.Popen(
        [sys.executable, "-m", "tests.abi.perf_events", there.daemon.directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert side.stdin and side.stdout
    ends = side.stdin.fileno(), side.stdout.fileno()
    try:
        done = run(
            built("player", folder),
            transcript.write_script(script, folder),
            there.tree,
            *ends,
            pass_fds=ends,
            env={**there.environment, "LC_ALL": "C"},  # else grep omits lines that are not UTF-8
            timeout_s=100,
        )
    finally:
        side.communicate(timeout=60)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return text_of(done.stdout)


def differences(script: str, via: str, daemon: DaemonProcess, folder: Path) -> list[transcript.Difference]:
    with world(via, daemon, folder) as there:
        ours = play(script, there, folder)
    return transcript.compare(transcript.recorded(script), ours)


@pytest.fixture(autouse=True)
def on_one_cpu() -> Iterator[None]:
    with one_cpu():
        yield


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize("script", transcript.SCRIPTS)
def test_like_the_kernel(script: str, via: str, daemon: DaemonProcess, tmp_path: Path) -> None:
    expected = {**EXPECTED.get(script, {}), **EXPECTED_VIA[via].get(script, {})}
    perhaps = PERHAPS.get(script, set()) | IN_TIME.get((script, via), set())
    found = [d for d in differences(script, via, daemon, tmp_path) if d.number not in perhaps]
    unexpected = [d for d in found if d.number not in expected]
    assert not unexpected, "\n".join(map(str, unexpected[:10]))
    assert {d.number for d in found} == set(expected), "a listed difference is gone: take it off EXPECTED"


def main() -> None:
    via, *scripts = sys.argv[1:]
    for script in scripts or transcript.SCRIPTS:
        with tempfile.TemporaryDirectory(prefix="utracefs-") as directory, one_cpu():
            process = DaemonProcess(directory + "/run")
            process.start()
            try:
                found = differences(script, via, process, Path(directory))
            finally:
                print(process.stop().decode(errors="replace"), end="")
                shutil.rmtree(locate(process.directory).status_folder, ignore_errors=True)
        print(f"=== {script}: {len(found)} operations differ")
        for difference in found:
            print(difference)


if __name__ == "__main__":
    main()
