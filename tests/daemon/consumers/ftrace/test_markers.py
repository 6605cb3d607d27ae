"""Markers: recorded, cut and refused writes."""

import errno

import pytest

from tests.daemon.tree.world import World, errno_of
from utracefs_protocol.errors import TraceError


def test_marker_with_a_nul_hides_its_newline(world: World) -> None:
    world.wn(b"trace_marker", b"one\0two")
    world.wn(b"trace_marker", b"three")
    text = world.cat(b"trace")
    assert b"tracing_mark_write: one             drv-46" in text
    assert b"two" not in text


def test_long_markers_are_cut(world: World) -> None:
    assert world.wn(b"trace_marker", b"x" * 4054) == 4054
    assert world.wn(b"trace_marker", b"y" * 10000) == 4054
    assert [len(body) for body in world.bodies()] == [4054 + 20, 4054 + 20]
    world.w(b"buffer_subbuf_size_kb", b"8")
    assert world.wn(b"trace_marker", b"z" * 10000) == 4096


def test_trace_marker_raw(world: World) -> None:
    assert world.wn(b"trace_marker_raw", (0x1234).to_bytes(4, "little")) == 4
    assert world.wn(b"trace_marker_raw", (0x42).to_bytes(4, "little") + bytes(range(8))) == 12
    bodies = world.bodies()
    assert bodies[0] == b"# 1234 buf:"
    assert bodies[1] == b"# 42 buf: 00 01 02 03 04 05 06 07"
    for size in (0, 1, 3, 4065, 4084, 20000):
        assert errno_of(world.wn, b"trace_marker_raw", b"x" * size) == errno.EINVAL
    assert world.wn(b"trace_marker_raw", b"x" * 3004) == 3004


@pytest.mark.parametrize("path", [b"trace_marker", b"trace_marker_raw"])
def test_markers_that_cannot_be_recorded(world: World, path: bytes) -> None:
    world.w(b"tracing_on", b"0")
    assert errno_of(world.w, path, b"four") == errno.EBADF
    world.w(b"tracing_on", b"1")
    world.w(b"options/markers", b"0")
    assert errno_of(world.w, path, b"four") == errno.EINVAL
    world.w(b"options/markers", b"1")
    world.w(b"options/overwrite", b"0")
    recorded = 0
    while True:
        try:
            world.wn(path, b"m" * 100)
        except TraceError as error:
            assert error.errno == errno.EBADF
            break
        recorded += 1
        assert recorded < 1000
    assert len(world.trace_lines()) == recorded > 10
    assert b"dropped events: 1\n" in world.cat(b"per_cpu/cpu0/stats")
