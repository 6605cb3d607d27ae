"""The edge: sockets and clocks around a Daemon that knows neither.

    serve                 one daemon until cancelled, inside any trio program
     ├── port, twice      waits for producers or administrators, all on one epoll descriptor; pumps in turns
     ├── rings            asleep until a doorbell rings; then takes in from all data rings in short rounds
     ├── doorbells        waits for the doorbells
     ├── timers           sleeps until the daemon's next deadline, or until there is one
     └── store            sends queued messages to a service manager that was busy

The code between two awaits is one step: a turn of one connection, whose time is bounded, or turns of several
for a millisecond; or a round of records. So nobody delays the others for long. An idle daemon has no timer.

Errors: a client's mistakes get an error response or end its connection, and are not logged. An unexpected
exception ends the request, the connection or the step that it occurs in, is counted and logged with its
traceback (machine/faults.py), and the daemon continues. Accepting survives the errors that trio's
serve_listeners survives (connections/port.py). Only an error in the daemon's directory, lock or sockets ends
it, since it is useless without them.
"""

import contextlib
import functools
import math
import os
import resource
import time
from collections.abc import Sequence
from types import TracebackType

import attrs
import trio

from utracefsd.connections.port import Port
from utracefsd.daemon import Daemon, DaemonOptions
from utracefsd.daemon_log import daemon_log
from utracefsd.intake.rings import GIVE_BACK_S, LINGER_ROUNDS, ROUND_RECORDS, Rings
from utracefsd.machine import collector
from utracefsd.server import runtime, sd_notify
from utracefsd.server.fd_store import FdStore, take_stored
from utracefsd.server.listeners import given_sockets, group_id, listening

DEFAULT_GROUP = "tracing"

# Descriptors that producers cannot use: listeners, status file, 256 connections of administrators, perf
# rings, plug-ins; 253 for one message, and descriptors that wait to be closed. With a small limit it is
# half of that.
RESERVED_DESCRIPTORS = 4096

# How long connections are served before new ones are accepted.
ROUND_S = 0.02

# And before the results are processed and other tasks run. Many connections with little to do are one step:
# thousands of short programs would else spend a fifth of their time between steps.
STEP_S = 0.001

# Pause after an unexpected exception, so that a repeated one takes no cpu.
PAUSE_S = 0.1

# Pause until the next message to a busy service manager. (poll(2) would report its socket writable before
# there is space for another descriptor, ETOOMANYREFS.)
STORE_RETRY_S = 0.05


@attrs.frozen
class Serving:
    """The result of `serve` once both sockets listen."""

    runtime: runtime.Runtime
    """The daemon's folders."""
    daemon: Daemon


async def serve(
    directory: str | os.PathLike[str] | None = None,
    options: DaemonOptions | None = None,
    *,
    listen_fds: Sequence[sd_notify.ListenFd] = (),
    store: FdStore | None = None,
    ends_with_parent: bool = False,
    task_status: "trio.TaskStatus[Serving]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a daemon in `directory` (default: UTRACEFS_DIR, else the user's) until cancelled.

    `listen_fds` are sockets that systemd opened; their names say which is which, and the files stay
    systemd's. Data rings among them were kept by `store`, which is closed here.

    `ends_with_parent`: no daemon takes over its state if it is killed; the next daemon of the same user
    removes that.

    At the end the sockets made here are removed and every status byte is zero. Records and settings stay for
    the next daemon, unless the daemon's `remove_state` was set before it is cancelled; an error never removes
    them. TraceError: EBUSY, EADDRINUSE (a daemon runs there already), EPERM, ENOTDIR, ENAMETOOLONG (the
    directory), EINVAL (no such group), ENOENT (no such plug-in); OSError.
    """
    place, options = runtime.locate(directory), options or DaemonOptions()
    store = store or FdStore(sd_notify.Notifier(None, None))
    group, tracefs_group = options.group, options.tracefs_group
    data_gid = group_id(DEFAULT_GROUP, required=False) if group is None else group_id(group, required=True)
    tracefs_gid = None if tracefs_group is None else group_id(tracefs_group, required=True)
    sockets, stored = take_stored(listen_fds)
    given = given_sockets(sockets)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(store.close)
        for sock in given.values():
            stack.callback(sock.close)
        # The lock makes this the only daemon here: what is removed below belongs to none.
        place = place.prepare(reachable=data_gid is not None or tracefs_gid is not None)
        stack.enter_context(place.locked())
        stack.callback(place.remove_status_folder)
        place.mark(ends_with_parent=ends_with_parent)
        stack.callback(place.unmark)
        runtime.remove_left_over(place.uid)
        daemon = Daemon(
            options,
            status_path=place.status_file,
            max_descriptors=_max_descriptors(),
            now_ns=time.monotonic_ns,
            started_ms=time.time_ns() // 1_000_000,
            state_folder=place.status_folder,
            store=store,
            stored=[one.fd for one in stored],
        )
        stack.push(functools.partial(_close, daemon))
        # Sockets last: a client that connects finds a complete daemon.
        listeners = [
            given.get(path.name) or stack.enter_context(listening(path, gid))
            for path, gid in ((place.data_socket, data_gid), (place.tracefs_socket, tracefs_gid))
        ]
        daemon.data.acceptor.listen(listeners[0])
        daemon.tracefs.acceptor.listen(listeners[1])
        daemon.listens()
        # Last it takes off the queue all that has arrived, for `take_in_last`.
        stack.callback(daemon.data.acceptor.take, daemon.now_ns)
        async with trio.open_nursery() as nursery:
            Server(daemon).start(nursery, store)
            daemon_log("listening", directory=place.directory, status_file=place.status_file)
            task_status.started(Serving(place, daemon))


def _close(
    daemon: Daemon, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
) -> None:
    """Only cancelling may remove the state: after an error the next daemon can use it."""
    if error is not None and not _is_cancellation(error):
        daemon.remove_state = False
    daemon.close()


def _is_cancellation(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_cancellation, error.exceptions))
    return isinstance(error, trio.Cancelled | KeyboardInterrupt)


class Server:
    """The tasks around one daemon, and the events between them."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._planned_ns: int | None = None
        self._plan_changed = trio.Event()
        self._gathered = trio.Event()
        self._rang = trio.Event()
        """A doorbell rang."""
        self._answered = trio.Event()
        """Since then all doorbells may ring again."""
        self._note_gathered()

    def start(self, nursery: trio.Nursery, store: FdStore) -> None:
        nursery.start_soon(self.port, self.daemon.data)
        nursery.start_soon(self.tree)
        nursery.start_soon(self.rings, self.daemon.rings)
        nursery.start_soon(self.doorbells, self.daemon.rings)
        nursery.start_soon(self.timers)
        nursery.start_soon(self.store, store)

    def _note_gathered(self) -> None:
        if not self.daemon.rings.gathering:
            self._gathered.set()

    async def tree(self) -> None:
        """Administrators wait until the rings of the previous daemon are back: records committed before their
        request must be in the response. That wait is bounded (GATHER_NS and HAND_OVER_NS of daemon.py)."""
        await self._gathered.wait()
        await self.port(self.daemon.tracefs)

    async def port(self, port: Port) -> None:
        """Carry out requests of clients, one connection after the other, each for a bounded time."""
        while True:
            more = port.has_more
            collector.look(idle=not more and not self.daemon.rings.intake.is_behind)
            # The one place where other tasks run, but for long rounds.
            if more:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(port.fileno())
            try:
                ready = port.ready()
            except Exception as error:  # noqa: BLE001 - counted and logged
                await self._fault(error, "waiting for clients failed")
                continue
            began_s = step_s = time.monotonic()
            for accepted in ready:
                port.pump(accepted)
                now_s = time.monotonic()
                if now_s - began_s >= ROUND_S:
                    break
                if now_s - step_s >= STEP_S:
                    self.step_done()
                    await trio.lowlevel.checkpoint()
                    step_s = time.monotonic()
            self.step_done()  # also without any: a connection was accepted, read or closed

    async def rings(self, rings: Rings) -> None:
        """Take in the records that producers commit to their data rings.

        Asleep there is no timer, except for a second after a flood: the first record rings a doorbell. Awake
        there are no doorbells, except where a ring fills; a round follows every `poll_s`, until LINGER_ROUNDS
        rounds were empty.
        """
        while True:
            with trio.move_on_after(GIVE_BACK_S if rings.intake.has_large else math.inf) as sleep:
                await self._rang.wait()
            if sleep.cancelled_caught:
                self._round(rings)  # gives memory back; producers still ring their doorbells
                self.step_done()
                continue
            rings.want_wakeup(False)
            empty_rounds = 0
            while True:
                self._answer_doorbells(rings)
                taken = self._round(rings, ROUND_RECORDS)
                self.step_done()
                if rings.intake.is_behind:
                    await trio.lowlevel.checkpoint()
                    continue
                empty_rounds = 0 if taken else empty_rounds + 1
                if empty_rounds > LINGER_ROUNDS:
                    rings.want_wakeup(True)
                    # This finds records committed before producers saw the flag; a later commit rings the
                    # doorbell.
                    if not self._round(rings) and not rings.intake.has_more:
                        break
                    rings.want_wakeup(False)
                    self.step_done()
                    empty_rounds = 0
                with trio.move_on_after(rings.poll_s):
                    await self._rang.wait()

    async def doorbells(self, rings: Rings) -> None:
        """A task of its own: beginning to wait and giving up would be two system calls per round."""
        while True:
            await trio.lowlevel.wait_readable(rings.fileno())
            answered = self._answered = trio.Event()
            self._rang.set()
            await answered.wait()

    def _answer_doorbells(self, rings: Rings) -> None:
        if self._rang.is_set():
            rings.answer_doorbells()
            self._rang = trio.Event()
            self._answered.set()

    def _round(self, rings: Rings, budget: int | None = None) -> int:
        try:
            return rings.round(budget)
        except Exception as error:  # noqa: BLE001 - counted and logged
            self.daemon.faults.note(error, "taking in from data rings failed")
            return 0

    async def timers(self) -> None:
        """Run the daemon's timers when due; sleep without a timer while there is none."""
        while True:
            self._plan_changed = trio.Event()
            self._planned_ns = self.daemon.next_deadline_ns()
            wait_s = math.inf
            if self._planned_ns is not None:
                wait_s = max(0.0, (self._planned_ns - time.monotonic_ns()) / 1e9)
            with trio.move_on_after(wait_s):
                await self._plan_changed.wait()
            try:
                self.daemon.on_time(time.monotonic_ns())
                self._note_gathered()
            except Exception as error:  # noqa: BLE001 - counted and logged
                await self._fault(error, "what was due failed")

    async def _fault(self, error: Exception, what: str) -> None:
        self.daemon.faults.note(error, what)
        await trio.sleep(PAUSE_S)

    async def store(self, store: FdStore) -> None:
        """Send queued messages when the service manager reads again."""
        blocked = trio.Event()
        store.on_blocked = lambda: blocked.set()
        while True:
            if store.flush():
                await blocked.wait()
                blocked = trio.Event()
            await trio.sleep(STORE_RETRY_S)

    def step_done(self) -> None:
        """Process the results of a step, and plan the next timer."""
        try:
            self.daemon.hand_on()
            self._note_gathered()
        except Exception as error:  # noqa: BLE001 - counted and logged
            self.daemon.faults.note(error, "handing on what a step brought failed")
        deadline_ns = self.daemon.next_deadline_ns()
        if deadline_ns is not None and (self._planned_ns is None or deadline_ns < self._planned_ns):
            self._plan_changed.set()


def _max_descriptors() -> int:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 20
    return soft - min(RESERVED_DESCRIPTORS, soft // 2)
