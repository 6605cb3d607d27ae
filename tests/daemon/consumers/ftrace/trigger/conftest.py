"""The top instance of a fresh world, and what an administrator and a program do with its triggers."""

from collections.abc import Iterator

import pytest

from tests.daemon.consumers.ftrace.trigger.desk import Desk


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()
