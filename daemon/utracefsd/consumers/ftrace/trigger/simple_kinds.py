"""The simple kinds: traceon, traceoff, snapshot, stacktrace, enable_event, disable_event.

    NAME[:COUNT][ if FILTER]                      traceon and traceoff share a slot
    NAME:SYSTEM:EVENT[:COUNT][ if FILTER]         so do enable_event and disable_event of one target

A switch and the triggers that change it share one cell, the value of the switch (_trigger_cells.pyx). The
cell exists as long as such a trigger does; other code that changes the switch writes the cell, too.
"""

import errno
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.filter import Filter
from utracefsd.consumers.ftrace.event._trigger import Trigger
from utracefsd.consumers.ftrace.event.attached_trigger import AttachedTrigger, SavedTrigger, count_text
from utracefsd.consumers.ftrace.trigger._actions import (
    EventSwitch,
    SnapshotTrigger,
    Stacktrace,
    TracingSwitch,
)
from utracefsd.consumers.ftrace.trigger.kind import (
    Command,
    Kept,
    Place,
    filter_text,
    memory_errors,
    parse_count,
    separate_filter,
)
from utracefsd.daemon_log import daemon_log
from utracefsd.events.event import Event, shown


@attrs.frozen
class Named:
    """The texts of a trigger: its line, and the command that makes it again."""

    name: bytes
    """With its target, if any."""
    filter_text: bytes | None
    """The text behind `if`."""

    def text(self, trigger: Trigger) -> bytes:
        return self.name + count_text(trigger.count) + self._condition()

    def saved(self, trigger: Trigger, *switch: int) -> SavedTrigger:
        """Its entry in the state. switch: the cell of the switch that it changes."""
        cells = trigger.cells
        return SavedTrigger(
            b"%s:%d%s" % (self.name, trigger.count, self._condition()),
            ((trigger.cell, trigger.key), *((index, cells.key(index)) for index in switch)),
        )

    def _condition(self) -> bytes:
        return b"" if self.filter_text is None else b" if " + self.filter_text


def make_filter(place: Place, event: Event, text: bytes | None) -> Filter | None:
    return None if text is None else place.make_filter(event, text)


class _Simple:
    """NAME[:COUNT][ if FILTER]."""

    def __init__(self, name: bytes, slot: bytes) -> None:
        self.name = name
        self.slot = (slot,)

    def write(self, place: Place, event: Event, command: Command) -> None:
        param, clause = separate_filter(command.rest, needs_param=False)
        if command.removes:
            place.files.remove_trigger(event, self.slot)
            return
        count = parse_count(param)
        text = filter_text(clause)
        filter = make_filter(place, event, text)
        place.files.check_slot(event, self.slot)
        place.files.add_trigger(event, memory_errors(partial(self.make, place, count, filter, text)))

    def restore(self, place: Place, event: Event, command: Command, saved: SavedTrigger) -> AttachedTrigger:
        param, clause = separate_filter(command.rest, needs_param=False)
        text = filter_text(clause)
        return self.make(place, parse_count(param), make_filter(place, event, text), text, saved.cells)

    def remove_all(self, place: Place, event: Event) -> None:
        """Truncating does not remove it."""

    def make(
        self, place: Place, count: int, filter: Filter | None, text: bytes | None, kept: Kept = ()
    ) -> AttachedTrigger:
        raise NotImplementedError


class StacktraceKind(_Simple):
    def __init__(self) -> None:
        super().__init__(b"stacktrace", b"stacktrace")

    def make(
        self, place: Place, count: int, filter: Filter | None, text: bytes | None, kept: Kept = ()
    ) -> AttachedTrigger:
        if not kept:
            daemon_log.info(
                "trigger-stacktrace",
                "trigger stacktrace: it counts, and records nothing; there is no stack of the kernel",
            )
        trigger = Stacktrace(place.cells, count, filter=filter, kept=kept[0] if kept else None)
        named = Named(self.name, text)
        return AttachedTrigger(
            trigger, self.slot, partial(named.text, trigger), partial(named.saved, trigger)
        )


class SnapshotKind(_Simple):
    """snapshot. Attaching it makes the spare buffer, which stays after removing it."""

    def __init__(self) -> None:
        super().__init__(b"snapshot", b"snapshot")

    def make(
        self, place: Place, count: int, filter: Filter | None, text: bytes | None, kept: Kept = ()
    ) -> AttachedTrigger:
        place.snapshot.allocate()
        trigger = SnapshotTrigger(place.sink, count, filter=filter, kept=kept[0] if kept else None)
        named = Named(self.name, text)
        return AttachedTrigger(
            trigger, self.slot, partial(named.text, trigger), partial(named.saved, trigger)
        )


class TracingSwitchKind(_Simple):
    def __init__(self, name: bytes, *, on: bool) -> None:
        super().__init__(name, b"tracing")
        self._on = on

    def make(
        self, place: Place, count: int, filter: Filter | None, text: bytes | None, kept: Kept = ()
    ) -> AttachedTrigger:
        sink, cells = place.sink, place.cells
        if sink.tracing_switches == 0:
            if len(kept) > 1 and cells.keep(*kept[1]):
                sink.tracing_cell = kept[1][0]
                sink.tracing_on = bool(cells.value(sink.tracing_cell))
            else:
                sink.tracing_cell = cells.give(sink.tracing_on)
        sink.tracing_switches += 1
        try:
            trigger = TracingSwitch(sink, self._on, count, filter=filter, kept=kept[0] if kept else None)
        except BaseException:
            _let_go_of_tracing(place)
            raise
        named = Named(self.name, text)
        return AttachedTrigger(
            trigger,
            self.slot,
            partial(named.text, trigger),
            lambda: named.saved(trigger, sink.tracing_cell),
            partial(_let_go_of_tracing, place),
        )


def _let_go_of_tracing(place: Place) -> None:
    sink = place.sink
    sink.tracing_switches -= 1
    if sink.tracing_switches == 0:
        place.cells.take_back(sink.tracing_cell)
        sink.tracing_cell = 0
        place.tracing_switched()


class EventSwitchKind:
    _slot_name = b"event"
    _switch: Callable[..., Trigger] = EventSwitch
    """Makes the trigger: the target's probe, True to switch it on, a count, `filter` and `kept`."""

    def __init__(self, name: bytes, *, on: bool) -> None:
        self.name = name
        self._on = on

    def write(self, place: Place, event: Event, command: Command) -> None:
        target, param, clause = split_target(place, command)
        slot = self._slot(target)
        if command.removes:
            place.files.remove_trigger(event, slot)
            return
        count = parse_count(param)
        text = filter_text(clause)
        filter = make_filter(place, event, text)
        place.files.check_slot(event, slot)
        place.files.add_trigger(event, memory_errors(partial(self._make, place, target, count, filter, text)))

    def restore(self, place: Place, event: Event, command: Command, saved: SavedTrigger) -> AttachedTrigger:
        target, param, clause = split_target(place, command)
        text = filter_text(clause)
        filter = make_filter(place, event, text)
        return self._make(place, target, parse_count(param), filter, text, saved.cells)

    def remove_all(self, place: Place, event: Event) -> None:
        """Truncating does not remove it."""

    def _slot(self, target: Event) -> tuple[Any, ...]:
        return self._slot_name, target.id

    def _make(
        self,
        place: Place,
        target: Event,
        count: int,
        filter: Filter | None,
        text: bytes | None,
        kept: Kept = (),
    ) -> AttachedTrigger:
        probe = place.files.hold_switch(target, kept[1] if len(kept) > 1 else None)
        let_go: Callable[[], None] = partial(place.files.drop_switch, target)
        try:
            trigger = self._switch(probe, self._on, count, filter=filter, kept=kept[0] if kept else None)
        except BaseException:
            let_go()
            raise
        named = Named(b"%s:%s:%s" % (self.name, target.system, target.tracepoint_name), text)
        return AttachedTrigger(
            trigger,
            self._slot(target),
            partial(named.text, trigger),
            lambda: named.saved(trigger, probe.soft_cell),
            let_go,
        )


def split_target(place: Place, command: Command) -> tuple[Event, bytes | None, bytes | None]:
    """Parse SYSTEM:EVENT[:COUNT][ if FILTER]: the event, the count and the filter with its `if`.

    EINVAL: too few parts, or no such event.
    """
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
