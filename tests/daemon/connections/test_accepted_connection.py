"""The rules of the two ports."""

from utracefsd.connections.accepted_connection import DATA, TRACEFS


def test_producers_are_limited_as_users_and_administrators_are_not() -> None:
    assert (DATA.limited, TRACEFS.limited) == (True, False)


def test_the_tree_may_have_larger_answers_waiting() -> None:
    assert DATA.max_waiting_bytes < TRACEFS.max_waiting_bytes
