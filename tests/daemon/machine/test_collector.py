import gc
from collections.abc import Iterator

import pytest

from utracefsd.machine import collector


@pytest.fixture
def taken_over() -> Iterator[None]:
    before, enabled, frozen = gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()
    gc.enable()
    gc.set_threshold(700, 10, 10)
    collector.take_over()
    yield
    gc.set_threshold(*before)
    if not frozen:
        gc.unfreeze()
    if not enabled:
        gc.disable()


def make(middle: int) -> list[list[object]]:
    """Objects for so many collections of the middle generation."""
    kept: list[list[object]] = []
    gc.collect()
    while gc.get_count()[2] < middle:
        kept.append([])
    return kept


def test_an_idle_process_looks_at_everything_when_much_is_new(taken_over: None) -> None:
    assert not collector.look(idle=True)
    kept = make(collector.IDLE_AFTER)
    assert kept
    assert not collector.look(idle=False)
    assert collector.look(idle=True)
    assert gc.get_count()[2] == 0


def test_a_busy_one_later(taken_over: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "BUSY_AFTER", collector.IDLE_AFTER + 3)
    kept = make(collector.BUSY_AFTER)
    assert kept
    assert collector.look(idle=False)


def test_python_does_not(taken_over: None) -> None:
    """By default it would run after ten of the middle generation, and a quarter as many objects as there
    are."""
    full = gc.get_stats()[2]["collections"]
    kept = make(30)
    assert kept
    assert gc.get_stats()[2]["collections"] == full + 1, "the one that make() asked for"


def test_a_process_that_did_not_ask_is_left_alone() -> None:
    before = gc.get_threshold()
    assert not collector.look(idle=True)
    assert gc.get_threshold() == before
