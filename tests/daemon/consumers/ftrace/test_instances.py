"""The registry of instances: names, numbers, open files, and the cost of 200 instances."""

import errno
import re
from pathlib import Path

import pytest

from tests.daemon.tree.world import World, errno_of
from utracefsd.consumers.ftrace.instances import MAX_NUMBER, Instances


@pytest.fixture
def instances(world: World) -> Instances:
    return world.instances


def test_making_and_removing(instances: Instances) -> None:
    told: list[tuple[str, bytes]] = []
    instances.on_made.append(lambda instance: told.append(("made", instance.name)))
    instances.on_removed.append(lambda instance: told.append(("removed", instance.name)))
    made = instances.make(b"a b.c")
    assert instances.get(b"a b.c") is made
    assert instances.by_number(made.number) is made
    assert list(instances) == [instances.top, made]
    assert errno_of(instances.make, b"a b.c") == errno.EEXIST
    instances.remove(b"a b.c")
    assert errno_of(instances.remove, b"a b.c") == errno.ENOENT
    assert len(instances) == 1
    assert instances.by_number(made.number) is None
    assert told == [("made", b"a b.c"), ("removed", b"a b.c")]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (b"", errno.EINVAL),
        (b".", errno.EINVAL),
        (b"..", errno.EINVAL),
        (b"a/b", errno.EINVAL),
        (b"a\0b", errno.EINVAL),
        (b"x" * 256, errno.ENAMETOOLONG),
    ],
)
def test_what_is_no_name(instances: Instances, name: bytes, number: int) -> None:
    assert errno_of(instances.make, name) == number
    assert errno_of(_again, instances, {1: name}) == number


def test_no_memory(world: World, instances: Instances) -> None:
    world.free_memory_kb = 2 * 1408 - 1
    assert errno_of(instances.make, b"x") == errno.ENOMEM
    world.free_memory_kb += 1
    assert instances.make(b"x").number == 1


def _again(instances: Instances, names: dict[int, bytes]) -> Instances:
    return Instances(
        instances.top.table,
        instances.top.comms,
        lambda: 0,
        nr_cpus=1,
        free_memory_kb=lambda: 1 << 20,
        cells=instances.cells,
        tables=instances.tables,
        restored=names,
    )


@pytest.mark.parametrize("names", [{0: b"a"}, {-1: b"a"}, {70000: b"a"}, {1: b"a", 2: b"a"}])
def test_what_none_before_could_have(instances: Instances, names: dict[int, bytes]) -> None:
    with pytest.raises(ValueError, match="the same, or a number"):
        _again(instances, names)


# 200 instances, 4,000 events


def test_the_journal_has_a_bit_for_each() -> None:
    header = Path(__file__).parents[4] / "daemon" / "utracefsd" / "intake" / "include" / "journal.h"
    found = re.search(r"#define JR_TAKEN_WORDS (\d+)", header.read_text())
    assert found
    assert int(found[1]) * 64 == MAX_NUMBER + 1


def test_tgids_are_learned_while_any_wants_them(world: World, instances: Instances) -> None:
    made = instances.make(b"x")
    made.set_option("record-tgid", True)
    instances.top.set_option("record-tgid", True)
    instances.top.set_option("record-tgid", False)
    assert world.comms.record_tgid
    made.set_option("record-tgid", False)
    assert not world.comms.record_tgid
