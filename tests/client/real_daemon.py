"""The real daemon as a process of its own, for tests of the client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


class Utracefsd:
    """`python -m utracefsd`, to be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        ready, ready_w = os.pipe()
        command = [
            sys.executable,
            "-m",
            "utracefsd",
            "--dir",
            str(self.directory),
            "--ready-fd",
            str(ready_w),
        ]
        try:
            self.process = subprocess.Popen(
                command, pass_fds=[ready_w], text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        finally:
            os.close(ready_w)
        assert os.read(ready, 10) == b"READY\n"
        os.close(ready)

    def stop(self) -> str:
        """What it logged."""
        if self.process is None:
            return ""
        self.process.terminate()
        _, log = self.process.communicate(timeout=20)
        self.process = None
        return log
