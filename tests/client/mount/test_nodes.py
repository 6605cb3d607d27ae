"""Node ids, references, and what chmod and chown said."""

from __future__ import annotations

import errno
import stat

import pytest

from utracefs.mount import abi, nodes
from utracefs.mount.nodes import Nodes, inode_number
from utracefs_protocol.messages.tracefs import Stat

FILE = Stat("f", 0o640)
DIRECTORY = Stat("d", 0o750)


@pytest.fixture
def table() -> Nodes:
    return Nodes(uid=10, gid=20, time_s=30)


def test_a_path_has_one_node_while_it_is_referred_to(table: Nodes) -> None:
    node = table.looked_up(b"trace", FILE)
    assert table.looked_up(b"trace", FILE) is node
    assert table[node.id] is node
    table.forget(node.id, 1)
    assert table[node.id] is node
    table.forget(node.id, 1)
    with pytest.raises(OSError) as caught:
        table[node.id]
    assert caught.value.errno == errno.ESTALE
    assert table.looked_up(b"trace", FILE).id != node.id


def test_the_root_is_never_forgotten(table: Nodes) -> None:
    table.forget(abi.ROOT_ID, 100)
    table.forget(4711, 1)
    assert table[abi.ROOT_ID].path == b""
    assert stat.S_ISDIR(table[abi.ROOT_ID].mode)
    assert len(table) == 1


def test_paths(table: Nodes) -> None:
    events = table.looked_up(b"events", DIRECTORY)
    assert table[abi.ROOT_ID].child(b"a") == b"a"
    assert events.child(b"a") == b"events/a"
    assert (events.name, table[abi.ROOT_ID].name) == (b"events", b"")


def test_attributes(table: Nodes) -> None:
    node = table.looked_up(b"trace", FILE)
    attributes = abi.ATTR_OUT.unpack(table.attr_out(node))[3:]
    assert attributes[0] == inode_number(b"trace")
    assert attributes[1:6] == (0, 0, 30, 30, 30)
    assert attributes[9:13] == (stat.S_IFREG | 0o640, 1, 10, 20)
    entry = abi.ENTRY_OUT.unpack(table.entry_out(node, 7))
    assert (entry[0], entry[2]) == (node.id, 7)
    assert entry[6:] == attributes


def test_inode_numbers_are_of_the_path() -> None:
    numbers = {inode_number(b"events/%d" % i) for i in range(10_000)}
    assert len(numbers) == 10_000
    assert all(0 < number < 1 << 63 for number in numbers)


def test_changes_stick_to_the_path(table: Nodes) -> None:
    node = table.looked_up(b"instances/one/trace", FILE)
    table.change(node, mode=0o100604)
    table.change(node, gid=9)
    table.forget(node.id, 1)
    node = table.looked_up(b"instances/one/trace", FILE)
    assert abi.ATTR_OUT.unpack(table.attr_out(node))[12:16] == (stat.S_IFREG | 0o604, 1, 10, 9)
    table.change(node, uid=8)
    assert abi.ATTR_OUT.unpack(table.attr_out(node))[12:16] == (stat.S_IFREG | 0o604, 1, 8, 9)
    table.removed(b"instances/on")
    assert abi.ATTR_OUT.unpack(table.attr_out(node))[14] == 8
    table.removed(b"instances/one")
    assert abi.ATTR_OUT.unpack(table.attr_out(node))[12:16] == (stat.S_IFREG | 0o640, 1, 10, 20)


def test_changes_are_limited(table: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "MAX_CHANGED", 2)
    some = [table.looked_up(b"file%d" % i, FILE) for i in range(3)]
    table.change(some[0], mode=0o600)
    table.change(some[1], mode=0o600)
    table.change(some[1], mode=0o400)
    with pytest.raises(OSError) as caught:
        table.change(some[2], mode=0o600)
    assert caught.value.errno == errno.ENOSPC
