"""The spans of requests that a program makes, as a recording has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import utracefs


def recorded(tmp_path: Path, code: str, *options: str) -> list[Any]:
    """All records of this program, run under `utracefs record`. options: of Python."""
    program, path = tmp_path / "program.py", tmp_path / "trace.dat"
    program.write_text(code)
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "utracefs",
        "record",
        "-o",
        path,
        "--",
        sys.executable,
        "-X",
        "dev",
        *options,
        program,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stderr
    with utracefs.open(path) as recording:
        return list(recording)
