import gc
from collections.abc import Iterator

import pytest

from utracefsd.machine import collector


@pytest.fixture
def taken_over() -> Iterator[None]:
    before, enabled = gc.get_threshold(), gc.isenabled()
    gc.enable()
    gc.set_threshold(700, 10, 10)
    collector.take_over()
    yield
    collector.give_back()
    gc.set_threshold(*before)
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


def test_a_process_of_another_user_is_left_alone() -> None:
    before = gc.get_threshold()
    assert not collector.look(idle=True)
    collector.give_back()
    assert gc.get_threshold() == before


def test_thresholds_are_as_they_were_before() -> None:
    before = gc.get_threshold()
    gc.set_threshold(500, 7, 4)
    gc.unfreeze()
    try:
        collector.take_over()
        collector.take_over()
        collector.give_back()
        collector.give_back()
        assert gc.get_threshold() == (500, 7, 4)
        assert gc.get_freeze_count() == 0
    finally:
        gc.set_threshold(*before)
        gc.freeze()


def test_what_a_program_has_frozen_stays_frozen() -> None:
    """(Of all frozen objects some may end meanwhile.)"""
    kept: list[int] = []
    gc.freeze()
    collector.take_over()
    collector.give_back()
    assert not any(one is kept for one in gc.get_objects())
