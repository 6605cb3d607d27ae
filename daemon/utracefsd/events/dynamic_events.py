"""The command language of the file dynamic_events: lines that create and delete events.

    u:NAME [FIELDS]                 create, or find: a persistent single-format event
    s:[synthetic/]NAME FIELDS       create a synthetic event (synthetic.py)
    !PREFIX:[SYSTEM/]NAME [FIELDS]  delete every event of this name with exactly these fields
    -:[SYSTEM/]NAME [FIELDS]        the same
    # ...                           nothing; a comment may follow a command, too

A write runs line after line up to the first that fails; the effects of earlier ones stay
(trace_parse_run_command() in kernel/trace/trace.c; create_dyn_event(), dyn_event_release() and
dyn_events_release_all() in kernel/trace/trace_dynevent.c; user_event_create() in trace_events_user.c).
"""

import errno

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import REG_PERSIST, normalized, split_name
from utracefs_protocol.hist.errors import Log
from utracefs_protocol.limits import MAX_DYNAMIC_LINE
from utracefs_protocol.text import shown
from utracefsd.events.event import SYSTEM, SYSTEM_MULTI, SYSTEM_SYNTHETIC, CommandString, Event
from utracefsd.events.event_table import EventTable
from utracefsd.events.synthetic import BAD_DYNAMIC_COMMAND, declared_text, split_command


def write(table: EventTable, data: bytes, *, privileged: bool) -> int:
    """A write to the file; returns len(data). EINVAL (a line of more than 4094 bytes, a NUL byte), else as
    the line's command."""
    for line in data.removesuffix(b"\n").split(b"\n"):
        if len(line) > MAX_DYNAMIC_LINE:
            raise TraceError(
                errno.EINVAL, f"line of {len(line)} bytes; at most {MAX_DYNAMIC_LINE} are possible"
            )
        command = line.partition(b"#")[0]
        if b"\0" in command:
            raise TraceError(errno.EINVAL, "the line has a NUL byte")
        if not command.strip():
            continue
        if command[:1] in (b"!", b"-"):
            delete(table, command, privileged=privileged)
        elif command.startswith(b"s:"):
            create_synthetic(table, command, privileged=privileged)
        else:
            create(table, command, privileged=privileged)
    return len(data)


def create(table: EventTable, line: bytes, *, privileged: bool = True) -> Event:
    """A line `u:NAME [FIELDS]`: the new event, or the existing one. Errors of EventTable.register."""
    if not line.startswith(b"u:"):
        raise TraceError(
            errno.EINVAL,
            f"{shown(line)}: write 'u:NAME FIELDS' to create or '!u:NAME FIELDS' to delete an event",
        )
    asked = CommandString(*split_name(line[2:].lstrip()))
    return table.register(asked, REG_PERSIST, privileged=privileged)


def create_synthetic(table: EventTable, line: bytes, *, privileged: bool = True) -> Event:
    """A line `s:[synthetic/]NAME TYPE FIELD...`. EINVAL, EEXIST as EventTable.create_synthetic; EPERM."""
    command = line.strip()
    name, fields = split_command(command)
    system, slash, name_in_system = name[2:].partition(b"/")
    if slash and system != SYSTEM_SYNTHETIC:
        raise Log(command).fault(BAD_DYNAMIC_COMMAND)
    return _create_synthetic(table, name_in_system if slash else system, fields, command, privileged)


def _create_synthetic(
    table: EventTable, name: bytes, fields: bytes | None, command: bytes, privileged: bool
) -> Event:
    if not privileged:
        raise TraceError(errno.EPERM, "only an administrator makes synthetic events")
    return table.create_synthetic(name, fields or b"", command)


def write_synthetic(table: EventTable, data: bytes, *, privileged: bool) -> int:
    """A write to the file synthetic_events, in lines `NAME TYPE FIELD[; TYPE FIELD]...` or `!NAME`; returns
    len(data). EINVAL, EEXIST, EPERM as `create_synthetic`; ENOENT, EBUSY for `!`."""
    for line in data.removesuffix(b"\n").split(b"\n"):
        command = line.partition(b"#")[0].strip()
        if len(line) > MAX_DYNAMIC_LINE or b"\0" in command:
            raise TraceError(errno.EINVAL, f"a line has at most {MAX_DYNAMIC_LINE} bytes, and no NUL")
        if not command:
            continue
        name, fields = split_command(command)
        if name.startswith(b"!"):
            try:
                _delete_synthetic(table, name[1:], None, privileged)
            finally:
                table.dynamic_removed()
        else:
            _create_synthetic(table, name, fields, command, privileged)
    return len(data)


def truncate_synthetic(table: EventTable, *, privileged: bool) -> None:
    """synthetic_events was opened with truncation: remove all of them, or none. EBUSY, EPERM."""
    events = [event for event in table.events() if event.synthetic]
    for event in events:
        if event.busy:
            raise TraceError(errno.EBUSY, f"synthetic event {shown(event.name)} is in use")
    try:
        for event in events:
            table.delete_event(event, privileged=privileged)
    finally:
        table.dynamic_removed()


def synthetic_text(table: EventTable) -> bytes:
    return b"".join(declared_text(event) + b"\n" for event in table.events() if event.synthetic)


def _delete_synthetic(table: EventTable, name: bytes, fields: bytes | None, privileged: bool) -> None:
    event = table.get(SYSTEM_SYNTHETIC, name)
    if event is None or (fields and fields != declared_text(event).partition(b"\t")[2]):
        raise TraceError(errno.ENOENT, f"there is no synthetic event {shown(name)} with these fields")
    table.delete_event(event, privileged=privileged)


def delete(table: EventTable, line: bytes, *, privileged: bool = True) -> None:
    """A line that begins with `!` or `-`. EINVAL (no `:`, no name), ENOENT (no match, fields included),
    EBUSY, EPERM. The callbacks of `on_dynamic_removed` run whether or not an event matched:
    dyn_event_release() resets the marked buffers in either case."""
    system, name, fields = _parse_delete(line)
    try:
        if system == SYSTEM_SYNTHETIC:
            _delete_synthetic(table, name, fields, privileged)
            return
        found: list[Event] = []
        if system in (None, b"", SYSTEM, SYSTEM_MULTI):
            fields_text = normalized(fields, repair_semicolons=False)
            found = [event for event in table.named(name) if event.fields_text == fields_text]
        for event in found:
            table.delete_event(event, privileged=privileged)
        if not found:
            hint = "; give all its fields" if table.named(name) else ""
            raise TraceError(errno.ENOENT, f"there is no event {shown(name)} with these fields{hint}")
    finally:
        table.dynamic_removed()


def _parse_delete(line: bytes) -> tuple[bytes | None, bytes, bytes]:
    """System (None: not named), name, and the fields with single spaces."""
    first, *words = line.split() or [b""]
    if first.startswith(b"-"):
        if not first.startswith(b"-:"):
            raise TraceError(errno.EINVAL, f"{shown(line)}: a ':' must follow the '-'")
        name = first[2:]
    else:
        _, colon, name = first.partition(b":")
        if not colon:
            raise TraceError(errno.EINVAL, f"{shown(line)}: the first word has no ':'")
    system: bytes | None = None
    if b"/" in name:
        system, _, name = name.partition(b"/")
    if system is None and not name:
        raise TraceError(errno.EINVAL, f"{shown(line)}: has no event name")
    return system, name, b" ".join(words)


def truncate(table: EventTable, *, privileged: bool = True) -> None:
    """The file was opened with truncation: remove all events, or none (dyn_events_release_all()): EBUSY,
    EPERM."""
    try:
        table.delete_all(privileged=privileged)
    finally:
        table.dynamic_removed()


def text(table: EventTable) -> bytes:
    """The content: a line per event in the order of creation, each a command that would create it."""
    return b"".join(
        b"s:synthetic/%s\n" % declared_text(event)
        if event.synthetic
        else b"u:" + event.declaration.canonical() + b"\n"
        for event in table.events()
    )
