"""A fresh tree for each test, with operations of an administrator and a program on triggers."""

from collections.abc import Iterator

import pytest

from tests.daemon.consumers.ftrace.trigger.desk import Desk


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()
