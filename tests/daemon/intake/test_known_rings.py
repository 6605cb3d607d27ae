"""Which rings a daemon waits for after a restart."""

import pytest

from utracefsd.intake.known_rings import KnownRing


@pytest.mark.parametrize(
    ("pid", "start_time", "running", "may"),
    [
        (5, 7, {(5, 7)}, True),
        (5, 7, {(5, 8)}, False),  # its id was given to another process
        (5, 7, set(), False),
        (0, 0, set(), True),  # in a namespace that we do not see
        (5, 0, set(), True),  # /proc hides it from us
    ],
)
def test_rings_that_may_come_back(
    pid: int, start_time: int, running: set[tuple[int, int]], may: bool
) -> None:
    ring = KnownRing(pid, start_time, 1000, [])
    assert ring.may_come_back(lambda *process: process in running) is may
