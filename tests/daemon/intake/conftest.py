"""An intake with one ring for each test that wants one."""

from collections.abc import Iterator

import pytest

from tests.daemon.intake.producing import World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for producer in made.producers:
        producer.close()
