"""Fixture: the file of example.py."""

from pathlib import Path

import pytest

from tests.client.recordings.trace_dat.example import CPU0, CPU1, pages, write


@pytest.fixture
def example(tmp_path: Path) -> Path:
    return write(tmp_path / "trace.dat", [pages(CPU0), pages(CPU1)])
