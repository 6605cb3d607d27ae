"""The spool, killed or failing at each call that changes a file, and after crashes of the machine there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from utracefs.forward.spool import Sync

EVERY = 197
"""The suite tries every 197th call; `make soak` all."""


@pytest.fixture(scope="module")
def failing_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("disk") / "failing_disk.so"
    source = Path(__file__).with_name("failing_disk.c")
    subprocess.run(
        ["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-shared", "-fPIC", source, "-o", library],
        check=True,
    )
    return library


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("every", [EVERY, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("sync", list(Sync))
def test_each_call(tmp_path: Path, failing_disk: Path, sync: Sync, every: int) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.client.forward.failing_disk",
            tmp_path / "spool",
            sync.value,
            str(every),
        ],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"LD_PRELOAD": str(failing_disk)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stdout
