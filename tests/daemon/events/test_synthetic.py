from __future__ import annotations

import errno

import pytest

from tests.daemon.tree.world import World, errno_of
from utracefs_protocol.events.declaration import Declaration, FieldKind
from utracefs_protocol.hist.errors import HistError
from utracefsd.events import dynamic_events
from utracefsd.events.synthetic import (
    is_good_name,
    parse_synthetic,
    print_fmt,
    slots_bytes,
    split_command,
)

LAT = b"lat u64 id; u64 delta; s32 rc; char[16] who; char[] path"


def parse(command: bytes) -> Declaration:
    name, fields = split_command(command)
    return parse_synthetic(name, fields or b"", command)


def test_layout() -> None:
    """Slots of 64 bits, 256 bytes for a fixed string."""
    fields = parse(LAT).fields
    assert [(f.type, f.name, f.offset, f.size, f.signed) for f in fields] == [
        (b"u64", b"id", 8, 8, False),
        (b"u64", b"delta", 16, 8, False),
        (b"s32", b"rc", 24, 4, True),
        (b"char[16]", b"who", 32, 16, True),
        (b"__data_loc char[]", b"path", 288, 8, True),
    ]
    assert fields[4].kind is FieldKind.DATA_LOC
    assert slots_bytes(fields) == 288
    assert print_fmt(fields) == (
        b'"id=%llu, delta=%llu, rc=%d, who=%.*s, path=%.*s", '
        b"REC->id, REC->delta, REC->rc, REC->who, __get_str(path)"
    )


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        (b"unsigned  int a", b"unsigned int"),
        (b"pid_t a", b"pid_t"),
        (b"unsigned long a", b"unsigned long"),
        (b"char a[16]", b"char[16]"),
        (b"char a", b"char"),
        (b"bool a;", b"bool"),
        (b"unsigned char a[0xf]", b"unsigned char[0xf]"),
        (b"char[] a", b"__data_loc char[]"),
        (b"char a[0]", b"__data_loc char[0]"),
    ],
)
def test_types(text: bytes, type_: bytes) -> None:
    (field,) = parse(b"e " + text).fields
    assert (field.type, field.name) == (type_, b"a")


@pytest.mark.parametrize(
    ("command", "message", "position"),
    [
        (b"e", "Command must be of the form: <name> field[;field] ...", 0),
        (b"e ;", "Command must be of the form: <name> field[;field] ...", 0),
        (b"1e u32 a", "Illegal name", 0),
        (b"e-x u32 a", "Illegal name", 0),
        (b"e u32 a-b", "Illegal name", 6),
        (b"e foo a", "Invalid type", 2),
        (b"e float a", "Invalid type", 2),
        (b"e char[257] a", "Invalid type", 2),
        (b"e char[x] a", "Invalid type", 2),
        (b"e char str[", "Invalid array specification", 7),
        (b"e char str[kdjdk]", "Invalid array specification", 7),
        (b"e char str[257]; int b", "Invalid array specification", 7),
        (b"e char a-b[4]", "Illegal name", 7),
        (b"e u32 a[4]", "Invalid type", 2),
        (b"e u64 t; unsigned long[] stack", "Invalid type", 18),
        (b"e u64 t; unsigned long stack[]", "Invalid type", 18),
        (b"e long[31] stack", "Invalid type", 2),
        (b"e u32", "Command must be of the form: <name> field[;field] ...", 0),
        (b"e ; u32 a", "Command must be of the form: <name> field[;field] ...", 0),
        (b"e;x u32 a", "Command must be of the form: <name> field[;field] ...", 0),
        (b"; u32 a", "Command must be of the form: <name> field[;field] ...", 0),
        (b"e u32 a; u8", "Invalid field", 9),
        (b"e u32 a u8", "Invalid field", 8),
        (b"e u32 a b", "Invalid field", 8),
        (b"e unsigned int", "Incomplete type", 2),
        (b"e " + b";".join(b"u8 f%d" % n for n in range(65)), "Too many fields", 0),
    ],
)
def test_refused(command: bytes, message: str, position: int) -> None:
    with pytest.raises(HistError) as caught:
        parse(command)
    assert caught.value.errno == errno.EINVAL
    assert caught.value.entries == ((message, position),)


def test_several_fields_between_semicolons() -> None:
    """The syntax before 5.11."""
    fields = parse(b"wakeup u64 lat pid_t pid unsigned int  x; char comm[16] ;u8 last").fields
    assert [(field.type, field.name) for field in fields] == [
        (b"u64", b"lat"),
        (b"pid_t", b"pid"),
        (b"unsigned int", b"x"),
        (b"char[16]", b"comm"),
        (b"u8", b"last"),
    ]


def test_names() -> None:
    assert is_good_name(b"_a1")
    for name in (b"", b"1a", b"a b", b"a.b", b"\xff"):
        assert not is_good_name(name)


def test_the_file(world: World) -> None:
    assert world.cat(b"synthetic_events") == b""
    world.wa(b"synthetic_events", LAT)
    world.wa(b"synthetic_events", b"  other  u32 a  ;u8 b # a comment\n\n# nothing")
    assert world.cat(b"synthetic_events") == (
        b"lat\tu64 id; u64 delta; s32 rc; char[16] who; char[] path\nother\tu32 a; u8 b\n"
    )
    assert world.cat(b"dynamic_events").startswith(b"s:synthetic/lat\tu64 id; ")
    assert world.cat(b"user_events_status") == b"\nActive: 0\nBusy: 0\n"
    assert world.cat(b"available_events") == b"synthetic:other\nsynthetic:lat\n"
    assert world.tree.list_dir(b"events/synthetic/lat")[:3] == [
        (b"enable", "f"),
        (b"filter", "f"),
        (b"format", "f"),
    ]
    assert b"field:__data_loc char[] path;\toffset:288;\tsize:8;\tsigned:1;" in world.cat(
        b"events/synthetic/lat/format"
    )
    assert errno_of(world.wa, b"synthetic_events", b"lat u8 a") == errno.EEXIST
    assert errno_of(world.wa, b"synthetic_events", b"# one\nx foo a\ny u8 a") == errno.EINVAL
    assert errno_of(world.wa, b"synthetic_events", b"x") == errno.EINVAL
    log = world.cat(b"error_log")
    assert b"synthetic_events: error: Event already exists\n  Command: lat u8 a\n" in log
    assert b"synthetic_events: error: Invalid type\n  Command: x foo a\n             ^\n" in log
    assert b": Command must be of the form: <name> field[;field] ...\n  Command: x\n           ^\n" in log
    world.wa(b"events/synthetic/lat/enable", b"1")
    assert errno_of(world.wa, b"synthetic_events", b"!lat") == errno.EBUSY
    assert errno_of(world.wn, b"synthetic_events", b"x u8 a") == errno.EBUSY
    assert errno_of(world.wa, b"synthetic_events", b"!nothing") == errno.ENOENT
    world.wa(b"events/synthetic/lat/enable", b"0")
    world.wa(b"synthetic_events", b"!lat u64 id")
    assert world.cat(b"synthetic_events") == b"other\tu32 a; u8 b\n"
    world.w(b"synthetic_events", b"last u8 a")
    assert world.cat(b"synthetic_events") == b"last\tu8 a\n"


def test_through_dynamic_events(world: World) -> None:
    world.wa(b"dynamic_events", b"s:synthetic/a u8 x\ns:b u8 y\nu:c u8 z")
    assert world.cat(b"dynamic_events") == b"s:synthetic/a\tu8 x\ns:synthetic/b\tu8 y\nu:c u8 z\n"
    assert errno_of(world.wa, b"dynamic_events", b"s:c foo y") == errno.EINVAL
    assert b"synthetic_events: error: Invalid type\n  Command: s:c foo y\n               ^\n" in world.cat(
        b"error_log"
    )
    world.wa(b"dynamic_events", b"-:synthetic/a")
    world.wa(b"dynamic_events", b"!s:synthetic/b u8 y")
    assert world.cat(b"dynamic_events") == b"u:c u8 z\n"
    assert errno_of(world.wa, b"dynamic_events", b"-:synthetic/a") == errno.ENOENT
    refused = errno_of(dynamic_events.create_synthetic, world.table, b"s:a u8 x", privileged=False)
    assert refused == errno.EPERM


def test_no_program_finds_them(world: World) -> None:
    """One of the same name is another event, of its own system."""
    world.wa(b"synthetic_events", b"e u32 a")
    event = world.event(b"e u32 a")
    assert event.system == b"user_events"
    assert errno_of(world.table.delete, b"nothing", privileged=True) == errno.ENOENT
    assert len(world.table.named(b"e")) == 1
    assert world.cat(b"user_events_status") == b"e\n\nActive: 1\nBusy: 0\n"


def test_text(world: World) -> None:
    world.wa(b"synthetic_events", b"e u64 a; s64 b; s32 c; s8 d; gfp_t f; char[8] g; char[] h")
    world.wa(b"events/synthetic/e/enable", b"1")
    event = world.table.get(b"synthetic", b"e")
    assert event is not None
    payload = b"".join(
        [
            (1 << 63).to_bytes(8, "little"),
            (-2).to_bytes(8, "little", signed=True),
            (-3).to_bytes(4, "little", signed=True).ljust(8, b"\0"),
            b"\xff".ljust(8, b"\0"),
            (0xCC0).to_bytes(8, "little"),
            b"name".ljust(256, b"\0"),
            (5 << 16 | 8 + 5 * 8 + 256 + 8).to_bytes(8, "little"),
            b"path\0",
        ]
    )
    assert world.emit(event, payload[:100]) == -errno.EINVAL
    assert world.emit(event, payload) == 0
    assert world.bodies() == [b"e: a=9223372036854775808 b=-2 c=-3 d=255 f=cc0 g=name h=path"]
