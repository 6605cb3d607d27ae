"""The histogram kinds of triggers for the file `trigger`, and the file `hist`.

    hist:DEFINITION[ if FILTER]                      any number for an event, each definition once
    hist:DEFINITION:pause|cont|clear                 acts on the trigger with this definition
    enable_hist:SYSTEM:EVENT[:COUNT][ if FILTER]     and disable_hist: for all hist triggers of another event

Errors and their order follow event_hist_trigger_parse() and hist_register_trigger().
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.filter import Filter
from utracefs_protocol.hist.errors import HistError, Log
from utracefs_protocol.hist.parse import Command as HistCommand
from utracefs_protocol.hist.parse import parse_parts, split_filter
from utracefs_protocol.text import escaped
from utracefsd.consumers.ftrace.buffer.buffer_store import memory_errors
from utracefsd.consumers.ftrace.event.event_file import AttachedTrigger, SavedTrigger
from utracefsd.consumers.ftrace.hist._hist import Emission, Hist, HistTable, Link, When
from utracefsd.consumers.ftrace.hist.definition import Definition, Handler, Kind, define
from utracefsd.consumers.ftrace.hist.fields import HistField
from utracefsd.consumers.ftrace.hist.program import STRING_WORDS, Program, compile_definition
from utracefsd.consumers.ftrace.hist.tables import saved_table
from utracefsd.consumers.ftrace.hist.text import key_text
from utracefsd.consumers.ftrace.hist.variables import Context, Variables, is_read
from utracefsd.consumers.ftrace.trigger._triggers import HistSwitch, HistTrigger
from utracefsd.consumers.ftrace.trigger.kind import Command, EventSwitchKind, Kept, Place
from utracefsd.events.event import SYSTEM_SYNTHETIC, Event
from utracefsd.events.synthetic import slots_bytes

SLOT = b"hist"

Make = Callable[[Event, bytes], "EventHist | None"]
"""Attach a trigger for a field that another one needs; None: refused."""


@attrs.frozen(eq=False)
class EventHist:
    """A hist trigger that is attached, or to be: `AttachedTrigger.slot` of one has it behind SLOT."""

    definition: Definition
    filter_text: bytes | None
    """The text behind `if`."""
    command: bytes
    """The command that makes it again."""
    trigger: HistTrigger
    """The compiled part, which fires."""
    program: Program
    """The histogram that it counts in."""
    is_made: bool = False
    """Made for a field that another trigger needs, and removed with that (variables.py)."""

    @property
    def name(self) -> bytes | None:
        """`name=NAME`."""
        return self.definition.parts.name

    @property
    def table(self) -> HistTable:
        return self.trigger.hist.table

    def text(self) -> bytes:
        """Its line in the file `trigger`."""
        text = self.definition.text() + self.definition.actions_text()
        if self.filter_text is not None:
            text += b" if " + self.filter_text
        return text + (b" [active]" if self.trigger.active else b" [paused]")

    def more_text(self, entry: tuple[bytes, tuple[int, ...]]) -> bytes:
        """The actions' text for an entry (track_data_print())."""
        definition, words = self.definition, entry[1]
        program = self.program
        text = b""
        for action, tracker in zip(definition.actions, definition.trackers, strict=True):
            if tracker < 0 or action.kind is Kind.SNAPSHOT:
                continue
            name = b"max" if action.handler is Handler.ONMAX else b"changed"
            text += b"\n\t%s: %10d" % (name, words[program.word_of(tracker)])
            for slot, (when, field) in enumerate(definition.slots):
                if when == When.SAVED and field is not None:
                    text += b"  " + self._saved_text(field, slot, words)
        return text

    def _saved_text(self, field: HistField, slot: int, words: tuple[int, ...]) -> bytes:
        at = self.program.string_word_of(slot)
        if at < 0:
            return b"%s: %10d" % (field.shown_name(), words[self.program.word_of(slot)])
        string = b"".join(word.to_bytes(8, "little") for word in words[at : at + STRING_WORDS])
        return b"%s: %-32s" % (field.shown_name(), string.partition(b"\0")[0])

    def below_text(self, comm: Callable[[int], bytes]) -> bytes:
        """The actions' text behind all entries (track_data_snapshot_print())."""
        taken = self.table.taken
        for action in self.definition.actions:
            if action.kind is Kind.SNAPSHOT and taken is not None:
                key, value = taken
                return (
                    b"\nSnapshot taken (see tracing/snapshot).  Details:\n"
                    b"\ttriggering value { %s(%s) }: %10d\ttriggered by event with key: %s\n"
                    % (action.handler.value, action.subject, value, key_text(self.definition, key, comm))
                )
        return b""

    def saved(self) -> SavedTrigger:
        path = self.table.path
        name = "" if path is None else os.path.basename(path)
        return SavedTrigger(
            self.command, ((self.trigger.cell, self.trigger.key),), [name, True] if self.is_made else name
        )

    def is_like(self, other: "_Defined") -> bool:
        """hist_trigger_match()."""
        mine, its = self.definition, other.definition
        return (
            self.name == its.parts.name
            and mine.identity() == its.identity()
            and self.filter_text == other.filter_text
        )


def hists_of(place: Place, event: Event) -> Iterator[EventHist]:
    """The hist triggers of an event, in the order of the file `trigger`."""
    for attached in place.files.of(event).triggers:
        if attached.slot[0] == SLOT:
            yield attached.slot[1]


def all_hists(place: Place) -> list[tuple[Event, EventHist]]:
    """The hist triggers of all events of an instance."""
    return [(file.event, one) for file in place.files for one in hists_of(place, file.event)]


class HistKind:
    name = b"hist"

    def write(self, place: Place, event: Event, command: Command) -> None:
        try:
            _write(place, event, command, Log(b"hist:" + (command.rest or b"")))
        except HistError as error:
            place.error_log.add_all(escaped(b"hist:" + event.full_name), error)
            raise

    def restore(self, place: Place, event: Event, command: Command, saved: SavedTrigger) -> AttachedTrigger:
        with _making(place) as make:
            defined = _define(place, event, command.rest or b"", Log(command.text), make, fresh=True)
            name, is_made = saved_table(saved.extra)
            return _make(place, defined, command.text, name, kept=saved.cells, is_made=is_made)

    def remove_all(self, place: Place, event: Event) -> None:
        hists = list(hists_of(place, event))
        if not any(is_read(one, all_hists(place)) for one in hists):
            for one in hists:
                place.files.remove_trigger(event, (SLOT, one))


def _write(place: Place, event: Event, command: Command, log: Log, *, is_made: bool = False) -> None:
    """event_hist_trigger_parse(). HistError, TraceError."""
    if command.rest is None:
        raise log.refused("write hist:keys=FIELD")
    with _making(place) as make:
        defined = _define(place, event, command.rest, log, make, fresh=not command.removes)
        definition, wanted = defined.definition, defined.definition.parts
        same = next((one for one in hists_of(place, event) if one.is_like(defined)), None)
        if command.removes:
            if same is not None:
                if is_read(same, all_hists(place)):
                    text = "another hist trigger reads a variable of this one; remove that first"
                    raise TraceError(errno.EBUSY, text)
                place.files.remove_trigger(event, (SLOT, same))
            return
        namesake = _namesake(place, definition)
        fits = namesake is None or namesake.definition.identity() == definition.identity()
        if wanted.command is not HistCommand.NONE and same is not None and fits:
            if wanted.command is HistCommand.CLEAR:
                same.table.clear()
            else:
                same.trigger.active = wanted.command is HistCommand.CONTINUE
            return
        if not fits:
            message = "Named hist trigger doesn't match existing named trigger (includes variables)"
            raise log.fault(message, wanted.name or b"")
        if same is not None:
            raise log.fault("Hist trigger already exists", errno=errno.EEXIST)
        if wanted.command in (HistCommand.CONTINUE, HistCommand.CLEAR):
            raise log.fault("Can't clear or continue a nonexistent hist trigger", errno=errno.ENOENT)
        place.files.check_room(event)
        if definition.uses_timestamp:
            try:
                place.set_clock(wanted.clock)
            except TraceError as error:
                raise log.fault("Couldn't set trace_clock", wanted.clock, error.errno) from error
        active = wanted.command is not HistCommand.PAUSE
        again = b"hist:" + command.rest
        place.files.add_trigger(event, _make(place, defined, again, active=active, is_made=is_made))


@contextmanager
def _making(place: Place) -> Iterator[Make]:
    """Make triggers for fields that a definition needs; they are removed if it fails."""
    made: list[tuple[Event, EventHist]] = []

    def make(event: Event, text: bytes) -> EventHist | None:
        command = b"hist:" + text
        try:
            _write(place, event, Command(b"hist", text, False, command), Log(command), is_made=True)
        except HistError:
            return None
        *_, one = hists_of(place, event)
        made.append((event, one))
        return one

    try:
        yield make
    except BaseException:
        for event, one in made:
            place.files.remove_trigger(event, (SLOT, one))
        raise


@attrs.frozen
class _Defined:
    definition: Definition
    filter: Filter | None
    filter_text: bytes | None


def _define(place: Place, event: Event, rest: bytes, log: Log, make: Make, *, fresh: bool) -> _Defined:
    text, filter_text = split_filter(rest, log)
    parts = parse_parts(text.replace(b".sym-offset", b".symXoffset"), log)
    variables = Variables(place.table, event, all_hists(place), fresh=fresh, make=make)
    fields = event.declaration.fields
    definition = define(parts, Context(fields, log, variables, event.system, event.tracepoint_name))
    filter = None if filter_text is None else place.make_filter(event, filter_text)
    return _Defined(definition, filter, filter_text)


def _namesake(place: Place, definition: Definition) -> EventHist | None:
    """The oldest trigger with the same `name=NAME`."""
    found: EventHist | None = place.tables.named.get(definition.parts.name or b"", [None])[0]
    return found


def _make(
    place: Place,
    defined: _Defined,
    command: bytes,
    former: str | None = None,
    *,
    active: bool = True,
    kept: Kept = (),
    is_made: bool = False,
) -> AttachedTrigger:
    """former: the name of its table's file in the previous daemon; empty: it had none."""
    definition, tables, number = defined.definition, place.tables, place.sink.number
    program = compile_definition(definition)
    shape = (definition.parts.bits, definition.key_size, program.nr_words)
    # Triggers of one name count in one table: that of the first.
    if (namesake := _namesake(place, definition)) is not None:
        table = namesake.table
        tables.hold(table, number)
    else:
        table = tables.make(number, *shape) if former is None else tables.adopt(number, former, *shape)
    let_go_of_snapshot: Callable[[], None] = lambda: None
    try:
        let_go_of_snapshot = _hold_snapshot(place, definition, table)
        hist = Hist(program, table, place.files.names)
        with memory_errors("a trigger"):
            trigger = HistTrigger(
                place.sink,
                hist,
                uses_timestamp=definition.uses_timestamp,
                active=active,
                filter=defined.filter,
                kept=kept[0] if kept else None,
            )
    except BaseException:
        let_go_of_snapshot()
        tables.drop(table, number)
        raise
    # The table of a namesake, or of the previous daemon, may have another size than the definition.
    one = EventHist(definition.of_size(table.bits), defined.filter_text, command, trigger, program, is_made)
    synthetic = _link(place, hist, definition)
    trigger.finish()
    if one.name is not None:
        tables.named.setdefault(one.name, []).append(one)

    def let_go() -> None:
        for event in synthetic:
            place.table.release(event)
        if one.name is not None:
            tables.named[one.name].remove(one)
            if not tables.named[one.name]:
                del tables.named[one.name]
        let_go_of_snapshot()
        tables.drop(table, number)
        _remove_unread(place, definition)

    return AttachedTrigger(trigger, (SLOT, one), one.text, one.saved, let_go, comes_last=True)


def _remove_unread(place: Place, definition: Definition) -> None:
    """This one reads no more: remove triggers made for it, unless another one reads them, too."""
    owners = [reference.owner for reference in definition.references]
    hists = all_hists(place)
    for event, one in hists:
        if one.is_made and one in owners and not is_read(one, hists):
            place.files.remove_trigger(event, (SLOT, one))


def _hold_snapshot(place: Place, definition: Definition, table: HistTable) -> Callable[[], None]:
    """Reserve the snapshot for the action that takes it, if any; returns the release function."""
    takes = [action for action in definition.actions if action.kind is Kind.SNAPSHOT]
    if not takes:
        return lambda: None
    if len(takes) > 1:
        raise TraceError(errno.EBUSY, "one action of an instance takes the snapshot: write snapshot() once")
    return place.snapshot.hold(table)


def _link(place: Place, hist: Hist, definition: Definition) -> list[Event]:
    """Link variables and actions. Returns the synthetic events that it records, each acquired."""
    links = [
        Link(reference.owner.trigger.hist, reference.slot, reference.field.read_once)
        for reference in definition.references
    ]
    actions: list[tuple[int, bool, int, bool, bool, Emission | None]] = []
    acquired: list[Event] = []
    names = [b"$" + variable.var_name for variable in definition.variables]
    for action, tracker, parameters in zip(
        definition.actions, definition.trackers, definition.parameters, strict=True
    ):
        emission = None
        if action.kind is Kind.TRACE:
            event = place.table.get(SYSTEM_SYNTHETIC, action.synthetic)
            assert event is not None
            place.table.acquire(event)
            acquired.append(event)
            fields = event.declaration.fields
            emission = Emission(
                event.tracepoint,
                slots_bytes(fields),
                [
                    (is_reference, index, field.payload_offset, field.size, field.is_string, field.is_loc)
                    for field, (is_reference, index) in zip(fields, parameters, strict=True)
                ],
            )
        subject = names.index(action.subject) if action.subject in names else 0
        larger = action.handler is Handler.ONMAX
        saves, takes = action.kind is Kind.SAVE, action.kind is Kind.SNAPSHOT
        actions.append((tracker, larger, subject, saves, takes, emission))
    hist.link(links, actions)
    return acquired


class HistSwitchKind(EventSwitchKind):
    """enable_hist and disable_hist."""

    _slot_name = b"hist switch"
    _switch = HistSwitch

    def remove_all(self, place: Place, event: Event) -> None:
        for attached in list(place.files.of(event).triggers):
            if attached.slot[0] == self._slot_name:
                place.files.remove_trigger(event, attached.slot)
