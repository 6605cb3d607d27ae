"""A recording of many records, and its records."""

from pathlib import Path

import pytest

import utracefs
from tests.client.html.example import MANY, write_many
from utracefs import Record


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_many(tmp_path_factory.mktemp("html") / "trace.dat", MANY, lost_every=30)


@pytest.fixture(scope="session")
def records(many: Path) -> list[Record]:
    with utracefs.open(many) as recording:
        return list(recording)
