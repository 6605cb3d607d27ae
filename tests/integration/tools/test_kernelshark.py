"""KernelShark, on a virtual screen, opens the file of `utracefs record`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.tools.x_screen import open_folder, screen, screenshot, shown_in_kernelshark
from tests.judges import judge

PROGRAM = """
import utracefs
event = utracefs.event("shop_order u32 order; s16 change; char[12] channel; __rel_loc char[] article")
for n in range(5000):
    event.emit(n, -n % 100 - 50, "counter", "Brötchen")
"""


def record(path: Path, *options: str) -> None:
    record = [sys.executable, "-m", "utracefs", "record", *options, "-o", str(path)]
    done = subprocess.run(
        [*record, "--", sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "5000 records" in done.stderr
    path.chmod(0o644)


@pytest.mark.parametrize("options", [(), ("--compress=zstd",)])
def test_it_opens_a_recording(options: tuple[str, ...]) -> None:
    for name in ("kernelshark", "Xvfb", "xwininfo", "import"):
        judge(name)
    if options:
        pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    with open_folder() as folder, screen() as display:
        record(folder / "trace.dat", *options)
        with shown_in_kernelshark(folder / "trace.dat", display, folder) as said:
            assert screenshot(display).startswith(b"\x89PNG")
        assert said == []
