"""The clocks and the cpu of compiled modules."""

import time

from utracefsd.machine import _machine
from utracefsd.machine.procfs import possible_cpus


def test_the_machine() -> None:
    before = time.monotonic_ns()
    assert before <= _machine.monotonic_ns() <= time.monotonic_ns()
    assert 0 <= _machine.current_cpu() < possible_cpus()


def test_a_simulation() -> None:
    _machine.simulate(5000, 10, cpu=7)
    try:
        assert [_machine.monotonic_ns(), _machine.monotonic_ns()] == [5010, 5020]
        assert _machine.current_cpu() == 7
    finally:
        _machine.simulate(0)
    assert _machine.monotonic_ns() > 5020
