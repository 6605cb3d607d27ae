"""standing_filters and standing_triggers: their effects on an event when it is registered."""

import errno
import logging

import pytest

from tests.daemon.tree.world import World, errno_of
from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace.settings import Settings
from utracefsd.consumers.ftrace.standing_files import MAX_LINES, StandingFile
from utracefsd.events.event import Event

FILES = (b"standing_filters", b"standing_triggers")


def number(value: int) -> bytes:
    return value.to_bytes(4, "little")


def test_no_record_gets_past_a_filter(world: World) -> None:
    world.w(b"standing_filters", b"user_events:web_* v >= 500\n")
    world.w(b"standing_events", b"web_*")
    event = world.event(b"web_request u32 v")
    assert world.cat(b"events/user_events/web_request/filter") == b"v >= 500\n"
    for value in (499, 500):
        world.emit(event, number(value))
    assert world.instance.buffer.entries() == 1
    world.event(b"other u32 v")
    assert world.cat(b"events/user_events/other/filter") == b"none\n"


def test_a_trigger_fires_on_the_first_record(world: World) -> None:
    world.w(b"standing_triggers", b"web traceoff")
    event = world.event(b"web u32 v")
    assert event.status == 1
    assert world.cat(b"events/user_events/web/enable") == b"0*\n"
    world.emit(event, number(1))
    assert world.cat(b"tracing_on") == b"0\n"


def test_events_that_exist_are_left_alone(world: World) -> None:
    world.event(b"web u32 v")
    world.w(b"standing_filters", b"* v == 1")
    world.w(b"standing_triggers", b"* traceoff")
    assert world.cat(b"events/user_events/web/filter") == b"none\n"
    assert world.cat(b"events/user_events/web/trigger").startswith(b"# Available")


def test_what_does_not_fit_keeps_no_event_from_being_registered(world: World) -> None:
    world.w(b"standing_events", b"*")
    world.w(b"standing_filters", b"* nosuch == 1")
    world.wa(b"standing_triggers", b"* enable_event:user_events:nosuch")
    world.wa(b"standing_triggers", b"* traceoff if nosuch == 1")
    event = world.event(b"web u32 v")
    world.emit(event, number(1))
    assert world.instance.buffer.entries() == 1
    assert b"parse_error: Field not found" in world.cat(b"events/user_events/web/filter")
    assert world.cat(b"events/user_events/web/trigger").startswith(b"# Available")
    assert world.cat(b"error_log").count(b"Field not found") == 2


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOSPC, "No space left on device")])
def test_no_room_for_a_trigger_keeps_no_event_from_being_registered(
    world: World, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def write(event: Event, text: bytes) -> None:
        written.append(text)
        raise error

    written: list[bytes] = []
    settings = Settings(standing_triggers=(b"web one", b"web two"))
    lines = StandingFile(settings, "standing_triggers", write, lambda: None, last_only=False)
    with caplog.at_level(logging.WARNING):
        lines.created(world.event(b"web u32 v"))
    assert written == [b"one", b"two"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "standing_triggers" in caplog.text
    caplog.clear()


def test_lack_of_room_is_reported_once_for_each_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def write(event: Event, text: bytes) -> None:
        raise TraceError(errno.ENOMEM if text == b"large" else errno.EINVAL, "so it is")

    lines = StandingFile(Settings(), "standing_triggers", write, lambda: None, last_only=False)
    for line in (b"* large", b"* wrong"):
        lines.store(line)
    for name in (b"one", b"two"):
        lines.created(world.event(name + b" u32 v"))
    (record,) = caplog.records
    assert "standing_triggers: 'large' is not set for 'one'" in record.getMessage()
    assert record.getMessage().endswith("so it is")
    lines.store(b"other* large")
    lines.created(world.event(b"other u32 v"))
    assert len(caplog.records) == 2


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "line",
    [
        b"glob",
        b"!",
        b"!a traceoff",
        b"a:b:c x",
        b"x" * 128 + b" y",
        b"a x\ny",
        b"a " + b"x" * 4095,
        b"glob \t",
    ],
)
def test_what_is_no_line(world: World, file: bytes, line: bytes) -> None:
    world.w(file, b"b traceoff")
    assert errno_of(world.wa, file, line) == errno.EINVAL
    assert world.cat(file) == b"b traceoff\n"


def test_no_such_trigger(world: World) -> None:
    with pytest.raises(TraceError, match="there is no trigger 'traceof'; there are traceon traceoff "):
        world.wa(b"standing_triggers", b"web traceof if v == 1")
    assert world.cat(b"standing_triggers") == b""


@pytest.mark.parametrize("file", FILES)
def test_how_many_lines_there_may_be(world: World, file: bytes) -> None:
    for n in range(MAX_LINES):
        world.wa(file, b"e%d traceoff" % n)
    assert errno_of(world.wa, file, b"one traceoff") == errno.E2BIG
    world.wa(file, b"!e7 traceoff")
    assert world.wa(file, b"one traceoff") == 13


def test_the_table_is_listened_to_only_while_there_is_a_line(world: World) -> None:
    before = len(world.table.on_created)
    other = world.instances.make(b"other")
    for file in (b"standing_filters", b"standing_triggers", b"standing_events"):
        path = b"instances/other/" + file
        world.w(path, b"a traceoff" if b"events" not in file else b"a")
        assert len(world.table.on_created) == before + 1
        assert world.wn(path, b"") == 0
        assert len(world.table.on_created) == before
    world.w(b"instances/other/standing_triggers", b"a traceoff")
    world.instances.remove(other.name)
    assert len(world.table.on_created) == before
