"""The order of service."""

from typing import Any

import attrs

from utracefsd.connections.fair_scheduler import HALF_LIFE_NS, FairScheduler


@attrs.define(eq=False)
class _One:
    share: int
    used_ns: int = 0
    served_ns: int = 0


One: Any = _One


def test_the_longest_waiter_comes_first() -> None:
    turns = FairScheduler()
    a, b, c = One(1), One(1), One(1)
    for now_ns, one in enumerate((b, a, c)):
        turns.served(one, now_ns, now_ns)
    assert turns.in_order([a, b, c], 3) == [b, a, c]


def test_a_user_with_little_use_comes_first_also_when_served_last() -> None:
    turns = FairScheduler()
    flood, program = One(1), One(1)
    turns.served(flood, 0, 1000)
    turns.served(program, 1000, 1010)
    assert turns.in_order([flood, program], 1010) == [program, flood]


def test_a_user_with_little_use_precedes_one_with_much() -> None:
    """However many connections the other makes: a new one begins with its user's service time."""
    turns = FairScheduler()
    flood = [One(1000) for _ in range(100)]
    for one in flood:
        turns.served(one, 0, 1000)
    program = One(1001)
    turns.served(program, 0, 2000)
    assert turns.in_order([*flood, One(1000), program], 2000)[0] is program


def test_what_was_used_is_forgotten() -> None:
    turns = FairScheduler()
    busy, other = One(1), One(1)
    turns.served(busy, 0, 1 << 20)
    turns.served(other, 0, 1 << 10)
    assert turns.in_order([busy, other], 1 << 20) == [other, busy]
    now_ns = 30 * HALF_LIFE_NS
    assert turns.in_order([other, busy], now_ns) == [other, busy]
    for n in range(1, 30):
        turns.served(One(2), n * HALF_LIFE_NS, n * HALF_LIFE_NS)
    assert turns.used_ns(1) == 0
    turns.served(other, now_ns, now_ns + 100)
    assert turns.in_order([other, busy], now_ns + 100) == [busy, other]


def test_one_that_came_after_the_clock_was_read() -> None:
    late, early = One(1, 5, served_ns=2000), One(1, 1, served_ns=10)
    assert FairScheduler().in_order([late, early], 1000) == [early, late]


def test_the_user_served_longest_lately() -> None:
    turns = FairScheduler()
    begin_ns = 10 * HALF_LIFE_NS
    turns.served(One(9), begin_ns, begin_ns)
    for share, took_ns in ((1, 100), (2, 3000), (3, 20), (4, 500)):
        turns.served(One(share), begin_ns, begin_ns + took_ns)
    assert turns.heaviest(begin_ns + 3000) == [(2, 3000), (4, 500), (1, 100)]
    assert turns.heaviest(begin_ns + 3 * HALF_LIFE_NS) == [(2, 375), (4, 62), (1, 12)]
    assert turns.heaviest(begin_ns + 100 * HALF_LIFE_NS) == []
