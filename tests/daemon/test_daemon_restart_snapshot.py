"""Snapshots, and what the next daemon finds of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.daemon.restarting import daemon_in, die, emit, files, finish, read, register, write
from utracefsd.daemon import Daemon


def numbers(daemon: Daemon, path: bytes) -> list[int]:
    return [int(n) for n in re.findall(rb" n=0x[0-9a-f]+ \((\d+)\)", read(daemon, path))]


def test_without_room_for_a_second_one_both_are_in_memory(folder: Path, room: Callable[[int], None]) -> None:
    old = daemon_in(folder)
    event = register(old, b"a u32 n")
    write(old, b"events/user_events/a/enable", b"1")
    emit(event, 1)
    room(1 << 20)
    write(old, b"snapshot", b"1")
    assert numbers(old, b"snapshot") == [1]
    assert [name for name in files(folder) if "cpu" in name] == []
    room(1 << 40)
    die(old)
    new = daemon_in(folder)
    # The one in memory is lost, and there is an empty one of the same kind.
    assert b"* Snapshot is allocated *" in read(new, b"snapshot")
    assert read(new, b"buffer_size_kb") == b"1410\n"
    finish(new)
