"""Events removed for space, and for which user; with instances that have standing lines."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.daemon.tree.world import World
from utracefs_protocol.errors import TraceError
from utracefsd.events.event import CommandString, Event
from utracefsd.machine.shares import Resource


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.table.user_events_max = 4
    world.table.shares.most[Resource.EVENTS] = 3
    world.w(b"standing_events", b"user_events:*")
    yield world
    world.close()


def register(world: World, name: bytes, uid: int = 1000) -> Event:
    event = world.table.register(CommandString.parse(name + b" u32 v"), privileged=False, owner_uid=uid)
    world.table.acquire(event)
    return event


def passing(world: World, name: bytes, uid: int = 1000) -> Event:
    """A program that ends at once."""
    event = register(world, name, uid)
    world.let_go(event)
    world.now += 10**9
    world.table.reap()
    return event


def names(world: World) -> list[bytes]:
    return [event.name for event in world.table.events()]


def refused(world: World, name: bytes, uid: int = 1000) -> str:
    with pytest.raises(TraceError) as caught:
        register(world, name, uid)
    return errno.errorcode[caught.value.errno]


def test_the_longest_idle_of_the_same_user_goes_at_his_limit(world: World) -> None:
    for name in (b"a", b"b", b"c"):
        passing(world, name)
    passing(world, b"other", 1001)
    assert names(world) == [b"a", b"b", b"c", b"other"]
    register(world, b"a")
    register(world, b"d")
    assert names(world) == [b"a", b"c", b"other", b"d"]
    world.let_go(register(world, b"a"))
    register(world, b"e")
    assert names(world) == [b"a", b"other", b"d", b"e"]
    assert refused(world, b"f") == "EMFILE"
    assert world.table.idle.gone == 2


def test_of_the_user_with_most_of_them_where_the_table_is_full(world: World) -> None:
    passing(world, b"x", 1001)
    for name in (b"a", b"b", b"c"):
        passing(world, name)
    register(world, b"y", 1002)
    assert names(world) == [b"x", b"b", b"c", b"y"]
    for name in (b"z", b"w"):
        register(world, name, 1002)
    assert len(names(world)) == 4
    assert refused(world, b"v", 1002) == "EMFILE", "his own are in use"
    register(world, b"v", 0)
    assert refused(world, b"u", 0) == "EMFILE"


def test_large_events_give_room_for_fields(world: World) -> None:
    world.table.shares.most[Resource.FIELDS] = 4
    passing(world, b"other", 1001)
    command = b" " + b";".join(b"u8 f%d" % n for n in range(10))
    for name in (b"a", b"b"):
        event = world.table.register(CommandString.parse(name + command), privileged=False, owner_uid=1000)
        world.table.acquire(event)
        world.let_go(event)
    world.table.acquire(
        world.table.register(CommandString.parse(b"c" + command), privileged=False, owner_uid=1000)
    )
    assert names(world) == [b"other", b"b", b"c"], "of nobody else"


def test_what_is_attached_by_hand_stays(world: World) -> None:
    passing(world, b"a")
    world.w(b"standing_events", b"user_events:b*")
    passing(world, b"b")
    passing(world, b"c")
    assert names(world) == [b"a", b"b"], "nothing holds c"
    going = world.table.idle.let_one_go(None)
    assert going is not None and going.name == b"b"
    assert world.table.idle.let_one_go(None) is None
    assert world.table.get(b"user_events", b"a").status  # type: ignore[union-attr]


def test_what_several_instances_keep_goes_when_all_would_have_it_again(world: World) -> None:
    world.tree.mkdir(b"instances/i")
    event = passing(world, b"a")
    world.w(b"instances/i/events/user_events/a/enable", b"1")
    assert world.table.idle.let_one_go(1000) is None
    world.w(b"instances/i/standing_events", b"a")
    assert world.table.idle.let_one_go(1000) is event
    assert (event.references, event.status) == (0, 0)


def test_triggers_of_standing_lines_go_and_others_stay(world: World) -> None:
    world.wa(b"standing_triggers", b"h* hist:keys=v")
    going = passing(world, b"hot")
    assert world.cat(b"events/user_events/hot/hist")
    passing(world, b"b")
    world.wa(b"events/user_events/b/trigger", b"traceoff")
    assert world.table.idle.let_one_go(1000) is going
    assert not len(world.instances.tables), "its histogram is gone"
    assert world.table.idle.let_one_go(1000) is None


def test_what_triggers_of_other_events_need_stays(world: World) -> None:
    for name in (b"a", b"b"):
        passing(world, name)
    register(world, b"c")
    world.wa(b"standing_triggers", b"zzz traceoff")
    world.wa(b"events/user_events/c/trigger", b"enable_event:user_events:a")
    world.wa(b"standing_triggers", b"b hist:keys=v:x=v")
    world.wa(b"events/user_events/b/trigger", b"hist:keys=v:x=v")
    world.wa(b"events/user_events/c/trigger", b"hist:keys=v:y=$x")
    assert world.table.idle.let_one_go(1000) is None
    world.wa(b"events/user_events/c/trigger", b"!hist:keys=v:y=$x")
    going = world.table.idle.let_one_go(1000)
    assert going is not None and going.name == b"b"


def test_events_that_must_stay_do_not_hide_others(world: World) -> None:
    world.table.user_events_max = world.table.shares.most[Resource.EVENTS] = 200
    for n in range(100):
        passing(world, b"e%d" % n)
    world.w(b"standing_events", b"e99")
    assert world.table.idle.let_one_go(None) is None
    going = world.table.idle.let_one_go(None)
    assert going is not None and going.name == b"e99"
