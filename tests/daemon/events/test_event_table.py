"""The event table: limits, formats of one name, references, reaping and deleting; a connection, the tree and
dynamic_events show the rest."""

import errno
import weakref

import pytest

from tests.daemon.events.helpers import refused, register
from tests.daemon.record_path import Collecting
from tests.daemon.status_files import nameless_status
from utracefs_protocol.events.declaration import REG_MULTI_FORMAT, REG_PERSIST, Declaration
from utracefs_protocol.limits import MAX_EVENT_ID
from utracefsd.consumers.perf._sink import PerfProbe
from utracefsd.events import dynamic_events, event_table
from utracefsd.events._tracepoint import Probe
from utracefsd.events.event import CommandString
from utracefsd.events.event_table import EventTable
from utracefsd.events.status_file import StatusFile
from utracefsd.machine.shares import Resource, Shares


def other() -> Probe:
    return Collecting("test", lambda batch: None)


def perf() -> Probe:
    return PerfProbe("perf:1", 1)


# Register


def test_a_nul_byte_is_refused(table: EventTable) -> None:
    for command in (b"test\0", b"te\0st u32 a", b"test u32 a\0"):
        with refused(errno.EINVAL):
            table.register(CommandString.parse(command), privileged=True)


def test_user_events_max(status: StatusFile) -> None:
    table = EventTable(status, user_events_max=2)
    dynamic_events.write(table, b"s:synthetic u32 n\n", privileged=True)  # it does not count
    register(table, b"a")
    register(table, b"b", REG_MULTI_FORMAT)
    with refused(errno.EMFILE):
        table.register(CommandString.parse(b"c"), privileged=True)
    with refused(errno.EINVAL):  # a bad description is noticed before the limit
        table.register(CommandString.parse(b"c bad"), privileged=True)
    assert table.register(CommandString.parse(b"a"), privileged=True).name == b"a"
    table.user_events_max = 1
    assert len(table) == 3
    with refused(errno.EMFILE):
        table.register(CommandString.parse(b"c"), privileged=True)
    table.user_events_max = 3
    register(table, b"c")


def test_the_status_page_is_full() -> None:
    status = nameless_status()
    table = EventTable(status)
    first = register(table, b"a")
    for number in range(1, status.capacity):
        register(table, b"b%d" % number)
    with refused(errno.EMFILE):
        table.register(CommandString.parse(b"c"), privileged=True)
    assert table.register(CommandString.parse(b"a"), privileged=True) is first
    table.release(first)
    table.reap()
    assert register(table, b"c").id == 20
    status.close()


def test_no_free_id(status: StatusFile) -> None:
    table = EventTable(status, first_id=MAX_EVENT_ID)
    event = register(table, b"a")
    assert event.id == 65535
    with refused(errno.ENODEV):
        table.register(CommandString.parse(b"b"), privileged=True)
    table.release(event)
    table.reap()
    assert register(table, b"b").id == 65535


def test_many_events_share_a_field_text(table: EventTable) -> None:
    first, second = register(table, b"a u32 x"), register(table, b"b u32 x")
    assert first.declaration.fields[0] is second.declaration.fields[0]
    assert second.declaration.name == b"b"


# Flags and multi-format


def test_multi_format_events(table: EventTable) -> None:
    single = register(table, b"test u8 a")
    zero = register(table, b"test u32 a", REG_MULTI_FORMAT)
    one = register(table, b"test u64 a", REG_MULTI_FORMAT)
    assert [event.tracepoint_name for event in (single, zero, one)] == [b"test", b"test.0", b"test.1"]
    assert [event.name for event in (single, zero, one)] == [b"test"] * 3
    assert zero.system == b"user_events_multi"
    assert table.get(b"user_events_multi", b"test.1") is one
    assert table.register(CommandString.parse(b"test u64 a;"), REG_MULTI_FORMAT, privileged=True) is one
    assert table.register(CommandString.parse(b"test u8 a"), privileged=True) is single
    assert len({event.id for event in (single, zero, one)}) == 3


def test_one_of_thousands_of_formats_is_found_without_a_look_at_the_others(
    table: EventTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [register(table, b"test u32 a%d; u8 b" % i, REG_MULTI_FORMAT) for i in range(1000)]
    monkeypatch.delattr(Declaration, "fields_text")
    assert register(table, b"test u32  a500 ;u8 b;".replace(b" ;", b";"), REG_MULTI_FORMAT) is made[500]
    assert table.named(b"test") == made


def test_the_events_of_a_name_in_the_order_of_their_creation(table: EventTable) -> None:
    for order in ("mms", "msm", "smm", "s", "m"):
        made = [
            register(table, b"test u32 a%d" % i, REG_MULTI_FORMAT if kind == "m" else 0)
            for i, kind in enumerate(order)
        ]
        assert table.named(b"test") == made, order
        left = [weakref.ref(event) for event in made]
        for event in reversed(made):
            table.release(event)
        table.reap()
        assert table.named(b"test") == [], order
        del made, event
        assert not any(ref() for ref in left), "nothing refers to them any more"


def test_what_an_id_does_not_find(table: EventTable) -> None:
    """A program had an event of that id: not a synthetic one, and not one of the other kind of names."""
    dynamic_events.write(table, b"s:lat u64 us\n", privileged=True)
    synthetic = table.events()[0]
    event = table.register(CommandString.parse(b"lat u64 us"), privileged=True, event_id=synthetic.id)
    assert event.id != synthetic.id and not event.synthetic
    multi = register(table, b"lat u64 us", REG_MULTI_FORMAT)
    for flags, other in ((REG_MULTI_FORMAT, event), (0, multi)):
        found = table.register(CommandString.parse(b"lat u64 us"), flags, privileged=True, event_id=other.id)
        assert found.multi_format == bool(flags)


def test_fields_that_no_text_can_ask_for(table: EventTable) -> None:
    """A tab in a type: each registration makes another event, as in the kernel."""
    made = [register(table, b"test struct a\tb c 8", REG_MULTI_FORMAT) for _ in range(3)]
    assert len(set(made)) == 3
    left = [weakref.ref(event) for event in made]
    for event in made:
        table.release(event)
    table.reap()
    assert table.named(b"test") == []
    del made, event
    assert not any(ref() for ref in left)


def test_a_failed_multi_format_leaves_a_gap(table: EventTable) -> None:
    with refused(errno.EINVAL):
        table.register(CommandString.parse(b"test bad"), REG_MULTI_FORMAT, privileged=True)
    table.user_events_max = 0
    with refused(errno.EMFILE):
        table.register(CommandString.parse(b"test"), REG_MULTI_FORMAT, privileged=True)
    table.user_events_max = 100
    names = [
        register(table, b"test u32 f%d" % number, REG_MULTI_FORMAT).tracepoint_name for number in range(20)
    ]
    assert names[0] == b"test.2"
    assert names[13:16] == [b"test.f", b"test.10", b"test.11"]


# References, reaping


def test_the_last_reference_leaves_it_to_the_reaper(table: EventTable) -> None:
    event = register(table, b"test")
    table.acquire(event)
    assert table.next_reap_ns() is None
    table.release(event)
    assert table.next_reap_ns() is None
    table.release(event)
    assert table.next_reap_ns() == 0
    assert not event.removed
    table.reap()
    assert event.removed
    assert len(table) == 0
    assert table.next_reap_ns() is None
    with pytest.raises(ValueError, match="reference"):
        table.release(event)


def test_a_register_in_between_revives_the_same_event(table: EventTable) -> None:
    event = register(table, b"test u32 a")
    table.release(event)
    with refused(errno.EADDRINUSE):
        table.register(CommandString.parse(b"test u64 a"), privileged=True)
    assert register(table, b"test u32 a") is event
    assert table.next_reap_ns() is None
    table.reap()
    assert not event.removed


def test_reaping_takes_only_what_nothing_refers_to(table: EventTable) -> None:
    events = [register(table, b"e%d" % number) for number in range(3)]
    for event in events:
        table.release(event)
    table.acquire(events[0])
    table.reap()
    assert [event.removed for event in events] == [False, True, True]
    assert table.next_reap_ns() is None


def test_nothing_can_be_done_with_a_removed_event(table: EventTable) -> None:
    event = register(table, b"test")
    table.release(event)
    table.reap()
    with refused(errno.ENODEV):
        table.acquire(event)
    with refused(errno.ENODEV):
        table.attach(event, other())


def test_a_log_is_notified_of_an_event_first(table: EventTable) -> None:
    heard: list[str] = []
    table.on_created.append(lambda event: heard.append("enabled"))
    table.before_created.append(lambda event: heard.append("noted"))
    register(table, b"a")
    assert heard == ["noted", "enabled"]


def test_how_many_events_a_system_has(table: EventTable) -> None:
    single = register(table, b"a")
    register(table, b"a", REG_MULTI_FORMAT)
    register(table, b"a u8 x", REG_MULTI_FORMAT)
    assert table.system_sizes == {b"user_events": 1, b"user_events_multi": 2}
    table.release(single)
    table.reap()
    assert table.system_sizes[b"user_events"] == 0


def test_callbacks(table: EventTable) -> None:
    log: list[tuple[str, bytes]] = []
    table.on_created.append(lambda event: log.append(("created", event.name)))
    table.on_removed.append(lambda event: log.append(("removed", event.name)))
    table.on_dynamic_removed.append(lambda: log.append(("dynamic", b"")))
    event = register(table, b"a")
    register(table, b"a")
    dynamic_events.write(table, b"u:b\n", privileged=True)
    table.release(event)
    table.release(event)
    table.reap()
    dynamic_events.write(table, b"!u:b\n", privileged=True)
    dynamic_events.write(table, b"u:c\n", privileged=True)
    dynamic_events.truncate(table)
    assert log == [
        ("created", b"a"),
        ("created", b"b"),
        ("removed", b"a"),
        ("removed", b"b"),
        ("dynamic", b""),
        ("created", b"c"),
        ("removed", b"c"),
        ("dynamic", b""),
    ]


# Status


def test_status_text(table: EventTable) -> None:
    assert table.status_text() == b"\nActive: 0\nBusy: 0\n"
    first = register(table, b"first")
    multi = register(table, b"multi u8 a", REG_MULTI_FORMAT)
    register(table, b"third")
    table.attach(multi, other())
    table.attach(multi, perf())
    table.release(first)
    table.reap()
    register(table, b"again")  # takes the index of `first`, so it is listed first
    assert table.status_text() == b"again\nmulti.0 # Used by perf other\nthird\n\nActive: 3\nBusy: 1\n"


# Delete (DIAG_IOCSDEL)


@pytest.mark.parametrize("name", [b"nobody", b"", b"test u32 a", b"u:test", b"user_events/test", b"test.0"])
def test_no_such_name(table: EventTable, name: bytes) -> None:
    dynamic_events.create(table, b"u:test u32 a")
    with refused(errno.ENOENT):
        table.delete(name, privileged=True)


def test_in_use_or_not_persistent(table: EventTable) -> None:
    kept = register(table, b"kept", REG_PERSIST)
    with refused(errno.EBUSY):
        table.delete(b"kept", privileged=True)
    table.attach(kept, other())
    table.release(kept)
    with refused(errno.EBUSY) as caught:
        table.delete(b"kept", privileged=False)
    assert "other" in caught.text
    plain = register(table, b"plain")
    table.release(plain)
    with refused(errno.EBUSY):  # waits for the reaper
        table.delete(b"plain", privileged=True)
    table.reap()
    with refused(errno.ENOENT):
        table.delete(b"plain", privileged=True)


def test_a_delete_takes_all_kinds_newest_first_up_to_the_first_error(table: EventTable) -> None:
    dynamic_events.create(table, b"u:test")
    busy = register(table, b"test u8 a", REG_PERSIST | REG_MULTI_FORMAT)
    free = register(table, b"test u16 a", REG_PERSIST | REG_MULTI_FORMAT)
    table.release(free)
    with refused(errno.EBUSY):
        table.delete(b"test", privileged=True)
    assert [event.tracepoint_name for event in table.events()] == [b"test", b"test.0"]
    table.release(busy)
    table.delete(b"test", privileged=True)
    assert len(table) == 0


def test_one_user_has_so_many_fields(status: StatusFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are a large event's cost in memory."""
    monkeypatch.setattr(event_table, "FREE_FIELDS", 0)
    table = EventTable(status, shares=Shares({Resource.FIELDS: 3}))
    event = register(table, b"a u32 x; u32 y", privileged=False, uid=1000)
    with refused(errno.EMFILE) as caught:
        table.register(CommandString.parse(b"b u32 x; u32 y"), privileged=False, owner_uid=1000)
    assert "fields" in caught.text
    assert len(table) == 1
    register(table, b"c u32 x", privileged=False, uid=1000)
    table.release(event)
    table.reap()
    register(table, b"b u32 x; u32 y", privileged=False, uid=1000)


def test_a_user_of_all_indexes_leaves_some_to_administrators(status: StatusFile) -> None:
    table = EventTable(status, shares=Shares(in_all={Resource.EVENTS: 1}))
    register(table, b"a", privileged=False, uid=1000)
    with refused(errno.EMFILE) as caught:
        table.register(CommandString.parse(b"b"), privileged=False, owner_uid=1001)
    assert "all users" in caught.text
    register(table, b"b", uid=0)
