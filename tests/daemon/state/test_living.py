"""The log of a living daemon: what is written when, and what that costs."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemon.restarting import (
    daemon_in,
    die,
    emit,
    finish,
    read,
    register,
    write,
)
from utracefsd.state.log import parse_log


def test_it_is_compacted(folder: Path) -> None:
    daemon = daemon_in(folder)
    register(daemon, b"a u32 n")
    sizes = []
    for n in range(6000):
        write(daemon, b"events/user_events/a/enable", b"%d" % (n % 2 == 0))
        sizes.append((folder / "state").stat().st_size)
    assert max(sizes) < 30_000
    assert any(after < before for before, after in itertools.pairwise(sizes))
    write(daemon, b"events/user_events/a/enable", b"1")
    die(daemon)
    new = daemon_in(folder)
    assert read(new, b"events/user_events/a/enable") == b"1\n"
    finish(new)


def test_nothing_is_written_when_nothing_changes(folder: Path) -> None:
    daemon = daemon_in(folder)
    event = register(daemon, b"a u32 n")
    write(daemon, b"events/enable", b"1")
    size = 0
    for n in range(100):
        emit(event, n)
        daemon.hand_on()
        daemon.take_in_all()
        read(daemon, b"trace")  # the first time it learns how the thread is called
        daemon.save()
        size = size or (folder / "state").stat().st_size
    assert (folder / "state").stat().st_size == size
    finish(daemon)


def test_no_room_for_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then there is none: the next daemon starts afresh. Once there is room it is complete again."""
    monkeypatch.setattr(logging.getLogger("utracefsd"), "propagate", True)
    daemon = daemon_in(folder)
    real = os.write

    def half(fd: int, data: bytes) -> int:
        ours = os.readlink(f"/proc/self/fd/{fd}").startswith(str(folder))
        return real(fd, data[: len(data) // 2] if ours else data)

    monkeypatch.setattr(os, "write", half)
    register(daemon, b"a u32 n")
    daemon.save()
    register(daemon, b"b u32 n")
    daemon.save()
    assert not (folder / "state").exists()
    assert caplog.text.count("will begin afresh") == 1
    monkeypatch.setattr(os, "write", real)
    register(daemon, b"c u32 n")
    daemon.save()
    taken = parse_log((folder / "state").read_bytes())
    assert [event.command for event in taken.events.values()] == [b"a u32 n", b"b u32 n", b"c u32 n"]
    finish(daemon)


def test_the_log_has_no_room_before_the_files_go(
    folder: Path, room: Callable[..., None], log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = daemon_in(folder)
    register(daemon, b"a u32 n")
    daemon.save()
    real = os.write

    def full(fd: int, data: bytes) -> int:
        name = os.readlink(f"/proc/self/fd/{fd}")
        if name.startswith(str(folder)) and list(folder.glob("buffer.*")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    room(20 << 10)
    write(daemon, b"events/enable", b"1")
    die(daemon)
    new = daemon_in(folder)
    assert read(new, b"set_event") == b"user_events:a\n"
    finish(new)


def test_registering_stays_cheap(folder: Path) -> None:
    """4,000 events in packets of 100; the bound is far above what it costs (about 1 us), for a busy
    machine."""
    daemon = daemon_in(folder)
    spent_ns = 0
    for packet in range(40):
        for n in range(100):
            register(daemon, b"event_%d u32 status; u64 usec; __rel_loc char[] path" % (100 * packet + n))
        start = time.perf_counter_ns()
        daemon.save()
        spent_ns += time.perf_counter_ns() - start
    print(f"{spent_ns / 4000:.0f} ns for each event")
    assert spent_ns / 4000 < 20_000
    assert len(parse_log((folder / "state").read_bytes()).events) == 4000
    finish(daemon)
