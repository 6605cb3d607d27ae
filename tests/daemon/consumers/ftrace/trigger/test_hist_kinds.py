"""hist, enable_hist and disable_hist as commands, and the file `hist`."""

from __future__ import annotations

import re

import pytest

from tests.daemon.consumers.ftrace.trigger.desk import Desk
from utracefsd.consumers.ftrace.hist import tables
from utracefsd.events.event import Event

KEYS_V = b"hist:keys=v:vals=hitcount:sort=hitcount:size=2048 [active]"


def hist(desk: Desk, event: Event) -> bytes:
    return b"".join(desk.instance.triggers.hist_pieces(event, lambda pid: b"task"))


def hits(desk: Desk, event: Event) -> list[int]:
    """Hits of each hist trigger of the event."""
    return [int(n) for n in re.findall(rb"Hits: (\d+)", hist(desk, event))]


def log(desk: Desk) -> list[tuple[bytes, bytes, int]]:
    """Location and message of each entry, and the column that it points at."""
    rows = desk.instance.error_log.text().split(b"\n")[:-1]
    found = []
    for head, _, caret in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        location, _, message = head.partition(b"] ")[2].partition(b": error: ")
        found.append((location, message, len(caret) - 12))
    desk.instance.error_log.clear()
    return found


def test_the_way_of_one(desk: Desk) -> None:
    assert hist(desk, desk.a) == b""
    assert desk.write(desk.a, b"hist:keys=v") == ""
    assert desk.lines(desk.a) == [KEYS_V]
    assert desk.enabled(desk.a) == b"0*"
    for v in (1, 2, 1):
        assert desk.emit(desk.a, v) == 0
    assert desk.recorded() == []
    assert hist(desk, desk.a) == (
        b"# event histogram\n#\n# trigger info: " + KEYS_V + b"\n#\n\n"
        b"{ v:          2 } hitcount:          1\n{ v:          1 } hitcount:          2\n"
        b"\nTotals:\n    Hits: 3\n    Entries: 2\n    Dropped: 0\n"
    )
    assert desk.write(desk.a, b"!hist:keys=v") == ""
    assert desk.lines(desk.a) == []
    assert desk.enabled(desk.a) == b"0"
    assert hist(desk, desk.a) == b""
    assert len(desk.world.instances.tables) == 0
    assert log(desk) == []


def test_filters(desk: Desk) -> None:
    assert desk.write(desk.a, b"hist:keys=v if v > 1") == ""
    assert desk.write(desk.a, b"hist:keys=v if v > 2") == ""
    assert desk.write(desk.a, b"hist:keys=v if v > 1") == "EEXIST"
    assert desk.lines(desk.a)[0] == KEYS_V.replace(b" [active]", b" if v > 1 [active]")
    for v in range(5):
        desk.emit(desk.a, v)
    assert hits(desk, desk.a) == [3, 2]
    assert desk.write(desk.a, b"!hist:keys=v") == ""
    assert len(desk.lines(desk.a)) == 2
    assert desk.write(desk.a, b"!hist:keys=v if v > 1") == ""
    assert hits(desk, desk.a) == [2]
    log(desk)
    assert desk.write(desk.a, b"hist:keys=v if nofield == 1") == "EINVAL"
    assert [entry[:2] for entry in log(desk)] == [(b"event filter parse error", b"Field not found")]


def test_pause_continue_clear(desk: Desk) -> None:
    assert desk.write(desk.a, b"hist:keys=v:cont") == "ENOENT"
    assert desk.write(desk.a, b"hist:keys=v:clear") == "ENOENT"
    assert (
        log(desk) == [(b"hist:user_events:a", b"Can't clear or continue a nonexistent hist trigger", 0)] * 2
    )
    assert desk.write(desk.a, b"hist:keys=v:pause") == ""
    assert desk.lines(desk.a) == [KEYS_V.replace(b"active", b"paused")]
    desk.emit(desk.a)
    assert hits(desk, desk.a) == [0]
    assert desk.write(desk.a, b"hist:keys=v:continue") == ""
    assert desk.lines(desk.a) == [KEYS_V]
    desk.emit(desk.a)
    assert hits(desk, desk.a) == [1]
    assert desk.write(desk.a, b"hist:key=v:vals=hitcount:clear") == ""
    assert hits(desk, desk.a) == [0]
    assert desk.write(desk.a, b"hist:keys=v:pause") == ""
    desk.emit(desk.a)
    assert hits(desk, desk.a) == [0]
    assert len(desk.lines(desk.a)) == 1


@pytest.mark.parametrize(
    ("command", "number", "entries"),
    [
        (b"hist", "EINVAL", []),
        (b"hist:", "EINVAL", []),
        (b"hist:vals=v", "EINVAL", []),
        (b"hist:keys=v if", "EINVAL", []),
        (b"hist:keys=x", "EINVAL", [(b"Couldn't find field", 10)]),
        (b"!hist:keys=x", "EINVAL", [(b"Couldn't find field", 10)]),
        (b"hist:keys=v:vals=$x", "EINVAL", [(b"Couldn't find variable", 18), (b"Couldn't find field", 17)]),
        (b"hist:keys=v.sym-offset:sort=v.foo", "EINVAL", [(b"Invalid sort modifier", 30)]),
        (b"hist:keys=v:x=v/0", "EDOM", [(b"Division by zero", 16)]),
        (b"hist:keys=v:nohitcount", "ENOENT", [(b"Non-hitcount value is required for 'nohitcount'", 0)]),
        (b"hist:keys=common_timestamp:clock=no", "EINVAL", [(b"Couldn't set trace_clock", 33)]),
    ],
)
def test_refused(desk: Desk, command: bytes, number: str, entries: list[tuple[bytes, int]]) -> None:
    assert desk.write(desk.a, command) == number
    assert log(desk) == [(b"hist:user_events:a", *entry) for entry in entries]
    assert desk.lines(desk.a) == []
    assert len(desk.world.instances.tables) == 0
    assert desk.enabled(desk.a) == b"0"


def test_twice_is_one_too_many(desk: Desk) -> None:
    desk.write(desk.a, b"hist:keys=v")
    assert desk.write(desk.a, b"hist:keys=v:size=100") == "EEXIST"
    assert log(desk) == [(b"hist:user_events:a", b"Hist trigger already exists", 0)]
    assert desk.write(desk.a, b"!hist:keys=s") == ""
    assert len(desk.lines(desk.a)) == 1


def test_named_triggers_share_a_table(desk: Desk) -> None:
    assert desk.write(desk.a, b"hist:name=n:keys=v") == ""
    assert desk.write(desk.b, b"hist:name=n:keys=v if v < 5") == ""
    assert desk.lines(desk.a) == [KEYS_V.replace(b"hist:", b"hist:name=n:")]
    assert desk.write(desk.a, b"hist:name=n:keys=v") == "EEXIST"
    assert desk.write(desk.a, b"hist:keys=v") == ""
    log(desk)
    assert desk.write(desk.a, b"hist:name=n:keys=s") == "EINVAL"
    assert log(desk)[0][1:] == (
        b"Named hist trigger doesn't match existing named trigger (includes variables)",
        5,
    )
    desk.emit(desk.a, 1)
    desk.emit(desk.b, 1)
    desk.emit(desk.b, 9)
    assert hits(desk, desk.a) == [2, 1]
    assert hits(desk, desk.b) == [2]
    assert b"{ v:          1 } hitcount:          2" in hist(desk, desk.b)
    assert desk.write(desk.a, b"!hist:name=n:keys=v") == ""
    assert hits(desk, desk.b) == [2]
    assert desk.write(desk.b, b"!hist:name=n:keys=v if v < 5") == ""
    assert desk.world.instances.tables.named == {}
    assert desk.write(desk.b, b"hist:name=n:keys=v") == ""
    assert hits(desk, desk.b) == [0]


def test_named_triggers_have_the_size_of_the_first(desk: Desk) -> None:
    assert desk.write(desk.a, b"hist:name=n:keys=v:size=128") == ""
    assert desk.write(desk.b, b"hist:name=n:keys=v:size=4096") == ""
    assert desk.lines(desk.b)[0].endswith(b":size=128 [active]")


def test_named_triggers_that_keep_different_things(desk: Desk) -> None:
    """The saved field has the same name and another type: entries of one table cannot hold both."""
    text, number = desk.world.event(b"c u32 v; char[8] what"), desk.world.event(b"d u32 v; u32 what")
    definition = b"hist:name=n:keys=v:vv=v:onmax($vv).save(what)"
    assert desk.write(text, definition) == ""
    assert desk.write(number, definition) == "EINVAL"
    assert log(desk)[0][1].startswith(b"Named hist trigger doesn't match existing named trigger")


def test_switches_of_another_event(desk: Desk) -> None:
    desk.write(desk.b, b"hist:keys=v")
    desk.write(desk.b, b"hist:keys=v:vals=v")
    assert desk.write(desk.a, b"disable_hist:user_events:b if v == 1") == ""
    assert desk.write(desk.a, b"enable_hist:user_events:b:1") == "EEXIST"
    assert desk.lines(desk.a) == [b"disable_hist:user_events:b:unlimited if v == 1"]
    for v in (0, 1):
        desk.emit(desk.a, v)
        desk.emit(desk.b, v)
    assert hits(desk, desk.b) == [1, 1]
    assert [line[-8:] for line in desk.lines(desk.b)] == [b"[paused]"] * 2
    assert desk.write(desk.a, b"!disable_hist:user_events:b") == ""
    assert desk.write(desk.a, b"enable_hist:user_events:b:1") == ""
    for _ in range(2):
        desk.emit(desk.a)
        desk.emit(desk.b)
    assert hits(desk, desk.b) == [3, 3]
    assert desk.lines(desk.a) == [b"enable_hist:user_events:b:count=0"]
    desk.write(desk.b, b"hist:keys=v:pause")
    desk.emit(desk.a)
    desk.emit(desk.b)
    assert hits(desk, desk.b) == [3, 4]
    desk.instance.triggers.truncate(desk.a)
    assert desk.lines(desk.a) == []
    assert desk.write(desk.a, b"enable_hist:user_events:x") == "EINVAL"


def test_events_and_instances_that_go(desk: Desk) -> None:
    desk.world.tree.mkdir(b"instances/i")
    path = b"instances/i/events/user_events/a/"
    desk.world.w(path + b"trigger", b"hist:keys=v")
    desk.emit(desk.a)
    assert b"Hits: 1\n" in desk.world.cat(path + b"hist")
    assert hist(desk, desk.a) == b""
    desk.world.tree.rmdir(b"instances/i")
    assert len(desk.world.instances.tables) == 0


def test_poll_waits_for_hits(desk: Desk) -> None:
    desk.write(desk.a, b"hist:keys=v")
    desk.emit(desk.a)
    file = desk.world.open(b"events/user_events/a/hist")
    assert not file.ready()
    desk.emit(desk.a)
    assert file.ready()
    assert file.ready()
    assert b"Hits: 2\n" in file.read(4096)
    assert not file.ready()
    desk.emit(desk.b)
    assert not file.ready()
    desk.emit(desk.a)
    assert file.ready()
    file.seek(0)
    assert b"Hits: 3\n" in file.read(4096)
    assert not file.ready()
    assert desk.world.open(b"events/user_events/a/trigger").ready()
    file.close()


def test_too_much_memory(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.world.instances.tables, "_instance_bytes", 100 << 10)
    assert desk.write(desk.a, b"hist:keys=v") == ""
    assert desk.write(desk.a, b"hist:keys=s:size=4096") == "ENOMEM"
    assert len(desk.lines(desk.a)) == 1
    assert tables.MAX_BYTES >= tables.MAX_INSTANCE_BYTES
