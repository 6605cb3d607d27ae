"""The daemon without a loop: makes every part once, and connects them.

    Port ── DataConnection ────────────┐                                   ┌── Instances (ftrace)
             (one per producer)        ├── EventTable ── StatusFile        ├── PerfEvents, Streams
    Port ── TracefsConnection ── Tree ─┘       └── tracepoints, probes ────┴── Plugins
             (one per administrator)                       ^
    Rings (data rings of all producers) ───────────────────┘

The edge (server/serve.py) waits for the two ports and the rings, and calls `hand_on` after each step and
`on_time` at `next_deadline_ns`. Nothing here waits; the clock is given.

Four rules connect the parts:

1. Every operation on the tree starts with `take_in_all`, so its response includes everything written
   before it (docs/architecture.md describes the exception for a flood of requests, not of records).
   Requests that arrived together do that once.
2. Consumers that take records in batches, and reads that wait for records, get them in `hand_on`.
3. Delayed work has a deadline (the end of an event without references, a delayed notification). Without a
   deadline the daemon can sleep.
4. `save` is called before anything that the next daemon must be able to interpret: before records are
   taken in (no buffer may hold a record of an unknown event), before a port sends (a response is a promise),
   and after each step.
"""

import errno
import functools
import itertools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import USER_EVENTS_MAX
from utracefs_protocol.messages import data as messages
from utracefsd.connections.accepted_connection import DATA, TRACEFS
from utracefsd.connections.data_connection import DataConnection
from utracefsd.connections.port import Port
from utracefsd.connections.tracefs_connection import TracefsConnection
from utracefsd.consumers.ftrace.event._trigger_cells import Cells
from utracefsd.consumers.ftrace.hist.tables import Tables, saved_table
from utracefsd.consumers.ftrace.instances import Instances
from utracefsd.consumers.perf.events import PerfEvents
from utracefsd.consumers.plugins.plugins import Installed, Plugins
from utracefsd.consumers.stream.streams import Streams
from utracefsd.daemon_log import daemon_log
from utracefsd.events.event import Event
from utracefsd.events.event_table import EventTable
from utracefsd.events.status_file import PAGE_SIZE, StatusFile
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._journal import Journal
from utracefsd.intake._writers import AllWriters
from utracefsd.intake.rings import DescriptorStore, Rings
from utracefsd.machine import closing
from utracefsd.machine._machine import current_cpu
from utracefsd.machine._writer_names import WriterNames
from utracefsd.machine.faults import Faults
from utracefsd.machine.kept_file import UnreadableError
from utracefsd.machine.peer import Peer
from utracefsd.machine.procfs import (
    cpu_time_ms,
    free_memory_kb,
    is_running,
    make_comm_table,
    possible_cpus,
    resident_bytes,
)
from utracefsd.machine.shares import Resource, Shares
from utracefsd.state.folder import StateFolder
from utracefsd.state.living import State, restore_events, restore_instances
from utracefsd.state.log import StateError, Taken
from utracefsd.state.log_file import LogFile
from utracefsd.tree import Parts, Tree

# The kernel gives its own events ids from 1 on, some thousands. A tool that takes an id from the mount and
# opens a kernel tracepoint by it, as root, gets an error, and not another event. As many ids are left as
# there may be events (USER_EVENTS_MAX).
FIRST_EVENT_ID = 32768


# Each may hold the handles of a whole tree; a screenful of tools has a handful.
MAX_TRACEFS_CONNECTIONS = 256

# How long to wait at most for rings of the previous daemon before any ring is read: a client tries again
# after 1 s at the latest (LAST_BACK_OFF_S in its session thread), the rest is for a busy machine.
GATHER_NS = 2_200_000_000

# How much longer for rings of programs that are connected again by then and about to hand over theirs.
HAND_OVER_NS = 1_000_000_000

# How often to check whether programs that are waited for still run.
LOOK_AGAIN_NS = 50_000_000

# How long events wait after a restart for the programs that used them, and instances for their owners. A
# client tries again within a second.
GRACE_NS = 10_000_000_000


@attrs.frozen(kw_only=True)
class DaemonOptions:
    """Options of a daemon: those of the command `utracefsd` (main.py) with these names."""

    status_pages: int = 1
    """Size of the status file."""
    buffer_size_kb: int | None = None
    """Per cpu; None: the kernel's default, which is allocated when something is enabled."""
    user_events_max: int = USER_EVENTS_MAX
    """Limit of events."""
    plugins: Collection[str] | None = None
    """Entry points to load; None: all installed ones."""
    plugin_options: Mapping[str, Mapping[str, str]] | None = None
    """By name: the argument of their `start`."""
    group: str | None = None
    """Its members may produce events; None: `tracing`, where that group exists."""
    tracefs_group: str | None = None
    """Its members may administer."""
    discard_state: bool = False
    """Do not take over the state of an earlier daemon."""


class Daemon:
    """`status_path`: the status file. `close` ends it.

    now_ns: CLOCK_MONOTONIC; started_ms: since 1970. max_descriptors: for producers, all together.
    state_folder: the folder of a previous daemon's state and of this one's; owned by this user, and locked.
    store: keeps data rings beyond this process; stored: the descriptors that it kept, owned by this object.

    TraceError: EEXIST (the status file's path is taken by something else), ENOSPC (no space for that file,
    the journal, the cells or the log), that of a file of the state that cannot be read now; OSError.
    """

    def __init__(
        self,
        options: DaemonOptions,
        *,
        now_ns: Callable[[], int],
        started_ms: int = 0,
        status_path: str | os.PathLike[str],
        state_folder: str | os.PathLike[str],
        max_descriptors: int = 1 << 20,
        store: DescriptorStore,
        stored: Sequence[int] = (),
    ) -> None:
        self.now_ns = now_ns
        self._started_ms = started_ms
        self._folder = StateFolder(state_folder)
        self._has_room = False
        self._folder.give_room(options.status_pages * PAGE_SIZE)
        self.status_file = StatusFile(status_path, options.status_pages)
        limit = options.user_events_max
        # If users take all other indexes, an administrator still finds one.
        room = min(self.status_file.capacity, limit)
        self.shares = Shares(
            in_all={
                Resource.DESCRIPTORS: max_descriptors,
                Resource.EVENTS: room - room // 16,
                Resource.STORED_RINGS: store.limit,
            }
        )
        self.faults = Faults()
        self.state: State | None = None
        self.table = EventTable(
            self.status_file, shares=self.shares, user_events_max=limit, first_id=FIRST_EVENT_ID
        )
        self.comms = make_comm_table()
        self.comms.on_ended = self.save
        self.all_writers = AllWriters(self.comms)
        # The previous daemon's events come before everything that refers to them.
        nr_cpus = possible_cpus()
        with self._readable():
            former, events, journal, log_file = self._take_over(nr_cpus, options.discard_state)
        self._took_over = former is not None
        self._restarts = 0 if former is None else former.restarts + 1
        self.cells = journal.cells
        # Before instances attach to some: the order in which they make room is that of their creation.
        self.table.hold(event for event in events if not event.persistent)
        with self._readable(log_file):
            self.instances = self._make_instances(former, events, journal, nr_cpus, options)
        # Their programs, and the owners of instances, have this long to come back.
        self._holds = any(not event.persistent for event in events) or any(
            instance.settings.owner_returns for instance in self.instances
        )
        self.listens()
        self._look_again_ns = now_ns()
        self.remove_state = False
        """Whether `close` removes the state. Set it only when the daemon is ended for good; any other end
        leaves everything for the next one."""
        # Before the rings: one that the store has kept is entered at once, and asks for its wait.
        names = WriterNames(self.comms.comm, self.comms.last_comm)
        self.perf = PerfEvents(self.table, now_ns, nr_cpus, names)
        self.streams = Streams(self.table, instances=self.instances, nr_cpus=nr_cpus, names=names)
        known = None if former is None else former.rings
        self.rings = Rings(nr_cpus, self, store, journal, known, stored)
        self.streams.on_lossless = self.rings.look_at_waits
        self.table.on_off = self.rings.note_off
        # The log begins when all that was taken over is in place; until then nothing may be recorded.
        parts = self.table, self.instances, self.comms, self.rings
        self.state = State(self._folder, *parts, journal.fired, log_file, self._restarts)
        if self._took_over:
            daemon_log("events-taken-over", events=len(events))
        self.plugins = Plugins(self.table, now_ns, Installed(options.plugins), options.plugin_options or {})
        self.tree = Tree(Parts(self.table, self.instances, self.plugins, self.comms, self._stats_text))
        # Ports are last: from here on requests may come.
        make_port = functools.partial(Port, now_ns=now_ns, before_sending=self.save, faults=self.faults)
        self.data = make_port(DATA, self._open_data, shares=self.shares)
        self.data.acceptor.on_behind = self.rings.note_behind
        self.tracefs = make_port(
            TRACEFS,
            self.open_tracefs,
            shares=Shares.without_limits(),
            max_connections=MAX_TRACEFS_CONNECTIONS,
        )
        self._handles = itertools.count(1)
        self._taking_in = False
        self._hold_records = self.rings.gathering
        """Records over the socket wait while rings of the previous daemon may bring older ones."""

    def _take_over(
        self, nr_cpus: int, discard_state: bool
    ) -> tuple[Taken | None, list[Event], Journal, LogFile]:
        """Restore the events of the previous daemon, and open the files of this one's state: before anything
        is recorded, and before the ring buffers take space."""
        folder = self._folder
        if discard_state:
            folder.remove_former_state()
        state = folder.take_over(nr_cpus)
        events: list[Event] = []
        if state is not None:
            try:
                events = restore_events(state, self.table)
            except StateError as error:
                folder.set_aside(str(error))
                state = None
        journal = self._journal(state)
        with self._made(folder.log):
            log_file = folder.open_log()
        self._keep_room()
        return state, events, journal, log_file

    def _make_instances(
        self,
        former: Taken | None,
        events: Sequence[Event],
        journal: Journal,
        nr_cpus: int,
        options: DaemonOptions,
    ) -> Instances:
        """The ftrace instances, restored from the previous daemon's."""
        tables = Tables(self._folder.path, free_memory_kb=free_memory_kb)
        if former is not None:
            tables.reserve(saved_table(extra)[0] for extra in former.extras())
        instances = Instances(
            self.table,
            self.comms,
            self.now_ns,
            nr_cpus=nr_cpus,
            current_cpu=current_cpu,
            free_memory_kb=free_memory_kb,
            storage=self._folder.buffers_of,
            cells=self.cells,
            tables=tables,
            restored=None if former is None else former.names(),
        )
        instances.on_removed.append(lambda instance: journal.forget_buffer(instance.number))
        if former is not None:
            restore_instances(former, instances, events)
            self.comms.restore(former.comms)
            instances.remove_left_over()
        elif options.buffer_size_kb is not None:
            instances.top.store.resize(options.buffer_size_kb)
        self.cells.drop_the_rest()
        tables.remove_the_rest()
        return instances

    @contextmanager
    def _made(self, path: Path) -> Iterator[None]:
        """Errors of a file without which the daemon cannot run. TraceError."""
        try:
            yield
        except (OSError, MemoryError) as error:
            self.status_file.close()
            number = error.errno if isinstance(error, OSError) else errno.ENOMEM
            why = error.strerror if isinstance(error, OSError) else os.strerror(errno.ENOMEM)
            raise TraceError(number or errno.EIO, f"{path} cannot be made: {why}") from error

    @contextmanager
    def _readable(self, log_file: LogFile | None = None) -> Iterator[None]:
        """Errors of reading the previous daemon's files that are not due to them. TraceError."""
        try:
            yield
        except UnreadableError as error:
            if log_file is not None:
                log_file.close()
            self.status_file.close()
            text = f"{error}; start again, or with --discard-state without what was set and recorded"
            raise TraceError(error.errno, text) from error

    def _journal(self, taken: Taken | None) -> Journal:
        folder = self._folder
        with self._made(folder.cells):
            cells = Cells(folder.cells)
        with self._made(folder.journal):
            journal = (
                Journal(folder.journal, cells=cells)
                if taken is None
                else Journal(folder.journal, taken.buffers(), cells, taken.fired)
            )
        for path, refused in ((folder.cells, cells.refused), (folder.journal, journal.refused)):
            if refused:
                daemon_log("state-file-replaced", path=path, reason=refused)
        if cells.lost_deferred:
            daemon_log("synthetic-records-unsure", records=cells.lost_deferred)
        return journal

    def open_tracefs(self, peer: Peer) -> TracefsConnection:
        """A connection to the tree. The socket's mode and group only permit administrators."""
        self._remember(peer)  # it may write markers
        return TracefsConnection(self, peer)

    def new_handle(self) -> int:
        """The number of an open file, perf event or stream of any connection to the tree."""
        return next(self._handles)

    def take_in_acknowledgements(self) -> None:
        """Carry out everything that producers sent over their sockets."""
        self.data.take_in_all()

    def listens(self) -> None:
        """The sockets listen: programs can come back from now on, within the times above."""
        self._grace_ends_ns = self.now_ns() + GRACE_NS
        self._gather_ends_ns = self.now_ns() + GATHER_NS

    def take_in_all(self) -> None:
        """When it returns, records sent before the call are with the consumers, and everything that closed
        connections of administrators held is free (for a flood of these see Port). Their last requests call
        this, too, and find everything taken in."""
        if self._taking_in:
            return
        self.data.take_in_all()
        self.rings.round()
        self.hand_over()
        self._taking_in = True
        try:
            self.tracefs.take_in_ended()
        finally:
            self._taking_in = False

    def hand_over(self) -> None:
        """Pass new records to consumers with a ring of their own, and new writers to `saved_tgids`."""
        if self.comms.record_tgid:
            for tid, pid in self.rings.writers():
                self.comms.wrote(tid, pid)
        self.plugins.flush()
        self.streams.publish()

    def hand_on(self) -> None:
        """After a step: pass its results to consumers, to reads that wait, and to the state."""
        self.hand_over()
        self.data.answer_waiting()
        self.tracefs.answer_waiting()
        if self._hold_records and not self.rings.gathering:
            self._hold_records = False
            self.data.go_on()
            self._keep_room()  # programs that are back do not map the old status file any more
        self.save()

    @property
    def is_missed(self) -> bool:
        """Whether a program is connected, or may come back from the previous daemon."""
        return len(self.data) > 0 or (self._took_over and self.now_ns() < self._grace_ends_ns)

    def save(self) -> None:
        """Write down what the next daemon needs; costs nothing when nothing has changed."""
        if self.state is not None:
            self.state.save()

    def next_deadline_ns(self) -> int | None:
        """When `on_time` has work; None: no deadline."""
        deadlines = (
            self.table.next_reap_ns(),
            self.data.next_deadline_ns(),
            self.tracefs.next_deadline_ns(),
            self._grace_ends_ns if self._holds else None,
            self._look_again_ns if self._waits_for_rings() else None,
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def on_time(self, now_ns: int) -> None:
        """Handle deadlines that have passed."""
        self.data.on_time(now_ns)
        self.tracefs.on_time(now_ns)
        if self._waits_for_rings() and self._look_again_ns <= now_ns:
            self.rings.look_again()
            if self._gather_ends_ns <= now_ns:
                here = {accepted.link.peer.pid for accepted in self.data}
                self.rings.stop_waiting(here if now_ns < self._gather_ends_ns + HAND_OVER_NS else ())
            self.rings.end_orphans(all_of_them=self._grace_ends_ns <= now_ns)
            self._look_again_ns = now_ns + LOOK_AGAIN_NS
        if self._holds and self._grace_ends_ns <= now_ns:
            self._holds = False
            self.table.end_hold()
            self.instances.remove_left_over(returning=True)
        self.table.reap()
        self._keep_room()
        self.hand_on()

    def _keep_room(self) -> None:
        """Reserve space for the next daemon's start, if possible."""
        if not self._has_room:
            self._has_room = self._folder.keep_room(self.status_file.size)

    def _waits_for_rings(self) -> bool:
        return self.rings.gathering or self.rings.has_orphans

    def is_running(self, pid: int, start_time: int) -> bool:
        return is_running(pid, start_time)

    def wait_us(self, uid: int) -> int:
        return self.streams.wait_us(uid)

    def acquire_events(self, event_ids: Sequence[int]) -> IndexTable | None:
        events = [self.table.by_id(event_id) for event_id in event_ids]
        table = IndexTable()
        for event, event_id in zip(events, event_ids, strict=True):
            if event is None and event_id:
                return None
            table.append(event.tracepoint if event else None)
        for event in filter(None, events):
            self.table.acquire(event)
        return table

    def release_events(self, event_ids: Sequence[int]) -> None:
        events = [self.table.by_id(event_id) for event_id in event_ids]
        self.table.release_all([event for event in events if event is not None])

    def end_failed(self) -> None:
        self.data.end_failed()

    def ring_gone(self, event_ids: Sequence[int], number: int) -> None:
        for event_id in event_ids:
            event = self.table.by_id(event_id)
            if event is not None:
                event.tracepoint.rings_gone += number

    def close(self) -> None:
        """End every connection and attachment; every status byte is zero and the status file is gone. The
        rest stays for the next daemon, unless `remove_state` is set or the state is that of a new daemon."""
        self._hold_records = False
        if self.rings.has_orphans:
            self.rings.stop_waiting()  # nobody would bring these to the next daemon
        self.take_in_all()
        self.data.take_in_last()
        self.rings.round()
        self.hand_over()  # readers of streams take the last records, and end with the connections
        self.instances.owners_return = not self.remove_state
        self.tracefs.close()
        self.rings.round()
        self.save()
        if self.state is not None:
            self.state.close(keep=not self.remove_state and (self._took_over or self.state.has_news))
            self.state = None
        self.rings.hand_over()
        self.data.close()
        self.rings.close()
        self.plugins.close()
        self.status_file.close()

    def _remember(self, peer: Peer) -> None:
        if peer.start_time is not None:
            self.comms.remember(peer.pid, peer.pid, task=peer.task)

    def _open_data(self, peer: Peer) -> DataConnection:
        self._remember(peer)
        return DataConnection(self, peer)

    def speak_up(self, connection: DataConnection) -> None:
        """It has a message to send, which answers no request."""
        self.data.speak_up(connection)

    def open_for(self, connection: DataConnection, process: messages.OpenFor) -> Peer:
        """Charge a proxy's connection to this process. TraceError."""
        peer = Peer.of_process(
            process.pid, process.start_time, process.uid, process.gid, owner_uid=self.data.owner_uid
        )
        self.data.belongs_to(connection, peer)
        self._remember(peer)
        return peer

    def time_of_records(self) -> int | None:
        """The time for records that come over the socket now: every unread ring record is younger. None: they
        wait for the rings of the previous daemon."""
        time_ns = self.rings.take_in_before_others()
        return self.now_ns() if time_ns is None and not self._hold_records else time_ns

    def _stats_text(self) -> bytes:
        """The file daemon_stats."""
        lines = [
            f"faults: {self.faults.count}\n",
            f"pid: {os.getpid()}\n",
            f"started, ms since 1970: {self._started_ms}\n",
            f"restarts that took over the state: {self._restarts}\n",
            f"cpu time, in ms: {cpu_time_ms()}\n",
            f"resident memory, in bytes: {resident_bytes()}\n",
            f"memory of the state's files, in bytes: {self._folder.used_bytes()}\n",
            f"free for the state's files, in bytes: {self._folder.free_bytes()}\n",
            f"data rings: {len(self.rings)}\n",
            f"records lost of unknown events: {self.rings.lost_of_unknown}\n",
            f"data rings that nobody keeps: {self.rings.nr_unstored}\n",
            f"data rings gone with their records, unknown how many: {self.rings.nr_missing}\n",
            f"synthetic events that may be lost with the daemon before: {self.cells.lost_deferred}\n",
            f"idle events gone for want of room: {self.table.idle.gone}\n",
            f"descriptors to be closed: {closing.waiting()}\n",
            f"connections to be accepted: {len(self.data.acceptor)}\n",
            f"connections refused: {self.data.acceptor.refused}\n",
            f"connections to the tree: {len(self.tracefs)} of {MAX_TRACEFS_CONNECTIONS}\n",
            self.shares.text(),
            self.streams.text(),
            "time of the daemon lately, in ms:\n",
        ]
        lines += [f"  user {uid}: {used_ns / 1e6:.1f}\n" for uid, used_ns in self.data.heaviest()]
        return "".join(lines).encode()
