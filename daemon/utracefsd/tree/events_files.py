"""`events/` of an instance: a directory for each system that has events, in it one for each event.

    events/                    enable  header_page  header_event
    events/user_events/        enable  filter  exists while the table has an event of that system
    events/user_events/EV/     enable  filter  format  hist  id  inject  stats  trigger
    events/synthetic/EV/       the same
    events/ftrace/EV/          format  id      print and raw_data, what markers are recorded as

Nothing is kept per event; an open file checks whether its event was removed (ENODEV).
"""

import errno
from collections.abc import Iterator
from functools import partial

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import Field, FieldKind
from utracefs_protocol.events.event_format import format_text
from utracefs_protocol.pages.subbuf import HEADER_EVENT_TEXT, PRINT_ID, RAW_DATA_ID, header_page_text
from utracefsd.consumers.ftrace.instance import Instance
from utracefsd.events.event import SYSTEM, SYSTEM_MULTI, SYSTEM_SYNTHETIC, Event
from utracefsd.events.synthetic import format_of
from utracefsd.machine.peer import Peer
from utracefsd.tree import values
from utracefsd.tree.nodes import WRITE_ONLY, Directory, Listing, Node, Row, Rows, RowTable, row_table

_SYSTEMS = (SYSTEM, SYSTEM_MULTI, SYSTEM_SYNTHETIC)

_SYSTEM_FILTER_TEXT = b"""\
### global filter ###
# Use this to set filters for multiple events.
# Only events with the given fields will be affected.
# If no events are modified, an error message will be displayed here
"""
"""The content of a system's `filter`, always the same."""


def _store_enable_all(instance: Instance, data: bytes, peer: Peer) -> None:
    """All events; it is no error if there are none (a kernel always has some)."""
    instance.events.set_enabled(instance.table.events(), values.flag(data))


_EVENTS_FILES: RowTable[Instance] = row_table(
    Row(b"enable", lambda i: i.events.enable_summary(i.table.events()), _store_enable_all),
    Row(b"header_event", lambda i: HEADER_EVENT_TEXT),
    Row(b"header_page", lambda i: header_page_text(i.buffer.subbuf_size)),
)


class EventsDirectory(Rows[Instance]):
    """`events/`."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance, _EVENTS_FILES)
        self._instance = instance

    def lookup(self, name: bytes) -> Node | None:
        if name == b"ftrace":
            return _FTRACE_SYSTEM
        if name in _SYSTEMS:
            system = _System(self._instance, name)
            return _SystemDirectory(system) if system.exists() else None
        return super().lookup(name)

    def names(self) -> Iterator[tuple[bytes, str]]:
        yield from super().names()
        yield b"ftrace", "d"
        for name in _SYSTEMS:
            if _System(self._instance, name).exists():
                yield name, "d"


@attrs.frozen
class _System:
    instance: Instance
    """The instance whose enable switches it shows."""
    name: bytes

    def events(self) -> Iterator[Event]:
        return (event for event in self.instance.table.events() if event.system == self.name)

    def exists(self) -> bool:
        return self.instance.table.system_sizes[self.name] > 0

    def enable_text(self) -> bytes:
        return self.instance.events.enable_summary(self.events())

    def store_enable(self, data: bytes) -> None:
        value = values.flag(data)
        self._check_exists()
        self.instance.events.set_enabled(self.events(), value)

    def store_filter(self, data: bytes) -> None:
        text = values.command_line(data)
        self._check_exists()
        self.instance.set_filters(self.events(), text)

    def _check_exists(self) -> None:
        if not self.exists():
            raise TraceError(errno.EINVAL, f"the system {self.name.decode()} has no events any more")


_SYSTEM_FILES: RowTable[_System] = row_table(
    Row(b"enable", _System.enable_text, lambda system, data, peer: system.store_enable(data)),
    Row(b"filter", lambda system: _SYSTEM_FILTER_TEXT, lambda system, data, peer: system.store_filter(data)),
)


class _SystemDirectory(Rows[_System]):
    """`events/SYS/`."""

    def __init__(self, system: _System) -> None:
        super().__init__(system, _SYSTEM_FILES)
        self._system = system

    def lookup(self, name: bytes) -> Node | None:
        # As in eventfs, files come before directories: an event that is called `filter` cannot be reached.
        node = super().lookup(name)
        if node is not None:
            return node
        event = self._system.instance.table.get(self._system.name, name)
        if event is None:
            return None
        context = _EventContext(self._system.instance, event)
        return Rows(context, _EVENT_FILES, guard=partial(_check_alive, event))

    def names(self) -> Iterator[tuple[bytes, str]]:
        yield from super().names()
        for event in self._system.events():
            if event.tracepoint_name not in _SYSTEM_FILES:
                yield event.tracepoint_name, "d"

    def modes(self) -> Iterator[tuple[bytes, str, int]]:
        """Modes of thousands of events without looking at each."""
        for name, kind in self.names():
            row = _SYSTEM_FILES.get(name)
            yield name, kind, Directory.mode if row is None else row.mode


@attrs.frozen
class _EventContext:
    instance: Instance
    """The instance whose enable switch it shows."""
    event: Event

    def trigger_text(self) -> bytes:
        self.check_instance()
        return self.instance.triggers.text(self.event)

    def store_trigger(self, data: bytes) -> None:
        self.check_instance()
        self.instance.triggers.write(self.event, values.command_line(data) or data)

    def check_instance(self) -> None:
        """ENODEV: the instance was removed while the file was open. As in the kernel `id` can be read."""
        if self.instance.closed:
            raise TraceError(errno.ENODEV, "the instance is gone")

    def format_text(self) -> bytes:
        self.check_instance()
        return format_of(self.event)


def _refuse_reading(context: _EventContext) -> bytes:
    raise TraceError(errno.EPERM, "inject can be written only")


def _check_alive(event: Event) -> None:
    if event.removed:
        raise TraceError(errno.ENODEV, "the event is gone")


_EVENT_FILES: RowTable[_EventContext] = row_table(
    Row(
        b"enable",
        lambda ev: ev.instance.events.of(ev.event).enable_text(),
        lambda ev, data, peer: ev.instance.events.set_enabled((ev.event,), values.flag(data)),
    ),
    Row(
        b"filter",
        lambda ev: ev.instance.events.of(ev.event).shown_filter(),
        lambda ev, data, peer: ev.instance.set_filter(ev.event, values.command_line(data)),
    ),
    Row(b"format", _EventContext.format_text, holds_instance=False),
    Row(
        b"hist",
        lambda ev: ev.instance.triggers.hist_pieces(ev.event, ev.instance.comms.comm),
        changes=lambda ev: ev.instance.triggers.hist_hits(ev.event),
        holds_instance=False,
    ),
    Row(b"id", lambda ev: b"%d\n" % ev.event.id, holds_instance=False),
    Row(
        b"inject",
        _refuse_reading,
        lambda ev, data, peer: ev.instance.inject(ev.event, values.command_line(data), peer.pid),
        mode=WRITE_ONLY,
    ),
    Row(b"stats", lambda ev: ev.event.tracepoint.stats_text(), holds_instance=False),
    Row(
        b"trigger",
        _EventContext.trigger_text,
        lambda ev, data, peer: ev.store_trigger(data),
        truncate=lambda ev, peer: ev.instance.triggers.truncate(ev.event),
        holds_instance=False,
    ),
)


def _internal_field(type_: bytes, name: bytes, offset: int, size: int) -> Field:
    return Field(type_, name, offset, size, not type_.startswith(b"u"), FieldKind.STRUCT)


_Internal = tuple[int, bytes]
"""A record type of the kernel's own that tools expect to be declared: common_type of its records,
`format`."""

_INTERNAL_FILES: RowTable[_Internal] = row_table(
    Row(b"format", lambda event: event[1], holds_instance=False),
    Row(b"id", lambda event: b"%d\n" % event[0], holds_instance=False),
)

_INTERNAL_EVENTS: dict[bytes, _Internal] = {
    name: (event_id, format_text(name, event_id, fields, print_fmt))
    for name, event_id, fields, print_fmt in (
        (
            b"print",
            PRINT_ID,
            (_internal_field(b"unsigned long", b"ip", 8, 8), _internal_field(b"char[]", b"buf", 16, 0)),
            b'"%ps: %s", (void *)REC->ip, REC->buf',
        ),
        (
            b"raw_data",
            RAW_DATA_ID,
            (_internal_field(b"unsigned int", b"id", 8, 4), _internal_field(b"char[]", b"buf", 12, 0)),
            b'"id:%04x %08x", REC->id, (int)REC->buf[0]',
        ),
    )
}


def _find_internal(name: bytes) -> Node | None:
    event = _INTERNAL_EVENTS.get(name)
    return None if event is None else Rows(event, _INTERNAL_FILES)


_FTRACE_SYSTEM = Listing(lambda: _INTERNAL_EVENTS, _find_internal, mode=Directory.mode)
"""`events/ftrace/`: no enable file, these events are always recorded."""
