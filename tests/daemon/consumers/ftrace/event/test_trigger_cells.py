"""The file of cells."""

from pathlib import Path

import pytest

from utracefs_protocol.filter import parse_filter
from utracefsd.consumers.ftrace.event._trigger_cells import MAX_CELLS, UNLIMITED, Cells, Trigger
from utracefsd.consumers.ftrace.event.event_file import count_text


def test_cells_have_numbers_that_are_never_given_twice() -> None:
    cells = Cells()
    indices = [cells.give(n) for n in range(300)]
    assert len(set(indices)) == 300
    assert [cells.value(index) for index in indices] == list(range(300))
    keys = {cells.key(index) for index in indices}
    for index in indices:
        cells.take_back(index)
    assert set(indices).isdisjoint(cells.give(0) for _ in range(300)), "the log may still name them"
    cells.recycle()
    again = [cells.give(0) for _ in range(300)]
    assert set(indices) <= {*again, *(cells.give(0) for _ in range(200))}
    assert keys.isdisjoint(cells.key(index) for index in again)


def test_a_cell_that_is_not_given_out() -> None:
    cells = Cells()
    index = cells.give(1)
    cells.take_back(index)
    for call in (cells.take_back, cells.key, cells.value):
        with pytest.raises(ValueError, match="not given out"):
            call(index)
        with pytest.raises(ValueError, match="not given out"):
            call(0)


def test_the_limit(tmp_path: Path) -> None:
    for cells in (Cells(limit=200), Cells(tmp_path / "cells", limit=200)):
        for _ in range(200):
            cells.give(0)
        with pytest.raises(MemoryError, match="200 cells"):
            cells.give(0)
        cells.take_back(7)
        assert cells.give(0) == 7, "before there are none"
    assert Cells().limit == MAX_CELLS


def test_a_cell_of_a_lost_file_is_not_kept_for_two() -> None:
    """Keys begin anew, and a log may name what another trigger has just been given."""
    cells = Cells()
    index = cells.give(1)
    assert not cells.keep(index, cells.key(index))


def test_a_successor_continues_with_the_kept_cells(tmp_path: Path) -> None:
    path = tmp_path / "cells"
    cells = Cells(path)
    assert path.stat().st_mode & 0o777 == 0o600
    a, b = cells.give(5), cells.give(6)
    key_a, key_b = cells.key(a), cells.key(b)
    cells.set_value(a, 4)
    del cells
    heir = Cells(path)
    assert (heir.refused, len(heir)) == (None, 0)
    assert heir.keep(a, key_a)
    assert not heir.keep(b, key_b + 1)
    assert not heir.keep(1 << 20, 1)
    assert not heir.keep(0, 0)
    heir.drop_the_rest()
    assert heir.value(a) == 4
    assert heir.give(7) == b
    assert heir.key(b) > max(key_a, key_b)


def test_a_cell_that_is_taken_back_while_the_others_are_restored(tmp_path: Path) -> None:
    """As that of an instance whose reader has gone: it belonged to two triggers."""
    cells = Cells(tmp_path / "cells")
    index = cells.give(1)
    key = cells.key(index)
    heir = Cells(tmp_path / "cells")
    assert heir.keep(index, key)
    heir.take_back(index)
    heir.drop_the_rest()
    first = heir.give(0)
    assert first != index, "the log may still name it"
    heir.recycle()
    given = [first, *(heir.give(0) for _ in range(200))]
    assert len(set(given)) == len(given) and index in given


@pytest.mark.parametrize(
    "content", [b"", b"x", bytes(128), b"UTTCELLS\2\0\0\0\x20\0\0\0" + bytes(112), bytes(129), bytes(1 << 13)]
)
def test_what_is_no_file_of_cells_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cells"
    path.write_bytes(content)
    cells = Cells(path, limit=200)
    assert cells.refused
    cells.give(1)
    del cells
    assert Cells(path).refused is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "cells").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic"):
        Cells(tmp_path / "cells")


def test_a_redo_that_names_no_cell_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "cells"
    cells = Cells(path)
    cells.give(1)
    del cells
    content = bytearray(path.read_bytes())
    content[64:72] = (1).to_bytes(8, "little")
    content[72:76] = (77777).to_bytes(4, "little")
    path.write_bytes(content)
    Cells(path)
    assert path.read_bytes()[64:72] == bytes(8)


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


def test_it_continues_with_its_former_cell(tmp_path: Path) -> None:
    cells = Cells(tmp_path / "cells")
    before = Trigger(cells, 5)
    cells.set_value(before.cell, 3)
    heir = Cells(tmp_path / "cells")
    assert Trigger(heir, 5, kept=(before.cell, before.key + 1)).count == 5, "it is another trigger's by now"
    assert Trigger(heir, 5, kept=(before.cell, before.key)).count == 3


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
