"""Counts become rates: of each, of events, of processes; processes that end; a daemon that begins anew."""

import pytest

from utracefs.cli.live.top_rates import BOTH, EVENTS, OTHERS, PROCESSES, Count, Rates, Row, parse_counts

A, B = "user_events:a", "user_events:b"


def rates(*steps: list[Count], alive: set[int] | None = None, seconds: float = 2.0) -> Rates:
    made = Rates((alive or {1, 2, 3}).__contains__)
    for at, counts in enumerate(steps):
        made.take(at * seconds, counts)
    return made


def test_lines() -> None:
    text = b"user_events:a 12 3 40 5 a name\nuser_events:b 0 0 0 0 \nnonsense\nuser_events:c -1 1 2 3 \n"
    assert parse_counts(text) == [
        Count(A, 12, 3, 40, 5, "a name"),
        Count(B, 0, 0, 0, 0, ""),
        Count("user_events:c", OTHERS, 1, 2, 3, ""),
    ]


def test_rates_of_each_and_of_either() -> None:
    made = rates(
        [Count(A, 1, 100, 400, 0, "x"), Count(A, 2, 10, 40, 0, "y")],
        [Count(A, 1, 300, 1200, 6, "x"), Count(A, 2, 10, 40, 0, "y"), Count(B, 1, 4, 8, 0, "x")],
    )
    assert made.rows(BOTH) == [
        Row(A, 1, "x", 100.0, 400.0, 3.0, 300, 1200, 6),
        Row(A, 2, "y", 0.0, 0.0, 0.0, 10, 40, 0),
        Row(B, 1, "x", 2.0, 4.0, 0.0, 4, 8, 0),
    ]
    assert made.rows(EVENTS) == [
        Row(A, 0, "", 100.0, 400.0, 3.0, 310, 1240, 6, 2),
        Row(B, 0, "", 2.0, 4.0, 0.0, 4, 8, 0, 1),
    ]
    assert [(r.pid, r.comm, r.rate, r.others) for r in made.rows(PROCESSES)] == [
        (1, "x", 102.0, 2),
        (2, "y", 0.0, 1),
    ]
    assert made.total().rate == 102.0 and made.total().lost == 6


def test_the_first_time_tells_no_rates() -> None:
    assert [row.rate for row in rates([Count(A, 1, 100, 400, 0, "x")]).rows(BOTH)] == [0.0]
    assert Rates().rows(EVENTS) == [] and Rates().total() == Row()


def test_a_daemon_that_began_anew_counts_from_nothing() -> None:
    made = rates([Count(A, 1, 100, 400, 0, "x")], [Count(A, 1, 10, 40, 0, "x")])
    assert [row.rate for row in made.rows(BOTH)] == [5.0]


def test_an_event_that_no_process_emits_is_shown_until_one_does() -> None:
    made = rates([Count(A, 0, 0, 0, 0, ""), Count(B, 0, 0, 0, 0, "")], [Count(B, 0, 0, 0, 0, "")])
    assert [(row.event, row.pid) for row in made.rows(BOTH)] == [(B, 0)]
    assert made.rows(PROCESSES) == []


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_a_process_that_ended_fades(steps: int) -> None:
    """Its counts stay with the event."""
    made = rates(*[[Count(A, 9, 100, 400, 0, "x")]] * steps, alive={1})
    assert [row.ended for row in made.rows(BOTH)] == ([True] if steps <= 3 else [])
    assert [(row.records, row.ended) for row in made.rows(EVENTS)] == [(100, True)]


def test_others_are_shown_while_they_do_something() -> None:
    made = rates([Count(A, OTHERS, 1, 4, 0, "")], [Count(A, OTHERS, 3, 12, 0, "")])
    assert [(row.comm, row.rate) for row in made.rows(BOTH)] == [("(others)", 1.0)]
    made.take(4.0, [Count(A, OTHERS, 3, 12, 0, "")])
    assert made.rows(BOTH) == []


def test_so_far() -> None:
    """Processes that end are joined with others; a daemon that begins anew, or an event that goes, costs
    nothing."""
    made = rates(
        [Count(A, 1, 10, 40, 1, "x"), Count(A, 2, 5, 20, 0, "y"), Count(B, 1, 7, 28, 3, "x")],
        [Count(A, 1, 11, 44, 1, "x"), Count(A, OTHERS, 5, 20, 0, "")],
        [Count(A, 1, 2, 8, 0, "x"), Count(B, 0, 0, 0, 0, "")],
    )
    assert made.so_far == (11 + 5 + 7 + 2, 1 + 3)
    assert Rates().so_far == (0, 0)
