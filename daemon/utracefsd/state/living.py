"""What a daemon leaves to the next one: everything besides the records, which live in the ring buffer's own
files.

The folder of the status file (runtime.py: ours alone, mode 0700, locked while a daemon lives) holds

    user_events_status    the status bytes; never taken over (status_file.py)
    state                 this file's log: events, what is enabled, the instance's settings, names of threads
    buffer.N/cpu0 ...     the ring buffer; N grows when the whole buffer is replaced (another sub-buffer
    size). None when there
                          is no room for it: then it is in the daemon's own memory and ends with it
    journal               how far each data ring is consumed (include/journal.h)
    set-aside/            the last state that a daemon could not use

The log is MessagePack arrays, appended; each says what is so from now on:

    ["utracefs state", VERSION, buffer folder]                                  once, first; "": no buffer to
    adopt ["event", id, status_index, flags, owner_uid, tracepoint_name, command]     it exists ["gone", id]
    it does not exist any more ["on", id], ["off", id]
    enabled in the instance, or not ["set", name, value]
    a setting, see `Settings` ["comm", thread id, name, start time]                                       how
    a thread was called

Written is in whole packets (`State.save`), before anybody is answered and before a record of a new event is
taken in. So what a client was told survives, and an id in the ring buffer is never one that the log does not
know. An object that was torn by the end of the process is the last one and is left out. When most of a log is
history a new one is made beside it and renamed over it, as it is at every start.

Nothing here outlives the machine, nor has to: /dev/shm does not. No fsync, then.

A log without a buffer makes a successor that has the events and settings, and an empty buffer of the same
size. It judges the journal by no buffer: what the dead daemon was just recording is recorded again, the
buffer that may have had it is gone.

A state that makes no sense (another version, foreign, damaged) is set aside and said in one line of the log
of the daemon, which starts afresh. The journal stays even then: producers come with data rings that were
begun.

Not taken over: the numbers in `stats` of events, perf events, and what plug-ins are attached to. The first
would cost a store for every record, the others belong to connections that died with the daemon.
"""

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import msgpack

from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.instance import Instance
from utracefsd.consumers.ftrace.settings import parse_setting
from utracefsd.events.event import Event, SavedEvent
from utracefsd.events.event_table import EventTable
from utracefsd.machine.comms import CommTable, Task

logger = logging.getLogger("utracefsd")

MAGIC = "utracefs state"
VERSION = 1

LOG = "state"
JOURNAL = "journal"
SET_ASIDE = "set-aside"
_BUFFER = re.compile(r"buffer\.(\d{1,9})")

# A log is made anew when it holds this many objects more than four times what is live.
_HISTORY_OBJECTS = 1000


class StateError(ValueError):
    """The log, or what belongs to it, cannot be used; the text says why."""


@attrs.define
class Taken:
    """What a dead daemon left, read and checked."""

    buffer_folder: str
    """Name of the folder of its ring buffer, below the state folder; empty: it was in its memory and is
    gone."""

    events: dict[int, SavedEvent] = attrs.Factory(dict)
    """By id, in the order of their creation."""

    enabled: set[int] = attrs.Factory(set)
    """Ids of the events that were enabled."""

    ever_enabled: set[int] = attrs.Factory(set)
    """Ids of those that were enabled at some time."""

    settings: dict[str, Any] = attrs.Factory(dict)
    """Of the instance."""

    comms: dict[int, Task] = attrs.Factory(dict)
    """Names of threads."""

    buffer: RingBuffer | None = None
    """Adopted; None before that, or when there is none."""


def parse_log(data: bytes) -> Taken:
    """Replay a log. A torn last object is left out. StateError: it is none, of another version, or
    contradicts itself."""
    unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(data)), strict_map_key=False)
    unpacker.feed(data)
    try:
        objects = list(unpacker)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StateError(f"the log is damaged: {type(error).__name__} {error}") from error
    match objects[0] if objects else None:
        case [str(magic), int(version), str(buffer_folder)] if magic == MAGIC:
            if version != VERSION:
                raise StateError(f"the log has version {version}, this daemon reads {VERSION}")
        case _:
            raise StateError("the log does not begin like one")
    if not _is_buffer(buffer_folder):
        raise StateError("the log names no buffer folder")
    taken = Taken(buffer_folder)
    for thing in objects[1:]:
        if not _apply(taken, thing):
            raise StateError(f"the log is damaged: {thing!r:.100}")
    return taken


def _is_buffer(folder: str) -> bool:
    return not folder or _BUFFER.fullmatch(folder) is not None


def _apply(taken: Taken, thing: Any) -> bool:
    """One object of the log; False when it makes no sense."""
    match thing:
        case ["event", int(number), int(status), int(flags), int(uid), bytes(name), bytes(command)]:
            if number in taken.events:
                return False
            taken.events[number] = SavedEvent(number, status, flags, uid, name, command)
        case ["gone", int(number)] if number in taken.events:
            del taken.events[number]
            taken.enabled.discard(number)
            taken.ever_enabled.discard(number)
        case ["on", int(number)] if number in taken.events:
            taken.enabled.add(number)
            taken.ever_enabled.add(number)
        case ["off", int(number)] if number in taken.events:
            taken.enabled.discard(number)
        case ["set", "buffer", str(folder)] if _is_buffer(folder):
            taken.buffer_folder = folder
        case ["set", str(name), value]:
            try:
                taken.settings[name] = parse_setting(name, value)
            except (ValueError, TypeError):
                return False
        case ["comm", int(pid), bytes(comm), int(start_time)]:
            taken.comms.pop(pid, None)
            taken.comms[pid] = Task(comm, start_time)
        case _:
            return False
    return True


class StateFolder:
    """The files of one state, in `path`, which must exist and be locked by us."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.log = self.path / LOG
        self.journal = self.path / JOURNAL
        self.adopted: RingBuffer | None = None
        """The ring buffer that was taken over."""

        self.buffer_folder = ""
        """Name of the folder of the ring buffer in use; empty: it lives in none."""

        self.changed: Callable[[], None] = lambda: None
        """Called when buffer_folder is another one: it has to be in the log before the old one may go."""

    def take_over(self, nr_cpus: int) -> Taken | None:
        """What a daemon before this one left. None: nothing, or nothing of use; then that is set aside and
        logged."""
        try:
            data = self._read_log()
            if data is None:
                return None
            taken = parse_log(data)
            was_for = nr_cpus
            if taken.buffer_folder:
                try:
                    taken.buffer = RingBuffer.adopt(str(self.path / taken.buffer_folder))
                except (OSError, ValueError, MemoryError) as error:
                    raise StateError(f"the ring buffer cannot be taken over: {error}") from error
                was_for = taken.buffer.nr_cpus
            elif taken.settings.get("in_memory"):
                was_for = len(taken.settings["in_memory"]) - 1
            if was_for != nr_cpus:
                raise StateError(f"its ring buffer is for {was_for} cpus, and there are {nr_cpus}")
        except StateError as error:
            self.set_aside(str(error))
            return None
        self.use(taken.buffer, taken.buffer_folder)
        self.clean()  # now, so that what is of no use takes no room from a new one
        return taken

    def use(self, buffer: RingBuffer | None, name: str) -> None:
        """`buffer` was taken over from the folder `name`; or there is none."""
        self.adopted = buffer
        self.buffer_folder = name

    def _read_log(self) -> bytes | None:
        try:
            fd = os.open(self.log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"the log cannot be read: {error.strerror}") from error

    def set_aside(self, why: str) -> None:
        """Make room for a fresh start, but keep what is there, in place of what was set aside before."""
        aside = self.path / SET_ASIDE
        logger.warning("starting afresh, what was found is in %s: %s", aside, why)
        self.adopted = None
        self.buffer_folder = ""
        _remove(aside)
        aside.mkdir(0o700)
        for path in [self.log, *self._buffers()]:
            with contextlib.suppress(FileNotFoundError):
                path.rename(aside / path.name)

    def discard(self) -> None:
        """Remove what a daemon before this one left, save its journal: the producers' rings are not part of
        that."""
        _remove(self.log)
        _remove(self.path / SET_ASIDE)
        self.clean()

    def remove(self) -> None:
        """Remove all of it; the daemon ends and hands nothing over."""
        self.buffer_folder = ""
        self.discard()
        for name in (LOG, JOURNAL):
            _remove(self.path / name)
            _remove(self.path / f"{name}.new")

    def clean(self) -> None:
        """Remove buffers that are not in use: their replacement was interrupted by death, before or after the
        log had it."""
        for path in self._buffers():
            if path.name != self.buffer_folder:
                _remove(path)

    def _buffers(self) -> list[Path]:
        return [path for path in self.path.iterdir() if _BUFFER.fullmatch(path.name)]

    # The part of it that an instance works with (`BufferStorage`).

    def new_folder(self) -> str:
        """A new, empty folder for a ring buffer; nobody's until `switch_to`. OSError."""
        numbers = [int(found[1]) for path in self._buffers() if (found := _BUFFER.fullmatch(path.name))]
        path = self.path / f"buffer.{max(numbers, default=0) + 1}"
        path.mkdir(0o700)
        return str(path)

    def switch_to(self, folder: str) -> None:
        """The instance records into `folder` from now on; the one before is of no use."""
        self.buffer_folder = os.path.basename(folder)
        self.changed()
        self.clean()

    def remove_folder(self, folder: str) -> None:
        """`folder` is not needed after all."""
        _remove(Path(folder))

    def leave(self, why: OSError) -> None:
        """The instance's ring buffer is in its memory from now on."""
        logger.warning(
            "ring buffers will not survive a restart of the daemon: %s has too little room for them (%s)."
            " Mount a larger %s (docker run --shm-size) or choose a smaller buffer_size_kb, KiB per cpu; then"
            " restart",
            self.path,
            why.strerror,
            self.path.parent,
        )
        self.buffer_folder = ""
        self.changed()
        self.clean()
        self.changed()  # once more, in case that it was the log, too, that had no room before


def _remove(path: Path) -> None:
    """A file, a link or a folder with all that is in it; nothing if it is not there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


class State:
    """The log of a living daemon: listens to its parts, and writes down what has changed when `save` is
    called.

    Made after everything that was taken over stands in its place; it begins with a new log. `close` ends it.
    """

    def __init__(self, folder: StateFolder, table: EventTable, instance: Instance, comms: CommTable) -> None:
        self.folder = folder
        self._table = table
        self._instance = instance
        self._settings = instance.settings
        self._comms = comms
        self._pending: list[tuple[str, Any]] = []
        self._folder_changed = False
        self._objects = 0
        self._bytes = 0
        self._fd = -1
        self._failed = False
        self._pack = msgpack.Packer(use_bin_type=True).pack
        table.before_created.append(self._created)
        table.on_removed.append(self._removed)
        instance.events.on_switched = self._switched
        comms.on_kept = self._kept
        folder.changed = self._replaced
        self._rewrite()
        folder.clean()

    def save(self) -> None:
        """Write down what has changed. Costs nothing when nothing has."""
        if not self._pending and not self._settings.unsaved and not self._folder_changed:
            return
        pending, self._pending = self._pending, []
        if self._fd < 0:
            self._rewrite()
            return
        parts = [self._packed(kind, subject) for kind, subject in pending]
        parts.extend(self._pack(("set", *setting)) for setting in self._settings.take_unsaved())
        if self._folder_changed:
            # Last: torn before it, the old buffer is adopted, and what else was said is of no importance
            # then.
            self._folder_changed = False
            parts.append(self._pack(("set", "buffer", self.folder.buffer_folder)))
        data = b"".join(parts)
        self._objects += len(parts)
        live = 2 * len(self._table) + len(self._comms) + 20
        if self._objects > 4 * live + _HISTORY_OBJECTS or not self._write(self._fd, data):
            self._rewrite()

    def close(self, *, keep: bool) -> None:
        """Write nothing more. Not `keep`: remove all files, whatever is in them."""
        self._table.before_created.remove(self._created)
        self._table.on_removed.remove(self._removed)
        self._instance.events.on_switched = None
        self._comms.on_kept = None
        self.folder.changed = lambda: None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if not keep:
            self.folder.remove()

    # What is heard

    def _created(self, event: Event) -> None:
        self._pending.append(("event", event))

    def _removed(self, event: Event) -> None:
        self._pending.append(("gone", event.id))

    def _switched(self, event: Event, on: bool) -> None:
        self._pending.append(("on" if on else "off", event.id))

    def _kept(self, pid: int, task: Task) -> None:
        self._pending.append(("comm", (pid, task)))

    def _replaced(self) -> None:
        self._folder_changed = True
        self.save()

    # What is written

    def _packed(self, kind: str, subject: Any) -> bytes:
        if kind == "event":
            event: Event = subject
            return self._pack(
                (
                    "event",
                    event.id,
                    event.status_index,
                    event.flags,
                    event.owner_uid,
                    event.tracepoint_name,
                    event.declaration.canonical(),
                )
            )
        if kind == "comm":
            pid, task = subject
            return self._pack(("comm", pid, task.comm, task.start_time))
        return self._pack((kind, subject))

    def _everything(self) -> Iterator[bytes]:
        yield self._pack((MAGIC, VERSION, self.folder.buffer_folder))
        for event in self._table.events():
            yield self._packed("event", event)
            enabled = self._instance.events.enabled(event)
            if enabled or self._instance.events.was_enabled(event):
                yield self._packed("on", event.id)
                if not enabled:
                    yield self._packed("off", event.id)
        for pid, task in self._comms.tasks():
            yield self._packed("comm", (pid, task))
        for setting in self._settings.saved():
            yield self._pack(("set", *setting))
        self._settings.unsaved.clear()

    def _rewrite(self) -> None:
        """A new log of what is now. If there is no room for it there is none: an old one would give ids a
        wrong meaning."""
        self._pending.clear()
        self._folder_changed = False
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        new = self.folder.path / f"{LOG}.new"
        fd = -1
        try:
            with contextlib.suppress(FileNotFoundError):
                new.unlink()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(new, flags, 0o600)
            parts = list(self._everything())
            self._bytes = 0
            if not self._write(fd, b"".join(parts)):
                raise OSError(0, "no room for it")
            new.rename(self.folder.log)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            if not self._failed:
                logger.error("the state cannot be written, a restart will begin afresh: %s", error.strerror)
            self._failed = True
            for path in (new, self.folder.log):
                with contextlib.suppress(OSError):
                    path.unlink()
            return
        if self._failed:
            logger.info("the state is written again")
            self._failed = False
        self._fd = fd
        self._objects = len(parts)

    def _write(self, fd: int, data: bytes) -> bool:
        """Append `data`, whole or not at all."""
        try:
            written = os.write(fd, data)
        except OSError:
            written = -1
        if written == len(data):
            self._bytes += written
            return True
        with contextlib.suppress(OSError):
            os.ftruncate(fd, self._bytes)
        return False


def restore(taken: Taken, instance: Instance, comms: CommTable, events: list[Event]) -> None:
    """Put what was taken over into a fresh instance; `events` are the table's, restored before the instance
    was made."""
    comms.restore(taken.comms)
    instance.restore(
        taken.settings,
        enabled=[event for event in events if event.id in taken.enabled],
        was_enabled=[event for event in events if event.id in taken.ever_enabled],
    )


def check_events(taken: Taken, table: EventTable) -> list[Event]:
    """The events of `taken` in `table`. StateError, with the table as it was: they cannot be."""
    try:
        return table.restore(taken.events.values())
    except (TraceError, ValueError) as error:
        text = error.text if isinstance(error, TraceError) else str(error)
        raise StateError(f"its events cannot be: {text}") from error
