"""onmatch, onmax and onchange, with trace() and save()."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

import pytest

from tests.daemon.tree.world import World, errno_of
from utracefsd.consumers.ftrace.hist.actions import Action, Handler, Kind, parse_action
from utracefsd.consumers.ftrace.hist.errors import HistError, Log

START = b"events/user_events/start/"
DONE = b"events/user_events/done/"
LATENCY = b"hist:keys=id:d=common_timestamp.usecs-$ts0:onmatch(user_events.start).lat(id,$d,rc)"


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.event(b"start u64 id; u32 w")
    world.event(b"done u64 id; s32 rc; __rel_loc char[] path")
    yield world
    world.close()


def emit(world: World, name: bytes, id: int, value: int = 0, path: bytes = b"", at_us: int = 1) -> None:
    event = world.table.get(b"user_events", name)
    assert event is not None
    payload = struct.pack("<Qi" if name == b"done" else "<QI", id, value)
    if name == b"done":
        payload += struct.pack("<HH", 0, len(path) + 1) + path + b"\0"
    assert world.emit(event, payload, ts_ns=at_us * 1000) == 0


def test_latency_between_two_events(world: World) -> None:
    world.wa(b"synthetic_events", b"lat u64 id; u64 delta; s32 rc")
    world.wa(b"events/synthetic/lat/enable", b"1")
    world.wa(START + b"trigger", b"hist:keys=id:ts0=common_timestamp.usecs,w0=w")
    world.wa(DONE + b"trigger", LATENCY)
    assert world.cat(DONE + b"trigger") == (
        b"hist:keys=id:vals=hitcount:d=common_timestamp.usecs-$ts0:sort=hitcount:size=2048:clock=global"
        b":onmatch(user_events.start).lat(id,$d,rc) [active]\n"
    )
    assert world.instance.clock == "global"
    emit(world, b"start", 1, at_us=100)
    emit(world, b"start", 2, at_us=150)
    emit(world, b"done", 1, -1, at_us=17281)
    emit(world, b"done", 2, 0, at_us=17290)
    emit(world, b"done", 1, 5, at_us=17291)
    emit(world, b"done", 3, 5, at_us=17292)
    assert world.bodies() == [b"lat: id=1 delta=17181 rc=-1", b"lat: id=2 delta=17140 rc=0"]
    assert b"Hits: 2\n" in world.cat(DONE + b"hist")
    assert errno_of(world.wa, b"synthetic_events", b"!lat") == errno.EBUSY
    assert errno_of(world.wa, DONE + b"trigger", LATENCY) == errno.EINVAL, "its variable is defined already"
    world.wa(DONE + b"trigger", b"!" + LATENCY)
    world.wa(b"events/synthetic/lat/enable", b"0")
    world.wa(b"synthetic_events", b"!lat")


def test_synthetic_events_have_histograms_of_their_own(world: World) -> None:
    world.wa(b"synthetic_events", b"lat u64 id; u64 delta; s32 rc")
    world.wa(START + b"trigger", b"hist:keys=id:ts0=common_timestamp.usecs")
    world.wa(DONE + b"trigger", LATENCY)
    world.wa(b"events/synthetic/lat/trigger", b"hist:keys=rc:vals=delta if rc != 9")
    for rc in (0, 9, 0):
        emit(world, b"start", rc, at_us=10)
        emit(world, b"done", rc, rc, at_us=15)
    assert b"{ rc:          0 } hitcount:          2  delta:         10\n" in world.cat(
        b"events/synthetic/lat/hist"
    )
    assert world.bodies() == []


def test_an_event_that_brings_itself(world: World) -> None:
    """It ends; the kernel would not let it begin."""
    world.wa(b"synthetic_events", b"loop u64 id")
    world.wa(b"events/synthetic/loop/trigger", b"hist:keys=1:x=id:onchange($x).trace(loop,$x)")
    world.wa(START + b"trigger", b"hist:keys=1:x=id:onchange($x).trace(loop,id)")
    world.wa(b"events/synthetic/loop/enable", b"1")
    for id in (5, 6):
        emit(world, b"start", id)
    assert world.bodies() == [b"loop: id=5", b"loop: id=5", b"loop: id=6", b"loop: id=6"]


@pytest.mark.parametrize(
    ("handler", "word", "shown"), [(b"onmax", b"max", 30), (b"onchange", b"changed", 10)]
)
def test_saving(world: World, handler: bytes, word: bytes, shown: int) -> None:
    world.wa(DONE + b"trigger", b"hist:keys=id:x=rc:%s($x).save(rc,path)" % handler)
    assert world.cat(DONE + b"trigger").endswith(b":size=2048:%s($x).save(rc,path) [active]\n" % handler)
    for rc, path in ((20, b"/a"), (30, b"/b"), (30, b"/c"), (10, b"/d")):
        emit(world, b"done", 1, rc, path)
    path = b"/b" if handler == b"onmax" else b"/d"
    assert world.cat(DONE + b"hist").split(b"\n")[5:7] == [
        b"{ id:          1 } hitcount:          4",
        b"\t%s: %10d  rc: %10d  path: %-32s" % (word, shown, shown, path),
    ]


def test_a_maximum_is_told(world: World) -> None:
    world.wa(b"synthetic_events", b"top u64 id; s32 rc")
    world.wa(b"events/synthetic/top/enable", b"1")
    world.wa(DONE + b"trigger", b"hist:keys=id:x=rc:onmax($x).trace(top,id,$x)")
    for rc in (2, 1, 3, 3):
        emit(world, b"done", 1, rc)
    assert world.bodies() == [b"top: id=1 rc=2", b"top: id=1 rc=3"]


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (b"onmatch(user_events.start)", b"No action found"),
        (b"onmatch(user_events.start).lat", b"No action found"),
        (b"onmatch(start).lat(id)", b"Missing subsystem"),
        (b"onmatch(user_events.none).lat(id)", b"Invalid subsystem or event name"),
        (b"onmatch(user_events.start", b"No closing paren found"),
        (b"onmatch(user_events.start).none(id)", b"Couldn't find synthetic event"),
        (b"onmatch(user_events.start).lat(rc,id)", b"Param type doesn't match synthetic event field type"),
        (b"onmatch(user_events.start).lat(id)", b"Param count doesn't match synthetic event field count"),
        (b"onmatch(user_events.start).lat(id,rc,rc)", b"Param type doesn't match synthetic event field type"),
        (b"onmatch(user_events.start).lat(id,$no)", b"Couldn't find param"),
        (b"onmatch(user_events.start).lat(id,x)", b"Invalid action param"),
        (b"onmatch(user_events.start).lat(id,none)", b"Couldn't parse field variable"),
        (b"onmatch(user_events.start).save(id)", b"Handler doesn't support action"),
        (b"onmatch(user_events.start).snapshot()", b"Handler doesn't support action"),
        (b"onmax(x).save(rc)", b"For onmax(x) or onchange(x), x must be a variable"),
        (b"onmax($y).save(rc)", b"Couldn't find onmax or onchange variable"),
        (b"onmax($x).save(none)", b"Couldn't create field variable"),
        (b"onmax($x).snapshot(", b"No closing paren found"),
        (b"onmax($x).save(rc):onmax($x).save(id)", b"Can't have more than one save() action per hist"),
    ],
)
def test_refused(world: World, action: bytes, message: bytes) -> None:
    world.wa(b"synthetic_events", b"lat u64 id; s32 rc")
    world.wn(b"error_log", b"")
    number = errno.EEXIST if b"more than one" in message else errno.EINVAL
    assert errno_of(world.wa, DONE + b"trigger", b"hist:keys=id:x=rc:" + action) == number
    assert b"hist:user_events:done: error: " + message + b"\n" in world.cat(b"error_log")
    assert b"# Available" in world.cat(DONE + b"trigger")
    world.wa(b"synthetic_events", b"!lat")


def test_snapshot_is_not_there(world: World) -> None:
    assert errno_of(world.wa, DONE + b"trigger", b"hist:keys=id:x=rc:onmax($x).snapshot()") == errno.EINVAL


def test_parsing() -> None:
    log = Log(b"hist:keys=id:x=rc:onmatch(s.e).trace(t,$a, b2 )")
    action = parse_action(b"onmatch(s.e).trace(t2,$a, b2 )", log, lambda system, event: True)
    assert action == Action(Handler.ONMATCH, b"s.e", b"trace", Kind.TRACE, (b"$a", b"b2"), b"t2")
    assert action.text() == b":onmatch(s.e).trace(t2,$a,b2)"
    assert action.match == (b"s", b"e")
    with pytest.raises(HistError):
        parse_action(b"onmax($x", log, lambda system, event: True)
    many = b",".join(b"f%02d" % n for n in range(65))
    with pytest.raises(HistError) as caught:
        parse_action(b"onmax($x).save(%s)" % many, log, lambda system, event: True)
    assert caught.value.entries[-1][0] == "Too many action params"
