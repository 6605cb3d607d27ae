"""The options of the top instance and of others; texts and values are tested through the tree
(test_instance_files)."""

import errno

import pytest

from tests.daemon.tree.world import errno_of
from utracefsd.consumers.ftrace.options import OPTIONS, Options, default_options
from utracefsd.consumers.ftrace.settings import Settings

GLOBAL = {"trace_printk", "printk-msg-only", "record-cmd"}


@pytest.fixture
def top() -> Options:
    return Options(Settings(options=default_options(top=True)))


@pytest.fixture
def other(top: Options) -> Options:
    return Options(Settings(options=default_options(top=False)), top)


def test_files(top: Options, other: Options) -> None:
    assert top.files() == [name for name in OPTIONS if name != "copy_trace_marker"]
    assert set(top.files()) - set(other.files()) == GLOBAL


def test_what_is_on_in_a_fresh_one(top: Options, other: Options) -> None:
    assert top.on - other.on == {"trace_printk_dest"}
    assert other.on - top.on == set()


def test_each_has_its_own(top: Options, other: Options) -> None:
    other.set("raw", True)
    top.set("overwrite", False)
    assert (top["raw"], other["raw"]) == (False, True)
    assert (top["overwrite"], other["overwrite"]) == (False, True)


@pytest.mark.parametrize("name", sorted(GLOBAL))
def test_global_ones_are_kept_once(top: Options, other: Options, name: str) -> None:
    """Any instance's trace_options accepts them, though only the top one has a file for each."""
    for setter in (top, other):
        value = not top[name]
        setter.set(name, value)
        assert (top[name], other[name]) == (value, value)
        assert (name in top.on, name in other.on) == (value, value)
        assert (name.encode() + b"\n" in other.text().splitlines(True)) == value


def test_changes_are_counted_where_they_show(top: Options, other: Options) -> None:
    before = top.changes, other.changes
    other.set("raw", True)
    assert (top.changes, other.changes > before[1]) == (before[0], True)
    before = top.changes, other.changes
    other.set("printk-msg-only", True)
    assert top.changes > before[0]
    assert other.changes > before[1]


def test_refusals(top: Options, other: Options) -> None:
    for options in (top, other):
        assert errno_of(options.set, "test_nop_refuse", True) == errno.EINVAL
    assert errno_of(top.set, "trace_printk_dest", False) == errno.EINVAL
    other.set("trace_printk_dest", True)
    other.set("trace_printk_dest", False)
    assert not other["trace_printk_dest"]
