"""KernelShark, where it is installed, on a screen that nobody sees: it opens what `utracefs record` wrote."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("kernelshark", "Xvfb", "xwininfo"))),
    reason="needs kernelshark, Xvfb and xwininfo (Debian: kernelshark xvfb x11-utils)",
)

NOBODY = 65534
PROGRAM = """
import utracefs
event = utracefs.event("shop_order u32 order; s16 change; char[12] channel; __rel_loc char[] article")
for n in range(5000):
    event.emit(n, -n % 100 - 50, "counter", "Brötchen")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """KernelShark asks root whether he means it, so it runs as somebody else, who gets in here."""
    path = Path(tempfile.mkdtemp(prefix="utracefs-test-"))
    for name in ("home", "run"):
        (path / name).mkdir(mode=0o700)
        if not os.geteuid():
            os.chown(path / name, NOBODY, NOBODY)
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def display() -> Iterator[str]:
    """Of a screen with 1280 x 800 points; any local process may draw on it."""
    number, number_w = os.pipe()
    words = ["Xvfb", "-displayfd", str(number_w), "-screen", "0", "1280x800x24", "-nolisten", "tcp", "-ac"]
    with subprocess.Popen(words, pass_fds=[number_w], stderr=subprocess.DEVNULL) as server:
        os.close(number_w)
        try:
            with open(number, "rb") as answer:
                yield f":{int(answer.readline())}"
        finally:
            server.terminate()


def record(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "utracefs", "record", "-o", str(path), "--", sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "UTRACEFS_PATIENCE_S": "30"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "5000 records" in done.stderr
    path.chmod(0o644)


def titles(display: str) -> str:
    """Of all windows, with their sizes."""
    words = ["xwininfo", "-display", display, "-root", "-tree"]
    return subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout


def test_it_opens_a_recording(folder: Path, display: str) -> None:
    path = folder / "trace.dat"
    record(path)
    environ = {
        **os.environ,
        "DISPLAY": display,
        "HOME": str(folder / "home"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "QT_QPA_PLATFORM": "xcb",
    }
    with subprocess.Popen(
        ["kernelshark", str(path)],
        env=environ,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        user=None if os.geteuid() else NOBODY,
        group=None if os.geteuid() else NOBODY,
        extra_groups=None if os.geteuid() else [],
    ) as shark:
        try:
            deadline = time.monotonic() + 60
            while f'"Kernel Shark ({path})"' not in (seen := titles(display)):
                assert shark.poll() is None and time.monotonic() < deadline, seen
                time.sleep(0.1)
            if shutil.which("import"):  # ImageMagick
                shot = folder / "shot.png"
                subprocess.run(
                    ["import", "-display", display, "-window", "root", shot], check=True, timeout=30
                )
                assert shot.read_bytes().startswith(b"\x89PNG")
            assert shark.poll() is None
        finally:
            shark.terminate()
        said = shark.communicate(timeout=20)[0].splitlines()
    # They want events of a kernel.
    absent = {
        f'plugin "{name}" failed to initialize on stream {path}' for name in ("kvm_combo", "sched_events")
    }
    assert [line for line in said if line not in absent and not line.startswith("Loading")] == []
