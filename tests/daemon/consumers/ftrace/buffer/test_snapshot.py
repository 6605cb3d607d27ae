"""The snapshot of an instance: states, numbers, sizes, memory; the text is judged in the tree's tests."""

import pytest

from tests.daemon.tree.world import World


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


def test_help(world: World) -> None:
    text = world.instance.snapshot.help_text()
    assert text.startswith(b"#\n# * Snapshot is freed *\n#\n# Snapshot commands:\n")
    assert b"# echo 0 > snapshot : Clears and frees snapshot buffer\n" in text
    world.instance.snapshot.allocate()
    text = world.instance.snapshot.help_text(0)
    assert text.startswith(b"#\n# * Snapshot is allocated *\n#\n# Snapshot commands:\n")
    assert b"# echo 0 > snapshot : Invalid for per_cpu snapshot file.\n" in text
