"""inject: text becomes a record, byte for byte in the kernel's layout."""

import errno
import struct

import pytest

from tests.daemon.tree.world import World, errno_of
from utracefs_protocol.events.declaration import parse
from utracefsd.consumers.ftrace.event.inject import Injected, parse_entry

EVENT = b"e u8 a; s16 b; u32 c; s64 d; char[4] s; __rel_loc char[] r; __data_loc char[] l; struct x z 3"
FIELDS = parse(EVENT).fields
FIXED = 1 + 2 + 4 + 8 + 4 + 4 + 4 + 3


def entry(command: bytes) -> Injected:
    return parse_entry(command, FIELDS, 1000, 46)


def fixed(a: int = 0, b: int = 0, c: int = 0, d: int = 0, s: bytes = b"", r: int = 0, loc: int = 0) -> bytes:
    """The payload's fixed part and the NUL behind it."""
    return struct.pack("<BhIq4sII3sx", a, b, c, d, s, r, loc, b"")


END = 8 + FIXED
BEHIND_R = 8 + 23
EMPTY_R, EMPTY_L = END - BEHIND_R, END


def test_nothing_named() -> None:
    assert entry(b"") == Injected(struct.pack("<HBBi", 1000, 0, 0, 46), fixed(r=EMPTY_R, loc=EMPTY_L))
    assert parse_entry(b"", (), 7, 1) == Injected(struct.pack("<HBBi", 7, 0, 0, 1), b"\0")


@pytest.mark.parametrize(
    ("command", "values"),
    [
        (b"a=1 b=-2 c=3 d=-4", {"a": 1, "b": -2, "c": 3, "d": -4}),
        (b"a=0xff  c =\t010 b= 0x10", {"a": 255, "c": 8, "b": 16}),
        (b"a=257 c=0x1ffffffff", {"a": 1, "c": 0xFFFFFFFF}),
        (b"c=1 c=2", {"c": 2}),
        (b"s='ab'", {"s": b"ab"}),
        (b's="abcdef"', {"s": b"abc"}),
        (b"s='abcdef' s='x'", {"s": b"x\0c"}),
        (b"s='a' c=1", {"s": b"a", "c": 1}),
        (b"d=9223372036854775807", {"d": (1 << 63) - 1}),
        (b"r=5", None),
        (b"s=5", None),
        (b"c='5'", None),
        (b"z=1", None),
    ],
)
def test_values(command: bytes, values: dict[str, object] | None) -> None:
    if values is None:
        assert errno_of(entry, command) == errno.EINVAL
    else:
        assert entry(command).payload == fixed(r=EMPTY_R, loc=EMPTY_L, **values)  # type: ignore[arg-type]


def test_dynamic_text_is_last() -> None:
    text = b'a\\"b'  # an escaped quote does not end it, and stays escaped
    payload = entry(b"r='one' l=\"%s\"" % text).payload
    assert payload == fixed(r=4 << 16 | END + 1 - BEHIND_R, loc=5 << 16 | END + 1 + 4) + b"one\0%s\0" % text


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (b"nofield=1", errno.ENOENT),
        (b"nofield", errno.ENOENT),
        (b"a", errno.EINVAL),
        (b"a=", errno.EINVAL),
        (b"=1", errno.EINVAL),
        (b"a=x", errno.EINVAL),
        (b"a=-1", errno.EINVAL),
        (b"a=1x", errno.EINVAL),
        (b"a=1,b=2", errno.EINVAL),
        (b"a=09", errno.EINVAL),
        (b"a=--1", errno.EINVAL),
        (b"b=-", errno.EINVAL),
        (b"s='abc", errno.EINVAL),
        (b"s='" + b"x" * 256 + b"'", errno.EINVAL),
        (b"a=18446744073709551616", errno.ERANGE),
        (b"d=9223372036854775808", errno.ERANGE),
        (b"cpu=1", errno.EINVAL),
        (b"COMM='x'", errno.EINVAL),
        (b"common_pid='x'", errno.EINVAL),
        (b"\xff=1", errno.EINVAL),
    ],
)
def test_refused(command: bytes, code: int) -> None:
    assert errno_of(entry, command) == code


def test_the_file(world: World) -> None:
    event = world.event(b"alpha u32 n; __rel_loc char[] t")
    inject = b"events/user_events/alpha/inject"
    world.w(b"trace_clock", b"mono")
    assert world.tree.stat(inject).mode == 0o200
    assert errno_of(world.cat, inject) == errno.EPERM
    assert world.w(inject, b"n=7 t='some text'") == len(b"n=7 t='some text'\n")
    assert world.bodies() == [b"alpha: n=0x7 (7) t=some text"]
    assert world.cat(b"events/user_events/alpha/enable") == b"0\n"
    assert world.cat(b"buffer_size_kb") == b"1410\n"
    world.w(b"events/user_events/alpha/enable", b"1")
    world.w(inject, b"n=8 common_pid=1")
    assert world.bodies()[1:] == [b"alpha: n=0x8 (8) t="]
    assert b"-1   " in world.trace_lines()[1]
    assert b"emitted: 0\n" in world.cat(b"events/user_events/alpha/stats")
    world.w(b"tracing_on", b"0")
    world.w(inject, b"n=9")
    assert len(world.trace_lines()) == 2
    for bad, code in (
        (b"x=1", errno.ENOENT),
        (b"n", errno.EINVAL),
        (b"n=" + b"1" * 4094, errno.EINVAL),
        (b"common_type=0", errno.EINVAL),
    ):
        assert errno_of(world.w, inject, bad) == code
    assert event.tracepoint.emitted == 0
