"""The file dynamic_events: every line that creates or deletes, every error, and its content."""

import errno

import pytest

from tests.daemon.events.helpers import refused, register
from tests.daemon.status_files import nameless_status
from utracefs_protocol.events.declaration import REG_MULTI_FORMAT, REG_PERSIST
from utracefsd.events import dynamic_events
from utracefsd.events.event_table import EventTable


def test_a_line_has_at_most_4094_bytes(table: EventTable) -> None:
    line = b"u:" + b"n" * 4092
    assert dynamic_events.write(table, line + b"\n", privileged=True) == 4095
    with refused(errno.EINVAL):
        dynamic_events.write(table, line + b"n\n", privileged=True)
    with refused(errno.EINVAL):  # comments count
        dynamic_events.write(table, b"#" * 4095, privileged=True)
    assert len(table) == 1


@pytest.mark.parametrize(
    "line", [b"p:test", b"test u32 a", b"x", b" u:test", b"U:test", b"u test", b"s:test foo a", b"u:te\0st"]
)
def test_unknown_prefix(table: EventTable, line: bytes) -> None:
    with refused(errno.EINVAL):
        dynamic_events.write(table, line, privileged=True)


def test_a_created_event_is_persistent_single_and_unreferenced(table: EventTable) -> None:
    assert dynamic_events.write(table, b"u:test u32 a; # comment\nu:  spaced u8 b", privileged=True) == 39
    event = table.events()[0]
    assert (event.persistent, event.multi_format, event.references) == (True, False, 0)
    assert dynamic_events.write(table, b"u:test u32 a\n", privileged=True) == 13
    assert table.events()[0] is event
    assert dynamic_events.text(table) == b"u:test u32 a\nu:spaced u8 b\n"


def test_a_line_may_be_longer_than_an_ioctl_takes(table: EventTable) -> None:
    fields = b"; ".join(b"u32 field_number_%d" % number for number in range(60))
    assert len(fields) > 511
    dynamic_events.write(table, b"u:long " + fields + b"\n", privileged=True)
    assert len(table.events()[0].declaration.fields) == 60


def test_the_first_failing_line_ends_the_write(table: EventTable) -> None:
    with refused(errno.EINVAL):
        dynamic_events.write(table, b"u:a\nu:b u32 x\nu:c bad\nu:d\n", privileged=True)
    assert dynamic_events.text(table) == b"u:a\nu:b u32 x\n"


def test_what_is_shown_can_be_written_back(table: EventTable) -> None:
    register(table, b"e1 u32 a;u32 b")
    register(table, b"e2")
    register(table, b"e3 struct foo a 8;u32 b;")
    register(table, b"e4 __rel_loc char[] m;unsigned int n")
    text = dynamic_events.text(table)
    assert text == (
        b"u:e1 u32 a; u32 b\nu:e2\nu:e3 struct foo a 8; u32 b\nu:e4 __rel_loc char[] m; unsigned int n\n"
    )
    status = nameless_status()
    again = EventTable(status)
    assert dynamic_events.write(again, text, privileged=True) == len(text)
    assert dynamic_events.text(again) == text
    status.close()


@pytest.mark.parametrize(
    "line", [b"-", b"-test", b"-u:test", b"!", b"!test", b"! u:test", b"!u:", b"-:", b"!:"]
)
def test_delete_without_colon_or_name(table: EventTable, line: bytes) -> None:
    dynamic_events.create(table, b"u:test")
    with refused(errno.EINVAL):
        dynamic_events.write(table, line, privileged=True)


@pytest.mark.parametrize(
    "line",
    [
        b"!u:nobody",
        b"!u:test",
        b"!u:test u32 a",
        b"!u:test u32 a;u32 b",  # no repair of the missing space here
        b"!u:test u32 a; u32 c",
        b"-:u:test u32 a; u32 b",
        b"-:synthetic/test u32 a; u32 b",
        b"-:user_events/",
    ],
)
def test_nothing_matches(table: EventTable, line: bytes) -> None:
    dynamic_events.create(table, b"u:test u32 a; u32 b")
    with refused(errno.ENOENT):
        dynamic_events.write(table, line, privileged=True)
    assert len(table) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"!u:test u32 a; u32 b",
        b"!anything:test u32 a; u32 b",
        b"-:test u32  a; u32 b;",
        b"-:user_events/test u32 a; u32 b",
        b"-:user_events_multi/test u32 a; u32 b",
        b"!u:/test u32 a; u32 b # gone",
    ],
)
def test_delete_with_the_full_field_list(table: EventTable, line: bytes) -> None:
    dynamic_events.create(table, b"u:test u32 a; u32 b")
    dynamic_events.create(table, b"u:other")
    dynamic_events.write(table, line, privileged=True)
    assert dynamic_events.text(table) == b"u:other\n"


def test_delete_takes_every_match_of_both_kinds(table: EventTable) -> None:
    dynamic_events.create(table, b"u:test u8 a")
    for fields in (b"u8 a", b"u16 a"):
        table.release(register(table, b"test " + fields, REG_PERSIST | REG_MULTI_FORMAT))
    dynamic_events.delete(table, b"!u:test u8 a")
    assert [event.tracepoint_name for event in table.events()] == [b"test.1"]


def test_in_use(table: EventTable) -> None:
    event = register(table, b"test", REG_PERSIST)
    with refused(errno.EBUSY):
        dynamic_events.write(table, b"!u:test", privileged=False)
    table.release(event)
    register(table, b"plain")
    with refused(errno.EBUSY):
        dynamic_events.write(table, b"!u:plain", privileged=True)
    dynamic_events.write(table, b"!u:test", privileged=True)


def test_only_administrators(table: EventTable) -> None:
    dynamic_events.create(table, b"u:test")
    with refused(errno.EPERM):
        dynamic_events.write(table, b"!u:test", privileged=False)


def test_marked_buffers_are_cleared_also_when_nothing_matched(table: EventTable) -> None:
    calls: list[None] = []
    table.on_dynamic_removed.append(lambda: calls.append(None))
    with refused(errno.ENOENT):
        dynamic_events.delete(table, b"!u:test")
    with refused(errno.EINVAL):
        dynamic_events.delete(table, b"!u:")
    assert len(calls) == 1
