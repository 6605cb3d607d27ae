"""A daemon as a whole: the state that the next one finds, and its end."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemon.record_path import write as write_record
from tests.daemon.restarting import (
    ROOT,
    Clock,
    daemon_in,
    die,
    emit,
    finish,
    logged,
    one_cpu,
    packed,
    read,
    register,
    write,
)
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import REG_MULTI_FORMAT, REG_PERSIST
from utracefsd.daemon import GRACE_NS, Daemon
from utracefsd.events.event import CommandString
from utracefsd.state.log import MAGIC, VERSION
from utracefsd.state.log_file import LogFile


def test_triggers_are_as_before(folder: Path) -> None:
    """Their counts, and switches from within records, which are not in the log."""
    old = daemon_in(folder)
    first, second = register(old, b"first u32 n"), register(old, b"second u32 n")
    base = b"events/user_events/"
    for name, command in (
        (b"first", b"traceoff:3 if n == 5"),
        (b"first", b"enable_event:user_events:second"),
        (b"second", b"stacktrace:9"),
        (b"second", b"disable_event:user_events:first:7"),
    ):
        write(old, base + name + b"/trigger", command + b"\n", truncate=False)
    write(old, base + b"first/enable", b"1")
    for event, n in ((first, 5), (second, 6)):
        emit(event, n)
    paths = [base + name + file for name in (b"first", b"second") for file in (b"/trigger", b"/enable")]
    before = [read(old, path) for path in [*paths, b"tracing_on"]]
    assert before == [
        b"enable_event:user_events:second:unlimited\ntraceoff:count=2 if n == 5\n",
        b"0*\n",
        b"disable_event:user_events:first:count=6\nstacktrace:count=8\n",
        b"1*\n",
        b"0\n",
    ]
    for death in range(2):
        die(old)
        old = daemon_in(folder)
        assert [read(old, path) for path in [*paths, b"tracing_on"]] == before, death
    write(old, paths[2], b"!stacktrace\n", truncate=False)
    die(old)
    new = daemon_in(folder)
    assert read(new, paths[2]) == b"disable_event:user_events:first:count=6\n"
    finish(new)


def test_a_trigger_that_cannot_be_restored_is_said(folder: Path, log: pytest.LogCaptureFixture) -> None:
    old = daemon_in(folder)
    first = register(old, b"first u32 n")
    register(old, b"gone u32 n")
    path = b"events/user_events/first/trigger"
    for command in (b"traceoff", b"enable_event:user_events:gone"):
        write(old, path, command + b"\n", truncate=False)
    state = (folder / "state").read_bytes()
    die(old)
    (folder / "state").write_bytes(
        state.replace(b"enable_event:user_events:gone", b"enable_event:user_events:GONE")
    )
    new = daemon_in(folder)
    assert read(new, path) == b"traceoff:unlimited\n"
    assert "the trigger 'enable_event:user_events:GONE" in log.text
    again = new.table.by_id(first.id)
    assert again is not None
    assert len(new.instances.cells) == 2
    finish(new)


def test_everything_is_as_before(folder: Path) -> None:
    old = daemon_in(folder)
    first = register(old, b"first u32 n")
    gap = register(old, b"gap")
    multi = [register(old, b"multi u32 n", REG_MULTI_FORMAT), register(old, b"multi u8 n", REG_MULTI_FORMAT)]
    kept = old.table.register(CommandString.parse(b"kept u32 n"), REG_PERSIST, privileged=True)
    old.save()
    old.table.release(gap)
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
    for n in range(0, 10, 2):
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
        assert again.status == event.status
        assert new.status_file.get(event.status_index) == event.tracepoint.status
    assert register(new, b"fresh").id == gap.id, "the lowest free one, as ever"
    assert register(new, b"fresh2", REG_MULTI_FORMAT).tracepoint_name == b"fresh2.2"
    assert register(new, b"first u32 n").id == first.id
    with pytest.raises(TraceError) as wrong:
        register(new, b"first u64 n")
    assert wrong.value.errno == errno.EADDRINUSE
    assert new.instances.top.events.of(register(new, b"later")).enabled
    assert new.instances.top.events.of(new.table.by_id(kept.id)).was_enabled  # type: ignore[arg-type]
    finish(new)
    assert list(folder.iterdir()) == []


def test_restarts_are_counted(folder: Path) -> None:
    """Also over several, and from 0 when the state is discarded."""
    for restarts in range(3):
        daemon = daemon_in(folder)
        assert b"\nrestarts that took over the state: %d\n" % restarts in read(daemon, b"daemon_stats")
        die(daemon)
    again = daemon_in(folder, discard_state=True)
    assert b"\nrestarts that took over the state: 0\n" in read(again, b"daemon_stats")
    finish(again)


def several_instances(daemon: Daemon) -> None:
    for name in (b"one", b"two words", b"idle"):
        daemon.instances.make(name)


@pytest.mark.parametrize("comes_back", [False, True])
def test_an_instance_waits_for_its_owner(folder: Path, comes_back: bool) -> None:
    clock = Clock()
    old = daemon_in(folder, clock)
    several_instances(old)
    old.tree.open(b"instances/one/remove_on_close", os.O_WRONLY, peer=ROOT).write(b"1\n")
    old.save()
    die(old)
    new = daemon_in(folder, clock)
    assert b"one" in new.instances.names() and new.next_deadline_ns() is not None
    if comes_back:
        file = new.tree.open(b"instances/one/remove_on_close", os.O_WRONLY, peer=ROOT)
    clock.now += GRACE_NS
    new.on_time(clock.now)
    assert (b"one" in new.instances.names()) == comes_back
    if comes_back:
        file.close()
    assert list(new.instances.names()) == [b"two words", b"idle"]
    new.close()


def test_instances_are_written_only_where_something_changed(folder: Path) -> None:
    """A step writes the changes, and never walks over the rest."""
    daemon = daemon_in(folder)
    for n in range(100):
        register(daemon, b"e%d u32 n" % n)
    daemon.save()
    for n in range(20):
        daemon.instances.make(b"x%d" % n)
        write(daemon, b"instances/x%d/buffer_size_kb" % n, b"4")
    write(daemon, b"instances/x7/events/user_events/e0/enable", b"1")

    def step(path: bytes, data: bytes | None = None) -> int:
        """Bytes that an operation adds to the log."""
        before = len(logged(folder))
        if data is None:
            daemon.take_in_all()
            read(daemon, path)
            daemon.save()
        else:
            write(daemon, path, data)
        return len(logged(folder)) - before

    assert step(b"instances/x7/trace") == 0
    assert step(b"events/enable") == 0
    assert step(b"instances/x8/tracing_on", b"1") == 0
    assert step(b"instances/x8/tracing_on", b"0") == len(packed(["set", 9, "tracing_on", False]))
    assert sum(len(instance.events) for instance in daemon.instances) == 1
    assert len(daemon.table.on_created) == 0
    die(daemon)
    new = daemon_in(folder)
    assert len(new.instances) == 21
    assert read(new, b"instances/x8/tracing_on") == b"0\n"
    assert read(new, b"instances/x7/set_event") == b"user_events:e0\n"
    assert sum(len(instance.events) for instance in new.instances) == 1
    finish(new)


def test_a_smaller_status_file_gives_other_indexes(folder: Path) -> None:
    events = (["event", 40_000 + n, 5000 + n, 0, 0, b"e%d" % n, b"e%d" % n] for n in range(10))
    LogFile.make(folder / "state", 1, packed([MAGIC, VERSION], ["instance", 0, b""], *events)).close()
    new = daemon_in(folder)
    assert sorted(event.status_index for event in new.table.events()) == list(range(1, 11))
    finish(new)


@pytest.mark.parametrize("name", ["journal", "cells", "state"])
def test_no_room_for_what_must_be_there(folder: Path, room: Callable[..., None], name: str) -> None:
    room(0, of=f"/{name}")
    with pytest.raises(TraceError) as failure:
        daemon_in(folder)
    assert failure.value.errno == errno.ENOSPC
    assert failure.value.text == f"{folder}/{name} cannot be made: No space left on device"
    assert not (folder / "user_events_status").exists()


@pytest.mark.parametrize("name", ["Journal", "Cells"])
def test_no_memory_to_map_what_must_be_there(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise MemoryError("it cannot be mapped")

    monkeypatch.setattr(f"utracefsd.daemon.{name}", fail)
    with pytest.raises(TraceError) as failure:
        daemon_in(folder)
    assert failure.value.text == f"{folder}/{name.lower()} cannot be made: Cannot allocate memory"
    assert not (folder / "user_events_status").exists()


def test_filters_are_as_before(folder: Path) -> None:
    """Valid ones, refused ones, of an event that was never enabled, in each instance; also after the log was
    made anew, as at the start of every daemon."""
    daemon = daemon_in(folder)
    event, idle = register(daemon, b"a u32 n"), register(daemon, b"idle u32 n")
    daemon.instances.make(b"one")
    write(daemon, b"events/user_events/a/enable", b"1")
    write(daemon, b"events/user_events/a/filter", b"n > 2")
    write(daemon, b"events/user_events/idle/filter", b"n == 1")
    with pytest.raises(TraceError, match="Field not found"):
        write(daemon, b"instances/one/events/user_events/a/filter", b"nope")
    daemon.save()
    folders = (b"", b"instances/one/")
    paths = [top + b"events/user_events/%b/filter" % name for top in folders for name in (b"a", b"idle")]
    before = [read(daemon, path) for path in [*paths, b"instances/one/error_log"]]
    assert before[:4] == [
        b"n > 2\n",
        b"n == 1\n",
        b"nope\n    ^\nparse_error: Field not found\n\n",
        b"none\n",
    ]
    assert before[4].endswith(
        b"event filter parse error: error: Field not found\n  Command: nope\n" + b" " * 16 + b"^\n"
    )
    for _ in range(2):
        die(daemon)
        daemon = daemon_in(folder)
        assert [read(daemon, path) for path in [*paths, b"instances/one/error_log"]] == before
        assert read(daemon, b"events/user_events/idle/enable") == b"0\n"
        again = daemon.table.by_id(event.id)
        assert again is not None
        for number in range(5):
            emit(again, number)
        assert b"recorded 2 filtered 3 lost 0" in read(daemon, b"events/user_events/a/stats")
    write(daemon, b"events/user_events/a/filter", b"0")
    die(daemon)
    daemon = daemon_in(folder)
    assert read(daemon, paths[0]) == b"none\n"
    never = daemon.table.by_id(idle.id)
    assert never is not None and not daemon.instances.top.events.of(never).was_enabled
    finish(daemon)


@pytest.mark.parametrize("kind", [os.mkdir, os.mkfifo, lambda path: os.symlink("/", path)])
def test_a_foreign_file_in_place_of_a_histogram_costs_that_alone(
    folder: Path, kind: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    old = daemon_in(folder)
    register(old, b"a u32 x")
    write(old, b"events/user_events/a/trigger", b"hist:keys=x")
    die(old)
    (folder / "hist.1").unlink()
    kind(folder / "hist.1")
    new = daemon_in(folder)
    assert "counts of a histogram are lost" in caplog.text
    assert b"hist:keys=x" in read(new, b"events/user_events/a/trigger")
    assert b"Hits: 0" in read(new, b"events/user_events/a/hist")
    caplog.clear()
    finish(new)


def test_a_snapshot_without_its_map(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    old = daemon_in(folder)
    with one_cpu():  # the rings of each cpu are compared for themselves
        write(old, b"trace_marker", b"one")
        write(old, b"snapshot", b"1")
        write(old, b"trace_marker", b"two")
    files = read(old, b"trace"), read(old, b"snapshot")
    die(old)
    (spare,) = folder.glob("buffer.*/spare")
    spare.unlink()
    new = daemon_in(folder)
    assert "spare is missing" in caplog.text
    assert (read(new, b"trace"), read(new, b"snapshot")) == files
    caplog.clear()
    finish(new)


def outlived(daemon: Daemon, folder: Path, paths: list[bytes]) -> tuple[Daemon, list[bytes]]:
    """The next daemon, whose files are the same, and what is in them."""
    before = [read(daemon, path) for path in paths]
    die(daemon)
    after = daemon_in(folder)
    assert [read(after, path) for path in paths] == before
    return after, before


def test_synthetic_events_survive(folder: Path) -> None:
    daemon = daemon_in(folder)
    write(daemon, b"synthetic_events", b"lat u64 id; char[] who; char[16] where", False)
    register(daemon, b"a u32 v", REG_PERSIST)
    write(daemon, b"events/synthetic/lat/enable", b"1")
    write(daemon, b"events/synthetic/lat/trigger", b"hist:keys=id", False)
    paths = [b"events/synthetic/lat/" + name for name in (b"format", b"enable", b"trigger")]
    after, _ = outlived(daemon, folder, [*paths, b"dynamic_events"])
    finish(after)


def test_variables_and_actions_survive(folder: Path) -> None:
    """Also if the trigger that reads belongs to an earlier event."""
    daemon = daemon_in(folder)
    done = register(daemon, b"done u64 id; s32 rc", REG_PERSIST)
    start = register(daemon, b"start u64 id; u32 w", REG_PERSIST)
    write(daemon, b"synthetic_events", b"lat u64 id; u32 w", False)
    write(daemon, b"events/synthetic/lat/enable", b"1")
    write(daemon, b"events/user_events/start/trigger", b"hist:keys=id:x=w", False)
    write(
        daemon,
        b"events/user_events/done/trigger",
        b"hist:keys=id:y=$x+0:m=rc:onmatch(user_events.start).lat(id,$x):onmax($m).save(rc)",
        False,
    )
    write_record(start.tracepoint, struct.pack("<QI", 1, 7), ts_ns=1, cpu=0, pid=1)
    write_record(start.tracepoint, struct.pack("<QI", 2, 8), ts_ns=1, cpu=0, pid=1)
    write_record(done.tracepoint, struct.pack("<Qi", 1, 5), ts_ns=1, cpu=0, pid=1)
    paths = [
        f"events/user_events/{name}".encode()
        for name in ("done/hist", "done/trigger", "start/hist", "start/trigger")
    ]
    after, before = outlived(daemon, folder, paths)
    assert b"max:          5  rc:          5" in before[0]
    done = after.table.events()[0]
    for id in (1, 2):
        write_record(done.tracepoint, struct.pack("<Qi", id, 5), ts_ns=1, cpu=0, pid=1)
    assert b"Hits: 2\n" in read(after, paths[0])
    trace = read(after, b"trace")
    assert trace.count(b"lat: id=1 w=7\n") == 1
    assert trace.count(b"lat: id=2 w=8\n") == 1
    finish(after)
