"""A listening port; a table of events, a program that speaks to it, and its memory."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.connections.ports import Around
from tests.daemon.connections.program import Client, make_memory
from tests.daemon.record_path import Collecting
from tests.daemon.status_files import nameless_status
from utracefsd.events.event_table import EventTable


@pytest.fixture
def no_descriptor_is_leaked() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    Collecting.close_all()
    # Less: the collector closed one of an earlier test. Later: a thread closes what might block.
    deadline = time.monotonic() + 60
    while not set(os.listdir("/proc/self/fd")) <= before:
        assert time.monotonic() < deadline, "a descriptor is leaked"


@pytest.fixture
def table() -> Iterator[EventTable]:
    status = nameless_status()
    table = EventTable(status)
    yield table
    table.enablers.close()
    status.close()


@pytest.fixture
def client(table: EventTable) -> Iterator[Client]:
    client = Client(table)
    yield client
    client.connection.close(client.now_ns)
    for fd in client.fds:
        os.close(fd)


@pytest.fixture
def memory() -> Iterator[int]:
    fd = make_memory()
    yield fd
    os.close(fd)


@pytest.fixture
def around(tmp_path: Path) -> Iterator[Around]:
    made = Around(tmp_path / "data")
    yield made
    made.close()
