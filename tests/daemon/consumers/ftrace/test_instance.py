"""Instances as objects: several on one table, each with its own state. The rest is tested through the
tree."""

import pytest

from tests.daemon.tree.world import World
from utracefsd.consumers.ftrace.instance import Instance


@pytest.fixture
def other(world: World) -> Instance:
    return world.instances.make(b"other")


def test_each_records_for_itself(world: World, other: Instance) -> None:
    event = world.event(b"alpha u32 v")
    world.instance.events.enable(event)
    other.events.enable(event)
    other.events.enable(event)
    assert world.emit(event, b"\1\0\0\0") == 0
    other.tracing_on = False
    world.emit(event, b"\2\0\0\0")
    world.instance.events.disable(event)
    assert event.status == 1  # the other one still listens
    assert (world.instance.buffer.entries(), other.buffer.entries()) == (2, 1)
    assert event.tracepoint.stats_text() == (
        b"emitted: 2\nbytes: 8\nftrace:other: recorded 1 filtered 1 lost 0\n"
        b"detached:\nftrace: recorded 2 filtered 0 lost 0\n"
    )
    other.events.disable(event)
    other.events.disable(event)
    assert event.status == 0


def test_each_is_marked_and_cleared_for_itself(world: World, other: Instance) -> None:
    one, two = world.event(b"one u32 v"), world.event(b"two u32 v")
    for instance, event in ((world.instance, one), (other, two)):
        instance.events.enable(event)
        world.emit(event, b"\0\0\0\0")
    world.instance.events.disable(one)
    world.let_go(one)
    assert (world.instance.settings.clear_pending, other.settings.clear_pending) == (True, False)
    world.wa(b"dynamic_events", b"u:three")
    world.wa(b"dynamic_events", b"!u:three")
    assert (world.instance.buffer.entries(), other.buffer.entries()) == (0, 1)
    assert not world.instance.settings.clear_pending
