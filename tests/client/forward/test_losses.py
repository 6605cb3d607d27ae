"""Sums of losses."""

from utracefs.forward.losses import Loss, Losses


def test_a_sum() -> None:
    losses = Losses([Loss("a", "ring", 1)])
    losses.add("a", "ring", 2)
    losses.add("a", "spool", 3)
    losses.add("b", "ring", 0)
    assert list(losses) == [Loss("a", "ring", 3), Loss("a", "spool", 3)]


def test_unknown_and_a_number_are_unknown() -> None:
    losses = Losses()
    assert not losses
    losses.add("a", "ring", None)
    losses.add("a", "ring", 2)
    losses.add("b", "ring", 2)
    losses.add("b", "ring", None)
    assert list(losses) == [Loss("a", "ring", None), Loss("b", "ring", None)]
    losses.clear()
    assert not losses
