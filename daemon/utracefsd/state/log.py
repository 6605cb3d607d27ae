"""The lines of the state's log: writing and reading.

MessagePack arrays, one behind the other (log_file.py); each describes one change:

    ["utracefs state", VERSION]             once, first
    ["instance", number, name]              it exists; the top instance has number 0 and the name ""
    ["removed", number]                     it does not exist any more
    ["set", number, name, value]            a setting of it, see `Settings`
    ["buffer", number, folder]              where its ring buffer is; "": there is none to adopt
    ["event", id, status_index, flags, owner_uid, tracepoint_name, command]
                                            it exists
    ["gone", id]                            it does not exist any more
    ["on", number, id]                      the event is enabled in the instance
    ["off", number, id]                     it is not, though the buffer may hold records of it
    ["filter", number, id, text, holds]     what its `filter` shows there (nil: none), and whether it is valid
    ["triggers", number, id, [[command, [[cell, key], ...], extra], ...]]
                                            its triggers there, in the order in which they are listed
    ["fired", st_dev, st_ino, position, [key, ...]]
                                            the triggers that have fired for a record of a data ring that was
                                            being dispatched when a daemon was killed
    ["comm", thread id, name, start time, process]
                                            the name of a thread; process 0: unknown
    ["ring", st_dev, st_ino, pid, start time, uid, [id, ...]]
                                            the data ring of a process, and the events of its records
    ["index", st_dev, st_ino, id, ...]      the data ring has records of more events; 0: a number without one
    ["ring gone", st_dev, st_ino]           the daemon has given it up
    ["restarts", number]                    of daemons that took over this state
    ["counts", origin, epoch, first_epoch]  of emitted records, see `EmittedCounts`
    ["emitted", SYSTEM:NAME, count, epoch, owner's uid]
                                            of a removed event; of one that exists, at an earlier moment
    ["ended"]                               last: the daemon ended in order, and the counts are the final ones

An incomplete array at the end is ignored.
"""

import re
from collections.abc import Iterable
from typing import Any

import attrs
import msgpack

from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.event.event_file import EventFile, Part, SavedEventFile, SavedTrigger
from utracefsd.consumers.ftrace.instances import MAX_NUMBER, TOP, check_name
from utracefsd.consumers.ftrace.settings import parse_setting
from utracefsd.events.event import Emitted, Event, SavedCounts, SavedEvent
from utracefsd.events.synthetic import declared_text
from utracefsd.intake.rings import Key, KnownRing
from utracefsd.machine.comms import Task

MAGIC = "utracefs state"
VERSION = 7
"""Raised when an older daemon could not read what this one writes. 6: counts of emitted records. 7: their
owners."""

_OF_INSTANCES = {"set", "buffer", "on", "off", "filter", "triggers"}
"""Most lines are one of these."""

_OLDEST = 5
"""The oldest version that this daemon reads; it writes the whole log anew."""


class StateError(ValueError):
    """The log, or a file that belongs to it, cannot be used; the text says why."""


@attrs.define
class TakenInstance:
    """The state of one instance of the previous daemon."""

    name: bytes
    """Empty for the top instance."""
    buffer_folder: str = ""
    """The folder of its ring buffer, below that of the state; empty: it was in memory and is gone."""
    files: dict[int, SavedEventFile] = attrs.Factory(dict)
    """Its state for each event that was ever enabled there, by the event's id."""
    settings: dict[str, Any] = attrs.Factory(dict)
    """Settings by name; a missing one has its default."""
    buffer: RingBuffer | None = None
    """Adopted; None until then, or when there is none."""


@attrs.define
class Taken:
    """The state of the previous daemon, read and checked."""

    instances: dict[int, TakenInstance] = attrs.Factory(dict)
    """By number; the top one is among them."""
    events: dict[int, SavedEvent] = attrs.Factory(dict)
    """By id, in the order of their creation."""
    comms: dict[int, Task] = attrs.Factory(dict)
    rings: dict[Key, KnownRing] = attrs.Factory(dict)
    """Data rings from which it took in records."""
    fired: dict[Key, tuple[int, set[int]]] = attrs.Factory(dict)
    """By data ring: the position of a record that was being dispatched, and keys of the triggers that
    fired for it."""
    restarts: int = 0
    """Daemons before this one that took over the state."""
    counts: SavedCounts | None = None
    """None in older logs."""
    emitted: dict[bytes, Emitted] = attrs.Factory(dict)
    """By SYSTEM:NAME."""
    ended: bool = False
    """The daemon was not killed."""

    def names(self) -> dict[int, bytes]:
        return {number: instance.name for number, instance in self.instances.items() if number != TOP}

    def buffers(self) -> dict[int, RingBuffer]:
        return {
            number: instance.buffer
            for number, instance in self.instances.items()
            if instance.buffer is not None
        }

    def extras(self) -> list[Any]:
        """`SavedTrigger.extra` of all triggers."""
        files = (file for instance in self.instances.values() for file in instance.files.values())
        return [trigger.extra for file in files for trigger in file.triggers]


# Writing, of lines that are not plain; living.py has the others.


def event_line(event: Event) -> tuple[Any, ...]:
    return (
        "event",
        event.id,
        event.status_index,
        event.flags,
        event.owner_uid,
        event.tracepoint_name,
        declared_text(event).replace(b"\t", b" ") if event.synthetic else event.declaration.canonical(),
    )


def file_line(number: int, file: EventFile, part: Part) -> tuple[Any, ...]:
    event_id = file.event.id
    match part:
        case Part.ENABLED:
            return ("on" if file.enabled else "off", number, event_id)
        case Part.FILTER:
            return ("filter", number, event_id, file.filter_text, file.filter is not None)
        case Part.TRIGGERS:
            saved = [attached.saved() for attached in file.triggers]
            return ("triggers", number, event_id, [(one.command, one.cells, one.extra) for one in saved])


def fired_line(key: Key, position: int, keys: Iterable[int]) -> tuple[Any, ...]:
    return ("fired", *key, position, sorted(keys))


def comm_line(pid: int, task: Task) -> tuple[Any, ...]:
    return ("comm", pid, task.comm, task.start_time, task.process)


def ring_line(key: Key, ring: KnownRing) -> tuple[Any, ...]:
    return ("ring", *key, ring.pid, ring.start_time, ring.uid, ring.event_ids)


def counts_line(saved: SavedCounts) -> tuple[Any, ...]:
    return ("counts", saved.origin, saved.epoch, saved.first_epoch)


def emitted_line(name: bytes, total: Emitted) -> tuple[Any, ...]:
    return ("emitted", name, total.count, total.epoch, total.owner_uid)


# Reading


def parse_log(data: bytes) -> Taken:
    """Replay a log. StateError: no log, another version, or it contradicts itself."""
    unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(data)), strict_map_key=False)
    unpacker.feed(data)
    try:
        lines = list(unpacker)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StateError(f"the log is damaged: {type(error).__name__} {error}") from error
    match lines[0] if lines else None:
        case [str(magic), int(version), *rest] if magic == MAGIC:
            if not _OLDEST <= version <= VERSION:
                advice = (
                    "upgrade utracefsd"
                    if version > VERSION
                    else "start the daemon that wrote it, or discard it"
                )
                raise StateError(
                    f"the log has version {version}, this daemon reads {_OLDEST} to {VERSION}: {advice}"
                )
            if rest:
                raise StateError("the log does not begin like one")
        case _:
            raise StateError("the log does not begin like one")
    taken = Taken()
    for line in lines[1:]:
        taken.ended = False
        if not _apply(taken, line):
            raise StateError(f"the log is damaged: {line!r:.100}")
    for key, ring in list(taken.rings.items()):
        if not all(
            isinstance(number, int) and (not number or number in taken.events) for number in ring.event_ids
        ):
            del taken.rings[key]  # without its events its records have no meaning
    if TOP not in taken.instances:
        raise StateError("the log does not name the top instance")
    return taken


def is_buffer_folder(name: str, number: int) -> bool:
    """Whether a folder of this name can hold ring buffers of the instance with that number."""
    return re.fullmatch(rf"buffer\.{number}\.\d{{1,9}}", name) is not None


def _apply(taken: Taken, line: Any) -> bool:
    """Apply one line of the log; False when it is invalid."""
    match line:
        case ["event", int(event_id), int(status), int(flags), int(uid), bytes(name), bytes(command)]:
            if event_id in taken.events:
                return False
            taken.events[event_id] = SavedEvent(event_id, status, flags, uid, name, command)
        case [str(kind), int(number), *values] if kind in _OF_INSTANCES:
            return number in taken.instances and _apply_to_instance(taken, number, kind, values)
        case ["gone", int(event_id)] if event_id in taken.events:
            del taken.events[event_id]
            for instance in taken.instances.values():
                instance.files.pop(event_id, None)
        case ["comm", int(pid), bytes(comm), int(start_time), int(process)]:
            taken.comms.pop(pid, None)
            taken.comms[pid] = Task(comm, start_time, process)
        case ["ring", int(dev), int(ino), int(pid), int(start_time), int(uid), list(event_ids)]:
            taken.rings[dev, ino] = KnownRing(pid, start_time, uid, event_ids)
        case ["index", int(dev), int(ino), *event_ids] if (dev, ino) in taken.rings and event_ids:
            taken.rings[dev, ino].event_ids.extend(event_ids)
        case ["ring gone", int(dev), int(ino)]:
            taken.rings.pop((dev, ino), None)
            taken.fired.pop((dev, ino), None)
        case ["fired", int(dev), int(ino), int(position), list(keys)] if all(
            type(key) is int for key in keys
        ):
            taken.fired[dev, ino] = position, set(keys)
        case ["counts", str(origin), int(epoch), int(first_epoch)]:
            taken.counts = SavedCounts(origin, epoch, first_epoch)
        case ["emitted", bytes(name), int(count), int(epoch), int(uid)]:
            taken.emitted.pop(name, None)
            taken.emitted[name] = Emitted(count, epoch, uid)
        case ["ended"]:
            taken.ended = True
        case ["restarts", int(number)]:
            taken.restarts = number
        case ["instance", int(number), bytes(name)]:
            return _make_instance(taken, number, name)
        case ["removed", int(number)] if number != TOP and number in taken.instances:
            del taken.instances[number]
        case _:
            return False
    return True


def _make_instance(taken: Taken, number: int, name: bytes) -> bool:
    if number in taken.instances or not TOP <= number <= MAX_NUMBER:
        return False
    if any(name == other.name for other in taken.instances.values()):
        return False
    if (number == TOP) != (name == b""):
        return False
    if name:
        try:
            check_name(name)
        except TraceError:
            return False
    taken.instances[number] = TakenInstance(name)
    return True


def _apply_to_instance(taken: Taken, number: int, kind: str, values: list[Any]) -> bool:
    instance = taken.instances[number]

    def file(event_id: int) -> SavedEventFile:
        return instance.files.setdefault(event_id, SavedEventFile())

    match [kind, *values]:
        case ["on" | "off", int(event_id)] if event_id in taken.events:
            file(event_id).enabled, file(event_id).was_enabled = kind == "on", True
        case ["filter", int(event_id), bytes() | None as text, bool(holds)] if event_id in taken.events:
            file(event_id).filter_text, file(event_id).filter_holds = text, holds
        case ["triggers", int(event_id), list(lines)] if event_id in taken.events:
            triggers = [_parse_trigger(line) for line in lines]
            if None in triggers:
                return False
            file(event_id).triggers = tuple(filter(None, triggers))
        case ["buffer", str(folder)] if not folder or is_buffer_folder(folder, number):
            instance.buffer_folder = folder
        case ["set", str(name), saved]:
            try:
                instance.settings[name] = parse_setting(name, saved)
            except (ValueError, TypeError):
                return False
        case _:
            return False
    return True


def _parse_trigger(line: Any) -> SavedTrigger | None:
    """One entry of a line of triggers; None when it is invalid."""
    match line:
        case [bytes(command), list(cells), extra] if all(
            isinstance(cell, list) and len(cell) == 2 and all(type(n) is int and n >= 0 for n in cell)
            for cell in cells
        ):
            return SavedTrigger(command, tuple((index, key) for index, key in cells), extra)
    return None
