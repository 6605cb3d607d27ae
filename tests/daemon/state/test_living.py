"""The log of a running daemon: what is written when, and its cost."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemon.restarting import (
    ROOT,
    daemon_in,
    die,
    emit,
    finish,
    logged,
    read,
    register,
    write,
)
from utracefs_protocol.errors import TraceError
from utracefsd.events.event import Emitted
from utracefsd.machine import disk
from utracefsd.state.log import parse_log

LONG = b" || ".join(b"n == %d" % n for n in range(300))


def test_it_is_compacted(folder: Path) -> None:
    daemon = daemon_in(folder)
    register(daemon, b"a u32 n")
    assert daemon.state is not None
    size = (folder / "state").stat().st_size
    for n in range(200):
        before = daemon.state.file.length
        write(daemon, b"events/user_events/a/filter", LONG if n % 2 == 0 else b"0")
        if daemon.state.file.length < before:
            break
    else:
        pytest.fail("it only grows")
    assert (folder / "state").stat().st_size == size
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
        read(daemon, b"trace")  # the first time that it reads the thread's name
        daemon.save()
        size = size or len(logged(folder))
    assert len(logged(folder)) == size
    finish(daemon)


FULL = "free some, or mount a larger one"


def test_the_last_event_that_there_is_room_for(folder: Path, room: Callable[..., None]) -> None:
    """The next one is refused, and all before are safe."""
    daemon = daemon_in(folder, status_pages=2)
    room(0, of="/state")
    events = []
    with pytest.raises(TraceError, match=FULL) as refused:
        for n in range(8000):
            events.append(register(daemon, b"e%d u32 n" % n))
    assert refused.value.errno == errno.ENOSPC
    assert len(events) > 1500
    assert register(daemon, b"e5 u32 n").id == events[5].id, "it exists"
    with pytest.raises(TraceError, match=FULL):
        register(daemon, b"another u32 n")
    with pytest.raises(TraceError, match=FULL):
        daemon.tree.write_file(b"dynamic_events", b"s:synthetic u32 n", False, ROOT)
    with pytest.raises(TraceError, match=FULL):
        daemon.instances.make(b"x")
    daemon.save()
    assert daemon.state is not None
    assert not daemon.state.file.behind
    die(daemon)
    new = daemon_in(folder, status_pages=2)
    assert [event.id for event in new.table.events()] == [event.id for event in events]
    room(1 << 40, of="/state")
    register(new, b"another u32 n")
    finish(new)


def test_the_fuller_it_stays_the_more_seldom_it_is_tried(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt packs all of the state."""
    daemon = daemon_in(folder)
    assert daemon.state is not None
    asked = 0

    def allocate(*_: object) -> None:
        nonlocal asked
        asked += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(disk, "posix_fallocate", allocate)
        n = 0
        while not daemon.state.file.behind:
            register(daemon, b"e%d u32 n" % n)
            write(daemon, b"events/user_events/e%d/filter" % n, LONG)
            n += 1
        attempts = []
        for number in range(200):
            before = asked
            daemon.save()
            if asked > before:
                attempts.append(number)
        assert attempts == [0, 2, 6, 14, 30, 62, 126, 191]
    daemon.instances.make(b"x")
    assert not daemon.state.file.behind, "what needs space tries at once"
    finish(daemon)


def test_registering_stays_cheap(folder: Path) -> None:
    """4,000 events in packets of 100; the bound is far above the cost (about 1 us), for a busy machine."""
    daemon = daemon_in(folder)
    spent_ns = 0
    for packet in range(40):
        for n in range(100):
            register(daemon, b"event_%d u32 status; u64 usec; __rel_loc char[] path" % (100 * packet + n))
        start = time.thread_time_ns()
        daemon.save()
        spent_ns += time.thread_time_ns() - start
    print(f"{spent_ns / 4000:.0f} ns for each event")
    assert spent_ns / 4000 < 20_000
    assert len(parse_log(logged(folder)).events) == 4000
    finish(daemon)


@pytest.mark.parametrize("is_killed", [False, True])
def test_counts_of_emitted_records(folder: Path, is_killed: bool) -> None:
    """They continue after an orderly end, also twice; after a kill in another epoch, but for removed
    events."""
    daemon = daemon_in(folder)
    event, gone = register(daemon, b"a u32 n"), register(daemon, b"gone u32 n")
    write(daemon, b"events/enable", b"1")
    emit(event, 1)
    emit(gone, 1)
    origin = daemon.table.emitted.saved.origin
    write(daemon, b"events/user_events/gone/enable", b"0")
    daemon.table.release(gone)
    daemon.table.reap()
    daemon.save()
    for n in range(2):
        if is_killed:
            die(daemon)
        else:
            daemon.close()
        daemon = daemon_in(folder)
        counts = daemon.table.emitted
        assert counts.saved.origin == origin
        found = dict(counts.totals(daemon.table.events()))
        assert found[b"user_events:gone"] == Emitted(1, 0)
        if is_killed:
            assert found[b"user_events:a"].epoch == n + 1
        else:
            assert found[b"user_events:a"] == Emitted(1 + n, 0)
        emit(daemon.table.events()[0], 1)
    finish(daemon)
