"""Allocated numbers: against a plain set, and errors."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefsd.events.lowest_free import LowestFree

FIRST, LAST = 3, 12


@given(st.data())
def test_against_a_set(data: Any) -> None:
    numbers = LowestFree(FIRST, LAST)
    reserved = data.draw(st.sets(st.integers(FIRST, LAST)))
    assert numbers.reserve(reserved)
    taken = set(reserved)
    for _ in range(data.draw(st.integers(0, 40))):
        if data.draw(st.booleans()):
            free = [number for number in range(FIRST, LAST + 1) if number not in taken]
            number = numbers.allocate()
            assert number == min(free, default=None)
            if number is not None:
                taken.add(number)
        elif taken:
            number = data.draw(st.sampled_from(sorted(taken)))
            numbers.free(number)
            taken.remove(number)
        assert [number for number in range(LAST + 2) if number in numbers] == sorted(taken)


def test_only_what_was_given_out_comes_back() -> None:
    numbers = LowestFree(1, 9)
    assert numbers.allocate() == 1
    numbers.free(1)
    for number in (0, 1, 2, 10):
        with pytest.raises(ValueError, match="not given out"):
            numbers.free(number)


@pytest.mark.parametrize("wrong", [[3, 3], [0], [10], [1, 99]])
def test_a_reservation_is_whole_or_not_at_all(wrong: list[int]) -> None:
    numbers = LowestFree(1, 9)
    assert not numbers.reserve(wrong)
    assert numbers.allocate() == 1
    assert not numbers.reserve([5]), "one is given out"
