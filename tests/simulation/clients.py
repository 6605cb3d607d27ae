"""The C client in the world: client, daemon and successor are one run, decided by a list of steps.

Each program is a process of its own, client/c/tests/simulated.c: the library as it is built, with the world
behind its clock, its connect(2), its waits and its process id. It runs only while it carries out a command of
the world, which waits for the answer. So threads, forks, kills and exits are real, and a run depends on its
steps alone.

The model: each record that a program has emitted is in the ring buffer once, in the order of its program, or
in one number: lost, unwanted or refused, as its program counts them. Records of a program that has ended are
in the buffer, unless no daemon can have its ring.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import mmap
import os
import random
import re
import select
import signal
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from tests.client.c.building import SOURCE, build
from tests.simulation.base import USERS
from tests.simulation.mixture import Step
from tests.simulation.parts import LINE, Wrong, expect
from tests.simulation.world import World
from tests.simulation.world import world as a_world
from utracefsd.daemon import GATHER_NS, HAND_OVER_NS, LOOK_AGAIN_NS

_COMMAND = struct.Struct("<IiQQ512s")
_REPLY = struct.Struct("<IiII2Q8Q")
FOREVER = (1 << 64) - 1

MS = 1_000_000
SEC = 1000 * MS
EVENTS = [f"e{i} u64 n; u32 k; __rel_loc char[] s" for i in range(4)]
MOST_CLIENTS = 4
BUFFER_KB = 512
STUCK_S = 20.0
"""A process that runs so long without a wait never ends: its time does not pass."""
CLOSE_NS = SEC // 2
"""An exit waits so long at most (UT_CLOSE_NS)."""
DIRECTORY = "/simulated"


def _enum_with(member: str, file: str, start: int = 0) -> Any:
    """The enum of a C file whose first member is this one. start: its number, if the file gives none."""
    text = re.sub(r"/\*.*?\*/", "", (SOURCE / file).read_text(), flags=re.DOTALL)
    found = re.search(rf"enum\b[^{{;]*\{{\s*({member}\b[^}}]*)\}}", text)
    assert found, member
    members = [line.partition("=") for line in re.sub(r"\s", "", found[1]).strip(",").split(",")]
    numbers = {name.removeprefix("UT_"): int(n or i) for i, (name, _, n) in enumerate(members, start)}
    return IntEnum(member, numbers)


Command = _enum_with("START", "tests/simulated.c")
Answer = _enum_with("DONE", "tests/simulated.c")
Flag = _enum_with("HAS_THREAD", "tests/simulated.c")
Session = _enum_with("UT_NEW", "src/connection/states.h", 1)
"""The state of a program's session; 0: it has none."""


class Ended(Exception):
    """The process has ended."""


@attrs.frozen
class Reply:
    what: int
    result: int
    flags: int
    session: int
    thread_until: int
    main_until: int
    values: tuple[int, ...]


class Host:
    """The process that makes the others, and the clock that they see."""

    def __init__(self, binary: Path) -> None:
        self._control, theirs = control()
        clock = os.memfd_create("clock")
        os.ftruncate(clock, 4096)
        self._clock = mmap.mmap(clock, 4096)
        given = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs.fileno(), clock)]
        actions = [(os.POSIX_SPAWN_DUP2, fd, 3 + i) for i, fd in enumerate(given)]
        self._pid = os.posix_spawn(binary, ["simulated"], {}, file_actions=actions)
        for fd in (*given, clock):
            os.close(fd)
        theirs.close()

    def set_clock(self, now: int) -> None:
        self._clock[:8] = now.to_bytes(8, "little")

    def start(self, pid: int, environment: str) -> socket.socket:
        """Its control."""
        ours, theirs = control()
        command = _COMMAND.pack(Command.START, pid, 0, 0, environment.encode())
        try:
            socket.send_fds(self._control, [command], [theirs.fileno()])
        except BrokenPipeError:
            raise RuntimeError(f"the first process has ended: {os.waitpid(self._pid, 0)}") from None
        theirs.close()
        return ours

    def close(self) -> None:
        self._control.close()
        self._clock.close()
        os.waitpid(self._pid, 0)


def control() -> tuple[socket.socket, socket.socket]:
    """The world's end, and the process's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(STUCK_S)
    return ours, theirs


Then = Callable[[Reply], object]


class Client:
    """A program."""

    def __init__(self, world: ClientWorld, pid: int, uid: int, control: socket.socket) -> None:
        """It says its real process id first."""
        self._world = world
        self.pid, self.uid = pid, uid
        self._control = control
        self.doing: list[tuple[int, Then]] = []
        """Commands that wait, and what is to be done with their answers; the innermost is last."""
        self._pidfd = os.pidfd_open(self._next().result)
        self.declared: set[int] = set()
        self.is_closed = False
        self.has_others_numbers = False
        """Its parent had closed the library when it forked."""
        self.emitted: list[Emitted] = []
        self.tried: Counter[int] = Counter()
        """By event: records that were committed, or found no room."""
        self.seen: Counter[int] = Counter()
        self.last_began = 0
        """The latest beginning of a command whose records were seen."""
        self.generation = 0
        """The number of the daemon that it has connected to."""
        self.exits: tuple[int, int] | None = None
        """When it called exit(3), and the daemon of that time."""
        self.has_closed_ring = self.has_new_ring = self.has_held = self.is_unsure = False
        self.missing: Counter[int] = Counter()
        """By event: records that it could not know to be lost."""
        self.pending: Counter[int] = Counter()
        """By event: records that were in the ring of a closed session at the last look."""
        self.unsure: Counter[int] = Counter()
        """By event: records without a ring, which are lost, or the event went off meanwhile."""
        self.may_be_killed = False
        """It need not have come to the end of its exit(3)."""
        self.is_child = self.by_socket = False
        self.parent: Client | None = None
        """It has the connection of this one, too: it was forked without handlers."""
        self.held: tuple[int, Emitted] | None = None
        """A record that a thread is writing: its number, or 0 in a child."""
        self.is_safe = self.is_read = False
        """It has ended: whether its daemon has its ring, and has read it."""

    def child(self, pid: int, control: socket.socket) -> Client:
        """The process that a fork of it made."""
        made = Client(self._world, pid, self.uid, control)
        made.doing = [(what, lambda reply: None) for what, _ in self.doing]
        made.is_child, made.by_socket = True, self.by_socket
        if self.held is not None:
            made.held = 0, self.held[1]
            made.is_unsure = self.has_new_ring  # the record may be in the former one, where none is counted
        made.declared = set(self.declared)
        made.is_closed = made.has_others_numbers = self.is_closed
        return made

    def descriptors(self) -> set[int]:
        return {self._control.fileno(), self._pidfd}

    @property
    def waits(self) -> bool:
        """Its main thread."""
        return bool(self.doing)

    @property
    def is_stopped(self) -> bool:
        """One of its threads."""
        return bool(self.last.flags & (Flag.THREAD_IS_STOPPED | Flag.MAIN_IS_STOPPED))

    @property
    def has_thread(self) -> bool:
        return bool(self.last.flags & Flag.HAS_THREAD)

    def ask(
        self, what: int, a: int = 0, b: int = 0, c: int = 0, text: str = "", *, fd: int = -1, then: Then
    ) -> None:
        self._send(_COMMAND.pack(what, a, b, c, text.encode()), fd)
        reply = self._next()
        if reply.what == Answer.DONE:
            then(reply)
        else:
            self.doing.append((what, then))

    def turn(self) -> bool:
        """A turn of its native thread: whether it had something to do."""
        if not self.has_thread:
            return False
        self._send(_COMMAND.pack(Command.TURN, 0, 0, 0, b""))
        return bool(self._next().result)

    def resume(self) -> bool:
        """Its main thread, which waits: whether it need not any more."""
        if not self.doing:
            return False
        self._send(_COMMAND.pack(Command.RESUME, 0, 0, 0, b""))
        reply = self._next()
        if reply.what == Answer.DONE:
            self.doing.pop()[1](reply)
        return bool(reply.what != Answer.WAITS_ON)

    def due(self) -> int:
        """When one of its threads looks again by itself."""
        times = [self.last.thread_until] * self.has_thread + [self.last.main_until] * self.waits
        return min(times, default=FOREVER)

    def _send(self, data: bytes, fd: int = -1) -> None:
        self._world.host.set_clock(self._world.machine.now)
        try:
            socket.send_fds(self._control, [data], [fd] if fd >= 0 else [])
        except (BrokenPipeError, ConnectionResetError):
            raise Ended from None

    def _next(self) -> Reply:
        while True:
            try:
                data = self._control.recv(_REPLY.size)
            except ConnectionResetError:
                data = b""
            except TimeoutError:
                raise Wrong(
                    f"{self.pid} neither waits nor ends, within {[what for what, _ in self.doing]}"
                ) from None
            if not data:
                raise Ended
            what, result, flags, session, thread_until, main_until, *values = _REPLY.unpack(data)
            if what != Answer.CONNECTS:
                self.last = Reply(what, result, flags, session, thread_until, main_until, tuple(values))
                return self.last
            self.last = attrs.evolve(self.last, flags=self.last.flags & ~Flag.ALL_IS_SENT)  # to the next one
            sock = self._world.connect(self)
            if isinstance(sock, int):
                self._send(_COMMAND.pack(0, sock, 0, 0, b""))
            else:
                self._send(_COMMAND.pack(0, 0, 0, 0, b""), sock.fileno())
                sock.close()

    def kill(self) -> None:
        """Its descriptors are closed when this returns."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self.bury()

    def bury(self) -> None:
        """It has ended, or is about to."""
        if not select.select([self._pidfd], [], [], 60)[0]:
            raise Wrong("a process does not end")
        self._control.close()
        os.close(self._pidfd)


@attrs.define
class Emitted:
    """Records of one command, numbered from `first` on. Of two commands of a program that do not overlap the
    records of the earlier one come first."""

    client: Client
    event: int
    began: int
    ended: int = FOREVER
    committed: set[int] = attrs.Factory(set)
    seen: set[int] = attrs.Factory(set)


class ClientWorld(World):
    """A world whose programs are clients."""

    def __init__(self, folder: Path, host: Host) -> None:
        self.host = host
        super().__init__(folder)
        self.machine.tick_ns = 1  # records that arrive later have a later time, also on another cpu
        self.clients: list[Client] = []
        self.gone: list[Client] = []
        """Programs that have ended, whose records are not looked at yet."""
        self.emitted: dict[int, Emitted] = {}
        """By number of record."""
        self.generation = 0
        """The number of the daemon."""
        self._commands = 0
        self._is_set_up = False
        self._bytes = 0
        """The size of the records since the last look."""
        self._full_until = 0
        """The daemon's queue of new connections."""
        self._was_off: set[int] = set()
        """Events that were off at some time since the last look."""

    # A run

    def _start(self) -> None:
        super()._start()
        self.generation += 1
        if not self._is_set_up:
            self._is_set_up = True
            self._tree("write_file", "buffer_size_kb", b"%d" % BUFFER_KB, True)
            self._tree("write_file", "standing_events", b"user_events:*\n", True)

    def _end(self, *_: Any) -> None:
        """All programs end, then the daemon, and nothing is left."""
        for client in list(self.clients):
            self._exits(client)
        self._settle(SEC)
        if self.clients:
            raise Wrong(f"programs do not end: {[client.pid for client in self.clients]}")
        self._look()
        self._live.remove_state = True
        self._live.close()
        self.daemon = None
        self._connections_end()
        self._look_at_descriptors()
        if left := [path.name for path in self.folder.iterdir()]:
            raise Wrong(f"files left: {left}")

    def _bury(self) -> None:
        for client in self.clients:
            client.kill()
        self.clients.clear()
        super()._bury()

    def _look_at_status(self) -> None: ...

    def _kept(self) -> set[int]:
        return super()._kept().union(*(client.descriptors() for client in self.clients))

    # Daemons

    def _die(self, falls: Any = ()) -> None:
        self.disk.dead = True
        self._bury_descriptors()
        self._daemon_ended()

    def _daemon_ended(self) -> None:
        self.daemon = None
        self._connections_end()
        self.disk.revive()
        for client in self.gone:
            client.is_safe &= client.is_read
        self.generation += 1
        self._note_unsure(self.clients)

    def _killed_within(self) -> None:
        self._asked, self._begun = None, []
        self._die()

    def _pump(self, *, stalled: bool = False) -> None:
        if self.daemon is not None:
            super()._pump(stalled=stalled)
            if not self.daemon.rings.gathering:
                for client in self.gone:
                    client.is_read = True
                for client in self.clients:
                    client.has_closed_ring &= client.generation != self.generation

    def _gather(self) -> None:
        until = self.machine.now + GATHER_NS + HAND_OVER_NS + LOOK_AGAIN_NS
        while self._live.rings.gathering:
            if self.machine.now > until:
                raise Wrong("gathering rings never ends")
            self._settle(50 * MS)

    def connect(self, client: Client) -> socket.socket | int:
        """Or an errno."""
        if self.daemon is None:
            return errno.ECONNREFUSED
        if self.machine.now < self._full_until:
            self.reached["a full queue"] += 1
            return errno.EAGAIN
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.machine.owner_of[ours.fileno()] = client.pid, client.uid
        self.listeners[0].arrive(ours)
        client.generation = self.generation
        return theirs

    # Programs

    def _tell(
        self,
        client: Client,
        what: int,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        text: str = "",
        *,
        fd: int = -1,
        then: Then = lambda reply: None,
    ) -> None:
        """then: called with the answer, which may come late; not if its process ends before."""
        with self._its_end(client):
            client.ask(what, a, b, c, text, fd=fd, then=then)

    @contextlib.contextmanager
    def _its_end(self, client: Client) -> Iterator[None]:
        """Its process may end meanwhile."""
        try:
            yield
        except Ended:
            client.bury()
            self._has_ended(client)
            if not (client.exits or client.may_be_killed):
                raise Wrong(f"{client.pid} has crashed") from None

    def _run(self, client: Client) -> bool:
        """Each of its threads, until it waits again: whether there was something to do."""
        was_busy = False
        with self._its_end(client):
            was_busy = client.turn()
            was_busy |= client.resume()
        return was_busy

    def _has_ended(self, client: Client) -> None:
        self.clients.remove(client)
        del self.machine.processes[client.pid]
        self.gone.append(client)
        last = client.last
        has_ring = last.session in (Session.OFFERED, Session.UP) and bool(last.flags & Flag.ALL_IS_SENT)
        if (
            client.exits
            and not client.may_be_killed
            and self.machine.now < client.exits[0] + CLOSE_NS - 100 * MS
        ):
            has_ring = last.session in (
                Session.NEW,
                Session.OFFERED,
                Session.UP,
                Session.SOCKET,
                Session.SENDS,
            )
            if last.session == Session.NEW:
                client.generation = client.exits[1]
        has_daemon = self.daemon is not None and client.generation == self.generation
        # Its daemon waits a second for a record that was not committed, and those behind it. Before it hears
        # of a second connection it may see that the first one has ended, and who had both: then nobody
        # registers the events of the other records.
        is_cut = client.has_new_ring and (client.held is not None or last.session == Session.OFFERED)
        client.is_safe = has_ring and has_daemon and not client.is_unsure and not is_cut
        self._note(f"  {client.pid} has ended, {'safe' if client.is_safe else 'unsafe'}")

    def _settle(self, ns: int) -> None:
        """Everybody does what there is to do, for so long."""
        until = self.machine.now + ns
        for _ in range(10_000):
            self._pump()
            busy = False
            for client in list(self.clients):
                busy |= self._run(client)
            if busy:
                continue
            due = min((client.due() for client in self.clients), default=FOREVER)
            if self.daemon is not None and (deadline := self.daemon.next_deadline_ns()) is not None:
                due = min(due, deadline)
            if due > until:
                self.machine.pass_time(max(0, until - self.machine.now))
                self._pump()
                return
            self.machine.pass_time(max(1, due - self.machine.now))
        raise Wrong("programs never rest")

    def _pick_client(self, number: int, *, free: bool = True) -> Client | None:
        found = [client for client in self.clients if not (free and client.waits)]
        return found[number % len(found)] if found else None

    # Steps

    def _program(self, user: int, *_: int) -> None:
        if len(self.clients) < MOST_CLIENTS:
            uid = USERS[0]
            pid = self.machine.start(uid)
            ring = ("RING_KB=64", "RING_KB=64", "RING_KB=2048", "DATA_RING=0")[user % 4]
            environment = f"UTRACEFS_DIR={DIRECTORY} UTRACEFS_{ring} UTRACEFS_BUFFER_KB=64"
            client = Client(self, pid, uid, self.host.start(pid, environment))
            client.by_socket = ring == "DATA_RING=0"
            self.clients.append(client)

    def _declare(self, which: int, event: int, *_: int) -> None:
        if client := self._pick_client(which):
            event %= len(EVENTS)
            client.declared.add(event)
            self._tell(client, Command.DECLARE, event, text=EVENTS[event])

    def _emit(self, which: int, event: int, number: int, how: int) -> None:
        client = self._pick_client(which)
        if client and client.declared:
            self._emit_records_of(client, event, number, 1 + number % 8, (1, 1, 1, 900)[how % 4])

    def _fill(self, which: int, event: int, number: int, *_: int) -> None:
        """More than its ring holds, if that is small."""
        client = self._pick_client(which)
        for _i in range(1 + number % 3):
            if client in self.clients and client.declared and not client.waits:
                self._emit_records_of(client, event, number, 32, 1200)

    def _emit_records_of(self, client: Client, event: int, number: int, count: int, size: int) -> None:
        if self._bytes > BUFFER_KB * 512:
            return  # the buffer would lose records
        self._bytes += count * (size + 64)
        made = self._emitted_by(client, event, count)
        was_waiting = client.last.session == Session.WAITING and not client.is_child
        first = self.numbers - count + 1

        def then(reply: Reply) -> None:
            self._commands += 1
            made.ended = self._commands
            results = [reply.values[0] >> 2 * i & 3 for i in range(count)]
            made.committed = {first + i for i, result in enumerate(results) if result == 1}
            client.tried[made.event] += count - results.count(0)
            if reply.session not in (Session.UP, Session.SENDS):
                client.unsure[made.event] += results.count(2)
            self.reached["a full ring"] += 2 in results
            self._note(f"  {client.pid} e{made.event} from {first}: {results}")
            if was_waiting and reply.session == Session.WAITING and any(results):
                raise Wrong(f"events of {client.pid} are on without a daemon")

        self._tell(client, Command.EMIT, made.event, first, number % 5 | size << 8 | count << 32, then=then)

    def _emitted_by(self, client: Client, event: int, count: int) -> Emitted:
        known = sorted(client.declared)
        first, self.numbers = self.numbers + 1, self.numbers + count
        self._commands += 1
        made = Emitted(client, known[event % len(known)], self._commands)
        client.emitted.append(made)
        self.emitted.update(dict.fromkeys(range(first, first + count), made))
        self.machine.pass_time(100)
        return made

    def _hold(self, which: int, event: int, *_: int) -> None:
        """A thread begins a record, or ends it."""
        client = self._pick_client(which)
        if client is None or not client.declared:
            return
        if client.held:
            self._commit(client)
            return
        made = self._emitted_by(client, event, 1)
        n = self.numbers

        def then(reply: Reply) -> None:
            if reply.result == 1:
                client.held = n, made
                client.has_held = True
            elif reply.result == 2:
                client.tried[made.event] += 1
                client.unsure[made.event] += reply.session not in (Session.UP, Session.SENDS)

        self._tell(client, Command.RESERVE, made.event, then=then)

    def _commit(self, client: Client) -> None:
        """In a child it is lost: it was its parent's."""
        assert client.held is not None
        (n, made), client.held = client.held, None
        client.is_unsure |= client.has_new_ring  # the record may be in the former one
        is_own = n > 0
        if not is_own:
            self.numbers += 1
            n = self.numbers
            self.reached["a child ends its parent's record"] += 1

        def then(_: Reply) -> None:
            self._commands += 1
            client.tried[made.event] += 1
            if is_own:
                made.ended = self._commands
                made.committed = {n}

        self._tell(client, Command.COMMIT, b=n, then=then)

    def _step(self, which: int, *_: int) -> None:
        """Its threads do what there is to do, once."""
        if client := self._pick_client(which, free=False):
            self._run(client)

    def _write(self, *_: int) -> None:
        self._pump()

    def _time(self, how: int, *_: int) -> None:
        self.machine.pass_time((MS, 50 * MS, SEC, 3 * SEC)[how % 4])

    def _settled(self, how: int, *_: int) -> None:
        self._settle((0, 10 * MS, SEC)[how % 3])

    def _begin(self, *_: int) -> None:
        """The next daemon."""
        if self.daemon is None:
            self._start()

    def _kill(self, now: int = 0, *_: int) -> None:
        if self.daemon is not None:
            self._die()
        if now % 3:
            self._start()

    def _restart(self, *_: int) -> None:
        if self.daemon is not None:
            self._pump()
            self._live.close()
            self._restarts += 1
            if self._restarts % 4 == 1:
                self.daemon = None
                self._connections_end()
                self._look_at_descriptors()
            else:
                self._bury_descriptors()
            self._daemon_ended()
        self._start()

    def _fork(self, which: int, how: int, *_: int) -> None:
        """Also in a signal handler, while its thread waits for a flush."""
        client = self._pick_client(which, free=False)
        if (
            client is None
            or len(self.clients) == MOST_CLIENTS
            or any(what != Command.FLUSH for what, _ in client.doing)
            or client.is_stopped
        ):
            return
        pid = self.machine.start(client.uid)
        ours, theirs = control()
        self._tell(client, Command.PLAN)  # nothing: its child is there with the answer
        self._tell(client, Command.FORK, pid, how % 4 == 0, fd=theirs.fileno())
        theirs.close()
        child = client.child(pid, ours)
        if how % 4 == 0:
            child.held = None  # that would be its parent's until its first call that takes the lock
            child.parent = client
        self.clients.append(child)
        self.reached["fork in a wait"] += client.waits
        self.reached["fork without handlers"] += how % 4 == 0

    def _close(self, which: int, *_: int) -> None:
        if client := self._pick_without_record(which):
            client.is_closed = client.has_closed_ring = True
            self._loses_reports(client)
            self._tell(client, Command.CLOSE)

    def _pick_without_record(self, which: int) -> Client | None:
        """One whose threads are not writing a record, which would be in no number."""
        client = self._pick_client(which)
        return None if client and client.held else client

    def _exit(self, which: int, *_: int) -> None:
        if client := self._pick_client(which):
            self._exits(client)

    def _exits(self, client: Client) -> None:
        client.exits = self.machine.now, self.generation
        self._tell(client, Command.EXIT)

    def _flush(self, which: int, how: int, *_: int) -> None:
        if client := self._pick_client(which):
            ms = (0, 20, 3000)[how % 3]
            self._tell(client, Command.FLUSH, ms, then=partial(self._flushed, client, may_fail=True))

    def _plan(self, which: int, ends: int, calls: int, *_: int) -> None:
        """It stops, or is killed, at a call of the system."""
        if client := self._pick_client(which):
            client.may_be_killed |= bool(ends % 2)
            self._tell(client, Command.PLAN, ends % 2, 1 + calls % 30)

    def _cover(self, which: int, keeps: int, *_: int) -> None:
        """It puts a file over the library's socket, which may stay open elsewhere."""
        if client := self._pick_client(which):
            client.has_new_ring = True  # if its daemon sees the end of the connection first
            if client.parent and keeps % 2:  # the daemon does not see the end of its parent, either
                client.parent.has_new_ring = True
            self._loses_reports(client)
            self._tell(client, Command.COVER, keeps % 2)

    def _close_all(self, which: int, *_: int) -> None:
        """It closes all of its descriptors."""
        if client := self._pick_without_record(which):
            client.has_closed_ring = client.has_new_ring = True
            self._loses_reports(client)
            if not client.by_socket and not self._was_off:
                self._note_unsure([client])
            self._tell(client, Command.CLOSE_ALL)

    def _loses_reports(self, client: Client) -> None:
        """The daemon says over the connection how many records it has refused."""
        client.is_unsure |= bool(self._was_off)

    def _note_unsure(self, clients: list[Client]) -> None:
        """A program has closed its ring, and has yet to notice that. A living daemon reads the rest; the
        program does not know whether there is one."""
        for client in clients:
            was_left = client.has_closed_ring and client.generation != self.generation
            # A killed daemon may have refused records, and not said so.
            client.is_unsure |= was_left or client.by_socket or bool(self._was_off)
            client.has_closed_ring &= not was_left

    def _no_room(self, how: int, *_: int) -> None:
        """The daemon has too many new connections for a time."""
        self._full_until = self.machine.now + (MS, 100 * MS, 600 * MS)[how % 3]

    def _turn_off(self, event: int, on: int, *_: int) -> None:
        """An event is off for a time. Without programs it goes, and then its records have no type."""
        event %= len(EVENTS)
        if self.daemon is not None:
            self._look()
            self._was_off.add(event)
            self._tree("write_file", f"events/user_events/e{event}/enable", b"01"[on % 2 : on % 2 + 1], True)

    def _fall_dead(self, which: int, *_: int) -> None:
        if client := self._pick_client(which, free=False):
            client.kill()
            client.may_be_killed = True
            self._has_ended(client)

    # Looks

    def _look(self, which: int = 0, *_: int) -> None:
        """Everything is at rest: the buffer has what it must."""
        if self.daemon is None:
            self._start()
        self._full_until = 0
        self._gather()
        self._settle(2 * SEC)
        for client in [client for client in self.clients if client.held and not client.waits]:
            self._commit(client)
        self._settle(SEC)
        on = self._events_on()
        for client in list(self.clients):
            self._each_status(client, partial(self._check_status, on))
        for client in [client for client in self.clients if not client.waits]:
            if client.held:  # until now it waited for that in a flush
                self._commit(client)
            if client in self.clients and not client.waits:
                self._tell(client, Command.FLUSH, 5000, then=partial(self._flushed, client))
        self._settle(SEC * (5 if self._was_off else 1) + 200 * MS)  # reports of refused records are rare
        text = self._read_files(["trace"])["trace"]
        self._tree("write_file", "trace", b"", True)
        self._bytes = 0
        numbers = []
        for *_, name, n, _ in LINE.findall(text):
            self._see(int(n), name.decode())
            numbers.append(int(n))
        self._note(f"  looked: {numbers}")
        for client in list(self.clients):
            if not client.waits and not client.has_others_numbers:
                self._each_status(client, self._count)
            if client in self.clients and not client.waits:
                client.is_unsure = client.has_new_ring = client.has_held = False
                client.emitted.clear()  # all of them are in a number
        for client in self.gone:
            self._check_gone(client)
        self.gone.clear()
        self._was_off = set(range(len(EVENTS))) - on

    def _events_on(self) -> set[int]:
        names = self._tree("read_file", "set_event").decode().split()
        return {event for event, text in enumerate(EVENTS) if "user_events:" + text.split()[0] in names}

    def _each_status(self, client: Client, then: Callable[[Client, int, Reply], object]) -> None:
        for event in sorted(client.declared):
            if client in self.clients and not client.waits:  # also after the answer for another one
                self._tell(client, Command.STATUS, event, then=partial(then, client, event))

    def _check_status(self, on: set[int], client: Client, event: int, reply: Reply) -> None:
        """It says whether a consumer is attached. A child waits for its first record."""
        wanted = {Session.FORKED: 0x40, Session.SENDS if client.by_socket else Session.UP: int(event in on)}
        if client.is_closed:
            wanted = {reply.session: 0}
        expect(f"status of e{event} in {client.pid}", reply.values[0], wanted.get(reply.session))

    def _flushed(self, client: Client, reply: Reply, *, may_fail: bool = False) -> None:
        self._note(f"  {client.pid} flush: {reply.result}")
        if reply.result == 0 and reply.session and not client.held:
            expect(f"records in the ring of {client.pid} behind a flush", reply.values[0], 0)
        elif client.declared and not client.is_closed and not may_fail:
            expect(f"flush of {client.pid}", reply.result, 0)

    def _see(self, n: int, name: str) -> None:
        made = self.emitted.get(n)
        if made is None or EVENTS[made.event].split()[0] != name:
            raise Wrong(f"record {n} of {name} was not emitted: {made}")
        client = made.client
        if n in made.seen:
            raise Wrong(f"record {n} of {client.pid} is there twice")
        if made.ended != FOREVER and n not in made.committed:
            raise Wrong(f"record {n} of {client.pid} was not committed")
        is_late = made.ended < client.last_began or (made.seen and n < max(made.seen))
        # Behind a record that was begun in the former ring, or one whose event nobody has registered; or two
        # connections are read in either order.
        may_be_late = client.has_new_ring and (client.has_held or client.by_socket)
        if is_late and not may_be_late and not client.missing[made.event]:
            raise Wrong(f"record {n} of {client.pid} comes too late")
        made.seen.add(n)
        client.seen[made.event] += 1
        client.last_began = max(client.last_began, made.began)

    def _count(self, client: Client, event: int, reply: Reply) -> None:
        """Each record is in one number."""
        _, lost, refused, unwanted, pending, *_ = reply.values
        found = client.seen[event], lost, refused, unwanted
        self._note(f"  {client.pid} e{event}: {found} of {client.tried[event]}")
        missing = client.tried[event] - sum(found)
        if 0 < missing - client.missing[event] <= client.unsure[event]:
            client.missing[event] = missing
        client.unsure[event] = 0
        if missing > client.missing[event] and (client.is_unsure or client.is_closed):
            if not client.is_unsure:
                more = missing - client.missing[event]
                expect("more pending records of a closed session", more, pending - client.pending[event])
            self.reached["a ring is lost"] += 1
            client.missing[event] = missing
        elif 0 <= missing < client.missing[event]:  # what was pending in a closed session's ring is taken in
            client.missing[event] = missing
        client.pending[event] = pending
        if missing != client.missing[event]:
            unseen = [n for made in client.emitted if made.event == event for n in made.committed - made.seen]
            raise Wrong(
                f"{client.pid} e{event}: seen, lost, refused and unwanted are {found},"
                f" of {client.tried[event]}; {unseen} are not there"
            )

    def _check_gone(self, client: Client) -> None:
        if not client.is_safe:
            return
        missing = [
            n
            for made in client.emitted
            if made.event not in self._was_off
            for n in sorted(made.committed - made.seen)
        ]
        if missing:
            raise Wrong(f"{client.pid} has ended, and {missing} are missing")


_BY_WEIGHT = {
    20: "emit",
    10: "step write",
    5: "declare settled",
    3: "program time fork plan",
    2: "kill begin look fall_dead cover flush hold fill",
    1: "restart close exit close_all no_room turn_off manager",
}
WEIGHTS = {name: weight for weight, names in _BY_WEIGHT.items() for name in names.split()}


def steps_of(seed: int, number: int) -> list[Step]:
    choose = random.Random(seed)
    names = choose.choices(list(WEIGHTS), list(WEIGHTS.values()), k=number)
    return [(name, *(choose.randrange(1 << 16) for _ in range(4))) for name in names]


@functools.cache
def host() -> Host:
    """One for all runs of this process."""
    made = Host(build("build/tests/simulated") / "tests" / "simulated")
    atexit.register(made.close)
    return made


def world(of: Host | None = None) -> AbstractContextManager[World]:
    """of: its programs; None: as they are built."""
    made = of or host()
    return a_world(lambda folder: ClientWorld(folder, made))
