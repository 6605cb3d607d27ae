"""Snapshots, and what the next daemon finds of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.daemon.restarting import daemon_in, die, emit, files, finish, read, register, write
from utracefsd.daemon import Daemon


def numbers(daemon: Daemon, path: bytes) -> list[int]:
    return [int(n) for n in re.findall(rb" n=0x[0-9a-f]+ \((\d+)\)", read(daemon, path))]


def test_both_buffers_are_as_before(folder: Path) -> None:
    old = daemon_in(folder)
    event = register(old, b"a u32 n")
    old.instances.make(b"x")
    for where in (b"", b"instances/x/"):
        write(old, where + b"events/user_events/a/enable", b"1")
    for n in (1, 2, 3):
        emit(event, n)
    write(old, b"snapshot", b"1")
    emit(event, 4)
    write(old, b"instances/x/per_cpu/cpu1/snapshot", b"1")
    die(old)
    new = daemon_in(folder)
    assert (numbers(new, b"trace"), numbers(new, b"snapshot")) == ([4], [1, 2, 3])
    assert numbers(new, b"instances/x/trace") == [2, 4]
    assert numbers(new, b"instances/x/snapshot") == [1, 3]
    emit(register(new, b"a u32 n"), 5)
    write(new, b"snapshot", b"1")
    die(new)
    last = daemon_in(folder)
    assert (numbers(last, b"trace"), numbers(last, b"snapshot")) == ([1, 2, 3], [4, 5])
    write(last, b"buffer_size_kb", b"64")
    assert numbers(last, b"snapshot") == [4, 5]
    write(last, b"snapshot", b"0")
    assert sum("cpu" in name for name in files(folder)) == 2 * last.instances.nr_cpus + last.instances.nr_cpus
    die(last)
    freed = daemon_in(folder)
    assert b"* Snapshot is freed *" in read(freed, b"snapshot")
    assert numbers(freed, b"trace") == [1, 2, 3]
    finish(freed)


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
