"""The interface of a kind of trigger, parsing of the commands, and the simple kinds.

    NAME[:PARAM][ if FILTER]        !NAME... removes

The parsing follows kernel/trace/trace_events_trigger.c: `trigger_process_regex()`,
`event_trigger_separate_filter()`, `event_trigger_parse_num()`, `set_trigger_filter()`.

    NAME[:COUNT][ if FILTER]                      traceon and traceoff share a slot
    NAME:SYSTEM:EVENT[:COUNT][ if FILTER]         so do enable_event and disable_event of one target

A switch and the triggers that change it share one cell, the value of the switch (_trigger_cells.pyx). The
cell exists as long as such a trigger does; other code that changes the switch writes the cell, too.
"""

import errno
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.filter import Filter, FilterError
from utracefs_protocol.text import shown, unsigned_of
from utracefsd.consumers.ftrace.buffer.buffer_store import memory_errors
from utracefsd.consumers.ftrace.buffer.snapshot import Snapshot
from utracefsd.consumers.ftrace.error_log import ErrorLog
from utracefsd.consumers.ftrace.event._sink import FtraceSink
from utracefsd.consumers.ftrace.event._trigger_cells import UNLIMITED, Cells, Trigger
from utracefsd.consumers.ftrace.event.event_file import AttachedTrigger, EventFiles, SavedTrigger, count_text
from utracefsd.consumers.ftrace.hist.tables import Tables
from utracefsd.consumers.ftrace.trigger._triggers import (
    EventSwitch,
    SnapshotTrigger,
    Stacktrace,
    TracingSwitch,
)
from utracefsd.daemon_log import daemon_log
from utracefsd.events.event import Event
from utracefsd.events.event_table import EventTable

Kept = tuple[tuple[int, int], ...]
"""As SavedTrigger.cells; empty: a new trigger."""


@attrs.frozen
class Command:
    """One write to the file `trigger`."""

    name: bytes
    rest: bytes | None
    """The text behind the name and one separator, without leading blanks; None: nothing."""
    removes: bool
    """It began with `!`."""
    text: bytes
    """The whole command, without white space at both ends."""


@attrs.frozen(eq=False)
class Place:
    """An instance as its triggers need it."""

    table: EventTable
    sink: FtraceSink
    files: EventFiles
    """They own the triggers."""
    error_log: ErrorLog
    snapshot: Snapshot
    tracing_switched: Callable[[], None]
    """Called when the last trigger that can switch tracing on or off is removed: save the present state."""
    set_clock: Callable[[bytes], None]
    """A write to `trace_clock`. EINVAL."""
    tables: Tables

    @property
    def cells(self) -> Cells:
        return self.sink.cells

    def make_filter(self, event: Event, text: bytes) -> Filter:
        """The filter of a trigger of that event. Errors are also added to the error log."""
        try:
            return self.files.parse_filter(event, text)
        except FilterError as error:
            self.error_log.add_filter(text, error)
            raise


class Kind(Protocol):
    """One kind of trigger. Errors are TraceError; nothing is attached or removed then."""

    name: bytes

    def write(self, place: Place, event: Event, command: Command) -> None:
        """Attach, or remove."""

    def restore(self, place: Place, event: Event, command: Command, saved: SavedTrigger) -> AttachedTrigger:
        """A trigger of the previous daemon; the caller attaches it."""

    def remove_all(self, place: Place, event: Event) -> None:
        """Opening with O_TRUNC calls this."""


def split_command(data: bytes) -> Command:
    """Parse one write. The name ends at `:`, blank or tab; blanks behind that are skipped."""
    text = data.split(b"\0", 1)[0].strip()
    end = next((i for i, byte in enumerate(text) if byte in b": \t"), len(text))
    rest = text[end + 1 :].lstrip()
    name = text[:end]
    return Command(name.removeprefix(b"!"), rest or None, name.startswith(b"!"), text)


def separate_filter(rest: bytes | None, *, needs_param: bool) -> tuple[bytes | None, bytes | None]:
    """Parameter and filter (from its `if` on). An optional parameter must begin with a digit. EINVAL."""
    if rest is None:
        if needs_param:
            raise TraceError(errno.EINVAL, "the trigger needs a parameter")
        return None, None
    if not needs_param and not rest[:1].isdigit():
        return None, rest
    end = next((i for i, byte in enumerate(rest) if byte in b" \t"), len(rest))
    if end == 0:
        raise TraceError(errno.EINVAL, "the trigger needs a parameter")
    return rest[:end], rest[end + 1 :].lstrip() or None


def filter_text(clause: bytes | None) -> bytes | None:
    """The text behind `if` and one separator, further blanks kept. EINVAL: no `if`, or nothing behind it."""
    if clause is None:
        return None
    end = next((i for i, byte in enumerate(clause) if byte in b" \t"), len(clause))
    if clause[:end] != b"if" or end == len(clause):
        raise TraceError(
            errno.EINVAL, f"{shown(clause)} is no filter: write the word `if`, a blank and the filter"
        )
    return clause[end + 1 :]


def parse_count(param: bytes | None) -> int:
    """How often a trigger may fire: the number before `:`. EINVAL, ERANGE."""
    return UNLIMITED if param is None else unsigned_of(param.partition(b":")[0])


@attrs.frozen
class _Parsed:
    """A command that attaches a trigger."""

    name: bytes
    """With its target, if any."""
    target: Any
    count: int
    filter: Filter | None
    text: bytes | None
    """The text behind `if`."""
    kept: Kept = ()
    """Cells of the previous daemon: the trigger's own, its switch's."""

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the trigger's constructor."""
        return {"filter": self.filter, "kept": self.kept[0] if self.kept else None}

    def attached(
        self,
        trigger: Trigger,
        slot: tuple[Any, ...],
        switch: Callable[[], tuple[int, ...]] = tuple,
        let_go: Callable[[], None] = lambda: None,
    ) -> AttachedTrigger:
        """switch: the cell of the switch that it changes."""
        condition = b"" if self.text is None else b" if " + self.text

        def saved() -> SavedTrigger:
            cells = ((index, trigger.cells.key(index)) for index in switch())
            again = b"%s:%d%s" % (self.name, trigger.count, condition)
            return SavedTrigger(again, ((trigger.cell, trigger.key), *cells))

        def text() -> bytes:
            return self.name + count_text(trigger.count) + condition

        return AttachedTrigger(trigger, slot, text, saved, let_go)


class _Simple:
    """NAME[:TARGET][:COUNT][ if FILTER]. Truncating does not remove it."""

    name: bytes

    def write(self, place: Place, event: Event, command: Command) -> None:
        target, param, clause = self._split(place, command)
        slot = self._slot(target)
        if command.removes:
            place.files.remove_trigger(event, slot)
            return
        parsed = self._parse(place, event, target, param, clause)
        place.files.check_room(event, slot)
        with memory_errors("a trigger"):
            attached = self._make(place, parsed)
        place.files.add_trigger(event, attached)

    def restore(self, place: Place, event: Event, command: Command, saved: SavedTrigger) -> AttachedTrigger:
        parsed = self._parse(place, event, *self._split(place, command))
        return self._make(place, attrs.evolve(parsed, kept=saved.cells))

    def remove_all(self, place: Place, event: Event) -> None:
        pass

    def _parse(
        self, place: Place, event: Event, target: Any, param: bytes | None, clause: bytes | None
    ) -> _Parsed:
        count = parse_count(param)
        text = filter_text(clause)
        filter = None if text is None else place.make_filter(event, text)
        return _Parsed(self.name, target, count, filter, text)

    def _split(self, place: Place, command: Command) -> tuple[Any, bytes | None, bytes | None]:
        """Target, count, and filter with its `if`."""
        return None, *separate_filter(command.rest, needs_param=False)

    def _slot(self, target: Any) -> tuple[Any, ...]:
        return (self.name,)

    def _make(self, place: Place, parsed: _Parsed) -> AttachedTrigger:
        raise NotImplementedError


class StacktraceKind(_Simple):
    name = b"stacktrace"

    def _make(self, place: Place, parsed: _Parsed) -> AttachedTrigger:
        if not parsed.kept:
            daemon_log("trigger-stacktrace")
        trigger = Stacktrace(place.cells, parsed.count, **parsed.options)
        return parsed.attached(trigger, self._slot(None))


class SnapshotKind(_Simple):
    """snapshot. Attaching it makes the spare buffer, which stays after removing it."""

    name = b"snapshot"

    def _make(self, place: Place, parsed: _Parsed) -> AttachedTrigger:
        had = place.snapshot.buffer is not None
        place.snapshot.allocate()
        try:
            trigger = SnapshotTrigger(place.sink, parsed.count, **parsed.options)
        except BaseException:
            if not had:
                place.snapshot.free()
            raise
        return parsed.attached(trigger, self._slot(None))


class TracingSwitchKind(_Simple):
    def __init__(self, name: bytes, *, on: bool) -> None:
        self.name = name
        self._on = on

    def _slot(self, target: Any) -> tuple[Any, ...]:
        return (b"tracing",)

    def _make(self, place: Place, parsed: _Parsed) -> AttachedTrigger:
        sink, cells, kept = place.sink, place.cells, parsed.kept
        if sink.tracing_switches == 0:
            if len(kept) > 1 and cells.keep(*kept[1]):
                sink.tracing_cell = kept[1][0]
                sink.tracing_on = bool(cells.value(sink.tracing_cell))
            else:
                sink.tracing_cell = cells.give(sink.tracing_on)
        sink.tracing_switches += 1
        let_go = partial(_let_go_of_tracing, place)
        try:
            trigger = TracingSwitch(sink, self._on, parsed.count, **parsed.options)
        except BaseException:
            let_go()
            raise
        return parsed.attached(trigger, self._slot(None), lambda: (sink.tracing_cell,), let_go)


def _let_go_of_tracing(place: Place) -> None:
    sink = place.sink
    sink.tracing_switches -= 1
    if sink.tracing_switches == 0:
        place.cells.take_back(sink.tracing_cell)
        sink.tracing_cell = 0
        place.tracing_switched()


class EventSwitchKind(_Simple):
    _slot_name = b"event"
    _switch: Callable[..., Trigger] = EventSwitch
    """Makes the trigger: the target's probe, True to switch it on, a count, `filter` and `kept`."""

    def __init__(self, name: bytes, *, on: bool) -> None:
        self.name = name
        self._on = on

    def _split(self, place: Place, command: Command) -> tuple[Event, bytes | None, bytes | None]:
        """EINVAL: too few parts, or no such event."""
        param, clause = separate_filter(command.rest, needs_param=True)
        assert param is not None
        system, colon, rest = param.partition(b":")
        name, more, count = rest.partition(b":")
        target = place.table.get(system, name) if colon else None
        if target is None:
            raise TraceError(
                errno.EINVAL,
                f"{shown(param)} names no event: write SYSTEM:EVENT; available_events lists them",
            )
        return target, count if more else None, clause

    def _slot(self, target: Event) -> tuple[Any, ...]:
        return self._slot_name, target.id

    def _make(self, place: Place, parsed: _Parsed) -> AttachedTrigger:
        target, kept = parsed.target, parsed.kept
        probe = place.files.hold_switch(target, kept[1] if len(kept) > 1 else None)
        let_go = partial(place.files.drop_switch, target)
        try:
            trigger = self._switch(probe, self._on, parsed.count, **parsed.options)
        except BaseException:
            let_go()
            raise
        name = b"%s:%s:%s" % (self.name, target.system, target.tracepoint_name)
        named = attrs.evolve(parsed, name=name)
        return named.attached(trigger, self._slot(target), lambda: (probe.soft_cell,), let_go)
