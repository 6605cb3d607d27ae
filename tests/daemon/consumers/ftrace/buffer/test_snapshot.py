"""The snapshot of an instance: states, numbers, sizes, memory; the text is judged in the tree's tests."""

import errno

import pytest

from tests.daemon.tree.world import World, errno_of


@pytest.fixture
def recorded(world: World) -> World:
    """Records three markers; their time stamps do not matter."""
    world.instance.markers.write(b"a", 46)
    return world


def marks(world: World) -> tuple[list[bytes], list[bytes]]:
    """The records, and the snapshot."""
    return tuple(  # type: ignore[return-value]
        [body.removeprefix(b"tracing_mark_write: ") for body in world.bodies(file)]
        for file in (b"trace", b"snapshot")
    )


def test_memory_is_checked_for_both(world: World) -> None:
    instance = world.instance
    instance.store.resize(100)
    world.free_memory_kb = 205
    assert errno_of(instance.snapshot.write, 1) == errno.ENOMEM
    assert instance.snapshot.buffer is None
    world.free_memory_kb = 206
    instance.snapshot.write(1)
    world.free_memory_kb = 300
    assert errno_of(instance.store.resize, 200) == errno.ENOMEM
    assert instance.store.size_text() == b"103\n"
    instance.store.resize(170)


def test_help(world: World) -> None:
    text = world.instance.snapshot.help_text()
    assert text.startswith(b"#\n# * Snapshot is freed *\n#\n# Snapshot commands:\n")
    assert b"# echo 0 > snapshot : Clears and frees snapshot buffer\n" in text
    world.instance.snapshot.allocate()
    text = world.instance.snapshot.help_text(0)
    assert text.startswith(b"#\n# * Snapshot is allocated *\n#\n# Snapshot commands:\n")
    assert b"# echo 0 > snapshot : Invalid for per_cpu snapshot file.\n" in text


def test_one_condition_may_hold_it(recorded: World) -> None:
    snapshot = recorded.instance.snapshot
    holder = object()
    let_go = snapshot.hold(holder)
    assert snapshot.buffer is not None
    for value in (0, 1, 2):
        assert errno_of(snapshot.write, value) == errno.EBUSY
    assert errno_of(snapshot.write, 1, 0) == errno.EBUSY
    assert errno_of(snapshot.hold, object()) == errno.EBUSY
    snapshot.hold(holder)()
    assert errno_of(snapshot.write, 1) == errno.EBUSY
    assert marks(recorded) == ([b"a"], [])
    recorded.instance.sink.ring_buffer.swap()  # what the one does that holds it
    assert marks(recorded) == ([], [b"a"])
    let_go()
    snapshot.write(0)
    assert snapshot.buffer is None
