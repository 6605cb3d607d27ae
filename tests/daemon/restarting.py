"""Daemons that are killed and the next ones: helpers for tests of the state."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack

from tests.daemon.connections.program import NO_STORE
from tests.daemon.record_path import write as write_record
from utracefsd.daemon import Daemon, DaemonOptions
from utracefsd.events.event import CommandString, Event
from utracefsd.machine.peer import Peer
from utracefsd.state.log_file import read_log_file

ROOT = Peer(pid=os.getpid(), uid=0, gid=0, privileged=True)
NO_ROOM = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG]
WARNING = "will not survive a restart"

_dead: list[Daemon] = []


class Clock:
    now = 1_000_000_000_000

    def __call__(self) -> int:
        return self.now


@contextlib.contextmanager
def one_cpu() -> Iterator[int]:
    """This process, and programs that it starts meanwhile, run on this cpu alone."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        yield min(cpus)
    finally:
        os.sched_setaffinity(0, cpus)


def daemon_in(
    folder: Path, clock: Callable[[], int] = time.monotonic_ns, *, started_ms: int = 0, **options: Any
) -> Daemon:
    return Daemon(
        DaemonOptions(plugins=[], **options),
        now_ns=clock,
        started_ms=started_ms,
        status_path=folder / "user_events_status",
        state_folder=folder,
        store=NO_STORE,
    )


def die(daemon: Daemon) -> None:
    """The state after a SIGKILL: without `close`. The objects stay until the test ends, so that nothing is
    unmapped."""
    _dead.append(daemon)


def finish(daemon: Daemon) -> None:
    """An end for good: nothing is left."""
    daemon.remove_state = True
    daemon.close()


def bury() -> None:
    """After a test: free the killed ones, with their descriptors."""
    while _dead:
        finish(_dead.pop())


def register(daemon: Daemon, command: bytes, flags: int = 0) -> Event:
    event = daemon.table.register(CommandString.parse(command), flags, privileged=True)
    daemon.table.acquire(event)
    return event


def write(daemon: Daemon, path: bytes, data: bytes, truncate: bool = True) -> None:
    """A write through the tree as an administrator's connection makes it."""
    daemon.take_in_all()
    daemon.tree.write_file(path, data, truncate, ROOT)
    daemon.save()


def read(daemon: Daemon, path: bytes) -> bytes:
    return b"".join(filter(None, daemon.tree.read_pieces(path, ROOT)))


def packed(*things: Any) -> bytes:
    return b"".join(msgpack.packb(thing) for thing in things)


def emit(event: Event, n: int) -> None:
    """A record with the field n, on cpu 0 or 1."""
    payload = struct.pack("<I", n)
    assert write_record(event.tracepoint, payload, ts_ns=time.monotonic_ns(), cpu=n % 2, pid=os.getpid()) == 0


def logged(folder: Path) -> bytes:
    """The lines of the log of the state."""
    found = read_log_file(folder / "state")
    assert found is not None
    return found[0]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
