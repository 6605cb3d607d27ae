"""A daemon that a test stops, kills and starts again."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import DaemonProcess, running
from utracefsd.server.runtime import locate


@pytest.fixture
def mortal(home: Path) -> Iterator[DaemonProcess]:
    with running(home / "d") as daemon:
        yield daemon
    # The state that a daemon keeps for its successor; here there is none.
    shutil.rmtree(locate(home / "d").status_folder, ignore_errors=True)
