"""A fresh tree for each test that wants one."""

from collections.abc import Iterator

import pytest

from tests.daemon.tree.world import World


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()
