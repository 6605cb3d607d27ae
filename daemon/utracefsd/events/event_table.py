"""The event table: the life of every event of the daemon, and its references. Only this module changes status
bytes.

It has the contents of a group in kernel/trace/trace_events_user.c, as plain objects. An event's life:

                      register, or a line `u:...` in dynamic_events
                                      |
                                      v
            +------------------> referenced <------------------+
            |                         |                        |
            | acquire, attach         | last reference dropped | register (the same event, id and fields)
            | (persistent)            v                        |
            +------ persistent?  yes: idle, stays       no: until the end of the step
                                      |                        |
                                      | delete                 | reap, still without reference
                                      v                        v
                                   removed  <------------------+

References are counted for: each data connection whose write_index table holds the event, each enabler, each
attached probe. A persistent event's reference to itself is not counted here; so "busy" is a count above 0,
and a non-persistent event is busy as long as it is in the table, because only the reaper may remove it
(user_event_last_ref() counts the table's own reference of such an event).

Reaping corresponds to the kernel's work queue (delayed_destroy_user_event()), whose delay is one work item.
So a program that restarts finds its event unchanged only if something referred to it meanwhile.

The status byte of an event is the OR of its probes' status bits. Only `attach` and `detach` change it. The
probe changes first, then the byte, then the enablers (user_event_reg() and update_enable_bit_for() in the
kernel), so a program that sees the byte set finds the probe in place.
"""

import errno
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from operator import attrgetter

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import (
    REG_MULTI_FORMAT,
    REG_PERSIST,
    Declaration,
    Field,
    FieldKind,
    check_command_length,
    parse,
)
from utracefs_protocol.limits import ENTRY_HEADER_SIZE, MAX_EVENT_ID, USER_EVENTS_MAX
from utracefs_protocol.text import shown
from utracefsd.events._tracepoint import Probe, Tracepoint
from utracefsd.events.enablers import EnablerTable
from utracefsd.events.event import (
    FLAG_SYNTHETIC,
    SYSTEM,
    SYSTEM_MULTI,
    SYSTEM_SYNTHETIC,
    CommandString,
    EmittedCounts,
    Event,
    SavedEvent,
)
from utracefsd.events.event_ids import EventIds, identity_of
from utracefsd.events.idle_events import IdleEvents
from utracefsd.events.status_file import StatusFile
from utracefsd.events.synthetic import parse_synthetic, slots_bytes, split_command
from utracefsd.machine.shares import Resource, Shares

# Fields per event that are included in the user's share of events; more are counted.
FREE_FIELDS = 8


class EventTable:
    """All events of one daemon.

    status_file: allocates the bytes; owned by the caller. shares: counts what each user holds.
    user_events_max: limit of events at a time (sysctl kernel.user_events_max); may be changed at any time,
    also below the present number, which then only prevents new ones. first_id: the lowest trace event id.

    The callbacks run inside the operation and must not raise. `before_created` only notes a new event (the
    log of the state), so the log has it before `on_created` acts on it. `on_dynamic_removed` follows each
    attempt to remove through dynamic_events, where the kernel clears marked buffers.
    """

    def __init__(
        self,
        status_file: StatusFile,
        *,
        shares: Shares | None = None,
        user_events_max: int = USER_EVENTS_MAX,
        first_id: int = 20,
    ) -> None:
        self.status_file = status_file
        self.shares = Shares() if shares is None else shares
        self.enablers = EnablerTable(self.shares, self.acquire, self.release)
        self.idle = IdleEvents()
        self.emitted = EmittedCounts()
        self.user_events_max = user_events_max
        self.before_created: list[Callable[[Event], None]] = []
        self.on_created: list[Callable[[Event], None]] = []
        self.on_removed: list[Callable[[Event], None]] = []
        self.on_dynamic_removed: list[Callable[[], None]] = []
        self.check_room: Callable[[int], None] = lambda nr_bytes: None
        """Raises TraceError when the state has no space for so many bytes, for a new event."""
        self.on_off: Callable[[], None] = lambda: None
        """The last consumer of an event was detached."""
        self.refused: dict[bytes, bytes] = {}
        """The file refused_events: a line for each command string of the last refused registrations."""
        self.system_sizes: Counter[bytes] = Counter()
        """How many events each system has."""
        self._events: dict[int, Event] = {}  # by id; dicts keep the order of creation
        self._by_path: dict[tuple[bytes, bytes], Event] = {}
        # By name and fields: a user may make thousands with one name, and each registration looks for one.
        self._multi: dict[tuple[bytes, bytes], Event] = {}
        # All with one name in the order of creation, for names that have several formats.
        self._named: dict[bytes, dict[Event, None]] = {}
        self._next_multi_id = 0
        self.ids = EventIds(first_id, self.shares)
        self._awaited: dict[Event, None] = {}
        """See `hold`."""
        self._to_reap: dict[Event, None] = {}
        """Events without references."""

    # Lookup

    def __len__(self) -> int:
        return len(self._events)

    def events(self) -> list[Event]:
        """All events in the order of their creation."""
        return list(self._events.values())

    def get(self, system: bytes, name: bytes) -> Event | None:
        """The event of the directory events/SYSTEM/NAME; `name` is a tracepoint name."""
        return self._by_path.get((system, name))

    def named(self, name: bytes) -> list[Event]:
        """The events registered under this name, single and multi-format, in the order of their creation."""
        if name in self._named:
            return list(self._named[name])
        event = self.get(SYSTEM, name)
        return [] if event is None else [event]

    def by_id(self, event_id: int) -> Event | None:
        return self._events.get(event_id)

    # Registering

    def register(
        self, asked: CommandString, flags: int = 0, event_id: int = 0, *, privileged: bool, owner_uid: int = 0
    ) -> Event:
        """Find the event of a command string, or make it (user_event_parse_cmd()).

        event_id: not 0 where the program registered it before, as this event; then it is found although its
        command string would not find it (`u32 a;; u32 b`). Takes no reference: acquire it in the same step.

        TraceError: EPERM (REG_PERSIST without privilege), EADDRINUSE (the single-format name exists with
        other fields), EINVAL (fields that do not parse), EMFILE (too many events), ENODEV (no free trace
        event id), ENOSPC (no space in the state's log).
        """
        if flags & REG_PERSIST and not privileged:
            raise TraceError(
                errno.EPERM, f"event {shown(asked.name)}: only an administrator makes persistent events"
            )
        multi_format = bool(flags & REG_MULTI_FORMAT)
        event = self._known(event_id, asked, multi_format) or self._find(asked, multi_format)
        return event or self._create(asked, flags, owner_uid, privileged)

    def _known(self, event_id: int, asked: CommandString, multi_format: bool) -> Event | None:
        """The event with this id, if it was declared with this command."""
        event = self._events.get(event_id)
        if event is None or event.synthetic or event.name != asked.name or event.multi_format != multi_format:
            return None
        return event if event.declaration == asked.declaration else None

    def _find(self, asked: CommandString, multi_format: bool) -> Event | None:
        """Kind first, then name, then fields (find_user_event())."""
        if multi_format:
            return self._multi.get((asked.name, asked.fields_text))
        event = self.get(SYSTEM, asked.name)
        if event is not None and event.fields_text != asked.fields_text:
            stays = ", until `utracefs reg --delete`" if event.persistent else ""
            there = shown(event.declaration.canonical())
            raise TraceError(
                errno.EADDRINUSE, f"event {shown(asked.name)} exists with other fields: {there}{stays}"
            )
        return event

    def _create(self, asked: CommandString, flags: int, owner_uid: int, privileged: bool) -> Event:
        tracepoint_name, system = asked.name, SYSTEM
        if flags & REG_MULTI_FORMAT:
            # The number is used up even if the fields are invalid (user_event_set_tp_name runs before they
            # are parsed).
            tracepoint_name, system = b"%s.%x" % (asked.name, self._next_multi_id), SYSTEM_MULTI
            self._next_multi_id += 1
        declaration = asked.declaration
        self._make_room(owner_uid, privileged, len(declaration.fields))
        self.check_room(_line_bytes(asked.name, asked.args))
        identity = identity_of(system, tracepoint_name, declaration)
        self.ids.check(identity, owner_uid, privileged=privileged)
        status_index = self.status_file.allocate()
        event_id = self.ids.allocate(identity)
        tracepoint = Tracepoint(event_id, tracepoint_name, declaration.fields)
        return self._created(
            Event(declaration, tracepoint_name, system, event_id, status_index, flags, tracepoint, owner_uid)
        )

    def create_synthetic(self, name: bytes, fields: bytes, command: bytes) -> Event:
        """A synthetic event, which no registration finds. command: the whole line, for positions.

        HistError: EINVAL as `parse_synthetic`, EEXIST. TraceError: EMFILE (as many as all others
        together), ENODEV (no free trace event id), ENOSPC (no space in the state's log).
        """
        exists = (SYSTEM_SYNTHETIC, name) in self._by_path
        declaration = parse_synthetic(name, fields, command, exists=exists)
        if self.system_sizes[SYSTEM_SYNTHETIC] >= self.user_events_max:
            raise TraceError(errno.EMFILE, f"there are {self.user_events_max} synthetic events already")
        self.check_room(_line_bytes(name, fields))
        identity = identity_of(SYSTEM_SYNTHETIC, name, declaration)
        self.ids.check(identity, 0, privileged=True)
        return self._created(_synthetic_event(declaration, self.ids.allocate(identity)))

    def _created(self, event: Event) -> Event:
        self._insert(event)
        self.emitted.begin(event)
        for listeners in (self.before_created, self.on_created):
            for created in listeners:
                created(event)
        return event

    def _insert(self, event: Event) -> None:
        self._events[event.id] = event
        self._by_path[event.system, event.tracepoint_name] = event
        self.system_sizes[event.system] += 1
        if event.synthetic:
            return
        if event.multi_format:
            # Fields that no text can match (a tab in a type) may be there twice; they are never looked up.
            self._multi[event.name, event.fields_text] = event
            if event.name not in self._named:
                self._named[event.name] = dict.fromkeys(self.named(event.name))
        if event.name in self._named:
            self._named[event.name][event] = None
        self._count(event, self.shares.add)

    def _count(self, event: Event, change: Callable[[Resource, int, int], None]) -> None:
        """Count it for its user, or no longer."""
        change(Resource.EVENTS, event.owner_uid, 1)
        if (fields := len(event.declaration.fields)) > FREE_FIELDS:
            change(Resource.FIELDS, event.owner_uid, fields - FREE_FIELDS)

    def restore(self, saved: Collection[SavedEvent], recorded: Collection[int] = ()) -> list[Event]:
        """Fill an empty table with a previous daemon's events, in the order of their creation, without
        references or callbacks. recorded: ids in the records of its ring buffers. TraceError or ValueError,
        with the table unchanged, when they are invalid; EMFILE when the status file is too small."""
        events = [_restored(one) for one in saved]
        paths = {(event.system, event.tracepoint_name) for event in events}
        numbers = [event.tracepoint_name.rpartition(b".")[2] for event in events if event.multi_format]
        next_multi_id = max((int(number, 16) + 1 for number in numbers), default=0)
        # All are checked before the first is inserted: an error leaves the table empty.
        ids = {event.id for event in events}
        if len(ids) != len(events) or len(paths) != len(events):
            raise ValueError("two events are the same")
        if len(events) > self.status_file.capacity:
            raise TraceError(errno.EMFILE, f"the status file has no room for {len(events)} events")
        of_programs = [event for event in events if not event.synthetic]
        if not self.status_file.reserve([event.status_index for event in of_programs]):
            for event in of_programs:
                event.status_index = self.status_file.allocate()
        # From here on nothing fails.
        for event in events:
            self._insert(event)
        self.ids.restore(ids, recorded)
        self._next_multi_id = next_multi_id
        return events

    def _make_room(self, owner_uid: int, privileged: bool, fields: int) -> None:
        """Make space for an event of so many fields by removing idle events. EMFILE."""
        while (refused := self._refusal(owner_uid, privileged, fields)) is not None:
            own = not privileged and (
                not self.shares.own_left(Resource.EVENTS, owner_uid)
                or self.shares.own_left(Resource.FIELDS, owner_uid) < fields - FREE_FIELDS
            )
            event = self.idle.let_one_go(owner_uid if own else None)
            if event is None:
                self.shares.note_refusal(Resource.EVENTS, owner_uid, refused)
                raise TraceError(errno.EMFILE, refused)
            self._remove(event)

    def _refusal(self, owner_uid: int, privileged: bool, fields: int) -> str | None:
        held = len(self._events) - self.system_sizes[SYSTEM_SYNTHETIC]
        if held >= min(self.user_events_max, self.status_file.capacity):
            return f"there are {held} events; user_events_max and --status-pages allow no more"
        refused = self.shares.refusal(Resource.EVENTS, owner_uid, privileged=privileged)
        if refused is None and fields > FREE_FIELDS:
            more = fields - FREE_FIELDS
            refused = self.shares.refusal(Resource.FIELDS, owner_uid, more, privileged=privileged)
        return refused

    # References

    def acquire(self, event: Event) -> None:
        """Take one reference. TraceError(ENODEV) when the event was removed."""
        _check_alive(event)
        if not event.references:
            self._to_reap.pop(event, None)
        event.references += 1
        self.idle.note(event)

    def release(self, event: Event) -> None:
        """Drop one reference; the last one of a non-persistent event leaves it to `reap`."""
        if event.references <= 0:
            raise ValueError(f"event {shown(event.name)} has no reference to drop")
        event.references -= 1
        self.idle.note(event)
        if not event.references and not event.persistent:
            self._to_reap[event] = None

    def release_all(self, events: Iterable[Event]) -> None:
        """Drop one reference of each; an event may appear several times."""
        for event in events:
            self.release(event)

    def hold(self, events: Iterable[Event]) -> None:
        """Take a reference to each for its programs, which may come back, until `end_hold`. An event with
        only this reference may be removed to make space for another (idle_events.py)."""
        for event in events:
            event.awaited = True
            self._awaited[event] = None
            self.acquire(event)

    def end_hold(self) -> None:
        """Drop these references."""
        awaited, self._awaited = self._awaited, {}
        for event in awaited:
            event.awaited = False
            self.release(event)

    def reap(self) -> None:
        """Remove the events that are still without reference, and some of the enablers that are leaving."""
        self.enablers.forget_leaving()
        for event in list(self._to_reap):
            self._remove(event)

    def next_reap_ns(self) -> int | None:
        """0: `reap` has work. None: not before a reference is dropped."""
        return 0 if self.enablers.leaving or self._to_reap else None

    def _remove(self, event: Event) -> None:
        """Remove an event without references from everything. Its byte is free at once, and its id if there
        are no records of it."""
        event.removed = True
        self.emitted.end(event)
        del self._events[event.id]
        del self._by_path[event.system, event.tracepoint_name]
        self.system_sizes[event.system] -= 1
        if not event.synthetic:
            if event.multi_format:
                self._multi.pop((event.name, event.fields_text), None)
            named = self._named.get(event.name)
            if named is not None:
                del named[event]
                if not named:
                    del self._named[event.name]
            self._count(event, self.shares.drop)
        self._to_reap.pop(event, None)
        self._awaited.pop(event, None)
        for removed in self.on_removed:
            removed(event)
        if not event.synthetic:
            self.status_file.free(event.status_index)
        self.ids.free(event)

    # Attaching: only these methods change status bytes

    def attach(self, event: Event, probe: Probe) -> None:
        """Put `probe` on the event: a reference, the probe in place, then the byte and the bits. ENODEV."""
        _check_alive(event)
        event.tracepoint.attach(probe)
        self.acquire(event)
        self._publish(event)

    def detach(self, event: Event, probe: Probe) -> None:
        """Undo `attach`, in the reverse order. ValueError when it was not attached."""
        event.tracepoint.detach(probe)
        self._publish(event)
        self.release(event)

    def _publish(self, event: Event) -> None:
        """Compute the byte from the attached probes; when it changes to or from zero, update the enablers."""
        if event.synthetic:
            return
        status = event.tracepoint.status
        before = self.status_file.get(event.status_index)
        if status != before:
            self.status_file.set(event.status_index, status)
            if bool(status) != bool(before):
                self.enablers.write_state(event, bool(status))
                if not status:
                    self.on_off()

    # Deleting

    def delete(self, name: bytes, *, privileged: bool) -> None:
        """DIAG_IOCSDEL: delete all events registered under `name`, newest first (delete_user_event() walks a
        hash bucket whose head is the last one added); stops at the first error.

        TraceError: EINVAL (more than 511 bytes), ENOENT (none; also for a name with fields or a prefix),
        EBUSY (referenced or not persistent), EPERM (not privileged).
        """
        check_command_length(name)
        found = self.named(name)
        if not found:
            hint = "; give the bare name, without fields and prefix" if b" " in name or b":" in name else ""
            raise TraceError(errno.ENOENT, f"there is no event {shown(name)}{hint}")
        for event in reversed(found):
            self.delete_event(event, privileged=privileged)

    def delete_event(self, event: Event, *, privileged: bool) -> None:
        """Delete one event. Raises TraceError: EBUSY, then EPERM, in the order of user_event_free()."""
        if event.references:
            raise TraceError(errno.EBUSY, f"event {shown(event.name)} is in use: {self._used_by(event)}")
        if not event.persistent:
            raise TraceError(
                errno.EBUSY, f"event {shown(event.name)} is not persistent; it goes away by itself"
            )
        if not privileged:
            raise TraceError(
                errno.EPERM, f"event {shown(event.name)}: only an administrator deletes persistent events"
            )
        self._remove(event)

    def delete_all(self, *, privileged: bool) -> None:
        """Delete every event, or none: TraceError EBUSY when any of them is in use or not persistent,
        EPERM."""
        for event in self._events.values():
            if event.busy:
                raise TraceError(
                    errno.EBUSY,
                    f"event {shown(event.name)} is in use; append ('>>') to keep what is there",
                )
        if self._events and not privileged:
            raise TraceError(errno.EPERM, "only an administrator deletes persistent events")
        for event in self.events():
            self._remove(event)

    def dynamic_removed(self) -> None:
        """A removal through dynamic_events was tried."""
        for callback in self.on_dynamic_removed:
            callback()

    def _used_by(self, event: Event) -> str:
        users = event.status.names()
        others = event.references - len(event.tracepoint.probes)
        if others:
            users.append(f"{others} registration{'s' if others > 1 else ''}")
        return ", ".join(users)

    def status_text(self) -> bytes:
        """The file user_events_status (user_seqshown()), in the order of the status index; the kernel's order
        has no meaning."""
        busy = 0
        lines: list[bytes] = []
        events = [event for event in self._events.values() if not event.synthetic]
        for event in sorted(events, key=attrgetter("status_index")):
            users = event.status.names()
            if users:
                busy += 1
                lines.append(event.tracepoint_name + b" # Used by " + " ".join(users).encode() + b"\n")
            else:
                lines.append(event.tracepoint_name + b"\n")
        lines.append(b"\nActive: %d\nBusy: %d\n" % (len(events), busy))
        return b"".join(lines)


def _line_bytes(name: bytes, fields: bytes) -> int:
    """Limit of an event's lines in the state's log (state/log.py): its name twice, its fields as in `format`,
    numbers; and the line of a removed event that had its id."""
    return 2 * (len(name) + len(fields)) + 96


def _synthetic_event(declaration: Declaration, event_id: int) -> Event:
    """Its records are made by the daemon: the tracepoint only checks their length."""
    slots = Field(b"", b"", ENTRY_HEADER_SIZE, slots_bytes(declaration.fields), False, FieldKind.STRUCT)
    tracepoint = Tracepoint(event_id, declaration.name, (slots,))
    return Event(declaration, declaration.name, SYSTEM_SYNTHETIC, event_id, 0, FLAG_SYNTHETIC, tracepoint, 0)


def _restored(saved: SavedEvent) -> Event:
    """TraceError, ValueError: it is invalid."""
    if saved.flags == FLAG_SYNTHETIC:
        name, fields = split_command(saved.command)
        return _synthetic_event(parse_synthetic(name, fields or b"", saved.command), saved.id)
    declaration = parse(saved.command)
    system, name = SYSTEM, saved.tracepoint_name
    if saved.flags & REG_MULTI_FORMAT:
        system, name = SYSTEM_MULTI, name.rpartition(b".")[0]
    if name != declaration.name or saved.flags & ~(REG_PERSIST | REG_MULTI_FORMAT) or saved.id > MAX_EVENT_ID:
        raise ValueError(f"event {shown(saved.tracepoint_name)} contradicts itself")
    tracepoint = Tracepoint(saved.id, saved.tracepoint_name, declaration.fields)
    return Event(
        declaration,
        saved.tracepoint_name,
        system,
        saved.id,
        saved.status_index,
        saved.flags,
        tracepoint,
        saved.owner_uid,
    )


def _check_alive(event: Event) -> None:
    if event.removed:
        raise TraceError(errno.ENODEV, f"event {shown(event.name)} is gone")
