"""Sums of losses; marks: the records emitted between two streams."""

import json

import attrs
import pytest

from utracefs.forward.losses import ANY, AWAY, Loss, Losses, Marks, Selection
from utracefs_protocol.messages.tracefs import Missed, StreamMissed
from utracefs_protocol.text import bytes_of

ALL = Selection(("user_events*:*",), ("*:*",), is_whole=True)


def test_a_sum() -> None:
    losses = Losses([Loss("a", "ring", 1)])
    losses.add("a", "ring", 2)
    losses.add("a", "spool", 3)
    losses.add("b", "ring", 0)
    assert list(losses) == [Loss("a", "ring", 3), Loss("a", "spool", 3)]


def marks(
    events: dict[str, tuple[int, int]], *, origin: str = "a", epoch: int = 0, selection: Selection = ALL
) -> Marks:
    missed = [Missed(bytes_of(f"user_events:{name}"), *of_one) for name, of_one in events.items()]
    return Marks.at(StreamMissed(origin.encode(), epoch, tuple(missed)), selection)


def lost(before: Marks, after: Marks) -> dict[str, int | None]:
    losses = before.losses_until(after)
    assert all(loss.cause == AWAY for loss in losses)
    return {loss.event.removeprefix("user_events:"): loss.count for loss in losses}


def test_the_difference_is_lost() -> None:
    before = marks({"work": (7, 0), "quiet": (3, 0)})
    for event, count in (("user_events:work", 5), ("user_events:new", 2)):
        before.events[event] = before.after(event, count)
    after = marks({"work": (20, 0), "quiet": (3, 0), "later": (4, 0), "new": (2, 0)})
    assert lost(before, after) == {"work": 8, "later": 4}
    assert lost(after, after) == {}


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (
            marks({"a": (7, 0)}),
            marks({"a": (9, 1), "b": (0, 1), "c": (5, 0)}),
            {"a": None, "b": None, "c": 5},
        ),
        (marks({"a": (7, 0)}), marks({"a": (9, 0)}, origin="b"), {ANY: None}),
        (marks({}), marks({}, origin="b"), {ANY: None}),
        (marks({"a": (7, 0)}), marks({"a": (9, 0), "b": (1, 1)}, epoch=1), {ANY: None, "a": 2, "b": None}),
        (marks({"a": (7, 0)}), marks({}), {"a": None}),
        (marks({"a": (7, 0)}), marks({"a": (6, 0)}), {"a": None}),
    ],
    ids=["killed", "another state", "an empty one", "forgotten", "less", "less than before"],
)
def test_what_cannot_be_known(before: Marks, after: Marks, wanted: dict[str, int | None]) -> None:
    assert lost(before, after) == wanted


@pytest.mark.parametrize("which", [0, 1])
def test_a_selection(which: int) -> None:
    """Either forwarder may have another one."""
    both = [marks({"a": (1, 0), "b": (1, 0)}), marks({"a": (4, 0), "b": (1, 0), "c": (1, 0)})]
    both[which].selection = attrs.evolve(ALL, is_whole=False)
    assert lost(*both) == {"a": None, "c": None}
    both[which].selection = attrs.evolve(ALL, patterns=("b",))
    assert lost(*both) == {}
    both[which].selection = attrs.evolve(ALL, allowed=("user_events:c",))
    assert lost(*both) == {"c": 1}


def test_stored_and_read_again() -> None:
    made = marks({"a": (1 << 63, 7), "\udcff": (2, 0)}, epoch=3)
    read = Marks.from_json(json.loads(json.dumps(made.to_json())))
    assert read.losses_until(made) == made.losses_until(read) == []
    assert (read.events, read.epoch, read.origin) == (made.events, 3, "a")
    for stored in ({}, {"events": 7}, {**made.to_json(), "selection": {}}):
        with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
            Marks.from_json(stored)
