"""What a daemon leaves and the next one makes of it: the log, the takeover, and everything that can be wrong with both."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio

from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages import REG_MULTI_FORMAT, REG_PERSIST
from utracefsd.daemon import FIRST_EVENT_ID, GRACE_NS, Daemon
from utracefsd.events.event import Event
from utracefsd.machine.peer import Peer
from utracefsd.machine.procfs import possible_cpus
from utracefsd.server.serve import serve
from utracefsd.state.living import MAGIC, VERSION, StateError, parse_log

ROOT = Peer(pid=os.getpid(), uid=0, gid=0, privileged=True)
START = [MAGIC, VERSION, "buffer.1"]
EVENT = ["event", 1039, 1, 0, 1000, b"a", b"a u32 n"]


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="utracefs-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


class Clock:
    now = 1_000_000_000_000

    def __call__(self) -> int:
        return self.now


def daemon_in(folder: Path, clock: Clock | None = None, **options: Any) -> Daemon:
    return Daemon(
        now_ns=clock or time.monotonic_ns,
        status_path=folder / "user_events_status",
        state_folder=folder,
        plugins=[],
        **options,
    )


def die(daemon: Daemon) -> None:
    """As SIGKILL leaves things: nothing of what `close` does. The objects stay, so that nothing is unmapped either."""
    _graveyard.append(daemon)


_graveyard: list[Daemon] = []


def register(daemon: Daemon, command: bytes, flags: int = 0) -> Event:
    event = daemon.table.register(command, flags, privileged=True)
    daemon.table.acquire(event)
    return event


def write(daemon: Daemon, path: bytes, data: bytes, truncate: bool = True) -> None:
    """A write through the tree as an administrator's connection makes it."""
    daemon.take_in_all()
    daemon.tree.write_file(path, data, truncate, ROOT)
    daemon.save()


def read(daemon: Daemon, path: bytes) -> bytes:
    return daemon.tree.read_file(path, ROOT)


def packed(*things: Any) -> bytes:
    return b"".join(msgpack.packb(thing) for thing in things)


def emit(event: Event, n: int) -> None:
    assert (
        event.tracepoint.write(struct.pack("<I", n), ts_ns=time.monotonic_ns(), cpu=0, pid=os.getpid()) == 0
    )


# The log


def test_what_a_log_says() -> None:
    taken = parse_log(
        packed(
            START,
            EVENT,
            ["event", 7, 3, 1, 0, b"b", b"b"],
            ["on", 7],
            ["on", 1039],
            ["off", 1039],
            ["set", "tracing_on", False],
            ["set", "tracing_on", True],
            ["set", "standing", [b"a*"]],
            ["set", "buffer", "buffer.12"],
            ["comm", 12, b"sh", 99],
        )
    )
    assert list(taken.events) == [1039, 7]
    assert (taken.enabled, taken.ever_enabled) == ({7}, {7, 1039})
    assert taken.settings == {"tracing_on": True, "standing": (b"a*",)}
    assert taken.buffer_folder == "buffer.12"
    assert taken.comms[12].comm == b"sh"


def test_an_id_that_was_given_again() -> None:
    taken = parse_log(packed(START, EVENT, ["on", 1039], ["gone", 1039], [*EVENT[:5], b"c", b"c"]))
    assert taken.events[1039].command == b"c"
    assert not taken.ever_enabled


def test_a_torn_last_object_is_left_out() -> None:
    data = packed(START, EVENT)
    for cut in range(len(packed(START)), len(data)):
        assert parse_log(data[:cut]).events == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\xc1" * 100,
        packed(START)[:5],
        packed(EVENT),
        packed([MAGIC, VERSION + 1, "buffer.1"]),
        packed([MAGIC, True + 1, "buffer.1"]),
        packed([MAGIC, VERSION, "../etc"]),
        packed([MAGIC, VERSION, "buffer.1/x"]),
        packed(START, EVENT, EVENT),
        packed(START, ["gone", 1]),
        packed(START, ["on", 1]),
        packed(START, ["off", 1]),
        packed(START, ["set", "colour", 1]),
        packed(START, ["set", "tracing_on", 1]),
        packed(START, ["set", "clock", "sundial"]),
        packed(START, ["set", "clock", ["local"]]),
        packed(START, ["set", "options", ["nonsense"]]),
        packed(START, ["set", "cpumask", "-1"]),
        packed(START, ["set", "pids", [None]]),
        packed(START, ["set", "buffer", "/"]),
        packed(START, ["event", 1]),
        packed(START, 5),
        packed(START, {}),
        packed(START) + b"\xc1",
        b"[" * 10000,
        b"\x91" * 10000,
        packed(START) + b"\xa2\xff\xff",
    ],
)
def test_a_log_that_makes_no_sense(data: bytes) -> None:
    with pytest.raises(StateError):
        parse_log(data)


# Taking over


def test_everything_is_as_before(folder: Path) -> None:
    old = daemon_in(folder)
    first = register(old, b"first u32 n")
    gap = register(old, b"gap")
    multi = [register(old, b"multi u32 n", REG_MULTI_FORMAT), register(old, b"multi u8 n", REG_MULTI_FORMAT)]
    kept = old.table.register(b"kept u32 n", REG_PERSIST, privileged=True)
    old.save()
    old.table.release(gap, 0)
    old.on_time(1 << 62)
    write(old, b"buffer_size_kb", b"64")
    write(old, b"per_cpu/cpu0/buffer_size_kb", b"100")
    write(old, b"trace_clock", b"boot")
    write(old, b"events/user_events/first/enable", b"1")
    write(old, b"events/user_events/kept/enable", b"1")
    write(old, b"events/user_events/kept/enable", b"0")
    write(old, b"standing_events", b"later\n")
    write(old, b"options/raw", b"1")
    write(old, b"options/overwrite", b"0")
    write(old, b"options/record-tgid", b"1")
    write(old, b"buffer_percent", b"7")
    write(old, b"tracing_cpumask", b"1")
    write(old, b"set_event_notrace_pid", b"1 2 3")
    for n in range(5):
        emit(first, n)
    write(old, b"tracing_on", b"0")
    paths = [
        *(
            b"buffer_size_kb",
            b"per_cpu/cpu0/buffer_size_kb",
            b"trace_clock",
            b"standing_events",
            b"trace_options",
        ),
        *(b"buffer_percent", b"tracing_cpumask", b"set_event_notrace_pid", b"tracing_on", b"set_event"),
        *(b"dynamic_events", b"user_events_status", b"per_cpu/cpu0/stats", b"trace", b"saved_cmdlines"),
    ]
    before = {path: read(old, path) for path in paths}
    assert before[b"trace"].count(b"first") + before[b"trace"].count(b"%d" % first.id) >= 5
    die(old)
    new = daemon_in(folder)
    after = {path: read(new, path) for path in paths}
    for text in (before, after):
        text[b"per_cpu/cpu0/stats"] = text[b"per_cpu/cpu0/stats"].partition(b"now ts")[0]
    assert after == before
    for event in [first, *multi, kept]:
        again = new.table.by_id(event.id)
        assert again is not None
        assert again.tracepoint_name == event.tracepoint_name
        assert again.status_index == event.status_index
        assert again.ever_enabled == event.ever_enabled
        assert again.status == event.status
        assert new.status.get(event.status_index) == event.tracepoint.status
    assert register(new, b"fresh").id == gap.id, "the lowest free one, as ever"
    assert register(new, b"fresh2", REG_MULTI_FORMAT).tracepoint_name == b"fresh2.2"
    assert register(new, b"first u32 n").id == first.id
    with pytest.raises(TraceError) as wrong:
        register(new, b"first u64 n")
    assert wrong.value.errno == errno.EADDRINUSE
    assert new.instance.events.enabled(register(new, b"later"))
    assert new.instance.events.was_enabled(new.table.by_id(kept.id))  # type: ignore[arg-type]
    new.close()
    assert list(folder.iterdir()) == []


def test_records_of_before_and_after_stand_together(folder: Path) -> None:
    daemon = daemon_in(folder)
    register(daemon, b"a u32 n")
    write(daemon, b"events/enable", b"1")
    for life in range(4):
        event = daemon.table.get(b"user_events", b"a")
        assert event is not None
        emit(event, life)
        assert event.tracepoint.emitted == 1, "numbers of events begin anew"
        die(daemon)
        daemon = daemon_in(folder)
    lines = read(daemon, b"trace").splitlines()
    assert [line.rpartition(b"n=")[2] for line in lines if b"n=" in line] == [
        b"0x%x (%d)" % (n, n) for n in range(4)
    ]
    daemon.close()


def test_another_sub_buffer_size_is_taken_over(folder: Path) -> None:
    old = daemon_in(folder)
    event = register(old, b"a u32 n")
    write(old, b"events/enable", b"1")
    write(old, b"buffer_subbuf_size_kb", b"8")
    emit(event, 5)
    assert [path.name for path in folder.glob("buffer.*")] == ["buffer.2"]
    die(old)
    new = daemon_in(folder)
    assert new.instance.buffer.subbuf_size == 8192
    assert b"n=0x5" in read(new, b"trace")
    new.close()


@pytest.mark.parametrize("logged", [False, True])
def test_death_while_the_buffer_is_replaced(folder: Path, logged: bool) -> None:
    """Before the log has it the old buffer holds, afterwards the new one; the other is removed."""
    old = daemon_in(folder)
    event = register(old, b"a u32 n")
    write(old, b"events/enable", b"1")
    emit(event, 5)
    assert old.state is not None
    store = old.state.folder
    store.clean = lambda: None  # type: ignore[method-assign]
    if not logged:
        store.changed = lambda: None
    old.instance.store.set_subbuf_size(8)
    assert len(list(folder.glob("buffer.*"))) == 2
    die(old)
    new = daemon_in(folder)
    assert new.instance.buffer.subbuf_size == (8192 if logged else 4096)
    assert (b"n=0x5" in read(new, b"trace")) != logged
    assert len(list(folder.glob("buffer.*"))) == 1
    new.close()


def test_events_of_programs_have_a_grace_time(folder: Path) -> None:
    clock = Clock()
    old = daemon_in(folder, clock)
    for command in (b"back", b"away", b"watched"):
        register(old, command)
    old.table.register(b"kept", REG_PERSIST, privileged=True)
    write(old, b"events/user_events/watched/enable", b"1")
    die(old)
    new = daemon_in(folder, clock)
    assert new.next_deadline_ns() == clock.now + GRACE_NS
    back = register(new, b"back")
    clock.now += GRACE_NS - 1
    new.on_time(clock.now)
    assert len(new.table) == 4
    clock.now += 1
    new.on_time(clock.now)
    assert new.next_deadline_ns() == clock.now + new.table.reap_delay_ns
    clock.now += new.table.reap_delay_ns
    new.on_time(clock.now)
    assert [event.name for event in new.table.events()] == [b"back", b"watched", b"kept"]
    assert back.references == 1
    assert new.next_deadline_ns() is None
    die(new)
    last = daemon_in(folder, clock)
    assert len(last.table) == 3
    last.close()


def test_without_anything_to_wait_for_there_is_no_timer(folder: Path) -> None:
    old = daemon_in(folder)
    old.table.register(b"kept", REG_PERSIST, privileged=True)
    old.save()
    die(old)
    new = daemon_in(folder)
    assert new.next_deadline_ns() is None
    assert len(new.table) == 1
    new.close()


def test_a_smaller_status_file_gives_other_indexes(folder: Path) -> None:
    old = daemon_in(folder, status_pages=2)
    for n in range(4100):
        register(old, b"e%d" % n)
    for event in old.table.events()[5:-5]:
        old.table.release(event, 0)
    old.on_time(1 << 62)
    old.save()
    die(old)
    new = daemon_in(folder)
    assert sorted(event.status_index for event in new.table.events()) == list(range(1, 11))
    new.close()


def test_more_events_than_the_status_file_has_room_for(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("utracefsd"), "propagate", True)
    old = daemon_in(folder, status_pages=2)
    for n in range(4100):
        register(old, b"e%d" % n)
    old.save()
    die(old)
    new = daemon_in(folder)
    assert len(new.table) == 0
    assert "no room for 4100 events" in caplog.text
    new.close()


# The log of a living daemon


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
    new.close()


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
    daemon.close()


def test_files_are_ours_alone(folder: Path) -> None:
    daemon = daemon_in(folder)
    register(daemon, b"a")
    write(daemon, b"buffer_subbuf_size_kb", b"8")
    for path in folder.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    daemon.close()


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
    daemon.close()


def test_registering_stays_cheap(folder: Path) -> None:
    """4,000 events in packets of 100; the bound is far above what it costs (about 1 us), for a busy machine."""
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
    daemon.close()


# What makes no sense


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("state", b"nonsense"),
        ("state", packed([MAGIC, VERSION + 1, "buffer.1"])),
        ("state", packed(["utracefs state", VERSION, "buffer.7"])),
        ("state", packed(START, [*EVENT[:6], b"b u32 n"])),
        ("state", packed(START, [*EVENT[:6], b"a not a field"])),
        ("state", packed(START, EVENT, [EVENT[0], 5, *EVENT[2:]])),
        ("state", packed(START, [*EVENT[:1], 1 << 20, *EVENT[2:]])),
        ("state", packed(START, ["event", 5, 1, 2, 0, b"a.zz", b"a"])),
        ("state", packed(START, ["event", 5, 1, 99, 0, b"a", b"a"])),
        ("buffer.1/cpu0", b"nonsense"),
        ("buffer.1/cpu0", None),
    ],
)
def test_a_state_of_no_use_is_set_aside(
    folder: Path,
    name: str,
    content: bytes | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("utracefsd"), "propagate", True)
    for _ in range(2):  # and what was set aside before makes room
        old = daemon_in(folder)
        register(old, b"x")
        old.save()
        die(old)
        for _ in [0]:
            target = folder / name
            if not target.parent.exists():
                target = next(folder.glob("buffer.*")) / "cpu0"
            if content is None:
                target.unlink()
            else:
                target.write_bytes(content)
        caplog.clear()
        new = daemon_in(folder)
        warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert "\n" not in warnings[0].getMessage()
        assert (folder / "set-aside" / "state").exists()
        assert len(new.table) == 0
        assert new.table.register(b"y", privileged=True).id == FIRST_EVENT_ID
        new.save()
        die(new)
        successor = daemon_in(folder)
        assert len(successor.table) == 1
        die(successor)
    daemon_in(folder).close()
    assert list(folder.iterdir()) == []


def test_other_cpus_make_another_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    die(daemon_in(folder))
    monkeypatch.setattr("utracefsd.daemon.possible_cpus", lambda: possible_cpus() + 1)
    new = daemon_in(folder)
    assert (folder / "set-aside").exists()
    new.close()


def test_state_can_be_discarded(folder: Path) -> None:
    old = daemon_in(folder)
    register(old, b"a")
    old.save()
    die(old)
    new = daemon_in(folder, discard_state=True)
    assert len(new.table) == 0
    assert not (folder / "set-aside").exists()
    new.close()


# A good end


@pytest.mark.parametrize("keep", [False, True])
def test_the_end(folder: Path, keep: bool) -> None:
    old = daemon_in(folder)
    event = register(old, b"a u32 n")
    write(old, b"events/enable", b"1")
    emit(event, 1)
    old.keep_state = keep
    old.close()
    assert not (folder / "user_events_status").exists()
    assert (folder / "state").exists() == keep
    new = daemon_in(folder)
    assert len(new.table) == keep
    assert (b"n=0x1" in read(new, b"trace")) == keep
    new.close()
    assert list(folder.iterdir()) == []


async def test_the_edge_keeps_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a real server: what is kept is found by the next one, which lets go of it in time, with nothing else to do."""
    monkeypatch.setattr("utracefsd.daemon.GRACE_NS", 50_000_000)
    async with trio.open_nursery() as nursery:
        serving = await nursery.start(serve, tmp_path / "d")
        register(serving.daemon, b"a")
        serving.daemon.keep_state = True
        serving.daemon.hand_on()
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        serving = await nursery.start(serve, tmp_path / "d")
        assert len(serving.daemon.table) == 1
        with trio.fail_after(10):
            while len(serving.daemon.table):
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert not serving.runtime.status_folder.exists()
