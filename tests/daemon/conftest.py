"""What several tests of the daemon's parts begin with."""

from collections.abc import Iterator

import pytest

from utracefsd.events.event_table import EventTable
from utracefsd.events.status_file import StatusFile


@pytest.fixture
def table() -> Iterator[EventTable]:
    status = StatusFile()
    yield EventTable(status)
    status.close()
