"""An event by itself: when it is busy, which registrations match it, and its name in messages."""

from tests.daemon.events.helpers import register
from utracefs_protocol.events.declaration import REG_PERSIST
from utracefsd.events.event import shown
from utracefsd.events.event_table import EventTable


def test_busy(table: EventTable) -> None:
    plain, kept = register(table, b"plain"), register(table, b"kept", REG_PERSIST)
    assert (plain.busy, kept.busy) == (True, True)
    for event in (plain, kept):
        table.release(event)
    assert (plain.busy, kept.busy) == (True, False)


def test_a_match_is_remembered_and_a_mismatch_is_not(table: EventTable) -> None:
    event = register(table, b"a u32 x; u32 y")
    assert not event.matches(b"u32 x")
    assert event.matched_args is None
    for _ in range(2):
        assert event.matches(b"u32 x;u32 y;")
    assert event.matched_args == b"u32 x;u32 y;"
    assert event.matches(b"u32 x; u32 y")
    assert not event.matches(b"u32 x")


def test_names_in_messages_are_readable_and_bounded() -> None:
    assert shown(b"a'\xff\n\x1b") == "'a'\\xff\\x0a\\x1b'"
    assert len(shown(b"x" * 1000)) == 202
