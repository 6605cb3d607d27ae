"""One page of words for each test that wants one."""

import os
from collections.abc import Iterator

import pytest

from tests.daemon.events.helpers import Memory


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    os.close(made.fd)
