"""KernelShark opens what `utracefs record` wrote, and shows it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.kernelshark import opened, picture, prepare, screen

PROGRAM = """
import utracefs
event = utracefs.event("shop_order u32 order; s16 change; char[12] channel; __rel_loc char[] article")
for n in range(5000):
    event.emit(n, -n % 100 - 50, "counter", "Brötchen")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="utracefs-test-") as name:
        yield prepare(Path(name))


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


def test_it_opens_a_recording(folder: Path) -> None:
    path = folder / "trace.dat"
    record(path)
    shot = folder / "shot.png"
    with screen() as display, opened(path, folder, display) as said:
        picture(display, shot)
    assert shot.read_bytes().startswith(b"\x89PNG")
    # They want events of a kernel.
    absent = {
        f'plugin "{name}" failed to initialize on stream {path}' for name in ("kvm_combo", "sched_events")
    }
    assert [line for line in said if line not in absent and not line.startswith("Loading")] == []
