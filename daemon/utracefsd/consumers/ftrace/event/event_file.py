"""An event in an instance, as the kernel's `struct trace_event_file` (include/linux/trace_events.h).

All instances share an event; an instance's own state of it is its EventFile: whether the event is attached,
whether its records are stored, and whether the buffer may hold some.

    enabled   soft references   probe                       `enable` shows
    no        0                 none                        0
    yes       0                 attached, stores            1
    no        1 or more         attached, soft-disabled     0*
    yes       1 or more         attached, stores            1*

Soft mode is for triggers: they need the event to fire without storing it, or switch its storing on and off
from within a record. Each takes a soft reference. Turning the event on and off is then a flag in the probe,
and the programs' enable words stay 1.

Most events are never attached in most instances. So an EventFile is made when first needed, and 4,000 events
in 200 instances are not 800,000 objects.
"""

import enum
import errno
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.filter import Filter, FilterError, parse_filter
from utracefs_protocol.filter.parse import MAX_CPUS, is_no_filter
from utracefsd.consumers.ftrace.event._sink import FtraceProbe, FtraceSink
from utracefsd.consumers.ftrace.event._trigger_cells import UNLIMITED, Trigger
from utracefsd.consumers.ftrace.event.inject import parse_entry
from utracefsd.events.event import Event
from utracefsd.events.event_table import EventTable
from utracefsd.machine._writer_names import WriterNames


@attrs.frozen
class SavedTrigger:
    """A trigger in the daemon's state; a line of the log (state/log.py)."""

    command: bytes
    """The command that makes it when written to the file `trigger`."""
    cells: tuple[tuple[int, int], ...]
    """Index and key: first of its own cell, then of the one that it switches, if any (_trigger_cells)."""
    extra: Any = None
    """Further data of its kind, as plain values."""


@attrs.frozen(eq=False)
class AttachedTrigger:
    trigger: Trigger
    """The compiled part, which fires."""
    slot: tuple[Any, ...]
    """An event has at most one trigger of each slot; another one is EEXIST."""
    text: Callable[[], bytes]
    """Its line in the file `trigger`, without the newline."""
    saved: Callable[[], SavedTrigger]
    """Its entry in the state."""
    let_go: Callable[[], None] = lambda: None
    """Called once after it was detached, before its own cell is freed."""
    comes_last: bool = False
    """Listed and fired after all others, in the order of attaching; the others are newest first."""


def count_text(count: int) -> bytes:
    """`:unlimited` or `:count=N`; the kernel prints its unsigned long with `%ld`."""
    if count == UNLIMITED:
        return b":unlimited"
    return b":count=%d" % (count - (1 << 64) if count >> 63 else count)


MAX_TRIGGERS = 256
"""Limit for one event in one instance: every record passes each trigger, and a change of one writes all to
the log."""


class Part(enum.Enum):
    """A part of an event file, which the state has in a line of its own."""

    ENABLED = enum.auto()
    FILTER = enum.auto()
    TRIGGERS = enum.auto()


@attrs.define
class SavedEventFile:
    """An event file in the daemon's state; a line of the log (state/log.py)."""

    enabled: bool = False
    """See EventFile."""
    was_enabled: bool = False
    """See EventFile."""
    filter_text: bytes | None = None
    """See EventFile."""
    filter_holds: bool = False
    """Whether the filter is valid; if not, `filter_text` has its error."""
    triggers: tuple[SavedTrigger, ...] = ()
    """In the listed order."""


@attrs.define(eq=False)
class EventFile:
    """One event in one instance; changed by `EventFiles` only."""

    event: Event
    soft_references: int = 0
    """`sm_ref`; above 0 is EVENT_FILE_FL_SOFT_MODE: attached whether enabled or not."""
    was_enabled: bool = False
    """EVENT_FILE_FL_WAS_ENABLED, which is never reset: the buffer may hold records of it."""
    probe: FtraceProbe | None = None
    """The probe attached to the event's tracepoint (EVENT_FILE_FL_ENABLED); None: not attached."""
    filter: Filter | None = None
    """Selects the records to store (EVENT_FILE_FL_FILTERED); None: all."""
    filter_text: bytes | None = None
    """The content of the file `filter` without the newline; None: no filter. Without a `filter` it is an
    invalid filter and its error."""
    triggers: list[AttachedTrigger] = attrs.Factory(list)
    """In the order in which they are listed and fire; each has a soft reference."""
    switches: int = 0
    """Triggers that turn the storing of this event on or off; each has a soft reference."""
    saved_state: tuple[bool, bool] = (False, False)
    """`enabled` and `was_enabled` in the state."""

    @property
    def enabled(self) -> bool:
        """Its records are stored: attached, and not EVENT_FILE_FL_SOFT_DISABLED. A trigger may change that
        from within a record."""
        return self.probe is not None and not self.probe.soft_disabled

    @property
    def filter_is_invalid(self) -> bool:
        return self.filter is None and self.filter_text is not None

    def enable_text(self) -> bytes:
        """`events/SYS/EV/enable`, as event_enable_read() of kernel/trace/trace_events.c."""
        return b"%d%s\n" % (self.enabled, b"*" if self.soft_references else b"")

    def shown_filter(self) -> bytes:
        """`events/SYS/EV/filter`, as print_event_filter() of kernel/trace/trace_events_filter.c."""
        return b"none\n" if self.filter_text is None else self.filter_text + b"\n"


@attrs.define(eq=False)
class EventFiles:
    """The event files of one instance, by event; attaches their probes to the event table."""

    _table: EventTable
    _sink: FtraceSink
    _consumer: str
    """Name of the probes in an event's `stats`."""
    _now_ns: Callable[[], int]
    """CLOCK_MONOTONIC."""
    _before_enabling: Callable[[], None] = lambda: None
    """May raise, and then nothing is enabled."""
    _recorded_event_gone: Callable[[], None] = lambda: None
    """Called when an event was removed that was ever attached here; another event may get its id now."""
    _nr_cpus: int = MAX_CPUS
    names: WriterNames | None = None
    """Names of the writing threads; for filters, as `nr_cpus` (`parse_filter`)."""
    _files: dict[Event, EventFile] = attrs.Factory(dict)
    _listening: bool = False
    on_changed: Callable[[EventFile, Part], None] = lambda file, part: None
    """Called with each file that changed, and with the part."""
    followers: list[Callable[[Event], None]] = attrs.Factory(list)
    """Called, after `on_changed`, with the event that was enabled, disabled or got another filter."""

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[EventFile]:
        """All files made so far, in no particular order."""
        return iter(self._files.values())

    def of(self, event: Event) -> EventFile:
        """The event's file; an empty one, which is not kept, if it was not needed so far."""
        return self._files.get(event) or EventFile(event)

    def enable(self, event: Event) -> None:
        """Store its records; nothing if enabled already. ENODEV, and errors of `before_enabling`."""
        file = self.of(event)
        if not file.enabled:
            self._before_enabling()
            self._set(file, True, file.soft_references)

    def disable(self, event: Event) -> None:
        """Stop storing its records; nothing if disabled already. Detaching it may remove the event."""
        file = self.of(event)
        if file.enabled:
            self._set(file, False, file.soft_references)

    def take_soft_reference(self, event: Event) -> None:
        """Attach it, enabled or not, until the reference is dropped. ENODEV."""
        file = self.of(event)
        self._set(file, file.enabled, file.soft_references + 1)

    def drop_soft_reference(self, event: Event) -> None:
        """Undo `take_soft_reference`. ValueError: there is none."""
        file = self.of(event)
        if not file.soft_references:
            raise ValueError(f"event {event.tracepoint_name!r} is not in soft mode")
        self._set(file, file.enabled, file.soft_references - 1)

    # Triggers. Their changes from within a record are in their cells (_trigger_cells).

    def check_room(self, event: Event, slot: tuple[Any, ...] = ()) -> None:
        """Before anything is made for a trigger. EEXIST: the event has one of that slot. E2BIG."""
        triggers = self.of(event).triggers
        if any(attached.slot == slot for attached in triggers):
            raise TraceError(errno.EEXIST, "the event has such a trigger already; remove it with ! first")
        if len(triggers) >= MAX_TRIGGERS:
            raise TraceError(
                errno.E2BIG, f"an event has at most {MAX_TRIGGERS} triggers in an instance; ! removes one"
            )

    def add_trigger(self, event: Event, attached: AttachedTrigger) -> None:
        """Attach a trigger, with a soft reference. ENODEV; then its `let_go` is called."""
        try:
            self.take_soft_reference(event)
        except BaseException:
            _let_go(attached)
            raise
        file = self._files[event]
        place = len(file.triggers) if attached.comes_last else 0
        file.triggers.insert(place, attached)
        self._triggers_changed(file)

    def remove_trigger(self, event: Event, slot: tuple[Any, ...]) -> None:
        """Remove the trigger of that slot; nothing if there is none."""
        file = self.of(event)
        for attached in file.triggers:
            if attached.slot == slot:
                file.triggers.remove(attached)
                self._triggers_changed(file)
                self.drop_soft_reference(event)
                _let_go(attached)
                return

    def hold_switch(self, event: Event, kept: tuple[int, int] | None = None) -> FtraceProbe:
        """The probe of an event whose storing a trigger turns on and off, until `drop_switch`. kept: the cell
        for that in the previous daemon. ENODEV, OSError, MemoryError."""
        self.take_soft_reference(event)
        file = self._files[event]
        probe, cells = file.probe, self._sink.cells
        assert probe is not None
        if not file.switches:
            try:
                if kept is not None and cells.keep(*kept):
                    probe.soft_cell = kept[0]
                    self._set(file, bool(cells.value(kept[0])), file.soft_references)
                else:
                    probe.soft_cell = cells.give(file.enabled)
            except BaseException:
                self.drop_soft_reference(event)
                raise
        file.switches += 1
        return probe

    def drop_switch(self, event: Event) -> None:
        """Undo `hold_switch`. As in the kernel, the event stays as it was switched."""
        file = self._files[event]
        file.switches -= 1
        if not file.switches and file.probe is not None:
            self._sink.cells.take_back(file.probe.soft_cell)
            file.probe.soft_cell = 0
        self.drop_soft_reference(event)

    def let_go(self, event: Event) -> None:
        """Detach from it, with its triggers."""
        for attached in list(self.of(event).triggers):
            self.remove_trigger(event, attached.slot)
        self.disable(event)

    def _triggers_changed(self, file: EventFile) -> None:
        assert file.probe is not None
        file.probe.triggers = tuple(attached.trigger for attached in file.triggers)
        self.on_changed(file, Part.TRIGGERS)

    def _tell(self, file: EventFile) -> None:
        now = (file.enabled, file.was_enabled)
        if now != file.saved_state:
            file.saved_state = now
            self._changed(file, Part.ENABLED)

    def _changed(self, file: EventFile, part: Part) -> None:
        self.on_changed(file, part)
        for follower in list(self.followers):
            follower(file.event)

    def set_enabled(self, events: Iterable[Event], value: bool) -> None:
        """Enable or disable all of them; stops at the first error."""
        change = self.enable if value else self.disable
        for event in list(events):
            change(event)

    def disable_all(self) -> None:
        """Truncating `set_event` calls this."""
        self.set_enabled(self._files, False)

    def parse_filter(self, event: Event, text: bytes) -> Filter:
        """A filter for records of the event. FilterError."""
        return parse_filter(text, event.declaration.fields, nr_cpus=self._nr_cpus, names=self.names)

    def set_filter(self, event: Event, text: bytes, *, instead: FilterError | None = None) -> None:
        """Store only records that pass; `0` stores all again.

        FilterError: not a valid filter for the event. It replaces the previous one all the same, as in
        apply_event_filter() of the kernel, and all records are stored. instead: the error to show.
        """
        if is_no_filter(text):
            self._set_filter(event, None, None)
            return
        try:
            found = self.parse_filter(event, text)
        except FilterError as error:
            self._set_filter(event, None, (instead or error).shown(text))
            raise
        self._set_filter(event, found, text)

    def _set_filter(self, event: Event, found: Filter | None, text: bytes | None) -> None:
        file = self.of(event)
        is_news = file.filter_text != text
        file.filter = found
        file.filter_text = text
        if file.probe is not None:
            file.probe.filter = found
        if is_news:
            self._changed(self._keep(file), Part.FILTER)

    def inject(self, event: Event, command: bytes, cpu: int, pid: int) -> None:
        """Record what `command` describes (`parse_entry`), by the thread `pid`, enabled or not."""
        file = self._keep(self.of(event))
        probe = file.probe
        if probe is None:
            probe = FtraceProbe(self._sink, self._consumer)
            probe.filter = file.filter
        self._before_enabling()
        record = parse_entry(command, event.declaration.fields, event.id, pid)
        event_id, writer = struct.unpack("<H2xi", record.common)
        if not event_id:
            raise TraceError(errno.EINVAL, "common_type 0 is no event")
        file.was_enabled = event.was_recorded = True
        self._tell(file)
        probe.inject(self._now_ns(), cpu, writer, event_id, record.payload)

    def restore(self, event: Event, saved: SavedEventFile) -> None:
        """Restore it, without its triggers. ENODEV, and errors of `before_enabling`."""
        file = self._keep(self.of(event))
        file.was_enabled |= saved.was_enabled
        event.was_recorded |= saved.was_enabled
        file.filter_text = saved.filter_text
        if saved.filter_text is not None and saved.filter_holds:
            try:
                file.filter = self.parse_filter(event, saved.filter_text)
            except FilterError as error:  # it names a removed cpu
                file.filter_text = error.shown(saved.filter_text)
        if saved.enabled:
            self.enable(event)

    def close(self) -> None:
        """Detach everything, and stop observing the table."""
        for file in list(self._files.values()):
            for attached in list(file.triggers):
                self.remove_trigger(file.event, attached.slot)
        for file in list(self._files.values()):
            self._set(file, False, 0)
        self._files.clear()
        if self._listening:
            self._table.on_removed.remove(self._removed)
            self._listening = False

    def enable_summary(self, events: Iterable[Event]) -> bytes:
        """`events/enable` and `events/SYS/enable`: 0 none, 1 all, X some, ? there is no event. Soft mode
        counts."""
        found = {self._attached(event) for event in events}
        return b"X\n" if len(found) > 1 else b"%d\n" % found.pop() if found else b"?\n"

    def set_event_text(self) -> bytes:
        """`set_event`: the events that are attached, newest first."""
        return b"".join(
            b"%s\n" % event.full_name for event in reversed(self._table.events()) if self._attached(event)
        )

    def _attached(self, event: Event) -> bool:
        file = self._files.get(event)
        return file is not None and file.probe is not None

    def _set(self, file: EventFile, enabled: bool, soft_references: int) -> None:
        """Change probe and table to this state. Errors occur before anything has changed."""
        probe = file.probe
        if probe is None and (enabled or soft_references):
            probe = FtraceProbe(self._sink, self._consumer)
            probe.soft_disabled = not enabled
            probe.filter = file.filter
            self._table.attach(file.event, probe)
            file.probe = probe
            file.was_enabled = file.event.was_recorded = True
            self._keep(file)
        file.soft_references = soft_references
        if probe is not None:
            probe.soft_disabled = not enabled
            if probe.soft_cell:
                self._sink.cells.set_value(probe.soft_cell, enabled)
            if not enabled and not soft_references:
                file.probe = None
                self._table.detach(file.event, probe)
        self._tell(file)

    def _keep(self, file: EventFile) -> EventFile:
        """Observe removals of events from the first file on."""
        if not self._listening:
            self._listening = True
            self._table.on_removed.append(self._removed)
        self._files[file.event] = file
        return file

    def _removed(self, event: Event) -> None:
        file = self._files.pop(event, None)
        if file is not None and file.was_enabled:
            self._recorded_event_gone()


def _let_go(attached: AttachedTrigger) -> None:
    attached.let_go()
    attached.trigger.close()
