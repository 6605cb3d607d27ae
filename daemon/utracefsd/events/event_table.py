"""The event table: every event of the daemon, its references, and the one place that changes status bytes.

What kernel/trace/trace_events_user.c keeps in a group, as plain objects. An event's life:

                      register, or a line `u:...` in dynamic_events
                                      |
                                      v
            +------------------> referenced <------------------+
            |                         |                        |
            | acquire, attach         | last reference goes    | register (the same event, id and fields)
            | (persistent)            v                        |
            +------ persistent?  yes: idle, stays       no: waits to be reaped
                                      |                        |
                                      | delete                 | reap_delay_ns later, still without reference
                                      v                        v
                                   removed  <------------------+

References are counted for: each data connection whose write_index table holds the event, each enabler, each
attached probe. A persistent event's reference to itself is not counted here; so "busy" is a count above 0,
and a non-persistent event is busy as long as it stands in the table, because nobody but the reaper may remove
it (user_events 1.1).

Reaping stands for the kernel's work queue. The delay gives what the kernel gives in practice: a delete
directly after the last close answers EBUSY, and a program that restarts quickly finds its event as it was.
Nothing depends on its length.

The status byte of an event is the OR of what its attached probes stand for. `attach` and `detach` are the
only ones that change it: attached before the byte and the enablers say so, and gone before they say no more
(user_events 13).

Ids and status indexes are the lowest free ones, as in the kernel (ida_alloc_range in
kernel/trace/trace_output.c): what was given back is given again.

All text is bytes. Errors are TraceError with the kernel's errno, in the kernel's order of checks.
"""

import errno
import heapq
from collections.abc import Callable, Collection, Iterable

import attrs

from utracefs_protocol.declaration import Declaration, Field, check_command_length, parse, split_name
from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import MAX_DYNAMIC_LINE, USER_EVENTS_MAX
from utracefs_protocol.messages import REG_MULTI_FORMAT, REG_PERSIST
from utracefs_protocol.status_page import StatusBit
from utracefsd.events._tracepoint import Probe, Tracepoint
from utracefsd.events.enablers import EnablerTable
from utracefsd.events.status_file import StatusFile
from utracefsd.machine.peer import MAX_EVENTS_PER_UID

SYSTEM = b"user_events"
SYSTEM_MULTI = b"user_events_multi"

# common_type is a u16 (include/linux/trace_events.h, TRACE_EVENT_TYPE_MAX).
MAX_EVENT_ID = 0xFFFF

# The field texts of 4,000 events are few; more than this only an attacker sends.
_MAX_CACHED_FIELDS = 4096

_WHITESPACE = b" \t\n\v\f\r"


@attrs.define(eq=False)
class Event:
    """One event. Made and removed by the EventTable; others read it."""

    declaration: Declaration
    """Registered name and fields."""

    tracepoint_name: bytes
    """NAME, or NAME.<hex> for multi-format: the directory under `system`, and what traces show."""

    system: bytes
    """b"user_events" or b"user_events_multi"."""

    id: int
    """Trace event id: common_type of its records, unique while the event exists."""

    status_index: int
    """Its byte in the status page, at least 1."""

    flags: int
    """REG_PERSIST and REG_MULTI_FORMAT, fixed when it is made."""

    tracepoint: Tracepoint
    """Its compiled side: fields to check, probes, counts."""

    owner_uid: int
    """Whose limit it counts against; 0 for those made through dynamic_events."""

    references: int = 0
    """Connections, enablers and probes that refer to it. A persistent event's own is not counted."""

    ever_enabled: bool = False
    """A probe was attached at some time; buffers may hold its records."""

    removed: bool = False
    """Gone: whoever still holds it answers ENODEV."""

    matched_args: bytes | None = None
    """The last argument text found to match; clients repeat themselves."""

    @property
    def name(self) -> bytes:
        """The registered name."""
        return self.declaration.name

    @property
    def persistent(self) -> bool:
        return bool(self.flags & REG_PERSIST)

    @property
    def multi_format(self) -> bool:
        return bool(self.flags & REG_MULTI_FORMAT)

    @property
    def status(self) -> StatusBit:
        """Who is attached now."""
        return StatusBit(self.tracepoint.status)

    @property
    def busy(self) -> bool:
        """Something besides itself keeps it: it cannot be deleted (EBUSY)."""
        return self.references > 0 or not self.persistent

    def matches(self, args: bytes) -> bool:
        """Whether a registration's argument text asks for this event's fields (user_events 2.2)."""
        if args == self.matched_args:
            return True
        if self.declaration.matches(args):
            self.matched_args = args
            return True
        return False


@attrs.frozen
class SavedEvent:
    """An event as one daemon hands it to the next."""

    id: int
    """Trace event id: the ring buffer may hold records with it."""

    status_index: int
    """Its byte, in a status file that is gone; kept where the new one has room for all."""

    flags: int
    """REG_PERSIST and REG_MULTI_FORMAT."""

    owner_uid: int
    """Whose limit it counts against."""

    tracepoint_name: bytes
    """NAME, or NAME.<hex> for multi-format."""

    command: bytes
    """A command string that declares it."""


class EventTable:
    """All events of one daemon.

    status: gives out the bytes; it stays the caller's. enablers: the table's own unless given; bits follow
    the byte. user_events_max: how many events may exist at once (sysctl kernel.user_events_max); may be
    changed at any time, also below the present number, which then only prevents new ones. max_events_per_uid:
    the share of one plain producer. reap_delay_ns: how long a non-persistent event outlives its last
    reference. first_id: the lowest trace event id.

    The callbacks in `on_created` and `on_removed` run inside the operation and must not raise; those in
    `on_dynamic_removed` run after each removal through dynamic_events, where the kernel clears the buffers
    that are marked for it.
    """

    def __init__(
        self,
        status: StatusFile,
        *,
        enablers: EnablerTable | None = None,
        user_events_max: int = USER_EVENTS_MAX,
        max_events_per_uid: int = MAX_EVENTS_PER_UID,
        reap_delay_ns: int = 100_000_000,
        first_id: int = 20,
    ) -> None:
        self.status = status
        self.enablers = EnablerTable() if enablers is None else enablers
        self.user_events_max = user_events_max
        self.max_events_per_uid = max_events_per_uid
        self.reap_delay_ns = reap_delay_ns
        self.on_created: list[Callable[[Event], None]] = []
        self.on_removed: list[Callable[[Event], None]] = []
        self.on_dynamic_removed: list[Callable[[], None]] = []
        self._events: dict[int, Event] = {}  # by id; dicts keep the order of creation
        self._by_path: dict[tuple[bytes, bytes], Event] = {}
        self._single: dict[bytes, Event] = {}
        self._multi: dict[bytes, list[Event]] = {}
        self._events_of_uid: dict[int, int] = {}
        self._next_multi_id = 0
        self._next_id = first_id
        self._freed_ids: list[int] = []
        self._to_reap: dict[Event, int] = {}  # deadline; in order of deadline, since the delay is one for all
        self._fields_of: dict[bytes, tuple[Field, ...]] = {}

    # Looking things up

    def __len__(self) -> int:
        return len(self._events)

    def events(self) -> list[Event]:
        """All events in the order of their creation."""
        return list(self._events.values())

    def get(self, system: bytes, name: bytes) -> Event | None:
        """The event of the directory events/SYSTEM/NAME; `name` is a tracepoint name."""
        return self._by_path.get((system, name))

    def by_id(self, event_id: int) -> Event | None:
        """The event with this trace event id."""
        return self._events.get(event_id)

    # Registering

    def register(self, command: bytes, flags: int = 0, *, privileged: bool, owner_uid: int = 0) -> Event:
        """Find the event that `command` describes, or make it (user_events 2.1, steps 5 and 11 to 16).

        Takes no reference: acquire it in the same breath, or a new non-persistent event stays for ever
        unreferenced.

        Raises TraceError: EINVAL (unknown flag; more than 511 bytes; bad name; fields that do not parse),
        EPERM (REG_PERSIST without privilege), EADDRINUSE (the single-format name exists with other fields),
        EMFILE (too many events), ENODEV (no free trace event id).
        """
        if flags & ~(REG_PERSIST | REG_MULTI_FORMAT):
            raise TraceError(errno.EINVAL, f"flags {flags:#x}: only persist 0x1 and multi-format 0x2 exist")
        check_command_length(command)
        return self._register(command, flags, privileged, owner_uid)

    def _register(self, command: bytes, flags: int, privileged: bool, owner_uid: int) -> Event:
        if b"\0" in command:
            raise TraceError(
                errno.EINVAL, "the command string has a NUL byte; send it without its terminator"
            )
        name, args = split_name(command)
        if flags & REG_PERSIST and not privileged:
            raise TraceError(
                errno.EPERM, f"event {_show(name)}: only an administrator makes persistent events"
            )
        event = self._find(name, args, bool(flags & REG_MULTI_FORMAT))
        return event or self._create(name, args, command, flags, owner_uid, privileged)

    def _find(self, name: bytes, args: bytes, multi_format: bool) -> Event | None:
        """Kind first, then name, then fields (user_events 2.2)."""
        if multi_format:
            return next((event for event in self._multi.get(name, ()) if event.matches(args)), None)
        event = self._single.get(name)
        if event is not None and not event.matches(args):
            raise TraceError(
                errno.EADDRINUSE,
                f"event {_show(name)} exists with other fields: {_show(event.declaration.canonical())}",
            )
        return event

    def _create(
        self, name: bytes, args: bytes, command: bytes, flags: int, owner_uid: int, privileged: bool
    ) -> Event:
        tracepoint_name, system = name, SYSTEM
        if flags & REG_MULTI_FORMAT:
            # The number is used up even if the fields turn out bad (user_event_set_tp_name runs before they
            # are parsed).
            tracepoint_name, system = b"%s.%x" % (name, self._next_multi_id), SYSTEM_MULTI
            self._next_multi_id += 1
        declaration = self._declaration(name, args, command)
        self._check_room(owner_uid, privileged)
        event_id = self._take_id()
        try:
            status_index = self.status.allocate()
        except TraceError:
            heapq.heappush(self._freed_ids, event_id)
            raise
        tracepoint = Tracepoint(event_id, tracepoint_name, declaration.fields)
        event = Event(
            declaration, tracepoint_name, system, event_id, status_index, flags, tracepoint, owner_uid
        )
        self._insert(event)
        for created in self.on_created:
            created(event)
        return event

    def _insert(self, event: Event) -> None:
        self._events[event.id] = event
        self._by_path[event.system, event.tracepoint_name] = event
        if event.multi_format:
            self._multi.setdefault(event.name, []).append(event)
        else:
            self._single[event.name] = event
        self._events_of_uid[event.owner_uid] = self._events_of_uid.get(event.owner_uid, 0) + 1

    def restore(self, saved: Collection[SavedEvent]) -> list[Event]:
        """Fill an empty table with a predecessor's events, in the order of their creation, without references.

        Nobody is told. TraceError or ValueError, with the table as it was, when they cannot be: a declaration that does
        not parse, ids or names twice, EMFILE when the status file is too small.
        """
        if self._events:
            raise ValueError("only an empty table can be filled")
        events: list[Event] = []
        paths: set[tuple[bytes, bytes]] = set()
        next_multi_id = 0
        for one in saved:
            name, args = split_name(one.command)
            declaration = self._declaration(name, args, one.command)
            system = SYSTEM
            if one.flags & REG_MULTI_FORMAT:
                system = SYSTEM_MULTI
                prefix, _, number = one.tracepoint_name.rpartition(b".")
                next_multi_id = max(next_multi_id, int(number, 16) + 1)
            else:
                prefix = one.tracepoint_name
            if prefix != name or one.flags & ~(REG_PERSIST | REG_MULTI_FORMAT) or one.id > MAX_EVENT_ID:
                raise ValueError(f"event {_show(one.tracepoint_name)} contradicts itself")
            tracepoint = Tracepoint(one.id, one.tracepoint_name, declaration.fields)
            events.append(
                Event(
                    declaration,
                    one.tracepoint_name,
                    system,
                    one.id,
                    one.status_index,
                    one.flags,
                    tracepoint,
                    one.owner_uid,
                )
            )
            paths.add((system, one.tracepoint_name))
        ids = {event.id for event in events}
        if len(ids) != len(events) or len(paths) != len(events):
            raise ValueError("two events are the same")
        if len(events) > self.status.capacity:
            raise TraceError(errno.EMFILE, f"the status file has no room for {len(events)} events")
        if not self.status.reserve([event.status_index for event in events]):
            for event in events:
                event.status_index = self.status.allocate()
        for event in events:
            self._insert(event)
        self._freed_ids = [
            event_id for event_id in range(self._next_id, max(ids, default=0)) if event_id not in ids
        ]
        self._next_id = max(self._next_id, max(ids, default=0) + 1)
        self._next_multi_id = next_multi_id
        return events

    def _declaration(self, name: bytes, args: bytes, command: bytes) -> Declaration:
        """Parse, or take the fields of another event that was declared with the very same text."""
        fields = self._fields_of.get(args)
        if fields is not None:
            return Declaration(name, fields)
        declaration = parse(command)
        if len(self._fields_of) >= _MAX_CACHED_FIELDS:
            self._fields_of.clear()
        self._fields_of[args] = declaration.fields
        return declaration

    def _check_room(self, owner_uid: int, privileged: bool) -> None:
        if len(self._events) >= self.user_events_max:
            raise TraceError(
                errno.EMFILE, f"there are {len(self._events)} events, and user_events_max allows no more"
            )
        if not privileged and self._events_of_uid.get(owner_uid, 0) >= self.max_events_per_uid:
            raise TraceError(
                errno.EMFILE,
                f"user {owner_uid} has {self.max_events_per_uid} events, which is the limit for one user",
            )

    def _take_id(self) -> int:
        if self._freed_ids:
            return heapq.heappop(self._freed_ids)
        if self._next_id > MAX_EVENT_ID:
            raise TraceError(errno.ENODEV, "no trace event id is free")
        self._next_id += 1
        return self._next_id - 1

    # References

    def acquire(self, event: Event) -> None:
        """Take one reference. TraceError(ENODEV) when the event is gone."""
        _check_alive(event)
        event.references += 1

    def release(self, event: Event, now_ns: int) -> None:
        """Drop one reference; the last one of a non-persistent event leaves it to `reap`."""
        if event.references <= 0:
            raise ValueError(f"event {_show(event.name)} has no reference to drop")
        event.references -= 1
        if not event.references and not event.persistent:
            self._to_reap.pop(event, None)
            self._to_reap[event] = now_ns + self.reap_delay_ns

    def reap(self, now_ns: int) -> None:
        """Remove the events whose time has come and that nobody took up again."""
        while self._to_reap:
            event, deadline_ns = next(iter(self._to_reap.items()))
            if event.references:
                del self._to_reap[event]
            elif deadline_ns <= now_ns:
                self._remove(event)
            else:
                break

    def next_reap_ns(self) -> int | None:
        """When `reap` next has something to do; None: not before somebody lets go of an event."""
        for event, deadline_ns in self._to_reap.items():
            if not event.references:
                return deadline_ns
        return None

    def _remove(self, event: Event) -> None:
        """Take an event without references out of everything. Its id and its byte may be given again at
        once."""
        event.removed = True
        del self._events[event.id]
        del self._by_path[event.system, event.tracepoint_name]
        if event.multi_format:
            formats = self._multi[event.name]
            formats.remove(event)
            if not formats:
                del self._multi[event.name]
        else:
            del self._single[event.name]
        left = self._events_of_uid.pop(event.owner_uid) - 1
        if left:
            self._events_of_uid[event.owner_uid] = left
        self._to_reap.pop(event, None)
        for removed in self.on_removed:
            removed(event)
        self.status.free(event.status_index)
        heapq.heappush(self._freed_ids, event.id)

    # Attaching: the only place that changes status

    def attach(self, event: Event, probe: Probe) -> None:
        """Put `probe` on the event: a reference, the probe in place, then the byte and the bits.

        TraceError(ENODEV) when the event is gone.
        """
        self.acquire(event)
        try:
            event.tracepoint.attach(probe)
        except BaseException:
            event.references -= 1
            raise
        event.ever_enabled = True
        self._publish(event)

    def detach(self, event: Event, probe: Probe, now_ns: int) -> None:
        """The reverse of `attach`, in the reverse order. ValueError when it was not attached."""
        event.tracepoint.detach(probe)
        self._publish(event)
        self.release(event, now_ns)

    def _publish(self, event: Event) -> None:
        """Derive the byte from what is attached; where it changes between zero and not, the enablers
        follow."""
        status = event.tracepoint.status
        before = self.status.get(event.status_index)
        if status != before:
            self.status.set(event.status_index, status)
            if bool(status) != bool(before):
                self.enablers.write_state(event, bool(status))

    # Deleting

    def delete(self, name: bytes, *, privileged: bool) -> None:
        """DIAG_IOCSDEL: delete all events registered under `name`, newest first, up to the first that
        refuses.

        Newest first, because the kernel walks a hash bucket whose head is the last one added.

        Raises TraceError: EINVAL (more than 511 bytes), ENOENT (none; also for a name with fields or a
        prefix), EBUSY (referenced or not persistent), EPERM (not privileged). Those before it stay deleted
        (user_events 2.5).
        """
        check_command_length(name)
        if name not in self._single and name not in self._multi:
            hint = "; give the bare name, without fields and prefix" if b" " in name or b":" in name else ""
            raise TraceError(errno.ENOENT, f"there is no event {_show(name)}{hint}")
        for event in reversed(self.events()):
            if event.name == name:
                self._delete(event, privileged)

    def _delete(self, event: Event, privileged: bool) -> None:
        """user_event_free(): last reference before capability."""
        if event.references:
            raise TraceError(errno.EBUSY, f"event {_show(event.name)} is in use: {self._used_by(event)}")
        if not event.persistent:
            raise TraceError(
                errno.EBUSY, f"event {_show(event.name)} is not persistent; it goes away by itself"
            )
        if not privileged:
            raise TraceError(
                errno.EPERM, f"event {_show(event.name)}: only an administrator deletes persistent events"
            )
        self._remove(event)

    def _used_by(self, event: Event) -> str:
        users = event.status.names()
        others = event.references - len(event.tracepoint.probes)
        if others:
            users.append(f"{others} registration{'s' if others > 1 else ''}")
        return ", ".join(users)

    # dynamic_events and user_events_status

    def create_dynamic(self, line: bytes, *, privileged: bool = True) -> Event:
        """A line `u:NAME [fields]` of dynamic_events: a persistent single-format event, or the one that is
        there already.

        Raises TraceError as `register` does (rows Y2, Y3), without its limit of 511 bytes: the line's own is
        larger.
        """
        if not line.startswith(b"u:"):
            raise TraceError(
                errno.EINVAL,
                f"{_show(line)}: write 'u:NAME FIELDS' to create or '!u:NAME FIELDS' to delete an event",
            )
        command = line[2:].lstrip(_WHITESPACE)
        return self._register(command, REG_PERSIST, privileged, owner_uid=0)

    def delete_dynamic(self, line: bytes, *, privileged: bool = True) -> None:
        """A line `!u:NAME [fields]` or `-:NAME [fields]`: delete every event of this name with exactly these
        fields.

        Raises TraceError: EINVAL (no `:`, no name; row Y4), ENOENT (nothing matches, the fields included;
        Y5), EBUSY (Y6), EPERM (Y7). The callbacks of `on_dynamic_removed` run whether or not something
        matched, as dyn_event_release resets the marked buffers in either case.
        """
        first, *words = line.split() or [b""]
        if first.startswith(b"-"):
            if not first.startswith(b"-:"):
                raise TraceError(errno.EINVAL, f"{_show(line)}: a ':' must follow the '-'")
            name = first[2:]
        else:
            _, colon, name = first.partition(b":")
            if not colon:
                raise TraceError(errno.EINVAL, f"{_show(line)}: the first word has no ':'")
        system: bytes | None = None
        if b"/" in name:
            system, _, name = name.partition(b"/")
        if system is None and not name:
            raise TraceError(errno.EINVAL, f"{_show(line)}: has no event name")
        try:
            self._delete_matching(system, name, b" ".join(words), privileged)
        finally:
            for callback in self.on_dynamic_removed:
                callback()

    def _delete_matching(self, system: bytes | None, name: bytes, args: bytes, privileged: bool) -> None:
        found = False
        if system in (None, b"", SYSTEM, SYSTEM_MULTI):
            for event in self.events():
                if event.name == name and event.declaration.matches(args, repair_semicolons=False):
                    found = True
                    self._delete(event, privileged)
        if not found:
            hint = "; give all its fields" if name in self._single or name in self._multi else ""
            raise TraceError(errno.ENOENT, f"there is no event {_show(name)} with these fields{hint}")

    def write_dynamic(self, data: bytes, privileged: bool) -> int:
        """A write to dynamic_events: line by line, up to the first that fails; returns len(data).

        Raises TraceError: EINVAL (a line of more than 4094 bytes, a NUL byte), else as the line's command
        does. Earlier lines stay done.
        """
        for line in data.removesuffix(b"\n").split(b"\n"):
            if len(line) > MAX_DYNAMIC_LINE:
                raise TraceError(
                    errno.EINVAL, f"line of {len(line)} bytes; at most {MAX_DYNAMIC_LINE} are possible"
                )
            command = line.partition(b"#")[0]
            if b"\0" in command:
                raise TraceError(errno.EINVAL, "the line has a NUL byte")
            if not command.strip(_WHITESPACE):
                continue
            if command[:1] in (b"!", b"-"):
                self.delete_dynamic(command, privileged=privileged)
            else:
                self.create_dynamic(command, privileged=privileged)
        return len(data)

    def truncate_dynamic(self, *, privileged: bool = True) -> None:
        """dynamic_events was opened with truncation: remove all events.

        Raises TraceError: EBUSY when any of them is in use or not persistent, EPERM; then nothing is removed
        (row Y8).
        """
        try:
            for event in self._events.values():
                if event.busy:
                    raise TraceError(
                        errno.EBUSY,
                        f"event {_show(event.name)} is in use; append ('>>') to keep what is there",
                    )
            if self._events and not privileged:
                raise TraceError(errno.EPERM, "only an administrator deletes persistent events")
            for event in self.events():
                self._remove(event)
        finally:
            for callback in self.on_dynamic_removed:
                callback()

    def dynamic_text(self) -> bytes:
        """dynamic_events: a line per event in the order of creation, each a command that would create it."""
        return b"".join(b"u:" + event.declaration.canonical() + b"\n" for event in self._events.values())

    def status_text(self) -> bytes:
        """user_events_status (user_events 5.1), in the order of the status index; the kernel's order has no
        meaning."""
        busy = 0
        lines: list[bytes] = []
        for event in sorted(self._events.values(), key=_status_index):
            users = event.status.names()
            if users:
                busy += 1
                lines.append(event.tracepoint_name + b" # Used by " + " ".join(users).encode() + b"\n")
            else:
                lines.append(event.tracepoint_name + b"\n")
        lines.append(b"\nActive: %d\nBusy: %d\n" % (len(self._events), busy))
        return b"".join(lines)

    def release_all(self, events: Iterable[Event], now_ns: int) -> None:
        """Drop one reference of each; an event may appear several times."""
        for event in events:
            self.release(event, now_ns)


def _status_index(event: Event) -> int:
    return event.status_index


def _check_alive(event: Event) -> None:
    if event.removed:
        raise TraceError(errno.ENODEV, f"event {_show(event.name)} is gone")


def _show(text: bytes) -> str:
    """For messages: quoted, without control characters, not endless."""
    shown = text[:200].decode("utf-8", "backslashreplace")
    return "'" + "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown) + "'"
