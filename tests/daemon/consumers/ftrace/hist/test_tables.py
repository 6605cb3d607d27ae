from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.tree.world import errno_of
from utracefsd.consumers.ftrace.hist._hist import Hist, HistTable, KeyKind, Op
from utracefsd.consumers.ftrace.hist.program import Key, Program, Step
from utracefsd.consumers.ftrace.hist.tables import (
    MAX_BYTES,
    MAX_INSTANCE_BYTES,
    Tables,
    is_table_name,
    saved_table,
)

SIZE = HistTable.bytes_of(7, 8, 1)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="utracefs-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def tables_in(folder: Path, free_kb: int = 1 << 20, **limits: int) -> Tables:
    return Tables(folder, free_memory_kb=lambda: free_kb, **limits)


def count(table: HistTable) -> None:
    """A record in a table of one number as its key."""
    key = Key(KeyKind.NUMBER, 0, 8, 0, 0, (Step(Op.CONST, 7),))
    Hist(Program(8, (key,), ()), table).count(b"")


def counted(tables: Tables, instance: int) -> HistTable:
    table = tables.make(instance, 7, 8, 1)
    count(table)
    return table


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_largest_table_fits() -> None:
    largest = HistTable.bytes_of(17, 504, 3)
    assert largest <= MAX_INSTANCE_BYTES <= MAX_BYTES
    assert HistTable.bytes_of(11, 8, 1) < 100 << 10


def test_a_table_costs_the_same_however_many_there_are(folder: Path) -> None:
    """Thousands of triggers had kept the daemon busy for minutes."""

    class Untouched:
        """Not to be looked at."""

    tables = tables_in(folder)
    first = tables.make(0, 7, 8, 1)
    tables.holders[Untouched()] = [0]  # type: ignore[index]
    count(first)
    count(tables.make(0, 7, 8, 1))
    assert tables.bytes_of(0) == 2 * SIZE
    tables.drop(first, 0)
    assert tables.bytes_of(0) == SIZE


def test_files_and_a_successor(folder: Path) -> None:
    tables = tables_in(folder)
    first, second = tables.make(0, 7, 8, 1), tables.make(0, 7, 16, 1)
    assert names(folder) == ["hist.1", "hist.2"]
    tables.drop(first, 0)
    assert names(folder) == ["hist.1", "hist.2"], "until the log does not name it any more"
    tables.recycle()
    assert names(folder) == ["hist.2"]
    assert tables.make(0, 7, 8, 1).path == str(folder / "hist.3")
    del second

    after = tables_in(folder)
    table = after.adopt(1, "hist.2", 7, 16, 1)
    assert table.path == str(folder / "hist.2")
    assert after.adopt(2, "hist.2", 7, 16, 1) is table
    assert after.make(0, 7, 8, 1).path == str(folder / "hist.4")
    (folder / "hist.x").touch()
    after.remove_the_rest()
    assert names(folder) == ["hist.2", "hist.4", "hist.x"]
    after.drop(table, 1)
    assert "hist.2" in names(folder)
    after.drop(table, 2)
    after.remove_the_rest()
    assert "hist.2" in names(folder), "until the log does not name it any more"
    after.recycle()
    assert "hist.2" not in names(folder)


def test_no_table_gets_a_name_that_waits_for_another(folder: Path) -> None:
    """A file may be gone while the log names it: its trigger is restored after one that needs a new file."""
    after = tables_in(folder)
    extras = [
        "hist.6",
        ["hist.7", True],
        "",
        None,
        "hist.x",
        [],
        ["hist.9"],
        ["hist.9", True, 1],
        [9, True],
        9,
    ]
    after.reserve(saved_table(extra)[0] for extra in extras)
    assert after.make(0, 7, 8, 1).path == str(folder / "hist.8")


def test_the_file_says_how_many_entries_there_are(folder: Path) -> None:
    """The adopting daemon wants another number than the one that made it."""
    tables_in(folder).make(0, 9, 16, 2)
    assert tables_in(folder).adopt(0, "hist.1", 7, 16, 2).bits == 9


def test_limits(folder: Path) -> None:
    tables = tables_in(folder, instance_bytes=2 * SIZE, in_all=3 * SIZE)
    kept = [counted(tables, 0), counted(tables, 0)]
    assert errno_of(tables.make, 0, 7, 8, 1) == errno.ENOMEM
    other = counted(tables, 1)
    assert errno_of(tables.make, 1, 7, 8, 1) == errno.ENOMEM
    tables.drop(kept.pop(), 0)
    counted(tables, 1)
    tables.drop(other, 1)


def test_tables_that_count_nothing_leave_memory_to_others(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = tables_in(folder, instance_bytes=4 * SIZE)
    idle = [tables.make(0, 7, 8, 1) for _ in range(10)]
    assert counted(tables, 0).has_memory
    for one in idle:
        count(one)
    assert 0 < sum(one.has_memory for one in idle) < 4
    assert (idle[-1].has_memory, idle[-1].drops) == (False, 1)
    assert "drops its records" in caplog.text
    caplog.clear()


def test_free_memory(folder: Path) -> None:
    tables = tables_in(folder, free_kb=SIZE >> 10)
    tables.make(0, 7, 8, 1)
    assert errno_of(tables_in(folder, free_kb=0).make, 0, 7, 8, 1) == errno.ENOMEM


def test_no_room_for_files(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tables = tables_in(folder)
    table = tables.make(0, 7, 8, 1)
    shutil.rmtree(folder)
    assert tables.make(0, 7, 8, 1).path is None
    tables.drop(table, 0)
    tables.recycle()
    tables.remove_the_rest()
    (record,) = caplog.records
    assert "will not survive" in record.message, "a file that is gone is no warning"
    caplog.clear()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("hist.1", True),
        ("hist.123", True),
        ("hist.0", False),
        ("hist.", False),
        ("hist.1/x", False),
        ("x", False),
    ],
)
def test_names(name: str, wanted: bool) -> None:
    assert is_table_name(name) is wanted


def test_in_memory(folder: Path) -> None:
    tables = tables_in(folder / "gone")
    table = tables.make(0, 7, 8, 1)
    assert table.path is None
    count(table)
    assert tables.bytes_of(0) == SIZE
    tables.hold(table, 3)
    tables.drop(table, 0)
    assert (tables.bytes_of(0), tables.bytes_of(3), len(tables)) == (0, SIZE, 1)
    tables.drop(table, 3)
    assert len(tables) == 0
