"""An event by itself: when it is busy, which registrations match it, and its name in messages; counts of its
records, which outlive it."""

import pytest

from tests.daemon.events.helpers import register
from utracefs_protocol.events.declaration import REG_PERSIST
from utracefsd.events import event as module
from utracefsd.events.event import CommandString, Emitted, EmittedCounts, Event, SavedCounts
from utracefsd.events.event_table import EventTable


def test_busy(table: EventTable) -> None:
    plain, kept = register(table, b"plain"), register(table, b"kept", REG_PERSIST)
    assert (plain.busy, kept.busy) == (True, True)
    for event in (plain, kept):
        table.release(event)
    assert (plain.busy, kept.busy) == (True, False)


def test_a_known_command_string_is_made_once(table: EventTable) -> None:
    event, command = register(table, b"a u32 x; u32 y"), CommandString.parse(b"a u32 x;u32 y;")
    assert command is CommandString.parse(b"a u32 x;u32 y;")
    assert command.declaration is command.declaration
    assert command.fields_text == event.fields_text != CommandString.parse(b"a u32 x").fields_text


def made(table: EventTable, name: bytes, before: int = 0) -> Event:
    event = register(table, name + b" u32 a")
    if before:
        event.before = Emitted(before, event.before.epoch)
    return event


def remove(table: EventTable, event: Event) -> None:
    table.release(event)
    table.reap()


def totals(table: EventTable) -> dict[bytes, Emitted]:
    return {name.removeprefix(b"user_events:"): n for name, n in table.emitted.totals(table.events())}


def test_many_removed_events(table: EventTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten; its next count cannot be compared with the former one."""
    monkeypatch.setattr(module, "MAX_REMOVED", 2)
    for name in (b"a", b"b", b"c", b"d"):
        remove(table, made(table, name, 5))
    assert totals(table) == {b"c": Emitted(5, 0), b"d": Emitted(5, 1)}
    assert made(table, b"a").emitted == Emitted(0, 2)
    assert made(table, b"c").emitted == Emitted(5, 0)
    assert table.emitted.saved.first_epoch == 2


def test_one_user_s_removed_events_push_out_no_other_s(
    table: EventTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the next daemon, and with an event that another user had before."""
    monkeypatch.setattr(module, "MAX_REMOVED", 4)

    def churn(table: EventTable, first: int) -> None:
        for n in range(first, first + 10):
            event = register(table, b"x%d u32 a" % n, uid=1001)
            event.before = Emitted(5, 0)
            remove(table, event)

    for uid in (1001, 1000):
        event = register(table, b"a u32 a", uid=uid)
        event.before = Emitted(event.before.count + 5, 0)
        remove(table, event)
    churn(table, 0)
    assert totals(table)[b"a"] == Emitted(10, 0)
    assert len(totals(table)) == 4
    before, table.emitted = table.emitted, EmittedCounts()
    table.emitted.restore(before.saved, dict(before.totals([])), [], killed=False)
    churn(table, 10)
    assert totals(table)[b"a"] == Emitted(10, 0)


@pytest.mark.parametrize("killed", [False, True])
def test_the_daemon_before(table: EventTable, killed: bool) -> None:
    before = {b"user_events:a": Emitted(5, 1), b"user_events:gone": Emitted(6, 0)}
    events = [made(table, b"a"), made(table, b"b")]
    counts = EmittedCounts()
    counts.restore(SavedCounts("one", 1, 0), before, events, killed=killed)
    found = dict(counts.totals(events))
    assert found.pop(b"user_events:gone") == Emitted(6, 0)
    epochs = {name: one.epoch for name, one in found.items()}
    if killed:
        assert epochs == {b"user_events:a": 2, b"user_events:b": 2}
    else:
        assert found == {b"user_events:a": Emitted(5, 1)}
    assert counts.saved == SavedCounts("one", 1 + killed, 0)
    assert EmittedCounts().saved.origin != EmittedCounts().saved.origin
