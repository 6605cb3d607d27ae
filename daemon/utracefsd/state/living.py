"""The state of a running daemon: writing it down for the next daemon, and restoring it there.

The log has everything but the records, which are in the ring buffers' own files: events, instances and their
settings, enabled events, names of threads. `State.save` writes whole packets, before any client gets its
response and before a record of a new event is taken in. So the effect of every answered request survives, and
the log knows every id that a ring buffer holds. When history has filled the log's file (log_file.py), the
present state is written anew; this also happens at every start.

**Full /dev/shm.** The log's file has reserved space: at least a third more than the present state needs. When
that is used up, too, the log is *behind*: it keeps describing an earlier moment. No id may get another
meaning than the log gives it, so the daemon then refuses to make events, instances and folders
(`check_room`: ENOSPC); those made before are in the log. Settings, enabling and removals still work but are
not logged; the log marks that, and the next daemon logs a warning. When there is space again, everything is
written.

There is no fsync: /dev/shm does not outlive the machine, and neither need the log.

An instance whose buffer cannot be adopted gets an empty one of the same size. The journal then cannot tell
from the buffer whether it took the last record, so a record that was being dispatched when the daemon died is
recorded again. The buffer that may have had it is gone.

Not taken over: the counters in `stats` of events (they would cost a store per record; event.py says which
part of them an orderly end leaves), perf events and events attached to plug-ins (they belong to connections
that died with the daemon).
"""

import contextlib
import errno
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any

import msgpack

from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace.event._sink import recorded_ids
from utracefsd.consumers.ftrace.event.event_file import EventFile, Part
from utracefsd.consumers.ftrace.instance import Instance
from utracefsd.consumers.ftrace.instances import Instances
from utracefsd.daemon_log import daemon_log
from utracefsd.events.event import Event
from utracefsd.events.event_table import EventTable
from utracefsd.intake.rings import Key, Rings
from utracefsd.machine.comms import CommTable
from utracefsd.state import log
from utracefsd.state.folder import StateFolder
from utracefsd.state.log import StateError, Taken
from utracefsd.state.log_file import FIRST_ROOM, LogFile

# A file with more than this many times the space that is needed is replaced by a smaller one.
_TOO_MUCH = 8

# Limit of `save` calls between two attempts to write a log that is behind: each attempt packs everything.
_LONGEST_BACK_OFF = 64

# Lines that give records their meaning: `check_room` reserves space for them.
_NEEDED = ("event", "ring", "fired")


class State:
    """The log of a running daemon: observes the daemon's parts, and `save` writes what has changed. Make it
    when everything that was taken over is restored: it begins with a new log."""

    def __init__(
        self,
        folder: StateFolder,
        table: EventTable,
        instances: Instances,
        comms: CommTable,
        rings: Rings,
        fired: Mapping[Key, tuple[int, set[int]]],
        file: LogFile,
        restarts: int,
    ) -> None:
        """fired: triggers that already fired for records that will be dispatched again, see Journal. file:
        the result of `folder.open_log`, owned by this object."""
        self.folder = folder
        self.file = file
        self._table = table
        self._instances = instances
        self._comms = comms
        self._rings = rings
        self._fired = fired
        self._restarts = restarts
        self._counts = table.emitted.saved
        """The lines that were last written."""
        self._pending: list[tuple[Any, ...]] = []
        """Lines to write, in the order of the changes."""
        self._changed: dict[Instance, None] = {}
        """Instances with settings that are not written yet."""
        self._moved: dict[int, None] = {}
        """Numbers of instances with a new buffer folder."""
        self._promised = 0
        """Bytes reserved by `check_room` since lines were last written."""
        self._wait = self._back_off = 0
        """Calls of `save` until the next attempt to write a log that is behind, and the number of them after
        the last failure."""
        self._is_closed = False
        self.has_news = False
        """Whether anything happened that an empty state would not show."""
        self._pack = msgpack.Packer(use_bin_type=True).pack
        # From now on each change is a line.
        table.before_created.append(lambda event: self._pending.append(log.event_line(event)))
        table.on_removed.append(self._removed)
        comms.on_kept = lambda pid, task: self._pending.append(log.comm_line(pid, task))
        rings.on_kept = lambda key, ring: self._pending.append(log.ring_line(key, ring))
        rings.on_grown = lambda key, event_ids: self._pending.append(("index", *key, *event_ids))
        rings.on_gone = lambda key: self._pending.append(("ring gone", *key))
        folder.on_buffer_moved = self._buffer_moved
        for instance in instances:
            self._listen_to(instance)
        instances.on_made.append(self._instance_made)
        instances.on_removed.append(self._instance_removed)
        # The log of this daemon begins, in the file that was taken over.
        if self._rewrite():
            folder.remove_unused_buffers()
        else:
            self._fall_behind([log.fired_line(key, *fired) for key, fired in self._fired.items()])
        # Last: it asks the log's file, which is there from now on.
        for one in (table, instances, folder):
            one.check_room = self.check_room

    def save(self) -> None:
        """Write all changes. Costs nothing when there are none."""
        if self._is_closed:
            return
        if self.file.behind:
            self._catch_up()
            return
        if not self._pending and not self._changed and not self._moved:
            return
        self.has_news = True
        lines = list(self._unwritten())
        if self.file.append(b"".join(map(self._pack, lines))):
            self._promised = 0
        elif not self._rewrite():
            self._fall_behind(lines)
            return
        self._instances.recycle()

    def check_room(self, nr_bytes: int) -> None:
        """Call it before making anything to which records, files or descriptors will refer, and whose line
        takes at most so many bytes. ENOSPC: the log has no space for it."""
        self._promised += nr_bytes
        if self._is_closed or (self._promised <= self.file.left and not self.file.behind):
            return
        self._wait = 0
        self.save()
        if not self.file.behind and self.file.left < nr_bytes:
            self._rewrite(nr_bytes)
        self._promised = nr_bytes
        if self.file.behind or self.file.left < nr_bytes:
            raise TraceError(
                errno.ENOSPC,
                f"{self.folder.path.parent} is full, and what a restart must know of this could not be"
                " written down: free some, or mount a larger one",
            )

    def _catch_up(self) -> None:
        """Try whether there is space again."""
        if self._wait:
            self._wait -= 1
        elif self._rewrite():
            daemon_log("state-written-again")
            self._instances.recycle()
            self.folder.remove_unused_buffers()
        else:
            self._wait = self._back_off = min(2 * self._back_off + 1, _LONGEST_BACK_OFF)
        self._pending.clear()  # the next attempt writes all of it

    def close(self, *, keep: bool) -> None:
        """Write the final counts, and nothing after them. Not `keep`: remove all files, whatever they
        contain."""
        if keep and not self.file.behind:
            self._end()
        self._is_closed = True
        self.file.close()
        if not keep:
            self.folder.remove_everything()

    # Observers

    def _removed(self, event: Event) -> None:
        self._pending.append(("gone", event.id))
        if self._counts is not self._table.emitted.saved:
            self._pending.append(self._counts_line())
        if self._table.emitted.is_known(event.emitted):
            self._pending.append(log.emitted_line(event.full_name, event.emitted))

    def _listen_to(self, instance: Instance) -> None:
        instance.settings.on_unsaved = partial(self._changed.__setitem__, instance, None)
        instance.events.on_changed = partial(self._file_changed, instance.number)

    def _file_changed(self, number: int, file: EventFile, part: Part) -> None:
        self._pending.append(log.file_line(number, file, part))

    def _instance_made(self, instance: Instance) -> None:
        self._listen_to(instance)
        self._pending.append(("instance", instance.number, instance.name))
        self._changed[instance] = None
        self._buffer_moved(instance.number)

    def _instance_removed(self, instance: Instance) -> None:
        """Written at once: its buffer's folder is removed next."""
        self._changed.pop(instance, None)
        self._moved.pop(instance.number, None)
        self._pending.append(("removed", instance.number))
        self.save()
        self._wait = 0  # there may be space now

    def _buffer_moved(self, number: int) -> None:
        """Written at once: the old folder is removed next."""
        if self._instances.by_number(number) is not None:  # else it is still being made
            self._moved[number] = None
            self._wait = 0
            self.save()

    # Lines

    def _unwritten(self) -> Iterator[tuple[Any, ...]]:
        yield from self._pending
        self._pending.clear()
        for instance in self._changed:
            for name, saved in instance.settings.take_unsaved():
                yield ("set", instance.number, name, saved)
        self._changed.clear()
        for number in self._moved:
            yield ("buffer", number, self.folder.buffers_of(number).folder)
        self._moved.clear()

    def _counts_line(self) -> tuple[Any, ...]:
        self._counts = self._table.emitted.saved
        return log.counts_line(self._counts)

    def _emitted(self) -> Iterator[tuple[Any, ...]]:
        for name, total in self._table.emitted.totals(self._table.events()):
            yield log.emitted_line(name, total)

    def _end(self) -> None:
        """Write the final counts. If there is no space for them, the log looks like that of a killed
        daemon."""
        data = b"".join(map(self._pack, (*self._emitted(), ("ended",))))
        if not self.file.append(data) and self._rewrite(len(data)):
            self.file.append(data)

    def _everything(self) -> Iterator[tuple[Any, ...]]:
        yield (log.MAGIC, log.VERSION)
        yield self._counts_line()
        yield from self._emitted()
        if self._restarts:
            yield ("restarts", self._restarts)
        for event in self._table.events():
            yield log.event_line(event)
        for instance in self._instances:
            number = instance.number
            yield ("instance", number, instance.name)
            for name, saved in instance.settings.saved():
                yield ("set", number, name, saved)
            yield ("buffer", number, self.folder.buffers_of(number).folder)
            for file in instance.events:
                parts = (file.was_enabled, file.filter_text is not None, bool(file.triggers))
                yield from (log.file_line(number, file, part) for part in compress(Part, parts))
            instance.settings.unsaved.clear()
        for pid, task in self._comms.tasks():
            yield log.comm_line(pid, task)
        for key, ring in self._rings.saved():
            yield log.ring_line(key, ring)
        for key, (position, keys) in self._fired.items():
            yield log.fired_line(key, position, keys)
        self._pending.clear()
        self._changed.clear()
        self._moved.clear()

    def _rewrite(self, more: int = 0) -> bool:
        """Write the present state anew, if possible with space for `more` bytes behind it. False: the log is
        unchanged."""
        data = b"".join(map(self._pack, self._everything()))
        self._promised = 0
        needed = len(data) + more
        room = self.file.room
        if needed > room // 4 * 3 or not FIRST_ROOM <= room <= max(_TOO_MUCH * needed, FIRST_ROOM):
            with contextlib.suppress(OSError):
                file = LogFile.make(self.folder.log, max(2 * needed, FIRST_ROOM), data)
                self.file.close()
                self.file = file
                return True
        return self.file.replace(data)

    def _fall_behind(self, lines: list[tuple[Any, ...]]) -> None:
        """`lines` cannot all be written. Write the lines without which records have no meaning; `check_room`
        reserved space for them, and nothing more is made until there is space."""
        events = {line[1] for line in lines if line[0] == "event"}
        needed = [line for line in lines if line[0] in _NEEDED or (line[0] == "gone" and line[1] in events)]
        self.file.append(b"".join(map(self._pack, needed)))
        self.file.mark_behind()
        self._back_off = 0
        daemon_log("state-full", folder=self.folder.path.parent)


def restore_events(taken: Taken, table: EventTable) -> list[Event]:
    """Put the events of the state into an empty table, with their counts. StateError: they are invalid, and
    the table is unchanged."""
    try:
        recorded = set().union(*map(recorded_ids, taken.buffers().values()))
        events = table.restore(taken.events.values(), recorded)
    except (TraceError, ValueError) as error:
        text = error.text if isinstance(error, TraceError) else str(error)
        raise StateError(f"its events are invalid: {text}") from error
    if taken.counts is not None:
        table.emitted.restore(taken.counts, taken.emitted, events, killed=not taken.ended)
    return events


def restore_instances(taken: Taken, instances: Instances, events: Sequence[Event]) -> None:
    """Restore the instances that were taken over into fresh `instances`. events: the result of
    `restore_events`."""
    by_id = {event.id: event for event in events}
    for number, before in taken.instances.items():
        instance = instances.by_number(number)
        if instance is not None:
            instance.restore(
                before.settings,
                [(by_id[event_id], saved) for event_id, saved in sorted(before.files.items())],
            )
