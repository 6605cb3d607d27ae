"""The edge: sockets and clocks around a Daemon that knows none of them.

    serve                          one daemon until cancelled, inside any trio program
     ├── data                      waits for the data port (all producers hang on one epoll descriptor), pumps in turns
     ├── rings                     asleep until a doorbell rings; then takes in from all data rings in short rounds
     ├── accept                    the tracefs socket; starts one Session for each connection
     │    └── Session              reads requests, sends replies; a writer only while something waits to be sent
     └── timers                    sleeps until the daemon's next deadline; without one, until there is one

Everything between two awaits is one step that nobody interrupts. A step takes in a bounded share of one producer's
records, or carries out one request, so neither a flooding producer nor a busy administrator keeps the others waiting
for long. An idle daemon waits for its descriptors and has no timer.

Errors: a client's mistakes are answered or end its connection, and are no news for the log. A mistake of ours in a
request is logged with its traceback, answered with EIO, and the daemon goes on. Accepting survives what trio's
serve_listeners survives. Only what makes the daemon useless ends it: its directory, its lock, its sockets.
"""

import contextlib
import errno
import logging
import math
import os
import resource
import socket
import time
from collections.abc import Sequence

import attrs
import trio

from utracefs_protocol.connection import encode_notification
from utracefs_protocol.limits import USER_EVENTS_MAX
from utracefsd.connections.link import Link, peer_of
from utracefsd.connections.tracefs_connection import Reply, TracefsConnection
from utracefsd.daemon import Daemon
from utracefsd.intake.rings import LINGER_ROUNDS, POLL_S, ROUND_RECORDS, Rings
from utracefsd.server import runtime, sd_notify
from utracefsd.server.listeners import given_sockets, group_id, listening

logger = logging.getLogger("utracefsd")

DEFAULT_GROUP = "tracing"

# Descriptors kept from producers: listeners, status file, administrators' connections, perf rings, plug-ins.
RESERVED_DESCRIPTORS = 256

# Each may hold a tree's worth of handles; a screenful of tools has a handful.
MAX_TRACEFS_CONNECTIONS = 256

# While more than this waits to be read by a client of the tree, its further requests are not looked at. One reply may
# be larger (read_file up to 64 MiB).
MAX_WAITING_BYTES = 1 << 20

PIECE_BYTES = 64 << 10

# A client that ended its half of the connection has this long to read what it asked for.
LAST_WORDS_S = 1.0

# As in trio._highlevel_serve_listeners.
ACCEPT_PAUSE_S = 0.1

_CAPACITY_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}


@attrs.frozen
class Serving:
    """What `serve` reports once both sockets listen."""

    runtime: runtime.Runtime
    """Where they are."""

    daemon: Daemon
    """What answers there."""

    server: "Server"
    """The tasks that carry the questions to it."""


async def serve(
    directory: str | os.PathLike[str] | None = None,
    *,
    status_pages: int = 1,
    buffer_size_kb: int | None = None,
    user_events_max: int = USER_EVENTS_MAX,
    plugins: Sequence[str] | None = None,
    group: str | None = None,
    tracefs_group: str | None = None,
    listen_fds: Sequence[sd_notify.ListenFd] = (),
    discard_state: bool = False,
    task_status: trio.TaskStatus[Serving] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a daemon in `directory` (default: UTRACEFS_DIR, else the user's) until cancelled.

    `plugins`: entry points to load, all installed ones when None. `group` may be traced (default: `tracing` where that
    group exists), `tracefs_group` may administer. `listen_fds` are sockets that systemd opened; their names say which is
    which, and the files stay systemd's.

    What a daemon left in the same directory that died is gone on with, unless `discard_state`.

    At the end, however it comes, the sockets made here are removed and every status byte is zero; what has been recorded
    and set is removed, too, unless the daemon's `keep_state` says that a successor shall have it.

    Raises TraceError when it cannot start: EBUSY, EADDRINUSE (a daemon is there already), EPERM, ENOTDIR,
    ENAMETOOLONG (the directory), EINVAL (no such group), ENOENT (no such plug-in); and OSError from the sockets.
    """
    place = runtime.locate(directory)
    data_gid = group_id(DEFAULT_GROUP, required=False) if group is None else group_id(group, required=True)
    tracefs_gid = None if tracefs_group is None else group_id(tracefs_group, required=True)
    given = given_sockets(listen_fds)
    async with contextlib.AsyncExitStack() as stack:
        for sock in given.values():
            stack.callback(sock.close)
        place.prepare(reachable=data_gid is not None or tracefs_gid is not None)
        stack.enter_context(place.locked())
        stack.callback(place.remove_status_folder)
        daemon = Daemon(
            status_path=place.status_file,
            status_pages=status_pages,
            buffer_size_kb=buffer_size_kb,
            user_events_max=user_events_max,
            plugins=plugins,
            max_connections=_max_connections(),
            now_ns=time.monotonic_ns,
            state_folder=place.status_folder,
            discard_state=discard_state,
        )
        stack.callback(daemon.close)
        listeners = [
            given.get(path.name) or stack.enter_context(listening(path, gid))
            for path, gid in ((place.data_socket, data_gid), (place.tracefs_socket, tracefs_gid))
        ]
        daemon.data.listen(listeners[0])
        async with trio.open_nursery() as nursery:
            server = Server(daemon)
            nursery.start_soon(server.data)
            if daemon.rings is not None:
                nursery.start_soon(server.rings, daemon.rings)
            nursery.start_soon(server.accept, listeners[1])
            nursery.start_soon(server.timers)
            logger.info("sockets in %s, status file %s", place.directory, place.status_file)
            task_status.started(Serving(place, daemon, server))


class Server:
    """The tasks around one daemon, and what they tell each other."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.sessions: set[Session] = set()
        self._planned_ns: int | None = None
        self._plan_changed = trio.Event()

    async def data(self) -> None:
        """Take in what producers send, one connection after the other, each a bounded share of a turn."""
        port = self.daemon.data
        while True:
            await trio.lowlevel.wait_readable(port.fileno())
            for data_link in port.ready():
                port.pump(data_link)
                self.settle()
                await trio.lowlevel.checkpoint()
            self.settle()

    async def rings(self, rings: Rings) -> None:
        """Take in what producers commit to their data rings.

        Asleep there is no timer: the first record rings a doorbell. Awake nobody rings, except where a ring passes half
        full; records are looked for every POLL_S, until nothing came for LINGER_ROUNDS.
        """
        while True:
            await trio.lowlevel.wait_readable(rings.fileno())
            rings.want_wakeup(False)
            empty_rounds = 0
            while True:
                rings.answer_doorbells()
                taken = self.daemon.take_in_rings(ROUND_RECORDS)
                self.settle()
                if taken == ROUND_RECORDS:
                    await trio.lowlevel.checkpoint()
                    continue
                empty_rounds = 0 if taken else empty_rounds + 1
                if empty_rounds > LINGER_ROUNDS:
                    rings.want_wakeup(True)
                    # Whoever committed before it could see that is found now, whoever commits later rings.
                    if not self.daemon.take_in_rings():
                        break
                    rings.want_wakeup(False)
                    self.settle()
                    empty_rounds = 0
                with trio.move_on_after(POLL_S):
                    await trio.lowlevel.wait_readable(rings.fileno())

    async def accept(self, listener: socket.socket) -> None:
        """Accept administrators, each into a task of its own."""
        listener.setblocking(False)
        owner_uid = os.geteuid()
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(listener)
                try:
                    sock, _address = listener.accept()
                except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                    continue
                except OSError as error:
                    if error.errno not in _CAPACITY_ERRNOS:
                        raise
                    logger.error("tracefs: accepting pauses: %s", error.strerror)
                    await trio.sleep(ACCEPT_PAUSE_S)
                    continue
                link = Link(sock, peer_of(sock, owner_uid=owner_uid))
                if len(self.sessions) >= MAX_TRACEFS_CONNECTIONS:
                    text = f"{MAX_TRACEFS_CONNECTIONS} connections to the tree are open, which is the limit"
                    link.queue(encode_notification("error", [errno.EMFILE, text]))
                    link.flush()
                    link.finish()
                    continue
                session = Session(self, link, self.daemon.open_tracefs(link.peer))
                self.sessions.add(session)
                nursery.start_soon(session.run)

    async def timers(self) -> None:
        """Be there when something is due; sleep without a timer while nothing is."""
        while True:
            self._plan_changed = trio.Event()
            self._planned_ns = self.daemon.next_deadline_ns()
            wait_s = math.inf
            if self._planned_ns is not None:
                wait_s = max(0.0, (self._planned_ns - time.monotonic_ns()) / 1e9)
            with trio.move_on_after(wait_s):
                await self._plan_changed.wait()
            self.daemon.on_time(time.monotonic_ns())

    def settle(self) -> None:
        """After every step: hand out what it brought, to consumers and to those who wait to read; plan what is due."""
        self.daemon.settle()
        for session in [session for session in self.sessions if session.connection.waiting]:
            session.retry()
        deadline_ns = self.daemon.next_deadline_ns()
        if deadline_ns is not None and (self._planned_ns is None or deadline_ns < self._planned_ns):
            self._plan_changed.set()


class Session:
    """One connection to the tracefs socket."""

    def __init__(self, server: Server, link: Link, connection: TracefsConnection) -> None:
        self.server = server
        self.link = link
        self.connection = connection
        self._nursery: trio.Nursery | None = None
        self._drained = trio.Event()
        self._drained.set()

    async def run(self) -> None:
        """Serve it to its end. A mistake of ours ends this connection and nothing else."""
        try:
            async with trio.open_nursery() as self._nursery:
                await self._requests()
                with trio.move_on_after(LAST_WORDS_S):
                    await self._drained.wait()
                self._nursery.cancel_scope.cancel()
        except Exception:
            logger.exception("the connection of pid %d ends by a mistake of ours", self.link.peer.pid)
        finally:
            self.server.sessions.discard(self)
            self.connection.close()
            self.link.finish()
            self.server.settle()

    def retry(self) -> None:
        """Something may have come that a read waits for."""
        if self._room():
            for reply in self.connection.retry():
                self._send(reply)
                if not self._room():
                    break

    async def _requests(self) -> None:
        while not self.connection.closing:
            await trio.lowlevel.wait_readable(self.link.sock)
            piece = self.link.receive(PIECE_BYTES)
            if piece is None:
                continue
            data, fds = piece
            for fd in fds:  # nothing here takes descriptors
                os.close(fd)
            if not data:
                return
            for reply in self.connection.receive(data):
                self.server.daemon.save()
                self._send(reply)
                self.server.settle()
                await trio.lowlevel.checkpoint()
                while not self._room():
                    await self._drained.wait()

    def _room(self) -> bool:
        return self.link.waiting_bytes <= MAX_WAITING_BYTES

    def _send(self, reply: Reply) -> None:
        self.link.queue(reply.data, reply.fds)
        if self._drained.is_set() and not self.link.flush():
            self._drained = trio.Event()
            assert self._nursery is not None
            self._nursery.start_soon(self._write)

    async def _write(self) -> None:
        while not self.link.flush():
            await trio.lowlevel.wait_writable(self.link.sock)
        self._drained.set()
        self.retry()


def _max_connections() -> int:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 20
    return max(16, soft - RESERVED_DESCRIPTORS)
