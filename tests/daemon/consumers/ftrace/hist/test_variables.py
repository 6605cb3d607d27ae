"""Variables, references between triggers, and their results; actions are in test_actions.py."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

import pytest

from tests.daemon.tree.world import World, errno_of
from utracefsd.consumers.ftrace.hist.variables import is_read

START = b"events/user_events/start/"
DONE = b"events/user_events/done/"


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.event(b"start u64 id; u32 wt")
    world.event(b"done u64 id; s32 rc; __rel_loc char[] path")
    world.instance.set_clock(b"mono")
    yield world
    world.close()


def emit(world: World, name: bytes, id: int, value: int = 0, path: bytes = b"") -> None:
    event = world.table.get(b"user_events", name)
    assert event is not None
    payload = struct.pack("<Qi" if name == b"done" else "<QI", id, value)
    if name == b"done":
        payload += struct.pack("<HH", 0, len(path) + 1) + path + b"\0"
    assert world.emit(event, payload, ts_ns=value * 1000 if name == b"x" else None) == 0


def line(world: World, path: bytes) -> bytes:
    return world.cat(path + b"trigger").removesuffix(b"\n")


def test_a_value_of_another_event(world: World) -> None:
    world.wa(START + b"trigger", b"hist:keys=id:x=wt")
    world.wa(DONE + b"trigger", b"hist:keys=id:vals=$x,rc")
    assert line(world, DONE) == b"hist:keys=id:vals=hitcount,$x,rc:sort=hitcount:size=2048 [active]"
    emit(world, b"done", 1)
    assert b"Hits: 0\n" in world.cat(DONE + b"hist"), "nothing is known of 1"
    emit(world, b"start", 1, 7)
    for rc in (1, 2):
        emit(world, b"done", 1, rc)
    emit(world, b"start", 1, 8)
    emit(world, b"done", 1, 3)
    text = world.cat(DONE + b"hist")
    assert b"{ id:          1 } hitcount:          3  x:         22  rc:          6\n" in text


@pytest.mark.parametrize("keys", [b"id,rc", b"id,path"])
def test_more_keys_than_the_variable_has(world: World, keys: bytes) -> None:
    """The standard example of the kernel's page: keys=pid,prio read what keys=pid set."""
    world.wa(START + b"trigger", b"hist:keys=id:x=wt")
    world.wa(DONE + b"trigger", b"hist:keys=" + keys + b":vals=rc-$x")
    emit(world, b"start", 1, 7)
    emit(world, b"done", 2, 10, b"p")
    emit(world, b"done", 1, 10, b"p")
    assert b"Hits: 1\n" in world.cat(DONE + b"hist")
    emit(world, b"done", 1, 11, b"p")  # it was read once, so it is unset
    assert b"Hits: 1\n" in world.cat(DONE + b"hist")


def test_an_operand_is_read_once(world: World) -> None:
    world.wa(START + b"trigger", b"hist:keys=id:x=wt")
    world.wa(DONE + b"trigger", b"hist:keys=id:d=rc-$x:vals=rc")
    assert line(world, DONE) == b"hist:keys=id:vals=hitcount,rc:d=rc-$x:sort=hitcount:size=2048 [active]"
    emit(world, b"start", 1, 7)
    emit(world, b"done", 1, 10)
    emit(world, b"done", 1, 11)
    emit(world, b"done", 2, 12)
    assert b"Hits: 1\n" in world.cat(DONE + b"hist")
    emit(world, b"start", 1, 7)
    emit(world, b"done", 1, 13)
    text = world.cat(DONE + b"hist")
    assert b"Hits: 2\n" in text
    assert b"rc:         23\n" in text


def test_an_operand_of_a_value_is_read_once(world: World) -> None:
    """Also by a trigger that has no variables itself."""
    world.wa(START + b"trigger", b"hist:keys=id:x=wt")
    world.wa(DONE + b"trigger", b"hist:keys=id:vals=rc-$x")
    emit(world, b"start", 1, 7)
    for _ in range(2):
        emit(world, b"done", 1, 10)
    assert b"Hits: 1\n" in world.cat(DONE + b"hist")


def test_qualified_names(world: World) -> None:
    world.wa(START + b"trigger", b"hist:keys=id:x=wt")
    world.wa(DONE + b"trigger", b"hist:keys=id:x=rc")
    world.event(b"third u64 id")
    third = b"events/user_events/third/"
    assert errno_of(world.wa, third + b"trigger", b"hist:keys=id:vals=$x") == errno.EINVAL
    assert b"Variable name not unique, need to use fully qualified name" in world.cat(b"error_log")
    world.wa(third + b"trigger", b"hist:keys=id:y=user_events.start.$x+1:vals=user_events.done.$x")
    assert b"vals=hitcount,$user_events.done.x:y=$user_events.start.x+1:" in line(world, third)


def test_names_are_taken_once_in_an_event(world: World) -> None:
    world.wa(START + b"trigger", b"hist:keys=id:x=wt")
    assert errno_of(world.wa, START + b"trigger", b"hist:keys=wt:x=id") == errno.EINVAL
    assert b"error: Variable already defined" in world.cat(b"error_log")
    world.wa(START + b"trigger", b"!hist:keys=id:x=wt")
    world.wa(START + b"trigger", b"hist:keys=wt:x=id")


def test_fewer_keys_than_the_variable_has_match_nothing(world: World) -> None:
    world.wa(START + b"trigger", b"hist:keys=id,wt:x=wt")
    world.wa(DONE + b"trigger", b"hist:keys=id:vals=$x")
    emit(world, b"start", 1, 7)
    emit(world, b"done", 1, 7)
    assert b"Hits: 0\n" in world.cat(DONE + b"hist")


def test_strings(world: World) -> None:
    world.wa(b"synthetic_events", b"both char[] first; char[] last")
    world.wa(b"events/synthetic/both/enable", b"1")
    world.event(b"begin u64 id; char[8] who")
    world.wa(b"events/user_events/begin/trigger", b"hist:keys=id:who=who")
    world.wa(DONE + b"trigger", b"hist:keys=id:onmatch(user_events.begin).trace(both,$who,path)")
    begin = world.table.get(b"user_events", b"begin")
    assert begin is not None
    for who in (b"first", b"eight888"):
        world.emit(begin, struct.pack("<Q8s", 4, who))
        emit(world, b"done", 4, 0, b"/a/b")
    assert world.bodies() == [b"both: first=first last=/a/b", b"both: first=eight888 last=/a/b"]


def test_a_variable_that_is_another(world: World) -> None:
    world.wa(START + b"trigger", b"hist:keys=id:x=wt+1")
    world.wa(DONE + b"trigger", b"hist:keys=id:y=$x:z=rc")
    assert b":y=$x,z=rc:" in line(world, DONE)
    world.event(b"third u64 id")
    world.wa(b"events/user_events/third/trigger", b"hist:keys=id:vals=$y")
    emit(world, b"start", 1, 7)
    emit(world, b"done", 1)
    world.emit(world.table.events()[-1], struct.pack("<Q", 1))
    assert b"y:          8\n" in world.cat(b"events/user_events/third/hist")


LAT = b"hist:keys=id:onmatch(user_events.start).lat(id,wt)"
MADE = b"hist:keys=id:vals=hitcount:synthetic_wt=wt:sort=hitcount:size=%d%s [active]"


def lines(world: World) -> list[bytes]:
    """Lines of the matched event, also of triggers that an action made."""
    return [text for text in world.cat(START + b"trigger").split(b"\n") if text and text[:1] != b"#"]


def lat_event(world: World) -> None:
    world.wa(b"synthetic_events", b"lat u64 id; u32 wt")
    world.wa(b"events/synthetic/lat/enable", b"1")
    world.wn(b"error_log", b"")


def test_a_field_of_the_matched_event(world: World) -> None:
    lat_event(world)
    world.wa(START + b"trigger", b"hist:keys=id:size=256 if wt < 10")
    world.wa(DONE + b"trigger", LAT)
    assert world.cat(b"error_log") == b""
    assert line(world, DONE).endswith(b":size=2048:onmatch(user_events.start).lat(id,wt) [active]")
    assert lines(world)[1:] == [MADE % (256, b" if wt < 10")]
    emit(world, b"done", 1)
    emit(world, b"start", 1, 7)
    emit(world, b"start", 2, 11)
    for _ in range(2):
        emit(world, b"done", 1)
        emit(world, b"done", 2)
    assert world.bodies() == [b"lat: id=1 wt=7"] * 2
    made = b"hist:keys=id:synthetic_wt=wt if wt < 10"
    assert errno_of(world.wa, START + b"trigger", b"!" + made) == errno.EBUSY
    world.wa(DONE + b"trigger", b"!" + LAT)
    assert len(lines(world)) == 1
    assert len(world.instance.events.of(world.table.events()[0]).triggers) == 1
    assert len(world.instances.tables) == 1


def test_two_that_want_the_same_field(world: World) -> None:
    """Made triggers are removed with the last reader."""
    lat_event(world)
    world.event(b"more u64 id")
    world.wa(START + b"trigger", b"hist:keys=id")
    world.wa(DONE + b"trigger", LAT)
    world.wa(b"events/user_events/more/trigger", LAT)
    assert len(lines(world)) == 2
    world.wa(DONE + b"trigger", b"!" + LAT)
    assert len(lines(world)) == 2
    world.wn(START + b"trigger", b"")
    assert len(lines(world)) == 2, "truncating removes nothing while one is read"
    world.wn(b"events/user_events/more/trigger", b"")
    assert len(lines(world)) == 1


def test_what_somebody_wrote_stays(world: World) -> None:
    lat_event(world)
    world.wa(START + b"trigger", b"hist:keys=id:synthetic_wt=wt")
    world.wa(DONE + b"trigger", LAT)
    assert lines(world) == [MADE % (2048, b"")]
    world.wa(DONE + b"trigger", b"!" + LAT)
    assert lines(world) == [MADE % (2048, b"")]


@pytest.mark.parametrize(
    ("there", "action", "messages"),
    [
        (b"wt", b"lat(id,wt)", [b"Couldn't find field", b"Couldn't parse field variable", b"Matching event"]),
        (b"id,wt", b"lat(id,wt)", [b"Matching event histogram not found"]),
        (b"id", b"lat(id,no)", [b"Couldn't create histogram for field"]),
        (b"id", b"lat(wt,id)", [b"Param type doesn't match synthetic event field type"]),
        (b"id", b"lat(id,user_events.none.wt)", [b"Couldn't find event file"]),
        (b"id", b"lat(id,user_events.done.wt)", [b"Couldn't parse field variable"]),
        (b"wt:synthetic_wt=id", b"lat(id,wt)", [b"Matching event histogram not found"]),
    ],
)
def test_no_field_of_the_matched_event(
    world: World, there: bytes, action: bytes, messages: list[bytes]
) -> None:
    """And no made trigger is left."""
    lat_event(world)
    world.wa(START + b"trigger", b"hist:keys=" + there)
    text = b"hist:keys=id:onmatch(user_events.start)." + action
    assert errno_of(world.wa, DONE + b"trigger", text) == errno.EINVAL
    for message in messages:
        assert b"hist:user_events:done: error: " + message in world.cat(b"error_log")
    assert b"hist:user_events:start" not in world.cat(b"error_log")
    assert len(lines(world)) == 1
    assert len(world.instances.tables) == 1
    assert b"# Available" in line(world, DONE)


def test_removing_makes_nothing(world: World) -> None:
    lat_event(world)
    world.wa(START + b"trigger", b"hist:keys=id")
    assert errno_of(world.wa, DONE + b"trigger", b"!" + LAT) == errno.EINVAL
    assert len(lines(world)) == 1


def test_is_read() -> None:
    class One:
        definition = None

    assert not is_read(One(), iter(()))
