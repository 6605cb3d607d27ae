"""An event in an instance, below its files: soft mode, traces after its removal, and callbacks."""

import errno

import pytest

from tests.daemon.record_path import write
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import REG_PERSIST
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.event._sink import FtraceSink
from utracefsd.consumers.ftrace.event.event_file import EventFiles, SavedEventFile
from utracefsd.events.event import CommandString, Event
from utracefsd.events.event_table import EventTable


class Desk:
    """The event files of one instance, and all their callbacks."""

    def __init__(self, table: EventTable) -> None:
        self.table = table
        self.buffer = RingBuffer(1, 8)
        self.changed: list[tuple[bytes, bool]] = []
        self.gone = 0
        self.refuse = False
        self.files = EventFiles(
            table,
            FtraceSink(self.buffer),
            "ftrace",
            lambda: 0,
            before_enabling=self._before_enabling,
            recorded_event_gone=self._recorded_event_gone,
        )
        self.files.on_changed = lambda file, part: self.changed.append((file.event.name, file.enabled))

    def _before_enabling(self) -> None:
        if self.refuse:
            raise TraceError(errno.ENOMEM, "no room")

    def _recorded_event_gone(self) -> None:
        self.gone += 1

    def event(self, name: bytes, flags: int = REG_PERSIST) -> Event:
        return self.table.register(CommandString.parse(name), flags, privileged=True)

    def text(self, event: Event) -> bytes:
        return self.files.of(event).enable_text()


@pytest.fixture
def desk(table: EventTable) -> Desk:
    return Desk(table)


def emit(event: Event) -> int:
    return write(event.tracepoint, b"", ts_ns=1, cpu=0, pid=1)


def test_soft_mode(desk: Desk) -> None:
    """The event fires for holders of a reference; records are stored only while it is enabled as well."""
    event = desk.event(b"a")
    desk.files.take_soft_reference(event)
    assert (desk.text(event), event.status) == (b"0*\n", 1)
    assert desk.files.set_event_text() == b"user_events:a\n"
    assert not desk.files.of(event).enabled
    emit(event)
    assert desk.buffer.entries() == 0
    desk.files.take_soft_reference(event)
    desk.files.enable(event)
    assert desk.text(event) == b"1*\n"
    emit(event)
    assert desk.buffer.entries() == 1
    desk.files.disable(event)
    assert (desk.text(event), event.status) == (b"0*\n", 1)
    desk.files.drop_soft_reference(event)
    assert (desk.text(event), event.status) == (b"0*\n", 1)
    desk.files.enable(event)
    desk.files.drop_soft_reference(event)
    assert (desk.text(event), event.status, event.references) == (b"1\n", 1, 1)
    emit(event)
    assert event.tracepoint.stats_text() == b"emitted: 3\nftrace: recorded 2 filtered 1 lost 0\n"
    desk.files.disable(event)
    assert (desk.text(event), event.status) == (b"0\n", 0)
    with pytest.raises(ValueError, match="not in soft mode"):
        desk.files.drop_soft_reference(event)


def stored(desk: Desk, event: Event, *values: int) -> int:
    """How many of these records are stored."""
    before = desk.buffer.entries()
    for value in values:
        write(event.tracepoint, value.to_bytes(4, "little"), ts_ns=1, cpu=0, pid=1)
    return desk.buffer.entries() - before


def test_a_filter_is_restored(desk: Desk) -> None:
    holds, refused, gone = desk.event(b"a u32 n"), desk.event(b"b u32 n"), desk.event(b"c u32 n")
    desk.files.restore(holds, SavedEventFile(True, True, b"n == 1", filter_holds=True))
    desk.files.restore(refused, SavedEventFile(True, True, b"n == 1\n^\n", filter_holds=False))
    desk.files.restore(gone, SavedEventFile(False, False, b"n & CPUS{8191}", filter_holds=True))
    assert [stored(desk, event, 1, 2) for event in (holds, refused)] == [1, 2]
    assert desk.files.of(refused).shown_filter() == b"n == 1\n^\n\n"
    assert desk.files.of(gone).shown_filter() == b"n & CPUS{8191}\n"
    desk.files.restore(gone, SavedEventFile(False, False, b"n & CPUS{8192}", filter_holds=True))
    assert desk.files.of(gone).shown_filter().endswith(b"parse_error: Invalid cpulist\n\n")
    assert not desk.files.of(gone).was_enabled


def test_it_listens_to_the_table_from_the_first_file_on(desk: Desk) -> None:
    assert desk.table.on_removed == []
    event = desk.event(b"a")
    desk.files.restore(event, SavedEventFile(enabled=False, was_enabled=True))
    desk.files.enable(event)
    assert len(desk.table.on_removed) == 1
    desk.files.close()
    assert desk.table.on_removed == []
    assert (len(desk.files), event.status) == (0, 0)
