"""The world's machine: its clock, its two cpus, its processes and users, all in one process.

Processes are rows of a table. /proc shows them, sockets have their credentials, and they end when a step says
so. Nothing of it is the machine's below, so a run does not depend on it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import attrs

import utracefsd.daemon
from tests.simulation.parts import MOST_EVENTS, MOST_FIELDS, PLUG_IN
from tests.simulation.rings import DATA_RINGS, DataRing
from utracefsd.connections import data_connection, port
from utracefsd.consumers.plugins import plugins
from utracefsd.consumers.plugins.contract import Record as PluginRecord
from utracefsd.intake import rings as intake_rings
from utracefsd.intake._giving_back import GivingBack
from utracefsd.machine import _machine, peer, procfs, shares
from utracefsd.machine.shares import Resource
from utracefsd.state import folder, living, log_file

CPUS = 2
MOST = {
    Resource.CONNECTIONS: 2,
    Resource.RING_BYTES: DataRing.counted(max(DATA_RINGS)),
    Resource.MESSAGE_BYTES: 4096,
    Resource.EVENTS: MOST_EVENTS,
    Resource.FIELDS: MOST_FIELDS,
    Resource.REGISTRATIONS: 4,
    Resource.ENABLERS: 2,
    Resource.ENABLER_PAGES: 1,
}
"""Limits of each user but root, so small that programs reach them."""
DESCRIPTORS = 32
"""The daemon's for producers: a quarter of them may be connections of a user that wait to be accepted."""
PIECE_BYTES = 8 << 10
"""Received at once: so few that a daemon which ends leaves some in a socket for its last look."""
AT_ONCE = 2
"""So many registrations are counted together."""
FIRST_PID = 4_200_000
"""Above the largest pid of a machine."""
ALWAYS_THERE = 3
"""Processes up to this pid, in this world: `set_event_notrace_pid` names them."""


class Store:
    """The service manager's: keeps data rings beyond the daemon."""

    def __init__(self) -> None:
        self.limit = 0
        self.kept: dict[str, int] = {}

    def keep(self, name: str, fd: int) -> bool:
        if name not in self.kept and len(self.kept) >= self.limit:
            return False
        if name not in self.kept:
            self.kept[name] = os.dup(fd)
        return True

    def drop(self, name: str) -> None:
        os.close(self.kept.pop(name))

    def given(self) -> list[int]:
        """For the next daemon."""
        return [os.dup(fd) for fd in self.kept.values()]

    def close(self) -> None:
        for name in list(self.kept):
            self.drop(name)


class Listener:
    """A listening socket of the service manager's: connections in its queue outlive a daemon."""

    def __init__(self) -> None:
        self._queue: deque[socket.socket] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable while connections wait."""
        self.errors: list[int] = []
        """Errors of the next calls of accept(2)."""

    def fileno(self) -> int:
        return self._bell

    def setblocking(self, _: bool) -> None: ...

    def arrive(self, sock: socket.socket) -> None:
        self._queue.append(sock)
        os.eventfd_write(self._bell, 1)

    def accept(self) -> tuple[socket.socket, str]:
        if not self._queue:
            raise BlockingIOError
        if self.errors:
            number = self.errors.pop()
            raise OSError(number, os.strerror(number))
        sock = self._queue.popleft()
        if not self._queue:
            os.eventfd_read(self._bell)
        return sock, ""

    def clear(self) -> None:
        while self._queue:
            self.accept()[0].close()

    def close(self) -> None:
        self.clear()
        os.close(self._bell)


_real_make_log = log_file.LogFile.make


def _make_log(path: Path, room: int, data: bytes = b"") -> log_file.LogFile:
    """Without the reserve, so that it is full at times."""
    return _real_make_log(path, max(room // 2, len(data)) + 64, data)


class PlugIn:
    """A plug-in, whose thread runs when the daemon calls `look`."""

    name = PLUG_IN

    def __init__(self) -> None:
        self.got: dict[bytes, list[int]] = {}
        """By event: the numbers of its records."""

    def load(self) -> Callable[[], PlugIn]:
        return lambda: self

    def take(self, batch: Sequence[PluginRecord]) -> None:
        for record in batch:
            self.got.setdefault(record.event, []).append(int(struct.unpack_from("<Q", record.payload)[0]))


class _Threading:
    """No thread begins."""

    Event, Lock = threading.Event, threading.Lock

    class Thread:
        def __init__(self, **_: object) -> None: ...

        def start(self) -> None: ...


class _GivingBack:
    """The daemon's thread gives memory back at once."""

    start = GivingBack.run


class _Worker(plugins.Worker):
    """Its thread is the daemon's."""

    def post(self, do: Callable[[], Any]) -> Future[Any]:
        job = super().post(do)
        self._work()
        return job

    def look(self) -> None:
        self._work()

    def close(self, timeout_s: float) -> bool:
        self.sink.close()
        self._work()
        self._ring.close()
        os.close(self._bell)
        return True


class Machine:
    def __init__(self) -> None:
        self.plug_in = PlugIn()
        self.now = 1_000_000_000_000
        self.tick_ns = 0
        """Each read of the clock takes so long."""
        self.cpu = 0
        """On which the daemon runs."""
        self.moves = 0
        """Jumps of the clock of a millisecond and more."""
        self.processes: dict[int, tuple[int, int]] = {}
        """By pid: user, start time."""
        self.owner_of: dict[int, tuple[int, int]] = {}
        """The process that connected and its user, by the descriptor of the daemon's end."""
        self._next = FIRST_PID
        self._exists = os.path.exists
        self._read = procfs._read

    def start(self, uid: int) -> int:
        pid, self._next = self._next, self._next + 1
        self.processes[pid] = uid, pid - FIRST_PID + 100
        return pid

    def set_time(self, tick_ns: int = 0) -> None:
        _machine.simulate(self.now, tick_ns or self.tick_ns, self.cpu)

    def pass_time(self, ns: int) -> None:
        self.moves += ns >= 1_000_000
        self.now = max(self.now, _machine.monotonic_ns()) + ns
        self.set_time()

    def cpu_of(self, pid: int) -> int:
        """On which it sleeps."""
        return pid % CPUS

    def read(self, path: str, most: int = 4096) -> bytes:
        _, proc, pid, name = path.split("/", 3)
        if proc != "proc" or not pid.isdigit() or ALWAYS_THERE < int(pid) < FIRST_PID:
            return self._read(path, most)
        if int(pid) <= ALWAYS_THERE:
            uid, start = 0, 1
        elif int(pid) in self.processes:
            uid, start = self.processes[int(pid)]
        else:
            raise FileNotFoundError(path)
        if name == "comm":
            return f"p{uid}\n".encode()
        if name == "status":
            return f"Name:\tp{uid}\nTgid:\t{pid}\nPPid:\t0\nNSpid:\t{pid}\n".encode()
        values = ["S", *["0"] * 50]
        values[19], values[36] = str(start), str(self.cpu_of(int(pid)))
        return f"{pid} (p{uid}) {' '.join(values)}\n".encode()

    def exists(self, path: str) -> bool:
        parts = str(path).split("/")
        if parts[1:2] == ["proc"] and parts[2].isdigit() and int(parts[2]) >= FIRST_PID:
            return int(parts[2]) in self.processes and int(parts[-1]) in self.processes
        return self._exists(path)

    def credentials(self, sock: socket.socket) -> tuple[int, int, int]:
        pid, uid = self.owner_of[sock.fileno()]
        return pid, uid, uid

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        limits = dict(shares.LIMITS)
        for resource, most in MOST.items():
            limits[resource] = attrs.evolve(limits[resource], most=most)
        places = [
            (procfs, "_read", self.read),
            (peer, "_credentials", self.credentials),
            (peer, "_still_lives", lambda sock: True),
            (procfs, "tsc_is_trusted", lambda: False),
            (os.path, "exists", self.exists),
            (shares, "LIMITS", limits),
            (secrets, "token_hex", lambda size: "0" * 2 * size),
            (data_connection, "REGISTRATIONS_AT_ONCE", AT_ONCE),
            (port, "PIECE_BYTES", PIECE_BYTES),
            (log_file, "PAGE", 256),
            (living, "_TOO_MUCH", 1),
            *((place, "FIRST_ROOM", 256) for place in (folder, living, log_file)),
            (log_file.LogFile, "make", _make_log),
            (plugins, "Worker", _Worker),
            (plugins, "threading", _Threading),
            (intake_rings, "begin", lambda: None),
            (intake_rings, "GivingBack", _GivingBack),
            (utracefsd.daemon, "Installed", lambda names: lambda: [self.plug_in]),
            (utracefsd.daemon, "possible_cpus", lambda: CPUS),
            (utracefsd.daemon, "free_memory_kb", lambda: 1 << 20),
        ]
        real = [(place, name, getattr(place, name)) for place, name, _ in places]
        for place, name, ours in places:
            setattr(place, name, ours)
        self.set_time()
        try:
            yield
        finally:
            _machine.simulate(0)
            for place, name, theirs in real:
                setattr(place, name, theirs)
