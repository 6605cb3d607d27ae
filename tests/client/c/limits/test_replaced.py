"""A program that puts a file of its own over a descriptor of the client, in the midst of its work."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.client.c.limits.test_limits import HERE, totals
from tests.client.c.test_thread import compiled
from tests.integration.conftest import DaemonProcess

PLACES = [
    ("memfd_create", 2),
    ("size", 2),
    ("seal", 2),
    ("eventfd", 2),
    ("socket", 2),
    ("socketpair", 2),
    ("recvmsg", 1),
    ("mmap", 3),
    ("dup", 8),
]
"""Kinds of calls of replaced.c, and how many of each are tried."""
IN_BETWEEN = "size"
"""Between the look at a descriptor and the change of its file: the one that nothing can close."""


@pytest.fixture(scope="module")
def replaced(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("replaced") / "replaced.c"
    source.write_text((HERE / "replaced.c").read_text())
    return compiled(source, built, "-Wl,-z,now")


@pytest.mark.usefixtures("events_on")
@pytest.mark.parametrize("longer", [False, True])
@pytest.mark.parametrize(("call", "most"), PLACES)
def test_the_file_stays(
    daemon: DaemonProcess, replaced: Path, tmp_path: Path, call: str, most: int, longer: bool
) -> None:
    """Neither the file nor the program is harmed, and each record is in a number. Longer: than a data ring,
    which shows whether it was cut; else shorter than what the client maps, which ends a program that reads
    there."""
    file = tmp_path / "file"
    for nth in range(1, most + 1):
        file.write_bytes(b"precious")
        if longer:
            os.truncate(file, 64 << 20)
        before = file.stat().st_size
        old = sum(totals(daemon)) if nth > 1 else 0
        done = subprocess.run(
            [replaced, call, str(nth), file],
            env={**os.environ, "UTRACEFS_DIR": daemon.directory},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        after = file.stat().st_size
        assert after >= before if call == IN_BETWEEN else after == before, (nth, done)
        with open(file, "rb") as stream:
            assert stream.read(100).rstrip(b"\0") == b"precious", (nth, done)
        if nth > 1 and done.returncode == 3:
            break  # it has fewer such calls
        assert done.returncode == 0, (nth, done)
        emitted, _ = map(int, done.stdout.split())
        assert sum(totals(daemon)) - old == emitted == 500, (nth, done)
