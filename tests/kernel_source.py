"""The kernel's own tests, from Debian's package of its source, which is fetched once into the user's cache.

Nothing of it is in this repository, and nothing is installed. Without the package the test is left out, and
pytest prints why.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.judges import LEFT_OUT, Judges

PREFERRED = "linux-source-6.12"
"""The kernel of the transcripts in tests/conformance; without it the newest one is used."""

UNPACKED = (
    "tools/testing/selftests/ftrace",
    "tools/testing/selftests/user_events",
    "tools/testing/selftests/kselftest*.h",
    "include/uapi/linux/user_events.h",
)

UNPACK = """
dpkg-deb --fsys-tarfile "$1" | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' |
    { folder=$2; shift 2; tar -xJ -C "$folder" --strip-components=1 --wildcards "$@"; }
"""

TIMEOUT_S = 400
"""Time limit of a download (150 MB), or of the unpacking, which takes about 10 s of one processor."""

FAILED_S = 3600
"""Tests do not try again so long after a failure: of Linux 6.1 the header is found missing at the end."""


def kernel_source() -> Path:
    """The folder with `UNPACKED`. Skips the test if there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "utracefs-tests"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if found := sorted(cache.glob("linux-source-*")):
            return found[-1]
        if not Judges.all_needed:
            pytest.skip(LEFT_OUT + PREFERRED)  # a download of 150 MB
        lock.seek(0)
        why, since_s = lock.read(), time.time() - os.fstat(lock.fileno()).st_mtime
        if why and since_s < FAILED_S:
            pytest.skip(why)
        lock.truncate(0)
        try:
            return _fetch(cache)
        except pytest.skip.Exception as skipped:
            lock.write(str(skipped))
            raise


def _fetch(cache: Path) -> Path:
    for program in ("apt-get", "dpkg-deb", "xz"):
        if shutil.which(program) is None:
            pytest.skip(f"left out, since the source of a kernel cannot be fetched: there is no {program}")
    names = _run("apt-cache", "pkgnames", "linux-source-").split()
    packages = [name for name in names if re.fullmatch(r"linux-source-\d+\.\d+", name)]
    if not packages:
        pytest.skip("left out, since apt knows no package linux-source-*; `apt-get update` may help")
    package = max(packages, key=lambda name: (name == PREFERRED, [int(n) for n in re.findall(r"\d+", name)]))
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        _run("apt-get", "-q", "download", package, cwd=folder)
        (deb,) = Path(folder).glob("*.deb")
        unpacked = Path(folder) / "unpacked"
        unpacked.mkdir()
        patterns = [f"linux-source-*/{path}" for path in UNPACKED]
        _run("bash", "-o", "pipefail", "-c", UNPACK, "bash", str(deb), str(unpacked), *patterns)
        return unpacked.rename(cache / deb.stem)


def _run(*words: str, cwd: str | None = None) -> str:
    try:
        return subprocess.run(
            words, cwd=cwd, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=True
        ).stdout
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        last = str(error.stderr or "").strip().splitlines()[-1:]
        why = " ".join([type(error).__name__, words[0], *last])
        pytest.skip(f"left out, since the source of a kernel cannot be fetched: {why}")
