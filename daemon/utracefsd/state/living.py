"""The state of a living daemon: what is written down for the next one, and what that one makes of it.

The log has everything but the records, which live in the ring buffers' own files: events, instances and
their settings, what is enabled, names of threads. `State.save` writes whole packets, before anybody is
answered and before a record of a new event is taken in. So what a client was told survives, and the log
knows every id that a ring buffer holds. When most of a log is history, a new one is made beside it and
renamed over it; so it is at every start.

There is no fsync: /dev/shm does not outlive the machine, and the log need not.

An instance without a buffer to adopt gets an empty one of the same size. The journal then has no buffer to
ask about it: the record that was on its way when the daemon died is recorded again. The buffer that may have
had it is gone.

Not taken over: the numbers in `stats` of events, perf events, and what plug-ins are attached to. The first
would cost a store for every record, the others belong to connections that died with the daemon.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgpack

from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace.event_file import EventFile
from utracefsd.consumers.ftrace.instance import Instance
from utracefsd.consumers.ftrace.instances import Instances
from utracefsd.events.event import Event
from utracefsd.events.event_table import EventTable
from utracefsd.intake.known_rings import Key
from utracefsd.intake.rings import Rings
from utracefsd.machine.comms import CommTable, Task
from utracefsd.state import log
from utracefsd.state.folder import LOG, StateFolder, remove
from utracefsd.state.log import StateError, Taken

__all__ = ["State", "restore_events", "restore_instances"]

logger = logging.getLogger("utracefsd")

# A log is made anew when it holds this many lines more than four times what the last new one had.
_HISTORY_LINES = 1000


class State:
    """The log of a living daemon: listens to its parts, and writes down what has changed when `save` is
    called.

    Make it when everything that was taken over is in its place: it begins with a new log. `close` ends it.
    """

    def __init__(
        self,
        folder: StateFolder,
        table: EventTable,
        instances: Instances,
        comms: CommTable,
        rings: Rings | None = None,
        fired: Mapping[Key, tuple[int, set[int]]] | None = None,
    ) -> None:
        """fired: of records that are still to be handed over again, see Journal."""
        self.folder = folder
        self._table = table
        self._instances = instances
        self._comms = comms
        self._rings = rings
        self._fired = {} if fired is None else fired
        self._pending: list[tuple[Any, ...]] = []
        """Lines to write, in the order of what happened."""
        self._changed: dict[Instance, None] = {}
        """Instances with settings that are not written yet."""
        self._moved: dict[int, None] = {}
        """Numbers of instances whose buffer has another folder."""
        self._lines = 0
        self._lines_at_first = 0
        self._bytes = 0
        self._fd = -1
        self._failed = False
        self.has_news = False
        """Whether anything happened that a fresh daemon would not know."""
        self._pack = msgpack.Packer(use_bin_type=True).pack
        table.before_created.append(self._created)
        table.on_removed.append(self._removed)
        comms.on_kept = self._kept
        if rings is not None:
            rings.on_kept = lambda key, ring: self._pending.append(log.ring_line(key, ring))
            rings.on_grown = lambda key, event_id: self._pending.append(log.index_line(key, event_id))
            rings.on_gone = lambda key: self._pending.append(log.ring_gone_line(key))
        folder.on_buffer_moved = self._buffer_moved
        for instance in instances:
            self._listen_to(instance)
        instances.on_made.append(self._instance_made)
        instances.on_removed.append(self._instance_removed)
        self._begin()
        folder.remove_unused_buffers()

    def save(self) -> None:
        """Write down what has changed. Costs nothing when nothing has."""
        if not self._pending and not self._changed and not self._moved:
            return
        self.has_news = True
        if self._fd < 0:
            self._rewrite()
            return
        lines = list(self._unwritten())
        self._lines += len(lines)
        live = max(self._lines_at_first, 2 * len(self._table) + len(self._comms))
        too_long = self._lines > 4 * live + _HISTORY_LINES
        if too_long or not self._write(self._fd, b"".join(map(self._pack, lines))):
            self._rewrite()
        if self._fd >= 0:
            self._instances.cells.recycle()  # what is written names none that was taken back

    def close(self, *, keep: bool) -> None:
        """Write nothing more. Not `keep`: remove all files, whatever is in them."""
        self._table.before_created.remove(self._created)
        self._table.on_removed.remove(self._removed)
        self._comms.on_kept = None
        if self._rings is not None:
            self._rings.stop_telling()
        self.folder.on_buffer_moved = lambda number: None
        self._instances.on_made.remove(self._instance_made)
        self._instances.on_removed.remove(self._instance_removed)
        for instance in self._instances:
            _stop_listening_to(instance)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if not keep:
            self.folder.remove_everything()

    # What is heard

    def _created(self, event: Event) -> None:
        self._pending.append(log.event_line(event))

    def _removed(self, event: Event) -> None:
        self._pending.append(log.gone_line(event.id))

    def _kept(self, pid: int, task: Task) -> None:
        self._pending.append(log.comm_line(pid, task))

    def _listen_to(self, instance: Instance) -> None:
        instance.settings.on_unsaved = partial(self._changed.__setitem__, instance, None)
        instance.events.on_changed = partial(self._file_changed, instance.number)
        instance.events.on_filter_changed = partial(self._filter_changed, instance.number)
        instance.events.on_triggers_changed = partial(self._triggers_changed, instance.number)

    def _file_changed(self, number: int, file: EventFile) -> None:
        self._pending.append(log.event_file_line(number, file.event.id, file.saved()))

    def _filter_changed(self, number: int, file: EventFile) -> None:
        self._pending.append(log.filter_line(number, file.event.id, file.saved()))

    def _triggers_changed(self, number: int, file: EventFile) -> None:
        self._pending.append(log.triggers_line(number, file.event.id, file.saved()))

    def _instance_made(self, instance: Instance) -> None:
        self._listen_to(instance)
        self._pending.append(log.instance_line(instance.number, instance.name))
        self._changed[instance] = None
        self._buffer_moved(instance.number)

    def _instance_removed(self, instance: Instance) -> None:
        """Written at once: its buffer's folder goes next."""
        _stop_listening_to(instance)
        self._changed.pop(instance, None)
        self._moved.pop(instance.number, None)
        self._pending.append(log.removed_line(instance.number))
        self.save()

    def _buffer_moved(self, number: int) -> None:
        """Written at once: the folder before goes next."""
        if self._instances.by_number(number) is not None:  # else it is being made, and not to be found yet
            self._moved[number] = None
            self.save()

    # What is written

    def _unwritten(self) -> Iterator[tuple[Any, ...]]:
        yield from self._pending
        self._pending.clear()
        for instance in self._changed:
            for name, saved in instance.settings.take_unsaved():
                yield log.setting_line(instance.number, name, saved)
        self._changed.clear()
        # Last: torn before it, the old buffer is adopted, and what else was said is of no importance then.
        for number in self._moved:
            yield log.buffer_line(number, self.folder.buffers_of(number).folder)
        self._moved.clear()

    def _everything(self) -> Iterator[tuple[Any, ...]]:
        yield log.start_line()
        for event in self._table.events():
            yield log.event_line(event)
        for instance in self._instances:
            number = instance.number
            yield log.instance_line(number, instance.name)
            for name, saved in instance.settings.saved():
                yield log.setting_line(number, name, saved)
            yield log.buffer_line(number, self.folder.buffers_of(number).folder)
            for file in instance.events:
                if file.was_enabled:
                    yield log.event_file_line(number, file.event.id, file.saved())
                if file.filter_text is not None:
                    yield log.filter_line(number, file.event.id, file.saved())
                if file.triggers:
                    yield log.triggers_line(number, file.event.id, file.saved())
            instance.settings.unsaved.clear()
        for pid, task in self._comms.tasks():
            yield log.comm_line(pid, task)
        if self._rings is not None:
            for key, ring in self._rings.saved():
                yield log.ring_line(key, ring)
        for key, (position, keys) in self._fired.items():
            yield log.fired_line(key, position, keys)
        self._pending.clear()
        self._changed.clear()
        self._moved.clear()

    def _begin(self) -> None:
        """The log of this daemon: a new one, or, where that cannot be written, the one that was taken over
        and says the same."""
        unsaved = [(instance, set(instance.settings.unsaved)) for instance in self._instances]
        self._rewrite(keep_old=True)
        if self._fd >= 0:
            return
        self._fd = self.folder.open_log()
        if self._fd >= 0:
            self._bytes = os.fstat(self._fd).st_size
            for instance, names in unsaved:  # what taking over itself has changed
                instance.settings.unsaved |= names
                self._changed[instance] = None
                self._moved[instance.number] = None
            self.save()

    def _rewrite(self, *, keep_old: bool = False) -> None:
        """A new log of what is now. If there is no room for it there is none: an old one would give ids a
        wrong meaning. keep_old: nothing has happened since that was written."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        lines = list(self._everything())
        new = self.folder.path / f"{LOG}.new"
        fd = -1
        try:
            remove(new)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(new, flags, 0o600)
            self._bytes = 0
            if not self._write(fd, b"".join(map(self._pack, lines))):
                raise OSError(0, "no room for it")
            new.rename(self.folder.log)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            if not self._failed:
                logger.error(
                    "the state cannot be written, a restart will %s: %s",
                    "miss what changes now" if keep_old else "begin afresh",
                    error.strerror,
                )
            self._failed = True
            remove(new)
            if not keep_old:
                remove(self.folder.log)
            return
        if self._failed:
            logger.info("the state is written again")
            self._failed = False
        self._fd = fd
        self._lines = self._lines_at_first = len(lines)

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


def _stop_listening_to(instance: Instance) -> None:
    instance.settings.on_unsaved = None
    instance.events.on_changed = None
    instance.events.on_filter_changed = None
    instance.events.on_triggers_changed = None


def restore_events(taken: Taken, table: EventTable) -> list[Event]:
    """Put the events that were taken over into an empty table. StateError, with the table as it was: they are
    invalid."""
    try:
        return table.restore(taken.events.values())
    except (TraceError, ValueError) as error:
        text = error.text if isinstance(error, TraceError) else str(error)
        raise StateError(f"its events are invalid: {text}") from error


def restore_instances(taken: Taken, instances: Instances, events: list[Event]) -> None:
    """Bring fresh instances to where those were that were taken over. events: as `restore_events` made
    them."""
    by_id = {event.id: event for event in events}
    for number, before in taken.instances.items():
        instance = instances.by_number(number)
        if instance is not None:
            instance.restore(
                before.settings,
                [(by_id[event_id], saved) for event_id, saved in sorted(before.files.items())],
            )
