from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

import pytest

from tests.daemon.consumers.ftrace.histograms import defined
from tests.daemon.tree.world import World, errno_of
from utracefs_protocol.errors import TraceError
from utracefs_protocol.hist.errors import HistError, Log
from utracefsd.consumers.ftrace.hist.definition import Action, Handler, Kind, SortKey, parse_action
from utracefsd.machine.comms import Task


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"vals=sz,big.hex:key=id", b"keys=id:vals=hitcount,sz,big.hex:sort=hitcount:size=2048"),
        (
            b"keys=id:vals=hitcount,hitcount.percent",
            b"keys=id:vals=hitcount,hitcount.percent:sort=hitcount:size=2048",
        ),
        (b"keys=id:vals=sz:NOHC", b"keys=id:vals=sz:sort=hitcount:size=2048:nohitcount"),
        (
            b"keys=sz.log2,name:sort=sz.descending,hitcount:size=100",
            b"keys=sz.log2,name:vals=hitcount:sort=sz.log2.descending,hitcount:size=128",
        ),
        (
            b"keys=common_timestamp.usecs:clock=mono",
            b"keys=common_timestamp.usecs:vals=hitcount:sort=hitcount:size=2048:clock=mono",
        ),
        (b"keys=id:clock=mono", b"keys=id:vals=hitcount:sort=hitcount:size=2048"),
        (
            b"name=foo:keys=id:x=sz,y=big*2:z=small",
            b"name=foo:keys=id:vals=hitcount:x=sz,y=big*2,z=small:sort=hitcount:size=2048",
        ),
        (b"keys=sz.buckets=5", b"keys=sz.buckets=5:vals=hitcount:sort=hitcount:size=2048"),
        (b"keys=id:vals=sz:sort=sz", b"keys=id:vals=hitcount,sz:sort=sz:size=2048"),
    ],
)
def test_canonical_text(text: bytes, shown: bytes) -> None:
    assert defined(text).text() == b"hist:" + shown


def test_layout_of_keys() -> None:
    definition = defined(b"keys=name,small,big")
    assert [(key.offset, key.size) for key in definition.keys] == [(0, 16), (16, 8), (24, 8)]
    assert definition.key_size == 32
    assert defined(b"keys=msg,common_stacktrace").key_size == 504


def test_sort_keys() -> None:
    definition = defined(b"keys=id,sv:vals=sz:sort=sv.descending,sz.ascending")
    assert definition.sort == (SortKey(3, descending=True), SortKey(1))
    assert definition.column(definition.sort[0]).shown_name() == b"sv"


@pytest.mark.parametrize(
    ("text", "number", "entries"),
    [
        (b"keys=id,sv,big,sz", errno.EINVAL, []),
        (b"keys=msg,msg", errno.EINVAL, []),
        (b"keys=id:vals=sz,small,big", errno.EINVAL, []),
        (b"keys=id:vals=sz,small,hitcount,big", errno.EINVAL, []),
        (b"keys=id:vals=name", errno.EINVAL, [("String type can not be an operand in expression", 18)]),
        (b"keys=id:vals=sz.log2", errno.EINVAL, [("Invalid field modifier", 18)]),
        (b"keys=id:vals=sz.sym", errno.EINVAL, [("Invalid field modifier", 18)]),
        (b"keys=id:vals=common_stacktrace", errno.EINVAL, [("Invalid field modifier", 18)]),
        (b"keys=id.percent", errno.EINVAL, [("Invalid field modifier", 13)]),
        (b"keys=id:x=sz.log2", errno.EINVAL, [("Invalid field modifier", 15)]),
        (b"keys=id:x=sz:x=big", errno.EINVAL, [("Variable already defined", 13)]),
        (b"keys=id:x=sz,q", errno.EINVAL, [("Malformed assignment", 18)]),
        (b"keys=id:nohitcount", errno.ENOENT, [("Non-hitcount value is required for 'nohitcount'", 0)]),
        (b"keys=id:sort=sz", errno.EINVAL, [("Sort field must be a key or a val", 18)]),
        (b"keys=id:sort=id.up", errno.EINVAL, [("Invalid sort modifier", 21)]),
        (b"keys=id:sort=,id", errno.EINVAL, [("Empty sort field", 13)]),
        (b"keys=id:sort=.descending", errno.EINVAL, [("Empty sort field", 13)]),
        (b"keys=id:sort=id,", errno.EINVAL, [("Empty sort field", 13)]),
        (b"keys=id:sort=id,hitcount,id", errno.EINVAL, [("Too many sort fields (Max = 2)", 13)]),
        (b"keys=", errno.EINVAL, [("Empty assignment", 5)]),
    ],
)
def test_refused(text: bytes, number: int, entries: list[tuple[str, int]]) -> None:
    with pytest.raises(HistError) as caught:
        defined(text)
    assert (caught.value.errno, list(caught.value.entries)) == (number, entries)


def test_more_variables_than_there_may_be() -> None:
    names = b",".join(b"v%d=id" % n for n in range(16))
    assert len(defined(b"keys=id:" + names).variables) == 16
    with pytest.raises(HistError) as caught:
        defined(b"keys=id:%s:more=id" % names)
    assert caught.value.entries[0][0] == "Too many variables defined"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b"keys=id", b"key=id:vals=hitcount", True),
        (b"keys=id", b"keys=id:size=100", True),
        (b"keys=id", b"keys=id:sort=hitcount", True),
        (b"keys=id", b"keys=id:pause", True),
        (b"keys=id", b"keys=id.hex", False),
        (b"keys=id", b"keys=id:vals=sz", False),
        (b"keys=id,sz", b"keys=sz,id", False),
        (b"keys=id", b"keys=id:sort=id", False),
        (b"keys=id", b"keys=id:x=sz", False),
        (b"keys=id.buckets=2", b"keys=id.buckets=3", False),
        (b"keys=id:vals=sz+small", b"keys=id:vals=sz-small", False),
        (b"keys=id:x=sz", b"keys=id:y=sz", False),
        (b"keys=id:x=sz:onmax($x).save(sz)", b"keys=id:x=sz", False),
    ],
)
def test_identity(one: bytes, other: bytes, same: bool) -> None:
    assert (defined(one).identity() == defined(other).identity()) is same


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


def emit(
    world: World, name: bytes, id: int, value: int = 0, path: bytes = b"", at_us: int = 1, pid: int = 46
) -> None:
    event = world.table.get(b"user_events", name)
    assert event is not None
    payload = struct.pack("<Qi" if name == b"done" else "<QI", id, value)
    if name == b"done":
        payload += struct.pack("<HH", 0, len(path) + 1) + path + b"\0"
    assert world.emit(event, payload, pid=pid, ts_ns=at_us * 1000) == 0


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


def test_the_name_of_a_thread_as_a_variable(world: World) -> None:
    """The name of the thread that wrote the first record of its key, as there
    (hist_trigger_elt_data_init())."""
    world.tasks |= {50: Task(b"worker", 1), 51: Task(b"a-name-of-15-by", 1)}
    world.wa(b"synthetic_events", b"who u64 id; char[] began; char[256] ended")
    world.wa(b"events/synthetic/who/enable", b"1")
    world.wa(START + b"trigger", b"hist:keys=id:comm=common_pid.execname")
    command = b"hist:keys=id:n=common_pid.execname:onmatch(user_events.start).who(id,$comm,$n)"
    world.wa(DONE + b"trigger", command)
    assert world.cat(START + b"trigger").startswith(
        b"hist:keys=id:vals=hitcount:comm=common_pid.execname:sort=hitcount:size=2048"
    )
    for id, starter, ender in ((1, 50, 51), (2, 51, 46), (1, 46, 50)):
        emit(world, b"start", id, pid=starter)
        emit(world, b"done", id, pid=ender)
    assert world.bodies() == [
        b"who: id=1 began=worker ended=a-name-of-15-by",
        b"who: id=2 began=a-name-of-15-by ended=drv",
        b"who: id=1 began=worker ended=a-name-of-15-by",
    ]


@pytest.mark.parametrize("text", [b"s=common_stacktrace", b"s=stacktrace"])
def test_a_stack_as_a_variable(world: World, text: bytes) -> None:
    with pytest.raises(TraceError, match="there is no kernel stack") as caught:
        world.wa(START + b"trigger", b"hist:keys=id:" + text)
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(TraceError, match="there is no stack of the kernel"):
        world.wa(b"synthetic_events", b"e u64 id; unsigned long[] stack")


def test_an_event_that_brings_itself_for_ever(world: World) -> None:
    """One record causes at most 64 records (MAX_DEFERRED of _tracepoint.pyx), and the next one starts
    again."""
    world.wa(b"synthetic_events", b"loop u64 id")
    for event in (b"synthetic/loop", b"user_events/start"):
        world.wa(b"events/%s/trigger" % event, b"hist:keys=1:onmatch(user_events.start).trace(loop,id)")
    for count in (64, 128):
        emit(world, b"start", 1)
        assert b"Hits: %d\n" % count in world.cat(b"events/synthetic/loop/hist")


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


def test_a_maximum_is_reported(world: World) -> None:
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
def test_refused_actions(world: World, action: bytes, message: bytes) -> None:
    world.wa(b"synthetic_events", b"lat u64 id; s32 rc")
    world.wn(b"error_log", b"")
    number = errno.EEXIST if b"more than one" in message else errno.EINVAL
    assert errno_of(world.wa, DONE + b"trigger", b"hist:keys=id:x=rc:" + action) == number
    assert b"hist:user_events:done: error: " + message + b"\n" in world.cat(b"error_log")
    assert b"# Available" in world.cat(DONE + b"trigger")
    world.wa(b"synthetic_events", b"!lat")


TAKES = b"hist:keys=id:x=rc:%s($x).snapshot()"


def numbers(world: World) -> tuple[list[int], list[int]]:
    """The rc of each record in the buffer and in the snapshot."""
    found = []
    for path in (b"trace", b"snapshot"):
        found.append([int(body.split(b"rc=")[1].split()[0], 0) for body in world.bodies(path)])
    return found[0], found[1]


def taken(world: World) -> list[bytes]:
    """Entries and the text below them."""
    return world.cat(DONE + b"hist").split(b"\n")[5:-6]


def test_a_snapshot_of_a_maximum(world: World) -> None:
    """It is taken for the maximum of all keys; entries do not show it."""
    world.wa(DONE + b"enable", b"1")
    world.wa(DONE + b"trigger", TAKES % b"onmax")
    assert world.cat(DONE + b"trigger").endswith(b":size=2048:onmax($x).snapshot() [active]\n")
    assert b"# * Snapshot is allocated *\n" in world.cat(b"snapshot")
    emit(world, b"done", 1, 0)
    assert taken(world) == [b"{ id:          1 } hitcount:          1"]
    emit(world, b"done", 1, 5)
    assert numbers(world) == ([], [0, 5])
    emit(world, b"done", 2, 4)
    emit(world, b"done", 2, 5)
    emit(world, b"done", 1, 5)
    assert numbers(world) == ([4, 5, 5], [0, 5])
    emit(world, b"done", 2, 6)
    assert numbers(world) == ([0, 5], [4, 5, 5, 6])
    below = [
        b"",
        b"Snapshot taken (see tracing/snapshot).  Details:",
        b"\ttriggering value { onmax($x) }:          6\ttriggered by event with key: { id:          2 }",
    ]
    assert taken(world)[2:] == below


def test_a_snapshot_of_a_change(world: World) -> None:
    world.wa(DONE + b"enable", b"1")
    world.wa(DONE + b"trigger", (TAKES % b"onchange").replace(b":on", b":onchange($x).save(id):on"))
    for rc in (3, 3, 2):
        emit(world, b"done", 1, rc)
    assert numbers(world) == ([3], [3, 2])
    emit(world, b"done", 2, 2)
    assert numbers(world) == ([3, 2], [3, 2]), "new for this key, but not another than the last"
    assert taken(world)[-1] == (
        b"\ttriggering value { onchange($x) }:          2\ttriggered by event with key: { id:          1 }"
    )
    assert world.cat(DONE + b"hist").count(b"changed:") == 2


def test_a_snapshot_for_the_longest_key(world: World) -> None:
    """MAX_KEY_SIZE bytes, all of them stored and shown."""
    world.wa(DONE + b"trigger", b"hist:keys=path,common_stacktrace:x=rc:onmax($x).snapshot()")
    for rc, path in ((1, b"a" * 300), (2, b"b" * 300), (1, b"c")):
        emit(world, b"done", 1, rc, path)
    shown = b"{ path: %s, common_stacktrace:\n}" % (b"b" * 255)
    assert b"}:          2\ttriggered by event with key: " + shown + b"\n\nTotals" in world.cat(
        DONE + b"hist"
    )


def test_one_action_of_an_instance_takes_snapshots(world: World) -> None:
    twice = (TAKES % b"onmax") + b":onchange($x).snapshot()"
    assert errno_of(world.wa, DONE + b"trigger", twice) == errno.EBUSY
    assert len(world.instances.tables) == 0
    world.wa(DONE + b"trigger", TAKES % b"onmax")
    other = b"hist:keys=id:x=w:onmax($x).snapshot()"
    assert errno_of(world.wa, START + b"trigger", other) == errno.EBUSY
    for number in (b"0", b"1", b"2"):
        assert errno_of(world.w, b"snapshot", number) == errno.EBUSY
    world.tree.mkdir(b"instances/i")
    world.wa(b"instances/i/" + START + b"trigger", other)
    world.tree.rmdir(b"instances/i")
    world.wa(DONE + b"trigger", b"!" + TAKES % b"onmax")
    world.wa(START + b"trigger", other)
    world.wa(START + b"trigger", b"!" + other)
    world.w(b"snapshot", b"0")


def test_a_name_shares_the_snapshot(world: World) -> None:
    world.event(b"more u64 id; s32 rc")
    named = (TAKES % b"onmax").replace(b"hist:", b"hist:name=n:")
    world.wa(DONE + b"trigger", named)
    world.wa(b"events/user_events/more/trigger", named)
    world.wa(DONE + b"trigger", b"!" + named)
    assert errno_of(world.w, b"snapshot", b"0") == errno.EBUSY
    world.wa(b"events/user_events/more/trigger", b"!" + named)
    world.w(b"snapshot", b"0")


def test_clearing_forgets_no_snapshot(world: World) -> None:
    world.wa(DONE + b"trigger", b"hist:keys=id:x=rc:onmax($x).snapshot()")
    emit(world, b"done", 1, 5)
    before = taken(world)[1:]
    [hist] = [attached.slot[1] for file in world.instance.events for attached in file.triggers]
    hist.table.clear()
    assert taken(world) == before
    emit(world, b"done", 1, 5)
    assert taken(world)[1:] == before


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
