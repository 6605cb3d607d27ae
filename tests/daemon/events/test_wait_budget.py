"""The time that operations wait for the programs of a user, all in all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefsd.events.wait_budget import FREE_NS, MOST_NS, REFILL_DIVISOR, WaitBudget
from utracefsd.machine.peer import Peer

WAIT_NS = 2 * FREE_NS
USER, OTHER = Peer(1, 1000, 1000, privileged=False), Peer(2, 1001, 1001, privileged=False)
ADMINISTRATOR = Peer(3, 0, 0, privileged=True)


def test_what_is_short_and_administrators_are_free(log: pytest.LogCaptureFixture) -> None:
    wait_budget = WaitBudget()
    for n in range(1000):
        wait_budget.waited(USER, n * FREE_NS, (n + 1) * FREE_NS)
        wait_budget.waited(ADMINISTRATOR, n * WAIT_NS, (n + 1) * WAIT_NS)
    assert wait_budget.is_left(USER, 0)
    assert wait_budget.is_left(ADMINISTRATOR, 0)
    assert len(wait_budget) == 0
    assert not log.messages


def test_a_thousand_programs_that_are_stopped_at_once_cost_one_wait() -> None:
    wait_budget = WaitBudget()
    for _ in range(1000):
        wait_budget.waited(USER, 0, WAIT_NS)
    assert wait_budget.is_left(USER, WAIT_NS)


def test_full_budgets_are_forgotten() -> None:
    wait_budget = WaitBudget()
    for uid in range(100):
        wait_budget.waited(Peer(1, uid, uid, privileged=False), 0, WAIT_NS)
    assert len(wait_budget) == 100
    later_ns = (REFILL_DIVISOR + 1) * WAIT_NS
    wait_budget.waited(USER, later_ns, later_ns + WAIT_NS)
    assert len(wait_budget) == 1


@given(st.lists(st.tuples(st.integers(0, 300_000_000), st.integers(1, WAIT_NS)), max_size=100))
def test_whatever_comes_no_more_than_its_share_is_waited(waits: list[tuple[int, int]]) -> None:
    """(pause, wait) of operations one after the other; free waits are not included."""
    wait_budget = WaitBudget()
    now_ns = waited_ns = 0
    for pause_ns, wait_ns in waits:
        now_ns += pause_ns
        if wait_budget.is_left(USER, now_ns):
            wait_budget.waited(USER, now_ns, now_ns + wait_ns)
            now_ns += wait_ns
            waited_ns += wait_ns if wait_ns > FREE_NS else 0
    assert waited_ns <= MOST_NS + now_ns // REFILL_DIVISOR + WAIT_NS
