"""Histograms of a daemon and of the next one."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.daemon.record_path import write as write_record
from tests.daemon.restarting import daemon_in, die, finish, read, register, write
from utracefsd.daemon import Daemon

A = b"events/user_events/a/"
PERSIST = 1


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("hist."))


def outlived(daemon: Daemon, folder: Path, paths: list[bytes]) -> tuple[Daemon, list[bytes]]:
    """The next daemon, whose files are the same, and what is in them."""
    before = [read(daemon, path) for path in paths]
    die(daemon)
    after = daemon_in(folder)
    assert [read(after, path) for path in paths] == before
    return after, before


def test_a_table_that_is_damaged_begins_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    daemon = daemon_in(folder)
    event = register(daemon, b"a u32 v", PERSIST)
    write(daemon, A + b"trigger", b"hist:keys=v", False)
    write_record(event.tracepoint, struct.pack("<I", 2), ts_ns=1, cpu=0, pid=1)
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


def test_synthetic_events_survive(folder: Path) -> None:
    daemon = daemon_in(folder)
    write(daemon, b"synthetic_events", b"lat u64 id; char[] who; char[16] where", False)
    register(daemon, b"a u32 v", PERSIST)
    write(daemon, b"events/synthetic/lat/enable", b"1")
    write(daemon, b"events/synthetic/lat/trigger", b"hist:keys=id", False)
    paths = [b"events/synthetic/lat/" + name for name in (b"format", b"enable", b"trigger")]
    after, _ = outlived(daemon, folder, [*paths, b"dynamic_events"])
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


@pytest.mark.parametrize("variable", [b"$x", b"user_events.start.$x"])
def test_actions_survive_whose_own_variables_have_the_same_names(folder: Path, variable: bytes) -> None:
    """Neither reads the other's."""
    daemon = daemon_in(folder)
    register(daemon, b"done u64 id", PERSIST)
    register(daemon, b"start u64 id", PERSIST)
    write(daemon, b"synthetic_events", b"lat u64 id", False)
    write(
        daemon,
        b"events/user_events/start/trigger",
        b"hist:keys=id:x=id,y=id:onchange($y).trace(lat,$y)",
        False,
    )
    own = b",x=id" * (variable != b"$x")
    write(
        daemon,
        b"events/user_events/done/trigger",
        b"hist:keys=id:y=%s+0%s:onmatch(user_events.start).trace(lat,$y)" % (variable, own),
        False,
    )
    paths = [b"events/user_events/done/trigger", b"events/user_events/start/trigger"]
    after, before = outlived(daemon, folder, paths)
    assert b"onmatch" in before[0]
    finish(after)


def test_triggers_come_back_in_the_order_in_which_they_were_made(folder: Path) -> None:
    """The first of these events needs the last one's variable `b`, and has an `a` that the last one does not
    mean."""
    daemon = daemon_in(folder)
    names = (b"other", b"start", b"done")
    for name in names:
        register(daemon, name + b" u64 id", PERSIST)
    other, start, done = paths = [b"events/user_events/%s/trigger" % name for name in names]
    for path, command in (
        (start, b"hist:keys=id:a=id"),
        (done, b"hist:keys=id:b=$a"),
        (other, b"hist:keys=id:a=id,c=$b"),
        (other, b"traceoff:3"),
        (other, b"snapshot:3"),
    ):
        write(daemon, path, command, False)
    after, before = outlived(daemon, folder, paths)
    assert [text.count(b"\n") for text in before] == [3, 1, 1]
    finish(after)
