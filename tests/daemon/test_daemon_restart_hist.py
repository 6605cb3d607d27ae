"""Histograms of a daemon and of the next one."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from tests.daemon.restarting import daemon_in, die, finish, read, register, write
from utracefs_protocol.errors import TraceError
from utracefsd.daemon import Daemon

A = b"events/user_events/a/"
I_A = b"instances/i/events/user_events/a/"
PERSIST = 1


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("hist."))


def outlived(
    daemon: Daemon, folder: Path, paths: list[bytes], orderly: bool = False
) -> tuple[Daemon, list[bytes]]:
    """The next daemon, whose files are the same, and what is in them."""
    before = [read(daemon, path) for path in paths]
    if orderly:
        daemon.close()
    else:
        die(daemon)
    after = daemon_in(folder)
    assert [read(after, path) for path in paths] == before
    return after, before


@pytest.mark.parametrize("orderly", [False, True])
def test_contents_and_state_survive(folder: Path, orderly: bool) -> None:
    daemon = daemon_in(folder)
    event = register(daemon, b"a u32 v", PERSIST)
    other = register(daemon, b"b u32 v", PERSIST)
    daemon.tree.mkdir(b"instances/i")
    write(daemon, A + b"trigger", b"hist:keys=v:vals=v:sort=v if v < 9", False)
    write(daemon, A + b"trigger", b"hist:keys=v:pause", False)
    write(daemon, A + b"trigger", b"hist:name=n:keys=v", False)
    write(daemon, I_A + b"trigger", b"hist:keys=v.log2:size=100", False)
    write(daemon, b"events/user_events/b/trigger", b"hist:name=n:keys=v", False)
    write(daemon, b"events/user_events/b/trigger", b"disable_hist:user_events:a:3 if v == 7", False)
    for v in (1, 2, 2, 10):
        event.tracepoint.write(struct.pack("<I", v), ts_ns=1, cpu=0, pid=1)
    other.tracepoint.write(struct.pack("<I", 7), ts_ns=1, cpu=0, pid=1)
    paths = [
        A + b"hist",
        A + b"trigger",
        I_A + b"hist",
        b"events/user_events/b/hist",
        b"events/user_events/b/trigger",
    ]
    assert len(files(folder)) == 4
    after, before = outlived(daemon, folder, paths, orderly)
    assert b"Hits: 3\n" in before[0]
    assert before[1].count(b"[paused]") == 3
    assert b"Hits: 5\n" in before[3]
    assert len(files(folder)) == 4
    event = after.table.events()[0]
    write(after, A + b"trigger", b"hist:name=n:keys=v:cont", False)
    event.tracepoint.write(struct.pack("<I", 2), ts_ns=1, cpu=0, pid=1)
    assert b"Hits: 6\n" in read(after, b"events/user_events/b/hist")
    assert b"Hits: 5\n" in read(after, I_A + b"hist")
    write(after, A + b"trigger", b"", True)
    assert read(after, A + b"hist") == b""
    assert len(files(folder)) == 2
    after.tree.rmdir(b"instances/i")
    assert len(files(folder)) == 1
    finish(after)
    assert files(folder) == []


@pytest.mark.parametrize("first_goes", [False, True])
def test_a_shared_table_of_another_size_than_requested(folder: Path, first_goes: bool) -> None:
    daemon = daemon_in(folder)
    event, other = register(daemon, b"a u32 v", PERSIST), register(daemon, b"b u32 v", PERSIST)
    write(daemon, b"events/user_events/b/trigger", b"hist:name=n:keys=v", False)
    write(daemon, A + b"trigger", b"hist:name=n:keys=v:size=256", False)
    event.tracepoint.write(struct.pack("<I", 2), ts_ns=1, cpu=0, pid=1)
    other.tracepoint.write(struct.pack("<I", 2), ts_ns=1, cpu=0, pid=1)
    if first_goes:
        write(daemon, b"events/user_events/b/trigger", b"!hist:name=n:keys=v", False)
    before = read(daemon, A + b"hist")
    assert b"Hits: 2\n" in before
    die(daemon)
    after = daemon_in(folder)
    assert read(after, A + b"hist") == before
    assert files(folder) == ["hist.1"]
    finish(after)


def test_a_shared_table_stays_shared_when_it_is_lost(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    daemon = daemon_in(folder)
    register(daemon, b"a u32 v", PERSIST)
    register(daemon, b"b u32 v", PERSIST)
    for name in (b"a", b"b"):
        write(daemon, b"events/user_events/%s/trigger" % name, b"hist:name=n:keys=v", False)
    die(daemon)
    (folder / "hist.1").unlink()
    after = daemon_in(folder)
    for event in after.table.events():
        event.tracepoint.write(struct.pack("<I", 2), ts_ns=1, cpu=0, pid=1)
    assert b"Hits: 2\n" in read(after, A + b"hist")
    assert caplog.text.count("the counts of a histogram are lost") == 1
    caplog.clear()
    finish(after)


def test_tables_without_a_name_are_removed(folder: Path) -> None:
    daemon = daemon_in(folder)
    register(daemon, b"a u32 v", PERSIST)
    write(daemon, A + b"trigger", b"hist:keys=v", False)
    die(daemon)
    (folder / "hist.9").write_bytes(b"of a trigger that was never answered for")
    after = daemon_in(folder)
    assert files(folder) == ["hist.1"]
    finish(after)


def test_a_table_that_is_damaged_begins_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    daemon = daemon_in(folder)
    event = register(daemon, b"a u32 v", PERSIST)
    write(daemon, A + b"trigger", b"hist:keys=v", False)
    event.tracepoint.write(struct.pack("<I", 2), ts_ns=1, cpu=0, pid=1)
    die(daemon)
    content = (folder / "hist.1").read_bytes()
    (folder / "hist.1").unlink()
    (folder / "hist.1").write_bytes(bytes(8) + content[8:])
    after = daemon_in(folder)
    assert b"Hits: 0\n" in read(after, A + b"hist")
    assert files(folder) == ["hist.2"]
    assert "the counts of a histogram are lost" in caplog.text
    caplog.clear()
    finish(after)


def test_a_state_that_is_set_aside_takes_its_tables_along(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = daemon_in(folder)
    register(daemon, b"a u32 v", PERSIST)
    write(daemon, A + b"trigger", b"hist:keys=v", False)
    die(daemon)
    (folder / "state").write_bytes(b"nonsense")
    after = daemon_in(folder)
    assert files(folder) == []
    assert (folder / "set-aside" / "hist.1").exists()
    caplog.clear()
    finish(after)


def test_synthetic_events_survive(folder: Path) -> None:
    daemon = daemon_in(folder)
    write(daemon, b"synthetic_events", b"lat u64 id; char[] who; char[16] where", False)
    register(daemon, b"a u32 v", PERSIST)
    write(daemon, b"events/synthetic/lat/enable", b"1")
    write(daemon, b"events/synthetic/lat/trigger", b"hist:keys=id", False)
    paths = [b"events/synthetic/lat/" + name for name in (b"format", b"enable", b"trigger")]
    after, _ = outlived(daemon, folder, [*paths, b"dynamic_events"])
    finish(after)


@pytest.mark.parametrize("orderly", [False, True])
def test_fields_of_the_matched_event_survive(folder: Path, orderly: bool) -> None:
    """Triggers made for fields are not made again, and are still removed with their reader."""
    daemon = daemon_in(folder)
    done = register(daemon, b"done u64 id; s32 rc", PERSIST)
    start = register(daemon, b"start u64 id; u32 wt", PERSIST)
    write(daemon, b"synthetic_events", b"lat u64 id; u32 wt", False)
    write(daemon, b"events/synthetic/lat/enable", b"1")
    write(daemon, b"events/user_events/start/trigger", b"hist:keys=id", False)
    lat = b"hist:keys=id:onmatch(user_events.start).lat(id,wt)"
    write(daemon, b"events/user_events/done/trigger", lat, False)
    start.tracepoint.write(struct.pack("<QI", 1, 7), ts_ns=1, cpu=0, pid=1)
    paths = [
        f"events/user_events/{name}".encode()
        for name in ("done/hist", "done/trigger", "start/hist", "start/trigger")
    ]
    after, before = outlived(daemon, folder, paths, orderly)
    assert b"synthetic_wt=wt" in before[3]
    done = after.table.events()[0]
    done.tracepoint.write(struct.pack("<Qi", 1, 5), ts_ns=1, cpu=0, pid=1)
    assert b"lat: id=1 wt=7\n" in read(after, b"trace")
    write(after, b"events/user_events/done/trigger", b"!" + lat, False)
    assert b"synthetic_wt" not in read(after, paths[3])
    assert len(files(folder)) == 1
    finish(after)


def test_snapshots_survive(folder: Path) -> None:
    daemon = daemon_in(folder)
    event = register(daemon, b"a u32 v", PERSIST)
    write(daemon, A + b"enable", b"1")
    write(daemon, A + b"trigger", b"hist:keys=v:x=v:onmax($x).snapshot()", False)
    for v in (1, 7, 3):
        event.tracepoint.write(struct.pack("<I", v), ts_ns=1, cpu=0, pid=1)
    paths = [A + b"hist", A + b"trigger", b"trace", b"snapshot"]
    after, before = outlived(daemon, folder, paths)
    assert b"{ onmax($x) }:          7\ttriggered by event with key: { v:          7 }\n" in before[0]
    event = after.table.events()[0]
    event.tracepoint.write(struct.pack("<I", 7), ts_ns=1, cpu=0, pid=1)
    assert read(after, b"snapshot") == before[3]
    with pytest.raises(TraceError) as caught:
        write(after, b"snapshot", b"0")
    assert caught.value.errno == errno.EBUSY
    event.tracepoint.write(struct.pack("<I", 8), ts_ns=1, cpu=0, pid=1)
    assert read(after, b"snapshot").count(b" a: v=") == 4
    finish(after)


def test_variables_and_actions_survive(folder: Path) -> None:
    """Also if the trigger that reads belongs to an earlier event."""
    daemon = daemon_in(folder)
    done = register(daemon, b"done u64 id; s32 rc", PERSIST)
    start = register(daemon, b"start u64 id; u32 w", PERSIST)
    write(daemon, b"synthetic_events", b"lat u64 id; u32 w", False)
    write(daemon, b"events/synthetic/lat/enable", b"1")
    write(daemon, b"events/user_events/start/trigger", b"hist:keys=id:x=w", False)
    write(
        daemon,
        b"events/user_events/done/trigger",
        b"hist:keys=id:y=$x+0:m=rc:onmatch(user_events.start).lat(id,$x):onmax($m).save(rc)",
        False,
    )
    start.tracepoint.write(struct.pack("<QI", 1, 7), ts_ns=1, cpu=0, pid=1)
    start.tracepoint.write(struct.pack("<QI", 2, 8), ts_ns=1, cpu=0, pid=1)
    done.tracepoint.write(struct.pack("<Qi", 1, 5), ts_ns=1, cpu=0, pid=1)
    paths = [
        f"events/user_events/{name}".encode()
        for name in ("done/hist", "done/trigger", "start/hist", "start/trigger")
    ]
    after, before = outlived(daemon, folder, paths)
    assert b"max:          5  rc:          5" in before[0]
    done = after.table.events()[0]
    for id in (1, 2):
        done.tracepoint.write(struct.pack("<Qi", id, 5), ts_ns=1, cpu=0, pid=1)
    assert b"Hits: 2\n" in read(after, paths[0])
    trace = read(after, b"trace")
    assert trace.count(b"lat: id=1 w=7\n") == 1
    assert trace.count(b"lat: id=2 w=8\n") == 1
    finish(after)
