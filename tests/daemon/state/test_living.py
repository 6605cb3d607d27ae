"""The log of a running daemon: what is written when, and its cost."""

from __future__ import annotations

import errno
import itertools
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
from utracefsd.daemon import Daemon
from utracefsd.events.event import Emitted
from utracefsd.state.log import parse_log
from utracefsd.state.log_file import LogFile


def test_it_is_compacted(folder: Path) -> None:
    daemon = daemon_in(folder)
    register(daemon, b"a u32 n")
    size, lengths = (folder / "state").stat().st_size, []
    for n in range(16000):
        write(daemon, b"events/user_events/a/enable", b"%d" % (n % 2 == 0))
        lengths.append(len(logged(folder)))
    assert any(after < before for before, after in itertools.pairwise(lengths))
    assert (folder / "state").stat().st_size == size
    write(daemon, b"events/user_events/a/enable", b"1")
    die(daemon)
    new = daemon_in(folder)
    assert read(new, b"events/user_events/a/enable") == b"1\n"
    finish(new)


def test_it_grows_and_shrinks(folder: Path) -> None:
    """There is space for at least a third more than the present state; the next daemon frees unneeded
    space."""
    first = daemon_in(folder)
    size = (folder / "state").stat().st_size
    for n in range(4000):
        register(first, b"event_%d u32 status; u64 usec; __rel_loc char[] path" % n)
        first.save()
        file = LogFile.open(folder / "state")
        assert file is not None
        assert file.room >= 2 << 10
        file.close()
    grown = (folder / "state").stat().st_size
    assert 2 * 4 * len(logged(folder)) / 3 <= grown <= 4.1 * len(logged(folder)) + size
    first.close()  # after a kill the epochs of all events are kept
    second = daemon_in(folder)
    second.table.release_all(second.table.events())
    second.table.reap()
    assert len(second.table) == 0
    second.save()
    die(second)
    assert (folder / "state").stat().st_size == grown
    third = daemon_in(folder)
    assert (folder / "state").stat().st_size == size
    finish(third)


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


LONG = b" || ".join(b"n == %d" % n for n in range(300))
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
    assert not daemon.state.behind
    die(daemon)
    new = daemon_in(folder, status_pages=2)
    assert [event.id for event in new.table.events()] == [event.id for event in events]
    room(1 << 40, of="/state")
    register(new, b"another u32 n")
    finish(new)


def fill_up(daemon: Daemon) -> int:
    """With settings, until there is no space; returns how many events there are."""
    assert daemon.state is not None
    for n in itertools.count():
        register(daemon, b"e%d u32 n" % n)
        write(daemon, b"events/user_events/e%d/filter" % n, LONG)
        if daemon.state.behind:
            return n + 1
    raise AssertionError


def test_events_are_written_though_what_came_with_them_is_not(
    folder: Path, room: Callable[..., None]
) -> None:
    """An event made in a step whose lines do not fit: its records keep their meaning."""
    daemon = daemon_in(folder)
    room(0, of="/state")
    state = daemon.state
    assert state is not None
    first = register(daemon, b"first u32 n")
    n = 0
    while state.file.left > 5000:
        register(daemon, b"e%d u32 n" % n)
        write(daemon, b"events/user_events/e%d/filter" % n, LONG)
        n += 1
    while state.file.left > len(LONG) // 2:
        register(daemon, b"e%d u32 n" % n)
        daemon.save()
        n += 1
    daemon.table.release(first)
    daemon.table.reap()
    again = register(daemon, b"again u64 n")
    assert again.id == first.id, "the end of the other one is to be written, too"
    longer = LONG + b" || n == 1" * 50  # four of them do not fit, however much is left
    for path in (b"e0", b"e1", b"e2", b"again"):
        daemon.tree.write_file(b"events/user_events/%s/filter" % path, longer, True, ROOT)
    daemon.save()
    assert state.behind
    die(daemon)
    new = daemon_in(folder)
    found = new.table.by_id(again.id)
    assert found is not None
    assert found.name == b"again"
    assert read(new, b"events/user_events/e0/filter") == LONG + b"\n"
    finish(new)


def test_an_instance_that_was_removed_when_there_was_no_room(folder: Path, room: Callable[..., None]) -> None:
    """It is back, empty; all others are unchanged."""
    daemon = daemon_in(folder)
    event = register(daemon, b"a u32 n")
    daemon.instances.make(b"x")
    write(daemon, b"instances/x/events/enable", b"1")
    write(daemon, b"events/enable", b"1")
    emit(event, 7)
    room(0, of="/state")
    fill_up(daemon)
    write(daemon, b"buffer_subbuf_size_kb", b"8")  # its folder could not be named: it goes to memory
    assert daemon.instances.top.buffer.folder is None
    daemon.instances.remove(b"x")
    assert list(folder.glob("buffer.*")) == []
    die(daemon)
    new = daemon_in(folder)
    assert read(new, b"instances/x/set_event") == b"user_events:a\n"
    assert read(new, b"instances/x/trace").count(b"n=0x7") == 0
    assert not (folder / "set-aside").exists()
    finish(new)


def test_what_a_killed_start_left_makes_room(folder: Path) -> None:
    (folder / "state.new").write_bytes(bytes(100))
    daemon = daemon_in(folder)
    assert not (folder / "state.new").exists()
    finish(daemon)


def test_registering_stays_cheap(folder: Path) -> None:
    """4,000 events in packets of 100; the bound is far above the cost (about 1 us), for a busy machine."""
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
