"""A session and forwarders of one daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.forked import Popen
from tests.integration.conftest import DaemonProcess
from utracefs import Session
from utracefs.forward.forwarder import STATUS_FILE

WAIT_S = 60

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def session(daemon: DaemonProcess) -> Iterator[Session]:
    with Session(daemon.directory) as session:
        yield session


@pytest.fixture
def forward(daemon: DaemonProcess, tmp_path: Path) -> Iterator[Start]:
    """Start `utracefs forward` with these words; it is attached then."""
    made: list[subprocess.Popen[bytes]] = []

    def forward(
        *words: str, spool: str = "spool", environ: Mapping[str, str] = {}
    ) -> subprocess.Popen[bytes]:
        status = tmp_path / spool / STATUS_FILE
        status.unlink(missing_ok=True)
        command = [sys.executable, "-m", "utracefs.cli", "--dir", daemon.directory, "forward"]
        command += ["--spool", str(tmp_path / spool), "--drain", str(WAIT_S / 2), *words]
        made.append(Popen(command, stderr=subprocess.PIPE, env={**os.environ, **environ}))
        wait_for(lambda: status.exists() and json.loads(status.read_text())["attached"], WAIT_S)
        return made[-1]

    yield forward
    for process in made:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=WAIT_S)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    _, log = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, log
