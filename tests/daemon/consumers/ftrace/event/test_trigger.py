"""A trigger by itself: its cell, and how its count is shown."""

import pytest

from utracefs_protocol.filter import parse_filter
from utracefsd.consumers.ftrace.event._trigger import UNLIMITED, Trigger
from utracefsd.consumers.ftrace.event._trigger_cells import Cells
from utracefsd.consumers.ftrace.event.event_file import count_text


def test_a_trigger_has_a_cell_until_it_is_closed() -> None:
    cells = Cells()
    trigger = Trigger(cells, 5)
    other = Trigger(cells)
    assert (trigger.count, other.count, len(cells)) == (5, UNLIMITED, 2)
    assert (trigger.key, other.key) == (cells.key(trigger.cell), cells.key(other.cell))
    trigger.close()
    trigger.close()
    assert len(cells) == 1
    with pytest.raises(ValueError, match="not given out"):
        assert trigger.count


def test_it_continues_with_its_former_cell() -> None:
    cells = Cells()
    before = Trigger(cells, 5)
    cells.set_value(before.cell, 3)
    assert Trigger(cells, 5, kept=(before.cell, before.key)).count == 3
    assert Trigger(cells, 5, kept=(before.cell, before.key + 1)).count == 5, "it is another trigger's by now"


def test_what_makes_it_wait_for_the_record() -> None:
    cells = Cells()
    assert not Trigger(cells).is_conditional
    assert Trigger(cells, filter=parse_filter(b"common_pid == 1", ())).is_conditional
    assert Trigger(cells, needs_record=True).is_conditional
    assert [Trigger(cells, stage=stage).is_conditional for stage in (0, 1, 2)] == [False, False, True]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, b":count=0"),
        (1, b":count=1"),
        ((1 << 63) - 1, b":count=9223372036854775807"),
        (1 << 63, b":count=-9223372036854775808"),
        ((1 << 64) - 2, b":count=-2"),
        ((1 << 64) - 1, b":unlimited"),
    ],
)
def test_counts(count: int, text: bytes) -> None:
    assert count_text(count) == text
