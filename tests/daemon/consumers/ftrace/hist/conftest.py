"""Two events, `a u32 v; char[8] s` and `b u32 v`, in the top instance."""

from collections.abc import Iterator

import pytest

from tests.daemon.consumers.ftrace.trigger.desk import Desk


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()
